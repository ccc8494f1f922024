"""The timeline of one run, predicted or measured: one span per op, rank and instance.

    ready     all that the op depends on is done
    start     its lane takes it
    arrival   the last member of its group has started
    end       it is done on this rank

    start ── waiting ── arrival ── seconds ── end

A rank may end before the last member has arrived (the root of a broadcast):
its waiting then lasts until its end and its seconds are 0, so that the two
always add up to end - start.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from math import ceil
from statistics import median
from typing import Literal

from algorithms.errors import InputError
from algorithms.grid import Axis, Grid
from algorithms.ops import Op, kind
from algorithms.provenance import Provenance

Source = Literal["predicted", "measured"]
COMPUTE = "compute"
ALONE = -1
UNPAIRED = ("send", "receive")
"""Kinds of op whose other end is another op, so that the group does not start them together."""


@dataclass(frozen=True, slots=True)
class Span:
    """One instance of one op on one rank; times in seconds.

    `index` counts the instances of the op on this rank; `group` is the first
    rank of the group that does it together, or ALONE.

    >>> span = Span(0, "gather B", "all_gather", "z", ready=0.0, start=1.0, arrival=1.5, end=4.0, axis="z", group=0)
    >>> span.waiting_seconds, span.seconds
    (0.5, 2.5)
    """

    rank: int
    op: str
    kind: str
    lane: str
    ready: float
    start: float
    arrival: float
    end: float
    axis: Axis | None = None
    index: int = 0
    group: int = ALONE

    @classmethod
    def of(
        cls, rank: int, op: Op, lane: str, index: int, axis: Axis | None, ready: float, start: float, end: float
    ) -> "Span":
        """The span of an op of a schedule, its group not yet known."""
        return cls(rank, op.name, kind(op), lane, ready, start, start, end, axis, index)

    @property
    def waiting_seconds(self) -> float:
        return max(0.0, min(self.arrival, self.end) - self.start)

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - max(self.arrival, self.start))


@dataclass(frozen=True, slots=True)
class OpTimes:
    """One op over all its instances: sums over instances, medians over repeats, means over all ranks [s]."""

    name: str
    kind: str
    lane: str
    axis: Axis | None
    count: int
    seconds: float
    waiting_seconds: float
    exposed_seconds: float


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of a loop that are said once: the spans that begin in the `seconds` from `start` on stand for `times` more.

    Each of those is `seconds` before the next one, and has indices that are
    `per_turn` lower, by op.

    >>> last = Span(0, "multiply", "gemm", "compute", ready=6, start=6, arrival=6, end=8, index=3)
    >>> timeline = Timeline((last,), "predicted", ranks=1, turns=(Turns(6.0, 2.0, 3, {"multiply": 1}),))
    >>> [(span.index, span.start, span.end) for span in timeline.unrolled().spans]
    [(0, 0.0, 2.0), (1, 2.0, 4.0), (2, 4.0, 6.0), (3, 6, 8)]
    """

    start: float
    seconds: float
    times: int
    per_turn: Mapping[str, int]

    def said(self, spans: Iterable[Span]) -> Iterator[Span]:
        """The spans of all turns but the last, which is among `spans`."""
        return (span for span, _ in self._told(self._last(spans), dict.fromkeys(range(self.times, 0, -1), 1)))

    def counted(self, spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
        """The spans of a few of these turns, and how many turns each counts for: one in the midst for many.

        Some count for none, and are there because others reach over them.
        """
        told = self._last(spans)
        reach = 1 + ceil(max((span.end - span.start for span in told), default=0.0) / self.seconds)
        if self.times <= 4 * reach + 1:
            return self._told(told, dict.fromkeys(range(self.times, 0, -1), 1))
        first = self.times - reach
        counts = {before: int(before > first) for before in range(self.times, first - reach - 1, -1)}
        counts |= {before: int(before <= reach) for before in range(2 * reach, 0, -1)}
        counts[first] = self.times - 2 * reach
        return self._told(told, counts)

    def _last(self, spans: Iterable[Span]) -> list[Span]:
        """The spans of the last turn."""
        stop = self.start + self.seconds
        return [span for span in spans if self.start <= span.start < stop and span.op in self.per_turn]

    def _told(self, last: Iterable[Span], counts: Mapping[int, int]) -> Iterator[tuple[Span, int]]:
        """The spans of the turns that are so many turns before the last, each with its count."""
        for span in last:
            for before, count in counts.items():
                yield moved(span, -before * self.seconds, -before * self.per_turn[span.op]), count


def moved(span: Span, seconds: float, indices: int) -> Span:
    """The span at another time, as another instance of its op."""
    return replace(
        span,
        ready=span.ready + seconds,
        start=span.start + seconds,
        arrival=span.arrival + seconds,
        end=span.end + seconds,
        index=span.index + indices,
    )


@dataclass(frozen=True, slots=True)
class Timeline:
    """All spans of one run on `ranks` ranks.

    `copies[r]` says that the spans of rank r stand for so many ranks that
    behave alike, `members[r]` which ones; a rank not named stands for itself.
    The group of such spans is the first rank that stands for one of its members.
    `turns` of loops that only repeat are said once, the last time that they come.

    >>> a = Span(0, "multiply", "gemm", "compute", ready=0, start=0, arrival=0, end=3)
    >>> b = Span(0, "sum C", "all_reduce", "y", ready=3, start=3, arrival=3, end=5)
    >>> timeline = Timeline((a, b), "predicted", ranks=1)
    >>> timeline.makespan, [span.op for span in timeline.critical_path()]
    (5, ['multiply', 'sum C'])
    """

    spans: tuple[Span, ...]
    kind: Source
    ranks: int
    name: str = ""
    copies: Mapping[int, int] | None = None
    provenance: Provenance | None = None
    members: Mapping[int, tuple[range, ...]] | None = None
    turns: tuple[Turns, ...] = ()

    def unrolled(self) -> "Timeline":
        """The timeline with every turn of every loop."""
        if not self.turns:
            return self
        spans = [*self.spans, *(span for turns in self.turns for span in turns.said(self.spans))]
        ordered = sorted(spans, key=lambda span: (span.rank, span.start, span.end))
        return replace(self, spans=tuple(ordered), turns=())

    def counted(self) -> dict[int, list[tuple[Span, int]]]:
        """The spans of each rank by start, and how many each counts for; a few of the turns that are said once."""
        found: dict[int, list[tuple[Span, int]]] = defaultdict(list)
        for span in self.spans:
            found[span.rank].append((span, 1))
        for turns in self.turns:
            for span, count in turns.counted(self.spans):
                found[span.rank].append((span, count))
        for told in found.values():
            told.sort(key=lambda one: (one[0].start, one[0].end))
        return found

    @classmethod
    def of_classes(
        cls,
        spans: Iterable[Span],
        kind: Source,
        grid: Grid,
        members: Mapping[int, tuple[range, ...]],
        group_of: Callable[[int, Axis], int],
        *,
        name: str = "",
    ) -> "Timeline":
        """The timeline of ranks that stand for others.

        Parameters
        ----------
        members : the ranks that each of them stands for, itself included
        group_of : the first rank that stands for a member of a rank's group along an axis
        """

        def grouped(span: Span) -> Span:
            paired = span.axis is not None and span.kind not in UNPAIRED
            return replace(span, group=group_of(span.rank, span.axis)) if paired and span.axis else span

        ordered = sorted(map(grouped, spans), key=lambda span: (span.rank, span.start, span.end))
        copies = {rank: sum(map(len, ranges)) for rank, ranges in members.items()}
        return cls(tuple(with_arrivals(ordered)), kind, grid.size, name, copies, None, members)

    def expanded(self, grid: Grid, ranks: Iterable[int] | None = None) -> "Timeline":
        """The timeline of these ranks, by default all, each for itself."""
        if self.turns:
            return self.unrolled().expanded(grid, ranks)
        if self.members is None:
            kept = set(range(self.ranks) if ranks is None else ranks)
            return replace(self, spans=tuple(span for span in self.spans if span.rank in kept))
        of_rank = _by_rank(self.spans)
        stands = {rank: of_rank.get(one, []) for one, ranges in self.members.items() for rank in chain(*ranges)}
        wanted = range(self.ranks) if ranks is None else sorted(set(ranks))
        spans = (replace(span, rank=rank, group=ALONE) for rank in wanted for span in stands[rank])
        return replace(self, spans=tuple(with_groups(spans, grid)), copies=None, members=None)

    @classmethod
    def of_spans(cls, spans: Iterable[Span], kind: Source, grid: Grid, *, name: str = "") -> "Timeline":
        """The timeline of these spans, each with its group on `grid` and the arrival of its last member."""
        ordered = sorted(with_groups(spans, grid), key=lambda span: (span.rank, span.start, span.end))
        return cls(tuple(with_arrivals(ordered)), kind, grid.size, name)

    @property
    def start(self) -> float:
        """When the first rank starts [s]."""
        return min((span.start for span in self.spans), default=0.0)

    @property
    def end(self) -> float:
        """When the last rank ends [s]."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def makespan(self) -> float:
        """From the first rank's start to the last rank's end [s]."""
        return self.end - self.start

    def critical_path(self) -> tuple[Span, ...]:
        """The chain of spans that determines the end, first to last.

        Going back from the span that ends last, each span is explained by the
        member of its group that arrived last; else by the span before it on
        its lane, if that ended after all it depends on was done; else by the
        span of its rank that ended when it became ready.
        """
        return _critical_path(self.unrolled().spans)

    def op_times(self) -> dict[str, OpTimes]:
        """Times of every op, by name, in the order of first start."""
        return op_times(self)

    def exposed(self) -> dict[int, float]:
        """Communication not hidden behind computing, of each rank [s]."""
        found = {}
        for rank, told in self.counted().items():
            exposed = _exposed([span for span, _ in told])
            found[rank] = sum(count * seconds for (_, count), seconds in zip(told, exposed, strict=True))
        if self.members is None:
            return found
        return {rank: found.get(one, 0.0) for one, ranges in self.members.items() for rank in chain(*ranges)}


def with_groups(spans: Iterable[Span], grid: Grid) -> list[Span]:
    """The spans, those along an axis with the group of their rank on `grid`, where none is given yet."""

    def grouped(span: Span) -> Span:
        if span.axis is None or span.group != ALONE or span.kind in UNPAIRED:
            return span
        return replace(span, group=span.rank - grid.coordinate(span.rank, span.axis) * grid.stride(span.axis))

    return [grouped(span) for span in spans]


def with_arrivals(spans: Iterable[Span]) -> list[Span]:
    """The spans, each with the start of the last member of its group as arrival; alone, its own start.

    >>> early = Span(0, "sum", "all_reduce", "y", ready=0, start=1, arrival=0, end=6, axis="y", group=0)
    >>> late = Span(1, "sum", "all_reduce", "y", ready=0, start=4, arrival=0, end=6, axis="y", group=0)
    >>> [(span.arrival, span.waiting_seconds) for span in with_arrivals([early, late])]
    [(4, 3), (4, 0.0)]
    """
    spans = list(spans)
    latest: dict[tuple[object, ...], float] = {}
    for span in spans:
        if span.group != ALONE:
            key = _instance(span)
            latest[key] = max(span.start, latest.get(key, span.start))
    arrivals = (span.start if span.group == ALONE else latest[_instance(span)] for span in spans)
    return [
        span if arrival == span.arrival else replace(span, arrival=arrival)
        for span, arrival in zip(spans, arrivals, strict=True)
    ]


def op_times(*timelines: Timeline) -> dict[str, OpTimes]:
    """Times of every op over one or more repeats of a run, by name, in the order of first start.

    Of each rank the instances are summed, then the median taken over the
    repeats, then the mean over all ranks; a rank that does not do the op counts
    as 0, so that times of ops add up.

    Raises
    ------
    InputError : no timeline, or repeats on different numbers of ranks
    """
    if len({timeline.ranks for timeline in timelines}) != 1:
        ranks = ", ".join(str(timeline.ranks) for timeline in timelines) or "none"
        raise InputError(f"timelines on {ranks} ranks: repeats of one run on the same ranks are needed")
    samples: dict[str, dict[int, list[_Sums]]] = {}
    model: dict[str, Span] = {}
    for timeline in timelines:
        for span in sorted(timeline.spans, key=lambda span: span.start):
            model.setdefault(span.op, span)
        for op, sums in _sums(timeline).items():
            for rank, total in sums.items():
                samples.setdefault(op, {}).setdefault(rank, []).append(total)
    weights = timelines[0].copies or {}
    return {
        op: _mean(span, samples[op], weights, ranks=timelines[0].ranks, repeats=len(timelines))
        for op, span in model.items()
    }


@dataclass(slots=True)
class _Sums:
    """One op on one rank, over its instances."""

    count: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    exposed: float = 0.0


def _sums(timeline: Timeline) -> dict[str, dict[int, _Sums]]:
    """By op and rank."""
    found: dict[str, dict[int, _Sums]] = defaultdict(lambda: defaultdict(_Sums))
    for rank, told in timeline.counted().items():
        for (span, count), exposed in zip(told, _exposed([span for span, _ in told]), strict=True):
            total = found[span.op][rank]
            total.count += count
            total.seconds += count * span.seconds
            total.waiting += count * span.waiting_seconds
            total.exposed += count * exposed
    return found


def _mean(
    span: Span, samples: Mapping[int, list[_Sums]], weights: Mapping[int, int], *, ranks: int, repeats: int
) -> OpTimes:
    def mean(quantity: Callable[[_Sums], float]) -> float:
        medians = (
            weights.get(rank, 1) * median([*map(quantity, sums), *[0.0] * (repeats - len(sums))])
            for rank, sums in samples.items()
        )
        return sum(medians) / ranks

    return OpTimes(
        span.op,
        span.kind,
        span.lane,
        span.axis,
        count=max(total.count for sums in samples.values() for total in sums),
        seconds=mean(lambda total: total.seconds),
        waiting_seconds=mean(lambda total: total.waiting),
        exposed_seconds=mean(lambda total: total.exposed),
    )


def _by_rank(spans: Iterable[Span]) -> dict[int, list[Span]]:
    ranks: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        ranks[span.rank].append(span)
    return ranks


def _exposed(spans: Sequence[Span]) -> list[float]:
    """For each span of one rank, its seconds while the compute lane is idle; spans of that lane have none.

    Where several run at once, the instant is charged to the one that arrived
    first.  Waiting is counted apart and is not charged here.
    """
    idle = _idle_clock([span for span in spans if span.lane == COMPUTE])
    exposed = [0.0] * len(spans)
    covered = float("-inf")
    moving = [place for place, span in enumerate(spans) if span.lane != COMPUTE and span.seconds > 0]
    for place in sorted(moving, key=lambda place: (_arrived(spans[place]), place)):
        span = spans[place]
        begin = max(_arrived(span), covered)
        if span.end > begin:
            exposed[place] = max(0.0, idle(span.end) - idle(begin))
            covered = span.end
    return exposed


def _arrived(span: Span) -> float:
    return max(span.arrival, span.start)


def _idle_clock(computing: Sequence[Span]) -> Callable[[float], float]:
    """A clock that stands still while the compute lane is busy: the time given less all busy time before it."""
    merged: list[list[float]] = []
    for span in sorted(computing, key=lambda span: span.start):
        if merged and span.start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], span.end)
        else:
            merged.append([span.start, span.end])
    starts = [start for start, _ in merged]
    busy = [0.0, *accumulate(end - start for start, end in merged)]

    def idle(time: float) -> float:
        block = bisect_right(starts, time)
        overshoot = max(0.0, merged[block - 1][1] - time) if block else 0.0
        return time - (busy[block] - overshoot)

    return idle


def _instance(span: Span) -> tuple[object, ...]:
    """What the spans of one collective on one group have in common."""
    return span.op, span.index, span.axis, span.group


class _Ends:
    """Spans by their end, to ask for the latest that ended by some time."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(spans, key=lambda span: (span.end, -span.start))
        self._ends = [span.end for span in self._spans]

    def latest(self, time: float, used: set[int]) -> Span | None:
        place = bisect_right(self._ends, time) - 1
        while place >= 0 and id(self._spans[place]) in used:
            place -= 1
        return self._spans[place] if place >= 0 else None


def _critical_path(spans: Sequence[Span]) -> tuple[Span, ...]:
    if not spans:
        return ()
    groups, ranks, lanes = defaultdict(list), defaultdict(list), defaultdict(list)
    for span in spans:
        ranks[span.rank].append(span)
        lanes[span.rank, span.lane].append(span)
        if span.group != ALONE:
            groups[_instance(span)].append(span)
    last_members = {key: max(members, key=lambda span: span.start) for key, members in groups.items()}
    rank_ends = {rank: _Ends(members) for rank, members in ranks.items()}
    lane_ends = {key: _Ends(members) for key, members in lanes.items()}
    tolerance = 1e-12 * max(abs(span.end) for span in spans)

    current: Span | None = max(spans, key=lambda span: (span.end, span.start))
    path: list[Span] = []
    used: set[int] = set()
    while current is not None:
        path.append(current)
        used.add(id(current))
        last = last_members.get(_instance(current), current)
        if last.start > current.start + tolerance and last.start <= current.end and id(last) not in used:
            current = last
            continue
        before = lane_ends[current.rank, current.lane].latest(current.start + tolerance, used)
        if before is None or before.end <= current.ready + tolerance:
            before = rank_ends[current.rank].latest(current.ready + tolerance, used)
        current = before
    return tuple(reversed(path))
