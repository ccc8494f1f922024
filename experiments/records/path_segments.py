"""The critical path of a timeline in stretches, whose seconds add up to the makespan, and what each is made of.

The path comes from `Timeline.critical_path`, from the first rank's start to the
last rank's end.  A clock goes along it: each span on the path takes the time
from where the span before it left off until its own end.

    rank 0   multiply ──────┐
    rank 1   multiply ───────────┐ sum C (last to arrive)
    rank 0                  sum C ·····──────────         path: multiply on 1, then sum C on 0

Where a member of a group waited for the last one to arrive, the path goes over
to that one, and its waiting is not on the path.  Waiting that is left is inside
a collective: one step of a member waits for a step of another.

    compute     local work
    latency     overheads and latencies of steps
    bandwidth   transfers, as long as they would take alone on their routes
    contention  what sharing links, cores and memory adds
    waiting     for a step of another member of the group
    other       nothing of the path runs: between two ops, or an end that no op explains
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import get_args

from quadrille.algorithms.formats.record import PathPart, PathSegment
from quadrille.algorithms.timelines.spans import ALONE, COMPUTE, Span
from quadrille.algorithms.timelines.timeline import Timeline

Parts = Mapping[PathPart, float]
PARTS: tuple[PathPart, ...] = get_args(PathPart)
ROUNDING = 1e-13
"""Part of a stretch below which a difference of two times is none."""
MOST_STATIONS = 100
"""Stretches kept in their order; of a longer path all stretches of an op are one."""


def stations(timeline: Timeline, parts_of: Callable[[Span], Parts]) -> tuple[PathSegment, ...]:
    """The stretches of the critical path, in order; those of a long path are summed by op.

    >>> a = Span(0, "multiply", "gemm", "compute", ready=0, start=0, arrival=0, end=3)
    >>> b = Span(0, "sum C", "all_reduce", "y", ready=3, start=3, arrival=3, end=5)
    >>> for one in stations(Timeline((a, b), "predicted", ranks=1), lambda span: {}):
    ...     print(one.op, one.seconds, one.seconds_by_part)
    multiply 3.0 {'compute': 3.0}
    sum C 2.0 {'bandwidth': 2.0}

    Parameters
    ----------
    parts_of : seconds of a span by part, which add up to those from its start to its end; empty if not known
    """
    stretches = list(_stretches(timeline, parts_of))
    runs = [_joined(run) for _, run in groupby(stretches, key=lambda segment: (segment.op, segment.rank))]
    return tuple(runs if len(runs) <= MOST_STATIONS else by_op(runs))


def by_op(path: Iterable[PathSegment]) -> list[PathSegment]:
    """The stretches of each op as one, in the order of the first; the rank is named where it is always the same."""
    ops: dict[str, list[PathSegment]] = {}
    for segment in path:
        ops.setdefault(segment.op, []).append(segment)
    return [_joined(of_op) for of_op in ops.values()]


def by_part(path: Iterable[PathSegment]) -> dict[PathPart, float]:
    """Seconds of the whole path by part, all parts named."""
    seconds_by_part: dict[PathPart, float] = dict.fromkeys(PARTS, 0.0)
    for segment in path:
        for part, seconds in segment.seconds_by_part.items():
            seconds_by_part[part] += seconds
    return seconds_by_part


def _stretches(timeline: Timeline, parts_of: Callable[[Span], Parts]) -> Iterator[PathSegment]:
    """One stretch for each span on the path that takes time."""
    path = timeline.critical_path()
    now = timeline.start
    for span, following in zip(path, (*path[1:], None), strict=True):
        late = following is not None and _arrived_last(span, following)
        until = span.start if late else span.end
        if until <= now:
            continue
        parts: Parts = {"other": until - now} if late else _parts_after(span, now, parts_of(span))
        yield PathSegment(op=span.op, rank=span.rank, seconds=float(until - now), seconds_by_part=_nonzero(parts))
        now = until


def _arrived_last(span: Span, following: Span) -> bool:
    """Whether the next span on the path is a member that waited for this one."""
    together = span.group != ALONE and (span.op, span.group, span.index) == (
        following.op,
        following.group,
        following.index,
    )
    return together and following.start < span.start


def _parts_after(span: Span, now: float, seconds_by_part: Parts) -> dict[PathPart, float]:
    """What the time from `now` to the end of a span is made of.

    A gap before its start is `other`.  Of a span that began before `now`, what
    lies before is taken off its waiting first, since the path was elsewhere
    because this rank had nothing to do, and what is left of it off all parts alike.
    """
    whole = span.end - span.start
    parts = dict(seconds_by_part) or {"compute" if span.lane == COMPUTE else "bandwidth": whole}
    before = max(0.0, now - span.start)
    less = min(before, parts.get("waiting", 0.0))
    if less:
        parts["waiting"] -= less
    left = sum(parts.values())
    share = (whole - before) / left if left > 0 else 0.0
    parts = {part: seconds * share for part, seconds in parts.items()}
    gap = max(0.0, span.start - now)
    parts["other"] = parts.get("other", 0.0) + gap + (whole - before if left <= 0 else 0.0)
    return parts


def _nonzero(parts: Parts) -> dict[PathPart, float]:
    """The parts that are more than rounding, in their order."""
    least = ROUNDING * sum(parts.values())
    return {part: float(parts[part]) for part in PARTS if parts.get(part, 0.0) > least}


def _joined(run: Iterable[PathSegment]) -> PathSegment:
    """Stretches of one op as one."""
    members = list(run)
    ranks = {segment.rank for segment in members}
    return PathSegment(
        op=members[0].op,
        rank=ranks.pop() if len(ranks) == 1 else None,
        count=sum(segment.count for segment in members),
        seconds=sum(segment.seconds for segment in members),
        seconds_by_part=_nonzero(by_part(members)),
    )
