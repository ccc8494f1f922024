"""The critical path of a timeline: the chain of spans that determines its end.

Run-length encoded loop iterations are visited one by one, but only along the chain; spans of other ranks and lanes are
not expanded.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import floor

from msgspec import structs

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.timelines.spans import ALONE, RepeatedIterations, Span

Instance = tuple[int, str, int, int]
"""Rank, op, index and group of a span that waits for other ranks."""
Channel = tuple[int, int, Axis | None, str]
"""Sender, receiver and axis of messages, and the kind of one of their ends."""
_OTHER_END = {"send": "receive", "receive": "send"}


def critical_path(
    spans: Sequence[Span],
    repeats: Sequence[RepeatedIterations] = (),
    left_out: Sequence[RepeatedIterations] = (),
    members: Mapping[int, Iterable[range]] | None = None,
) -> tuple[Span, ...]:
    """Returns the chain of spans that determines the end, first to last.

    Going back from the span that ends last, the predecessor of a span is the member of its group that arrived last,
    or the other end of its message if that end started later; otherwise the previous span on its lane, if that ended
    after all its dependencies; otherwise the span of its rank that ended when it became ready.  A span that starts
    later than both, because the program of its rank issues it later, follows the span of its rank that ended at its
    start.  Ties are broken by rank, then lane and op, so the order of the input does not matter.

    Parameters
    ----------
    spans : spans of all ranks
    repeats : loop iterations of which only the last is among the spans
    left_out : loop iterations whose time the spans are without
    members : ranks that each rank of the spans represents; by default itself
    """
    if not spans:
        return ()
    arrivals = _Arrivals(spans, repeats, left_out, members or {})
    rank_ends, lane_ends = _ends(spans, repeats, False), _ends(spans, repeats, True)
    tolerance = 1e-12 * max(abs(span.end) for span in spans)

    current: Span | None = min(spans, key=lambda span: (-span.end, -span.start, *_span_key(span)))
    path: list[Span] = []
    used: set[Span] = set()
    while current is not None:
        path.append(current)
        used.add(current)
        last = arrivals.last(current)
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


class _Arrivals:
    """Members of each collective and both ends of each message, in every iteration.

    Parameters
    ----------
    spans, repeats, left_out, members : as those of `critical_path`
    """

    def __init__(
        self,
        spans: Iterable[Span],
        repeats: Sequence[RepeatedIterations],
        left_out: Sequence[RepeatedIterations],
        members: Mapping[int, Iterable[range]],
    ) -> None:
        self._repeats, self._left_out, self._represented = repeats, left_out, members
        self._representatives: dict[int, int] = {}
        self._messages: dict[Channel, dict[str, None]] = defaultdict(dict)
        self._spans: dict[Instance, Span] = {}
        self._repeated: list[dict[Instance, Span]] = [{} for _ in repeats]
        self._ranks: dict[tuple[object, ...], dict[int, None]] = defaultdict(dict)
        self._last: dict[tuple[object, ...], Span] = {}
        for span in spans:
            if span.to_peer:
                self._messages[self._channel(span)][span.op] = None
            if span.group != ALONE or span.to_peer:
                latest = self._spans.setdefault((span.rank, span.op, span.index, span.group), span)
                if span.start > latest.start:
                    self._spans[span.rank, span.op, span.index, span.group] = span
                self._ranks[span.op, span.axis, span.group][span.rank] = None
                for iterations, repeated in zip(repeats, self._repeated, strict=True):
                    if iterations.includes(span):
                        repeated[span.rank, span.op, span.index % iterations.per_iteration[span.op], span.group] = span

    def last(self, span: Span) -> Span:
        """Member of the span's group, or end of its message, that started last; the span itself if it is alone."""
        if span.to_peer:
            end = self._other_end(span)
            return span if end is None or end.start <= span.start else end
        if span.group == ALONE:
            return span
        last_member = self._last.get(span.instance)
        if last_member is None:
            every = (self._find(rank, span) for rank in sorted(self._ranks[span.op, span.axis, span.group]))
            together = [member for member in every if member is not None and member.axis == span.axis]
            last_member = self._last[span.instance] = max(together, key=lambda member: member.start, default=span)
        return last_member

    def _other_end(self, span: Span) -> Span | None:
        """The receive of a send, or the send of a receive; None if it is not among the spans.

        The k-th message that a rank sends to another meets the k-th receive of the other from it.
        """
        channel = self._channel(span)
        sender, receiver, axis, kind = channel
        names = sorted(self._messages[channel])
        others = sorted(self._messages[sender, receiver, axis, _OTHER_END[kind]])
        if len(names) != len(others):
            return None
        rank = sender if kind == "receive" else receiver
        end = structs.replace(span, rank=rank, op=others[names.index(span.op)])
        at_same_index = self._find(rank, end)
        if at_same_index is not None:
            return at_same_index
        earlier = (
            self._find(rank, structs.replace(end, index=span.index - iterations.times * each))
            for iterations in self._left_out
            if (each := iterations.per_iteration.get(end.op))
        )
        return next((span_before for span_before in earlier if span_before is not None), None)

    def _channel(self, span: Span) -> Channel:
        """Sender and receiver of a message, its axis, and which end the span is."""
        peer = self._representative(span.rank + span.to_peer)
        return (span.rank, peer, span.axis, "send") if span.kind == "send" else (peer, span.rank, span.axis, "receive")

    def _representative(self, rank: int) -> int:
        """The rank whose spans represent those of a rank."""
        if rank not in self._representatives:
            representing = (each for each, ranges in self._represented.items() if any(rank in part for part in ranges))
            self._representatives[rank] = next(representing, rank)
        return self._representatives[rank]

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
