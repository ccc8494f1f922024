"""The timeline of one run, predicted or measured: one span for each op, rank and instance."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import Literal

from msgspec import structs

from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.tabular import fact_line
from quadrille.algorithms.timelines.op_times import OpTimes, exposed_seconds, op_times
from quadrille.algorithms.timelines.spans import (
    ALONE,
    UNPAIRED,
    RepeatedIterations,
    Span,
    with_arrivals,
    with_groups,
    without_repeats,
)
from quadrille.algorithms.units import format_seconds

Source = Literal["predicted", "measured"]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All spans of one run on `ranks` ranks.

    Parameters
    ----------
    spans : spans of the represented ranks
    kind : predicted or measured
    ranks : number of ranks
    name : name of the run
    copies : number of ranks that the spans of a rank represent; a missing rank represents itself
    provenance : origin of a file
    members : ranks that a rank represents; the group of such spans is the first rank that represents one of its members
    repeated : run-length encoded loop iterations, of which the last is among the spans
    left_out : loop iterations whose time the spans are without, see `without_repeats`
    grid : grid of the ranks; None for a timeline of a file

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
    repeated: tuple[RepeatedIterations, ...] = ()
    left_out: tuple[RepeatedIterations, ...] = ()
    grid: Grid | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        where = f"{self.name} on {self.grid}" if self.name and self.grid else self.name or str(self.grid or "")
        return fact_line(
            self,
            f"{self.kind}{where and f', {where}'}, {self.ranks} ranks, {len(self.spans)} spans, "
            f"{format_seconds(self.makespan)}",
        )

    def unrolled(self) -> "Timeline":
        """The timeline with every iteration of every loop."""
        if not self.repeated:
            return self
        spans = [*self.spans, *(span for iterations in self.repeated for span in iterations.earlier_spans(self.spans))]
        ordered = sorted(spans, key=lambda span: (span.rank, span.start, span.end))
        return replace(self, spans=tuple(ordered), repeated=())

    def weighted_spans(self) -> dict[int, list[tuple[Span, int]]]:
        """Spans of each rank by start, each with its multiplicity; repeated iterations are expanded in part."""
        by_rank: dict[int, list[tuple[Span, int]]] = defaultdict(list)
        for span in self.spans:
            by_rank[span.rank].append((span, 1))
        for iterations in self.repeated:
            for span, count in iterations.weighted_spans(self.spans):
                by_rank[span.rank].append((span, count))
        for weighted in by_rank.values():
            weighted.sort(key=lambda entry: (entry[0].start, entry[0].end))
        return by_rank

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
        """The timeline of ranks that represent others.

        Parameters
        ----------
        members : ranks that each rank represents, itself included
        group_of : first rank that represents a member of a rank's group along an axis
        """

        def grouped(span: Span) -> Span:
            paired = span.axis is not None and span.kind not in UNPAIRED
            return span.within(group_of(span.rank, span.axis)) if paired and span.axis else span

        ordered = sorted(map(grouped, spans), key=lambda span: (span.rank, span.start, span.end))
        copies = {rank: sum(map(len, ranges)) for rank, ranges in members.items()}
        return cls(tuple(with_arrivals(ordered)), kind, grid.size, name, copies, None, members, grid=grid)

    def expanded(self, grid: Grid, ranks: Iterable[int] | None = None) -> "Timeline":
        """The timeline of these ranks, by default all, each on its own."""
        chosen = range(self.ranks) if ranks is None else sorted(set(ranks))
        if self.members is None:
            return self._of(chosen).unrolled()
        representative_of = {
            rank: representative for representative, ranges in self.members.items() for rank in chain(*ranges)
        }
        of_rank = _by_rank(self._of(representative_of[rank] for rank in chosen).unrolled().spans)
        spans = (
            structs.replace(span, rank=rank, group=ALONE)
            for rank in chosen
            for span in of_rank.get(representative_of[rank], ())
        )
        return replace(self, spans=tuple(with_groups(spans, grid)), copies=None, members=None, repeated=())

    def _of(self, ranks: Iterable[int]) -> "Timeline":
        """The spans of these ranks only."""
        chosen_ranks = set(ranks)
        return replace(self, spans=tuple(span for span in self.spans if span.rank in chosen_ranks))

    @classmethod
    def of_spans(cls, spans: Iterable[Span], kind: Source, grid: Grid, *, name: str = "") -> "Timeline":
        """The timeline of all ranks' spans; each span gets its group on the grid and the arrival of its last member.

        Parameters
        ----------
        spans : spans of all ranks
        kind : predicted or measured
        grid : grid of ranks
        name : name of the run
        """
        ordered = sorted(with_groups(spans, grid), key=lambda span: (span.rank, span.start, span.end))
        return cls(tuple(with_arrivals(ordered)), kind, grid.size, name, grid=grid)

    @property
    def start(self) -> float:
        """Start of the first rank [s]."""
        return min((span.start for span in self.spans), default=0.0)

    @property
    def end(self) -> float:
        """End of the last rank [s]."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def makespan(self) -> float:
        """Time from the first rank's start to the last rank's end [s]."""
        return self.end - self.start

    def critical_path(self) -> tuple[Span, ...]:
        """The chain of spans that determines the end, first to last; run-length encoded iterations stay encoded."""
        from quadrille.algorithms.timelines.critical_path import critical_path

        return critical_path(self.spans, self.repeated, self.left_out, self.members or {})

    def without_repeats(self) -> "Timeline":
        """The timeline without the time of the repeated iterations; its critical path goes through the same ranks."""
        return replace(
            self, spans=tuple(without_repeats(self.spans, self.repeated)), repeated=(), left_out=self.repeated
        )

    def op_times(self) -> dict[str, OpTimes]:
        """Times of every op, by name, in the order of first start."""
        return op_times(self)

    def exposed(self) -> dict[int, float]:
        """Exposed communication of each rank [s]."""
        exposed_by_rank = {}
        for rank, weighted in self.weighted_spans().items():
            exposed = exposed_seconds([span for span, _ in weighted])
            exposed_by_rank[rank] = sum(count * seconds for (_, count), seconds in zip(weighted, exposed, strict=True))
        if self.members is None:
            return exposed_by_rank
        return {
            rank: exposed_by_rank.get(representative, 0.0)
            for representative, ranges in self.members.items()
            for rank in chain(*ranges)
        }


def median_timeline(timelines: Sequence[Timeline]) -> Timeline:
    """The timeline whose makespan is nearest to the median makespan."""
    middle = median(timeline.makespan for timeline in timelines)
    return min(timelines, key=lambda timeline: abs(timeline.makespan - middle))


def middle_timelines(timelines: Sequence[Timeline]) -> list[Timeline]:
    """The timeline with the median makespan; of an even number the two in the middle, whose mean is the median."""
    ordered = sorted(timelines, key=lambda timeline: timeline.makespan)
    return ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]


def _by_rank(spans: Iterable[Span]) -> dict[int, list[Span]]:
    ranks: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        ranks[span.rank].append(span)
    return ranks
