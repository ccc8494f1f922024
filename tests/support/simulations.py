"""Two simulations of the same schedule, compared span by span."""

import pytest


def key(span):
    """What tells a span from all others of its timeline."""
    return span.rank, span.op, span.index


def check_same(one, other, seconds=1e-9):
    """Every span of every rank, the parts of every op and the parts of every span are the same."""
    makespan = other.timeline.makespan
    mine, theirs = sorted(one.timeline.spans, key=key), sorted(other.timeline.spans, key=key)
    assert [key(span) for span in mine] == [key(span) for span in theirs]
    for span, twin in zip(mine, theirs, strict=True):
        assert span.group == twin.group
        for time in ("ready", "start", "arrival", "end"):
            assert getattr(span, time) == pytest.approx(getattr(twin, time), abs=seconds * makespan)
        parts = one.parts_of(span)
        assert sum(parts.values()) == pytest.approx(span.end - span.start, abs=seconds * makespan)
    for op, parts in other.parts.items():
        assert one.parts[op] == pytest.approx(parts, abs=seconds * makespan)
    assert one.contention == pytest.approx(other.contention, abs=seconds * makespan)
