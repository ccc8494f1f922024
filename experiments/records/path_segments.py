"""The critical path of a timeline as segments, whose times add up to the makespan, each with its time by cause.

The path comes from `Timeline.critical_path`, from the start of the first rank to the end
of the last rank.  Each span on the path takes the time from the end of the previous
segment to its own end.

    rank 0   multiply ──────┐
    rank 1   multiply ───────────┐ sum C (last to arrive)
    rank 0                  sum C ·····──────────         path: multiply on 1, then sum C on 0

If a member of a group waited for the last member to arrive, the path continues on that
member, and the waiting time is not on the path.  The remaining waiting time is inside a
collective: one step of a member waits for a step of another member.

    compute     local work
    latency     overheads and latencies of steps
    bandwidth   transfers, with their time without contention
    contention  time that shared links, cores and memory add
    waiting     waiting for a step of another member of the group
    other       no op of the path runs: time between two ops, or an end that no op explains
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
"""Share of a segment below which a difference of two times counts as zero."""
MOST_SEGMENTS = 100
"""Largest number of segments in order; in a longer path all segments of an op are joined."""


def path_segments(timeline: Timeline, parts_of: Callable[[Span], Parts]) -> tuple[PathSegment, ...]:
    """The segments of the critical path, in order; the segments of a long path are joined by op.

    Parameters
    ----------
    parts_of : function that returns the time of a span, from its start to its end, by cause [s]; empty if it is unknown

    >>> a = Span(0, "multiply", "gemm", "compute", ready=0, start=0, arrival=0, end=3)
    >>> b = Span(0, "sum C", "all_reduce", "y", ready=3, start=3, arrival=3, end=5)
    >>> for segment in path_segments(Timeline((a, b), "predicted", ranks=1), lambda span: {}):
    ...     print(segment.op, segment.seconds, segment.seconds_by_part)
    multiply 3.0 {'compute': 3.0}
    sum C 2.0 {'bandwidth': 2.0}
    """
    segments = list(_segments(timeline, parts_of))
    runs = [_joined(run) for _, run in groupby(segments, key=lambda segment: (segment.op, segment.rank))]
    return tuple(runs if len(runs) <= MOST_SEGMENTS else by_op(runs))


def by_op(path: Iterable[PathSegment]) -> list[PathSegment]:
    """The segments with those of each op joined, in the order of the first; with the rank if it is always the same."""
    ops: dict[str, list[PathSegment]] = {}
    for segment in path:
        ops.setdefault(segment.op, []).append(segment)
    return [_joined(of_op) for of_op in ops.values()]


def by_part(path: Iterable[PathSegment]) -> dict[PathPart, float]:
    """Time of the whole path by cause, with all causes [s]."""
    seconds_by_part: dict[PathPart, float] = dict.fromkeys(PARTS, 0.0)
    for segment in path:
        for part, seconds in segment.seconds_by_part.items():
            seconds_by_part[part] += seconds
    return seconds_by_part


def _segments(timeline: Timeline, parts_of: Callable[[Span], Parts]) -> Iterator[PathSegment]:
    """A segment for each span on the path that takes time."""
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
    """Whether the next span on the path belongs to a member that waited for this span's rank."""
    together = span.group != ALONE and (span.op, span.group, span.index) == (
        following.op,
        following.group,
        following.index,
    )
    return together and following.start < span.start


def _parts_after(span: Span, now: float, seconds_by_part: Parts) -> dict[PathPart, float]:
    """Time by cause from `now` to the end of a span [s].

    A gap before the start of the span is `other`.  If the span began before `now`, the time
    before `now` is subtracted from its waiting time first, because the path was elsewhere
    while this rank had no work; the remainder is subtracted from all causes in proportion.
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
    """The causes whose time is more than a rounding error, in their order."""
    least = ROUNDING * sum(parts.values())
    return {part: float(parts[part]) for part in PARTS if parts.get(part, 0.0) > least}


def _joined(run: Iterable[PathSegment]) -> PathSegment:
    """The segments of one op as one segment."""
    members = list(run)
    ranks = {segment.rank for segment in members}
    return PathSegment(
        op=members[0].op,
        rank=ranks.pop() if len(ranks) == 1 else None,
        count=sum(segment.count for segment in members),
        seconds=sum(segment.seconds for segment in members),
        seconds_by_part=_nonzero(by_part(members)),
    )
