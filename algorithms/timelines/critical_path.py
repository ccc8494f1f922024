"""The chain of spans that determines the end of a timeline.

Turns of a loop that are said once are gone through one by one, but only where
the chain goes: spans of other ranks and lanes are never told.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import floor

from quadrille.algorithms.timelines.spans import ALONE, RepeatedIterations, Span

Instance = tuple[int, str, int, int]
"""Rank, op, index and group: what tells the spans of collectives apart."""


def critical_path(spans: Sequence[Span], turns: Sequence[RepeatedIterations] = ()) -> tuple[Span, ...]:
    """The chain of spans that determines the end, first to last.

    Going back from the span that ends last, each span is explained by the
    member of its group that arrived last; else by the span before it on
    its lane, if that ended after all it depends on was done; else by the
    span of its rank that ended when it became ready. Of spans at the same
    time the one of the lowest rank is taken, then by lane and op, so that the
    order in which they are told does not matter.

    Parameters
    ----------
    turns : those of which only the last is among the spans
    """
    if not spans:
        return ()
    members, rank_ends, lane_ends = _Members(spans, turns), _ends(spans, turns, False), _ends(spans, turns, True)
    tolerance = 1e-12 * max(abs(span.end) for span in spans)

    current: Span | None = min(spans, key=lambda span: (-span.end, -span.start, *_name(span)))
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
        current = before
    return tuple(reversed(path))


def _name(span: Span) -> tuple[int, str, str, int]:
    """What tells apart spans of the same time."""
    return span.rank, span.lane, span.op, span.group


def _latest_first(span: Span) -> tuple[float, float, tuple[int, str, str, int]]:
    """The order of what may have held up a span: the last to end first, the longest first."""
    return -span.end, span.start, _name(span)


class _Members:
    """Who does a collective together, in every turn."""

    def __init__(self, spans: Iterable[Span], turns: Sequence[RepeatedIterations]) -> None:
        self._turns = turns
        self._told: dict[Instance, Span] = {}
        self._repeated: list[dict[Instance, Span]] = [{} for _ in turns]
        self._ranks: dict[tuple[object, ...], dict[int, None]] = defaultdict(dict)
        self._last: dict[tuple[object, ...], Span] = {}
        for span in spans:
            if span.group != ALONE:
                known = self._told.setdefault((span.rank, span.op, span.index, span.group), span)
                if span.start > known.start:
                    self._told[span.rank, span.op, span.index, span.group] = span
                self._ranks[span.op, span.axis, span.group][span.rank] = None
                for one, repeated in zip(turns, self._repeated, strict=True):
                    if one.includes(span):
                        repeated[span.rank, span.op, span.index % one.per_iteration[span.op], span.group] = span

    def last(self, span: Span) -> Span:
        """The member of the span's group that started last; itself where it is alone."""
        if span.group == ALONE:
            return span
        found = self._last.get(span.instance)
        if found is None:
            every = (self._find(rank, span) for rank in sorted(self._ranks[span.op, span.axis, span.group]))
            together = [one for one in every if one is not None and one.axis == span.axis]
            found = self._last[span.instance] = max(together, key=lambda one: one.start, default=span)
        return found

    def _find(self, rank: int, span: Span) -> Span | None:
        """What a rank does of the same collective, from that of the last turn if it is not told."""
        told = self._told.get((rank, span.op, span.index, span.group))
        if told is not None:
            return told
        for turns, repeated in zip(self._turns, self._repeated, strict=True):
            each = turns.per_iteration.get(span.op, 1)
            later = repeated.get((rank, span.op, span.index % each, span.group))
            if later is not None and 1 <= (later.index - span.index) // each <= turns.times:
                return turns.earlier(later, (later.index - span.index) // each)
        return None


class _Ends:
    """Spans by their end, to ask for the latest that ended by some time."""

    def __init__(self, spans: Iterable[Span], turns: Iterable[RepeatedIterations]) -> None:
        self._spans = sorted(spans, key=_latest_first, reverse=True)
        self._ends = [span.end for span in self._spans]
        repeated = ((one, [span for span in self._spans if one.includes(span)]) for one in turns)
        self._repeated = [_Repeated(last, one) for one, last in repeated if last]

    def latest(self, time: float, used: set[Span]) -> Span | None:
        place = bisect_right(self._ends, time) - 1
        while place >= 0 and self._spans[place] in used:
            place -= 1
        found = self._spans[place] if place >= 0 else None
        for one in self._repeated:
            if one.first_end <= time and (found is None or one.last_end >= found.end):
                earlier = next((span for span in one.down_from(time) if span not in used), None)
                found = min((span for span in (found, earlier) if span is not None), key=_latest_first, default=None)
        return found


class _Repeated:
    """Spans of a turn, in the turns before it.

    Time is cut in cells as long as a turn; a span ends in the cell of the last
    turn, or later, and at the same place of an earlier cell in each turn before.
    `first_end` and `last_end` are when the first and the last of them end, or a
    little before and after.
    """

    def __init__(self, last: Sequence[Span], turns: RepeatedIterations) -> None:
        self._turns = turns
        cells = [self._cell(span.end) for span in last]
        moved = [span.moved(-cell * turns.seconds, 0) for span, cell in zip(last, cells, strict=True)]
        order = sorted(range(len(last)), key=lambda number: _latest_first(moved[number]), reverse=True)
        self._places = [moved[number].end for number in order]
        self._spans = [(last[number], cells[number]) for number in order]
        self._first, self._last = min(cells) - turns.times, max(cells) - 1
        ends = [span.end for span in last]
        slack = 1e-9 * max(map(abs, ends))
        self.first_end = min(ends) - turns.times * turns.seconds - slack
        self.last_end = max(ends) - turns.seconds + slack

    def _cell(self, time: float) -> int:
        return floor((time - self._turns.start) / self._turns.seconds)

    def down_from(self, time: float) -> Iterator[Span]:
        """Those that end by `time`, the latest first."""
        seconds = self._turns.seconds
        cell = min(self._cell(time), self._last)
        place = bisect_right(self._places, time - cell * seconds)
        while cell >= self._first:
            for span, own in reversed(self._spans[:place]):
                if 1 <= own - cell <= self._turns.times:
                    yield self._turns.earlier(span, own - cell)
            cell, place = cell - 1, len(self._spans)


def _ends(spans: Iterable[Span], turns: Sequence[RepeatedIterations], by_lane: bool) -> dict[tuple[int, str], _Ends]:
    """The spans of each rank, or of each of its lanes."""
    found: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in spans:
        found[span.rank, span.lane if by_lane else ""].append(span)
    return {key: _Ends(of_key, turns) for key, of_key in found.items()}
