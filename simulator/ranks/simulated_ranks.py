"""The ranks that are simulated: all ranks, or one rank for each class of equivalent ranks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from heapq import nlargest

import numpy as np

from quadrille.algorithms.collectives.collective_choices import Choices
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

FOLDING_OFF = "folding is switched off"
TOO_MANY_CHANNELS = "ranks talk to too many others to list all channels"


@dataclass(frozen=True, eq=False)
class SimulatedRanks:
    """The ranks that are simulated, and the ranks that they stand for.

    Parameters
    ----------
    classes : classes of ranks that behave alike; None if every rank is simulated
    known_paths : paths of all flows, if they were computed although no ranks are equivalent; else None
    not_folded_reason : why every rank is simulated; empty if ranks are folded
    iterations : signature of each iteration of each loop, see `Patterns`
    """

    schedule: Schedule
    placement: RankPlacement
    routes: Routes
    classes: SymmetryClasses | None = None
    not_folded_reason: str = ""
    iterations: Mapping[LoopPosition, Sequence[int]] = field(default_factory=dict)
    known_paths: FlowPaths | None = None

    def demands(self, engine: FlowEngine) -> ResourceDemands:
        """Resource demands of the simulated ranks on an engine."""
        resources: Resources
        if self.classes is None:
            resources = PerRankResources(self.placement, self.routes, engine, self.known_paths)
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
        """Number of ranks that a simulated rank stands for."""
        return self._counts.get(rank, 1)

    def stands_for(self, rank: int) -> int:
        """The simulated rank that stands for a rank."""
        if self.classes is None:
            return rank
        return int(self.classes.quotient.rank_of[self.classes.folding.ranks[rank]])

    def group(self, rank: int, axis: Axis) -> Sequence[int]:
        """Ranks of a rank's group along an axis, by their coordinate."""
        length, stride = self.grid.length(axis), self.grid.stride(axis)
        first = rank - self.grid.coordinate(rank, axis) * stride
        return range(first, first + length * stride, stride)

    def timeline(self, spans: Iterable[Span]) -> Timeline:
        """Timeline of the simulated ranks."""
        grid, name = self.grid, self.schedule.name
        if self.classes is None:
            return Timeline.of_spans(spans, "predicted", grid, name=name)
        ranks, first = self.classes.folding.ranks, self.classes.quotient.rank_of
        order = np.argsort(ranks, kind="stable")
        members_of_class = np.split(order, np.cumsum(self.classes.counts)[:-1])
        members = {rank: strides(ranks) for rank, ranks in zip(self.simulated, members_of_class, strict=True)}

        @lru_cache(None)
        def group_of(rank: int, axis: Axis) -> int:
            return int(first[ranks[np.array(self.group(rank, axis))]].min())

        return Timeline.of_classes(spans, "predicted", grid, members, group_of, name=name)

    def loads(
        self, engine: FlowEngine, loads: Sequence[tuple[float, float]], makespan: float, most: int
    ) -> tuple[LinkLoad, ...]:
        """The most used resources, the most used first; one resource for each class.

        Parameters
        ----------
        loads : units served and seconds of use of each resource
        makespan : end of the simulation [s]
        most : largest number of resources
        """
        used = {
            resource: units / (engine.resource_capacity(resource) * makespan)
            for resource, (units, _) in enumerate(loads)
            if units and makespan
        }
        least = min(nlargest(most, used.values()), default=0.0)
        link_loads = [
            LinkLoad(engine.resource_name(resource), *loads[resource], utilisation)
            for resource, utilisation in used.items()
            if utilisation >= least
        ]
        return tuple(sorted(link_loads, key=lambda load: (-load.utilisation, load.link))[:most])

    def every_link(self, used: Mapping[str, float]) -> dict[str, float]:
        """The utilisation of all used resources by name; links of a class have that of the link that was simulated.

        Parameters
        ----------
        used : utilisation of the simulated resources by name (`utilisation_by_name`)
        """
        if self.classes is None:
            return dict(used)
        net, folding, quotient = self.placement.net, self.classes.folding, self.classes.quotient
        names = net.link_names(range(net.link_count))
        crossed = np.flatnonzero(folding.links[: net.link_count] >= 0)
        simulated = quotient.link_of[folding.links[crossed]]
        links = {
            names[link]: used[names[stands]]
            for link, stands in zip(crossed.tolist(), simulated.tolist(), strict=True)
            if stands < net.link_count and names[stands] in used
        }
        return {**used, **links}

    def class_counts(self) -> tuple[int, int, int]:
        """Numbers of classes of ranks, flows and links; if every rank is simulated, the number of ranks, 0 and 0."""
        if self.classes is None:
            return self.grid.size, 0, 0
        quotient = self.classes.quotient
        return len(quotient.rank_of), len(quotient.flow_of), len(quotient.link_of)


