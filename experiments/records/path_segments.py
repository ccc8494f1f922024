"""The critical path of a timeline as segments, whose times add up to the makespan, each with its time by cause.

The path comes from `Timeline.critical_path`, from the start of the first rank to the end
of the last rank.  Each span on the path takes the time from the end of the previous
segment to its own end.

    rank 0   multiply ──────┐
    rank 1   multiply ───────────┐ sum C (last to arrive)
    rank 0                  sum C ·····──────────         path: multiply on 1, then sum C on 0

If a member of a group waited for the last member to arrive, or one end of a message for
the other, the path continues on the rank that arrived last, and the waiting time is not
on the path.  The remaining waiting time is inside a collective: one step of a member
waits for a step of another member.

    compute     local work
    latency     overheads and latencies of steps
    bandwidth   transfers, with their time without contention
    contention  time that shared links, cores and memory add
    waiting     waiting for a step of another member of the group
    other       no op of the path runs: time between two ops, or an end that no op explains
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import get_args

from msgspec import structs

from quadrille.algorithms.formats.record import PathPart, PathSegment
from quadrille.algorithms.timelines.spans import COMPUTE, RepeatedIterations, Span
from quadrille.algorithms.timelines.timeline import Timeline

SecondsByCause = Mapping[PathPart, float]
PARTS: tuple[PathPart, ...] = get_args(PathPart)
ROUNDING = 1e-13
"""Share of a segment below which a difference of two times counts as zero."""
MOST_SEGMENTS = 100
"""Largest number of segments in order; in a longer path all segments of an op are joined."""


def path_segments(timeline: Timeline, parts_of: Callable[[Span], SecondsByCause]) -> tuple[PathSegment, ...]:
    """The segments of the critical path, in order; the segments of a long path are joined by op.

    Parameters
    ----------
    timeline : spans of all ranks, predicted or measured
    parts_of : function that returns the time of a span, from its start to its end, by cause [s]; empty if it is unknown

    >>> a = Span(0, "multiply", "gemm", "compute", ready=0, start=0, arrival=0, end=3)
    >>> b = Span(0, "sum C", "all_reduce", "y", ready=3, start=3, arrival=3, end=5)
    >>> for segment in path_segments(Timeline((a, b), "predicted", ranks=1), lambda span: {}):
    ...     print(segment.op, segment.seconds, segment.seconds_by_part)
    multiply 3.0 {'compute': 3.0}
    sum C 2.0 {'bandwidth': 2.0}
    """
    if timeline.repeated:
        by_op = _joined_iterations(timeline, parts_of)
        if sum(segment.count for segment in by_op) > MOST_SEGMENTS:
            return tuple(by_op)
    segments = (segment for segment, _ in _timed_segments(timeline, parts_of))
    runs = [_joined_segment(run) for _, run in groupby(segments, key=lambda segment: (segment.op, segment.rank))]
    return tuple(runs if len(runs) <= MOST_SEGMENTS else joined_by_op(runs))


def joined_by_op(path: Iterable[PathSegment]) -> list[PathSegment]:
    """One segment for each op of the path, in the order of the ops' first segments.

    A joined segment has a rank only if all segments of the op have the same rank.
    """
    segments_by_op: dict[str, list[PathSegment]] = {}
    for segment in path:
        segments_by_op.setdefault(segment.op, []).append(segment)
    return [_joined_segment(segments) for segments in segments_by_op.values()]


def path_seconds_by_cause(path: Iterable[PathSegment]) -> dict[PathPart, float]:
    """Time of the whole path by cause, with all causes [s]."""
    seconds_by_part: dict[PathPart, float] = dict.fromkeys(PARTS, 0.0)
    for segment in path:
        for part, seconds in segment.seconds_by_part.items():
            seconds_by_part[part] += seconds
    return seconds_by_part


def _joined_iterations(timeline: Timeline, parts_of: Callable[[Span], SecondsByCause]) -> list[PathSegment]:
    """One segment for each op of the path; the part of a span in the last iteration counts for all iterations."""
    windows = list(_windows(timeline.repeated))
    weights_by_op: dict[str, list[tuple[PathSegment, float, float]]] = {}
    for segment, end in _timed_segments(timeline.without_repeats(), parts_of):
        weight = count = 1.0
        for begin, repeated in windows:
            inside = min(end, begin + repeated.seconds) - max(end - segment.seconds, begin)
            more = repeated.times * max(0.0, inside) / segment.seconds
            weight += more
            count += more if segment.op in repeated.per_iteration else 0.0
        weights_by_op.setdefault(segment.op, []).append((segment, weight, count))
    return [_weighted_segment(weights) for weights in weights_by_op.values()]


def _weighted_segment(weights: Sequence[tuple[PathSegment, float, float]]) -> PathSegment:
    """The segments of one op as one segment; each has the weight of its time, and that of its count."""
    parts: dict[PathPart, float] = dict.fromkeys(PARTS, 0.0)
    for segment, weight, _ in weights:
        for part, seconds in segment.seconds_by_part.items():
            parts[part] += weight * seconds
    return structs.replace(
        _joined_segment([segment for segment, _, _ in weights]),
        count=round(sum(count for _, _, count in weights)),
        seconds=sum(weight * segment.seconds for segment, weight, _ in weights),
        seconds_by_part=_significant_parts(parts),
    )


def _windows(repeats: Sequence[RepeatedIterations]) -> Iterator[tuple[float, RepeatedIterations]]:
    """The iterations of each loop, and the begin of the last of them without the time of earlier ones [s]."""
    for repeated in repeats:
        skipped = sum(earlier.times * earlier.seconds for earlier in repeats if repeated.start >= earlier.start)
        yield repeated.start - skipped, repeated


def _timed_segments(
    timeline: Timeline, parts_of: Callable[[Span], SecondsByCause]
) -> Iterator[tuple[PathSegment, float]]:
    """A segment for each span on the path that takes time, and its end [s]."""
    path = timeline.critical_path()
    now = timeline.start
    for span, following in zip(path, (*path[1:], None), strict=True):
        late = following is not None and following.rank != span.rank and following.start < span.start
        until = span.start if late else span.end
        if until <= now:
            continue
        parts: SecondsByCause = {"other": until - now} if late else _parts_after(span, now, parts_of(span))
        seconds_by_part = _significant_parts(parts)
        yield (
            PathSegment(op=span.op, rank=span.rank, seconds=float(until - now), seconds_by_part=seconds_by_part),
            until,
        )
        now = until


def _parts_after(span: Span, now: float, seconds_by_part: SecondsByCause) -> dict[PathPart, float]:
    """Time by cause from `now` to the end of a span [s].

    Parameters
    ----------
    span : span on the critical path
    now : end of the previous segment [s]
    seconds_by_part : time of the whole span by cause [s]; empty if it is unknown

    A gap before the start of the span is `other`.  If the span began before `now`, the time
    before `now` is subtracted from its waiting time first, because the path was elsewhere
    while this rank had no work; the remainder is subtracted from all causes in proportion.
    """
    whole = span.end - span.start
    parts = dict(seconds_by_part) or {"compute" if span.lane == COMPUTE else "bandwidth": whole}
    before = max(0.0, now - span.start)
    waiting_before = min(before, parts.get("waiting", 0.0))
    if waiting_before:
        parts["waiting"] -= waiting_before
    remainder = sum(parts.values())
    share = (whole - before) / remainder if remainder > 0 else 0.0
    parts = {part: seconds * share for part, seconds in parts.items()}
    gap = max(0.0, span.start - now)
    parts["other"] = parts.get("other", 0.0) + gap + (whole - before if remainder <= 0 else 0.0)
    return parts


def _significant_parts(parts: SecondsByCause) -> dict[PathPart, float]:
    """The causes whose time is more than a rounding error, in their order."""
    least = ROUNDING * sum(parts.values())
    return {part: float(parts[part]) for part in PARTS if parts.get(part, 0.0) > least}


def _joined_segment(run: Iterable[PathSegment]) -> PathSegment:
    """The segments of one op as one segment."""
    members = list(run)
    ranks = {segment.rank for segment in members}
    return PathSegment(
        op=members[0].op,
        rank=ranks.pop() if len(ranks) == 1 else None,
        count=sum(segment.count for segment in members),
        seconds=sum(segment.seconds for segment in members),
        seconds_by_part=_significant_parts(path_seconds_by_cause(members)),
    )
