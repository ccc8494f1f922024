"""Comparisons of two predictions of one schedule, and times of one op in a prediction."""

import pytest


def span_key(span):
    """Rank, op and index of a span."""
    return span.rank, span.op, span.index


def seconds_of(prediction, op):
    """Seconds of the only span of an op on rank 0."""
    (span,) = (span for span in prediction.timeline.spans if span.op == op and span.rank == 0)
    return span.end - span.start


def check_same_spans(one, other, seconds=1e-9):
    """Every span of every rank, the parts of every op and the time breakdown of every span are the same.

    Parameters
    ----------
    seconds : largest difference, as a fraction of the makespan
    """
    makespan = other.timeline.makespan
    mine, theirs = sorted(one.timeline.spans, key=span_key), sorted(other.timeline.spans, key=span_key)
    assert [span_key(span) for span in mine] == [span_key(span) for span in theirs]
    for span, twin in zip(mine, theirs, strict=True):
        assert span.group == twin.group
        for time in ("ready", "start", "arrival", "end"):
            assert getattr(span, time) == pytest.approx(getattr(twin, time), abs=seconds * makespan)
        breakdown = one.parts_of(span)
        assert sum(breakdown.values()) == pytest.approx(span.end - span.start, abs=seconds * makespan)
    for op, parts in other.parts.items():
        assert one.parts[op] == pytest.approx(parts, abs=seconds * makespan)
    assert one.contention == pytest.approx(other.contention, abs=seconds * makespan)


def check_same_op_times(one, other):
    """The makespans and the mean seconds of every op are the same."""
    assert one.timeline.makespan == pytest.approx(other.timeline.makespan, rel=1e-9)
    mine, theirs = one.timeline.op_times(), other.timeline.op_times()
    assert mine.keys() == theirs.keys()
    for name, times in theirs.items():
        assert mine[name].count == times.count
        assert mine[name].seconds == pytest.approx(times.seconds, rel=1e-9, abs=1e-9 * other.timeline.makespan)
