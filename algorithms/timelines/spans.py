"""Spans: one instance of one op on one rank, with the times that separate waiting from work.

    ready     all dependencies of the op have ended
    start     its lane takes it
    arrival   the last member of its group has started
    end       it has ended on this rank

    start ── waiting ── arrival ── seconds ── end

A rank may end before the last member has arrived (the root of a broadcast).  Its waiting then lasts until its end and
its seconds are 0, so the two always add up to end - start.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

import msgspec

from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Op, kind

COMPUTE = "compute"
OutsideOps = Literal["before the first op", "between ops", "after the last op"]
"""Parts of a rank's time outside ops."""
ALONE = -1
UNPAIRED = ("send", "receive")
"""Kinds of op whose other end is another op, so that the group does not start them together."""


class Span(msgspec.Struct, frozen=True, gc=False):
    """One instance of one op on one rank; times in seconds.

    A msgspec struct, since a step has very many spans: creation takes less than a tenth of the time of a frozen
    dataclass.  `index` counts the instances of the op on this rank.  `group` is the first rank of the op's group, or
    ALONE.  `to_peer` leads from the rank of a send or receive to the rank at the other end; other ops have 0.

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
    to_peer: int = 0

    @classmethod
    def of(
        cls,
        rank: int,
        op: Op,
        lane: str,
        index: int,
        axis: Axis | None,
        ready: float,
        start: float,
        end: float,
        to_peer: int = 0,
    ) -> "Span":
        """The span of an instance of an op, without its group; times in seconds.

        Parameters
        ----------
        rank, lane, index : rank, its lane, and the number of the instance on the rank
        op : op of a schedule
        axis : grid axis of a communication op
        ready, start, end : times as in the module's picture [s]
        to_peer : rank at the other end of a send or receive, less `rank`
        """
        return cls(rank, op.name, kind(op), lane, ready, start, start, end, axis, index, ALONE, to_peer)

    @property
    def waiting_seconds(self) -> float:
        """Time from the start until the last member of the group has started [s]."""
        return max(0.0, min(self.arrival, self.end) - self.start)

    @property
    def seconds(self) -> float:
        """Time of the work itself, after the last member of the group has started [s]."""
        return max(0.0, self.end - max(self.arrival, self.start))

    @property
    def instance(self) -> tuple[str, int, Axis | None, int]:
        """Key that the spans of one collective on one group share."""
        return self.op, self.index, self.axis, self.group

    def moved(self, seconds: float, indices: int) -> "Span":
        """A copy of the span, shifted by `seconds` and by `indices` instances of its op."""
        times = (self.ready + seconds, self.start + seconds, self.arrival + seconds, self.end + seconds)
        return self.at(*times, self.index + indices)

    def at(self, ready: float, start: float, arrival: float, end: float, index: int) -> "Span":
        """A copy of the span with other times [s], as another instance of its op."""
        times = ready, start, arrival, end
        return Span(self.rank, self.op, self.kind, self.lane, *times, self.axis, index, self.group, self.to_peer)

    def within(self, group: int) -> "Span":
        """A copy of the span with this group."""
        times = self.ready, self.start, self.arrival, self.end
        return Span(self.rank, self.op, self.kind, self.lane, *times, self.axis, self.index, group, self.to_peer)


def with_groups(spans: Iterable[Span], grid: Grid) -> list[Span]:
    """Returns the spans with their group on `grid`, where none is set."""

    def grouped(span: Span) -> Span:
        if span.axis is None or span.group != ALONE or span.kind in UNPAIRED:
            return span
        return span.within(span.rank - grid.coordinate(span.rank, span.axis) * grid.stride(span.axis))

    return [grouped(span) for span in spans]


def with_arrivals(spans: Iterable[Span]) -> list[Span]:
    """Returns the spans with the start of the last group member as arrival, or their own start if alone.

    >>> early = Span(0, "sum", "all_reduce", "y", ready=0, start=1, arrival=0, end=6, axis="y", group=0)
    >>> late = Span(1, "sum", "all_reduce", "y", ready=0, start=4, arrival=0, end=6, axis="y", group=0)
    >>> [(span.arrival, span.waiting_seconds) for span in with_arrivals([early, late])]
    [(4, 3), (4, 0.0)]
    """
    spans = list(spans)
    latest: dict[tuple[object, ...], float] = {}
    for span in spans:
        if span.group != ALONE:
            key = span.instance
            latest[key] = max(span.start, latest.get(key, span.start))
    arrivals = (span.start if span.group == ALONE else latest[span.instance] for span in spans)
    return [
        span if arrival == span.arrival else span.at(span.ready, span.start, arrival, span.end, span.index)
        for span, arrival in zip(spans, arrivals, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class RepeatedIterations:
    """Run-length encoded loop iterations: the spans that begin in the `seconds` from `start` on represent `times`
    earlier iterations.

    Each earlier iteration is `seconds` before the next and has indices that are lower by `per_iteration`, by op.

    >>> from quadrille.algorithms.timelines.timeline import Timeline
    >>> last = Span(0, "multiply", "gemm", "compute", ready=6, start=6, arrival=6, end=8, index=3)
    >>> timeline = Timeline((last,), "predicted", ranks=1, repeated=(RepeatedIterations(6.0, 2.0, 3, {"multiply": 1}),))
    >>> [(span.index, span.start, span.end) for span in timeline.unrolled().spans]
    [(0, 0.0, 2.0), (1, 2.0, 4.0), (2, 4.0, 6.0), (3, 6, 8)]
    """

    start: float
    seconds: float
    times: int
    per_iteration: Mapping[str, int]

    def includes(self, span: Span) -> bool:
        """Whether a span belongs to the last iteration."""
        return self.start <= span.start < self.start + self.seconds and span.op in self.per_iteration

    def earlier(self, span: Span, before: int) -> Span:
        """The span of the last iteration as it was `before` iterations earlier."""
        return span.moved(-before * self.seconds, -before * self.per_iteration[span.op])

    def earlier_spans(self, spans: Iterable[Span]) -> Iterator[Span]:
        """Spans of all iterations but the last, which is among `spans`."""
        return (span for span, _ in self._weighted(self._last(spans), dict.fromkeys(range(self.times, 0, -1), 1)))

    def weighted_spans(self, spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
        """Spans of a few iterations with their multiplicity; one in the middle counts for many.

        Some have multiplicity 0 and are present because others overlap them.
        """
        last = self._last(spans)
        reach = 1 + ceil(max((span.end - span.start for span in last), default=0.0) / self.seconds)
        if self.times <= 4 * reach + 1:
            return self._weighted(last, dict.fromkeys(range(self.times, 0, -1), 1))
        first = self.times - reach
        counts = {before: int(before > first) for before in range(self.times, first - reach - 1, -1)}
        counts |= {before: int(before <= reach) for before in range(2 * reach, 0, -1)}
        counts[first] = self.times - 2 * reach
        return self._weighted(last, counts)

    def _last(self, spans: Iterable[Span]) -> list[Span]:
        """Spans of the last iteration."""
        return [span for span in spans if self.includes(span)]

    def _weighted(self, last: Iterable[Span], counts: Mapping[int, int]) -> Iterator[tuple[Span, int]]:
        """Spans of the iterations that are `before` iterations earlier, each with its count."""
        for span in last:
            for before, count in counts.items():
                yield self.earlier(span, before), count


def without_repeats(spans: Iterable[Span], repeats: Sequence[RepeatedIterations]) -> Iterator[Span]:
    """The spans without the time of the earlier iterations; the critical path goes through the same ranks either way.

    A span that lasts through the earlier iterations is shorter by their time.

    >>> last = Span(0, "multiply", "gemm", "compute", ready=6, start=6, arrival=6, end=8, index=3)
    >>> beside = Span(0, "sum", "all_reduce", "x", ready=0, start=0, arrival=0, end=9)
    >>> repeats = [RepeatedIterations(6.0, 2.0, 3, {"multiply": 1})]
    >>> [(span.op, span.index, span.start, span.end) for span in without_repeats([last, beside], repeats)]
    [('multiply', 3, 0.0, 2.0), ('sum', 0, 0.0, 3.0)]
    """

    def skipped(time: float, ready_of: Span | None = None) -> float:
        """Time of the earlier iterations before `time`, whole iterations only, so that it keeps its place in one."""
        total = 0.0
        for repeated in repeats:
            own = ready_of is not None and ready_of.op in repeated.per_iteration and ready_of.start >= repeated.start
            first = repeated.start - repeated.times * repeated.seconds
            iterations = repeated.times if own or time >= repeated.start else floor((time - first) / repeated.seconds)
            total += max(0, iterations) * repeated.seconds
        return total

    for span in spans:
        times = span.start, span.arrival, span.end
        start, arrival, end = (time - skipped(time) for time in times)
        yield span.at(span.ready - skipped(span.ready, span), start, arrival, end, span.index)
