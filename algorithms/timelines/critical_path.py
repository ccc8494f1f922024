"""The critical path of a timeline: the chain of spans that determines its end.

Run-length encoded loop iterations are visited one by one, but only along the chain; spans of other ranks and lanes are
not expanded.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import floor

from quadrille.algorithms.timelines.spans import ALONE, RepeatedIterations, Span

Instance = tuple[int, str, int, int]
"""Rank, op, index and group of a collective span."""


def critical_path(spans: Sequence[Span], repeats: Sequence[RepeatedIterations] = ()) -> tuple[Span, ...]:
    """Returns the chain of spans that determines the end, first to last.

    Going back from the span that ends last, the predecessor of a span is the member of its group that arrived last;
    otherwise the previous span on its lane, if that ended after all its dependencies; otherwise the span of its rank
    that ended when it became ready.  A span that starts later than both, because the program of its rank issues it
    later, follows the span of its rank that ended at its start.  Ties are broken by rank, then lane and op, so the
    order of the input does not matter.

    Parameters
    ----------
    spans : spans of all ranks
    repeats : loop iterations of which only the last is among the spans
    """
    if not spans:
        return ()
    members, rank_ends, lane_ends = _Members(spans, repeats), _ends(spans, repeats, False), _ends(spans, repeats, True)
    tolerance = 1e-12 * max(abs(span.end) for span in spans)

    current: Span | None = min(spans, key=lambda span: (-span.end, -span.start, *_span_key(span)))
    path: list[Span] = []
    used: set[Span] = set()
    while current is not None:
        path.append(current)
        used.add(current)
        last = members.last(current)
        if last.start > current.start + tolerance and last.start <= current.end and last not in used:
            current = last
            continue
        before = lane_ends[current.rank, current.lane].latest(current.start + tolerance, used)
        if before is None or before.end <= current.ready + tolerance:
            before = rank_ends[current.rank, ""].latest(current.ready + tolerance, used)
        if before is None or before.end < current.start - tolerance:
            issuing = rank_ends[current.rank, ""].latest(current.start + tolerance, used)
            before = issuing if issuing is not None and issuing.end >= current.start - tolerance else before
        current = before
    return tuple(reversed(path))


def _span_key(span: Span) -> tuple[int, str, str, int]:
    """Key that distinguishes spans of the same time."""
    return span.rank, span.lane, span.op, span.group


def _latest_first(span: Span) -> tuple[float, float, tuple[int, str, str, int]]:
    """Sort key of candidate predecessors: latest end first, then longest."""
    return -span.end, span.start, _span_key(span)


class _Members:
    """Members of each collective, in every iteration."""

    def __init__(self, spans: Iterable[Span], repeats: Sequence[RepeatedIterations]) -> None:
        self._repeats = repeats
        self._spans: dict[Instance, Span] = {}
        self._repeated: list[dict[Instance, Span]] = [{} for _ in repeats]
        self._ranks: dict[tuple[object, ...], dict[int, None]] = defaultdict(dict)
        self._last: dict[tuple[object, ...], Span] = {}
        for span in spans:
            if span.group != ALONE:
                latest = self._spans.setdefault((span.rank, span.op, span.index, span.group), span)
                if span.start > latest.start:
                    self._spans[span.rank, span.op, span.index, span.group] = span
                self._ranks[span.op, span.axis, span.group][span.rank] = None
                for iterations, repeated in zip(repeats, self._repeated, strict=True):
                    if iterations.includes(span):
                        repeated[span.rank, span.op, span.index % iterations.per_iteration[span.op], span.group] = span

    def last(self, span: Span) -> Span:
        """Member of the span's group that started last; the span itself if it is alone."""
        if span.group == ALONE:
            return span
        last_member = self._last.get(span.instance)
        if last_member is None:
            every = (self._find(rank, span) for rank in sorted(self._ranks[span.op, span.axis, span.group]))
            together = [member for member in every if member is not None and member.axis == span.axis]
            last_member = self._last[span.instance] = max(together, key=lambda member: member.start, default=span)
        return last_member

    def _find(self, rank: int, span: Span) -> Span | None:
        """Span of a rank in the same collective, derived from the last iteration if necessary."""
        span_of_rank = self._spans.get((rank, span.op, span.index, span.group))
        if span_of_rank is not None:
            return span_of_rank
        for iterations, repeated in zip(self._repeats, self._repeated, strict=True):
            each = iterations.per_iteration.get(span.op, 1)
            later = repeated.get((rank, span.op, span.index % each, span.group))
            if later is not None and 1 <= (later.index - span.index) // each <= iterations.times:
                return iterations.earlier(later, (later.index - span.index) // each)
        return None


class _Ends:
    """Spans by end time."""

    def __init__(self, spans: Iterable[Span], repeats: Iterable[RepeatedIterations]) -> None:
        self._spans = sorted(spans, key=_latest_first, reverse=True)
        self._ends = [span.end for span in self._spans]
        repeated = ((iterations, [span for span in self._spans if iterations.includes(span)]) for iterations in repeats)
        self._repeated = [_Repeated(last, iterations) for iterations, last in repeated if last]

    def latest(self, time: float, used: set[Span]) -> Span | None:
        """Latest span that ended by `time` and is not used."""
        place = bisect_right(self._ends, time) - 1
        while place >= 0 and self._spans[place] in used:
            place -= 1
        latest = self._spans[place] if place >= 0 else None
        for iterations in self._repeated:
            if iterations.first_end <= time and (latest is None or iterations.last_end >= latest.end):
                earlier = next((span for span in iterations.down_from(time) if span not in used), None)
                latest = min((span for span in (latest, earlier) if span is not None), key=_latest_first, default=None)
        return latest


class _Repeated:
    """Spans of an iteration, in the iterations before it.

    Time is divided into cells of one iteration.  A span ends in the cell of the last iteration, or later, and at the
    same position of an earlier cell in each earlier iteration.  `first_end` and `last_end` bound the ends of all of
    them.
    """

    def __init__(self, last: Sequence[Span], iterations: RepeatedIterations) -> None:
        self._iterations = iterations
        cells = [self._cell(span.end) for span in last]
        moved = [span.moved(-cell * iterations.seconds, 0) for span, cell in zip(last, cells, strict=True)]
        order = sorted(range(len(last)), key=lambda number: _latest_first(moved[number]), reverse=True)
        self._places = [moved[number].end for number in order]
        self._spans = [(last[number], cells[number]) for number in order]
        self._first, self._last = min(cells) - iterations.times, max(cells) - 1
        ends = [span.end for span in last]
        slack = 1e-9 * max(map(abs, ends))
        self.first_end = min(ends) - iterations.times * iterations.seconds - slack
        self.last_end = max(ends) - iterations.seconds + slack

    def _cell(self, time: float) -> int:
        return floor((time - self._iterations.start) / self._iterations.seconds)

    def down_from(self, time: float) -> Iterator[Span]:
        """Yields the spans that end by `time`, latest first."""
        seconds = self._iterations.seconds
        cell = min(self._cell(time), self._last)
        place = bisect_right(self._places, time - cell * seconds)
        while cell >= self._first:
            for span, own in reversed(self._spans[:place]):
                if 1 <= own - cell <= self._iterations.times:
                    yield self._iterations.earlier(span, own - cell)
            cell, place = cell - 1, len(self._spans)


def _ends(spans: Iterable[Span], repeats: Sequence[RepeatedIterations], by_lane: bool) -> dict[tuple[int, str], _Ends]:
    """Spans of each rank, or of each of its lanes."""
    spans_by_key: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in spans:
        spans_by_key[span.rank, span.lane if by_lane else ""].append(span)
    return {key: _Ends(of_key, repeats) for key, of_key in spans_by_key.items()}
