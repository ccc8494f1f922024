"""The ranks of a run as a population: who is simulated, and whom each of them stands for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from heapq import nlargest

import numpy as np

from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.formats.record import LinkLoad
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.library_collectives import LibraryTimes
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.simulator.ranks.resources import PerClassResources, PerRankResources, Resources
from quadrille.simulator.symmetry.classes import FlowPaths, SymmetryClasses, classes_of, flow_paths
from quadrille.simulator.symmetry.partition import Ints
from quadrille.simulator.symmetry.patterns import EndKinds, patterns
from quadrille.simulator.symmetry.signatures import LoopPosition
from quadrille.topologies.routes.routing import Routes

NOT_ASKED = "folding is switched off"
TOO_MANY = "ranks talk to too many others to list all channels"


@dataclass(frozen=True, eq=False)
class SimulatedRanks:
    """Who is simulated.

    Parameters
    ----------
    classes : of ranks that behave alike; None where every rank is simulated
    known : the paths that were found where none behave alike
    why_not : what keeps ranks apart then, in words
    turns : what all ranks do in each turn of each loop, see `Patterns`
    """

    schedule: Schedule
    placement: RankPlacement
    routes: Routes
    classes: SymmetryClasses | None = None
    why_not: str = ""
    turns: Mapping[LoopPosition, Sequence[int]] = field(default_factory=dict)
    known: FlowPaths | None = None

    def wiring(self, engine: FlowEngine) -> ResourceDemands:
        """What the simulated ranks take of the resources of an engine."""
        resources: Resources
        if self.classes is None:
            resources = PerRankResources(self.placement, self.routes, engine, self.known)
        else:
            resources = PerClassResources(self.classes, self.placement, engine)
        return ResourceDemands(
            self.placement.machine, self.grid.size, engine, placement=self.placement, resources=resources
        )

    @property
    def grid(self) -> Grid:
        return self.schedule.grid

    @cached_property
    def simulated(self) -> Sequence[int]:
        """Ranks that are simulated: all, or one for each class."""
        return range(self.grid.size) if self.classes is None else self.classes.quotient.rank_of.tolist()

    @cached_property
    def _counts(self) -> dict[int, int]:
        if self.classes is None:
            return {}
        return dict(zip(self.simulated, self.classes.counts.tolist(), strict=True))

    def count(self, rank: int) -> int:
        """How many ranks a simulated one stands for."""
        return self._counts.get(rank, 1)

    def stands_for(self, rank: int) -> int:
        """The simulated rank that stands for a rank."""
        if self.classes is None:
            return rank
        return int(self.classes.quotient.rank_of[self.classes.folding.ranks[rank]])

    def group(self, rank: int, axis: Axis) -> Sequence[int]:
        """Ranks of the group of a rank along an axis, by their coordinate."""
        length, stride = self.grid.length(axis), self.grid.stride(axis)
        first = rank - self.grid.coordinate(rank, axis) * stride
        return range(first, first + length * stride, stride)

    def timeline(self, spans: Iterable[Span]) -> Timeline:
        """The timeline of those who were simulated."""
        grid, name = self.grid, self.schedule.name
        if self.classes is None:
            return Timeline.of_spans(spans, "predicted", grid, name=name)
        ranks, first = self.classes.folding.ranks, self.classes.quotient.rank_of
        order = np.argsort(ranks, kind="stable")
        of_class = np.split(order, np.cumsum(self.classes.counts)[:-1])
        members = {rank: strides(found) for rank, found in zip(self.simulated, of_class, strict=True)}

        @lru_cache(None)
        def group_of(rank: int, axis: Axis) -> int:
            return int(first[ranks[np.array(self.group(rank, axis))]].min())

        return Timeline.of_classes(spans, "predicted", grid, members, group_of, name=name)

    def loads(
        self, engine: FlowEngine, loads: Sequence[tuple[float, float]], makespan: float, most: int
    ) -> tuple[LinkLoad, ...]:
        """The resources that are used most, the most used first; of those of one class, one.

        Parameters
        ----------
        loads : units served and seconds of use of each resource
        """
        used = {
            resource: units / (engine.resource_capacity(resource) * makespan)
            for resource, (units, _) in enumerate(loads)
            if units and makespan
        }
        least = min(nlargest(most, used.values()), default=0.0)
        found = [
            LinkLoad(engine.resource_name(resource), *loads[resource], utilisation)
            for resource, utilisation in used.items()
            if utilisation >= least
        ]
        return tuple(sorted(found, key=lambda load: (-load.utilisation, load.link))[:most])

    def class_counts(self) -> tuple[int, int, int]:
        """Classes of ranks, flows and links; where every rank is simulated, ranks, 0 and 0."""
        if self.classes is None:
            return self.grid.size, 0, 0
        small = self.classes.quotient
        return len(small.rank_of), len(small.flow_of), len(small.link_of)


def choose_ranks(
    schedule: Schedule, choices: Choices, placement: RankPlacement, *, fold: bool = True, turns: bool = True
) -> SimulatedRanks:
    """Who must be simulated.

    Parameters
    ----------
    fold : whether ranks that behave alike may be simulated as one
    turns : whether it is to be known what ranks do in each turn of a loop

    Raises
    ------
    InputError : two ranks that no way through the network joins
    """
    routes = routes_of(placement.machine, placement.net)
    alone = SimulatedRanks(schedule, placement, routes)
    if not (fold or turns):
        return replace(alone, why_not=NOT_ASKED)
    found = patterns(schedule, choices, _kinds_of_members(schedule, choices, placement))
    if found is None:
        return replace(alone, why_not=TOO_MANY)
    if not fold or schedule.grid.size == 1:
        known = flow_paths(found, placement, routes) if len(found.sender) else None
        return replace(alone, why_not="" if fold else NOT_ASKED, turns=found.iterations, known=known)
    classes = classes_of(found, placement, routes)
    if classes.folding.folded:
        return replace(alone, classes=classes, turns=found.iterations)
    return replace(alone, why_not=classes.folding.why_not, turns=found.iterations, known=classes.all_paths)


def _kinds_of_members(schedule: Schedule, choices: Choices, placement: RankPlacement) -> EndKinds:
    """Which members of a collective end together: by the library as it was measured, else all that do the same."""
    library = LibraryTimes(placement.machine, schedule.grid, placement)
    return lambda op: library.kinds_of_members(op) if choices.by_library(op) else ()


def strides(ranks: Ints) -> tuple[range, ...]:
    """Ranks in rising order as ranges.

    >>> strides(np.array([0, 4, 8, 9, 10, 20]))
    (range(0, 9, 4), range(9, 11), range(20, 21))
    """
    found, numbers = [], ranks.tolist()
    start = 0
    while start < len(numbers):
        step = numbers[start + 1] - numbers[start] if start + 1 < len(numbers) else 1
        stop = start + 1
        while stop < len(numbers) and numbers[stop] - numbers[stop - 1] == step:
            stop += 1
        found.append(range(numbers[start], numbers[stop - 1] + 1, step if stop > start + 1 else 1))
        start = stop
    return tuple(found)