def utilisation_by_name(engine: FlowEngine, loads: Sequence[tuple[float, float]], makespan: float) -> dict[str, float]:
    """The utilisation of the used resources of a simulation by name.

    Parameters
    ----------
    loads : units served and seconds of use of each resource
    makespan : end of the simulation [s]
    """
    return {
        engine.resource_name(resource): units / (engine.resource_capacity(resource) * makespan)
        for resource, (units, _) in enumerate(loads)
        if units and makespan
    }


def choose_ranks(
    schedule: Schedule, choices: Choices, placement: RankPlacement, *, fold: bool = True, iterations: bool = True
) -> SimulatedRanks:
    """Choose the ranks to simulate.

    Parameters
    ----------
    fold : whether equivalent ranks may be simulated as one
    iterations : whether the signatures of loop iterations are needed

    Raises
    ------
    InputError : two ranks without a path through the network
    """
    routes = routes_of(placement.machine, placement.net)
    every_rank = SimulatedRanks(schedule, placement, routes)
    if not (fold or iterations):
        return replace(every_rank, not_folded_reason=FOLDING_OFF)
    rank_patterns = patterns(schedule, choices, _end_kinds(schedule, choices, placement))
    if rank_patterns is None:
        return replace(every_rank, not_folded_reason=TOO_MANY_CHANNELS)
    if not fold or schedule.grid.size == 1:
        paths = flow_paths(rank_patterns, placement, routes) if len(rank_patterns.sender) else None
        return replace(
            every_rank,
            not_folded_reason="" if fold else FOLDING_OFF,
            iterations=rank_patterns.iterations,
            known_paths=paths,
        )
    classes = classes_of(rank_patterns, placement, routes)
    if classes.folding.folded:
        return replace(every_rank, classes=classes, iterations=rank_patterns.iterations)
    return replace(
        every_rank,
        not_folded_reason=classes.folding.not_folded_reason,
        iterations=rank_patterns.iterations,
        known_paths=classes.all_paths,
    )


def rank_labels(schedule: Schedule, choices: Choices, placement: RankPlacement) -> list[int] | None:
    """A label of each rank: ranks with equal labels execute the same ops with the same sizes, whoever their peers are.

    None if ranks talk to too many others.
    """
    rank_patterns = patterns(schedule, choices, _end_kinds(schedule, choices, placement))
    return None if rank_patterns is None else rank_patterns.labels.tolist()


def _end_kinds(schedule: Schedule, choices: Choices, placement: RankPlacement) -> EndKinds:
    """Kinds of members of a collective that end together: measured ones for the MPI library, else by their steps."""
    library = LibraryTimes(placement.machine, schedule.grid, placement)
    return lambda op: library.member_kinds(op) if choices.by_library(op) else ()


def strides(ranks: Ints) -> tuple[range, ...]:
    """Ranges of rising ranks.

    >>> strides(np.array([0, 4, 8, 9, 10, 20]))
    (range(0, 9, 4), range(9, 11), range(20, 21))
    """
    ranges, numbers = [], ranks.tolist()
    start = 0
    while start < len(numbers):
        step = numbers[start + 1] - numbers[start] if start + 1 < len(numbers) else 1
        stop = start + 1
        while stop < len(numbers) and numbers[stop] - numbers[stop - 1] == step:
            stop += 1
        ranges.append(range(numbers[start], numbers[stop - 1] + 1, step if stop > start + 1 else 1))
        start = stop
    return tuple(ranges)
