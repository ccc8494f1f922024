"""Rank symmetry: one representative of each class of ranks that do equal work, with the number of ranks in the class.

A cut has parts of at most two sizes, and the size depends only on the side of the boundary on which a coordinate lies.
So the coordinates of each axis fall into a few intervals whose ranks do the same work on blocks of equal size
(`coordinate_classes.py`).  A count over a hundred thousand ranks evaluates a handful of representatives.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from quadrille.algorithms.analysis.coordinate_classes import (
    CoordinateClasses,
    coordinate_classes,
    part_lengths,
    starts_around,
    uneven_cut_starts,
)
from quadrille.algorithms.analysis.coordinate_dependence import PerKind
from quadrille.algorithms.analysis.folded_walk import FoldedWalks, folded_walks
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.collectives.flat_collectives import largest_power_of_two
from quadrille.algorithms.schedule.grid import AXES, EXPERT_AXES, Axis
from quadrille.algorithms.schedule.ops import AllReduce, Barrier, Broadcast, Collective, Op, Reduce
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class EquivalentRanks:
    """One rank that represents `count` equivalent ranks."""

    coordinates: Coordinates
    count: int

    @property
    def rank(self) -> int:
        """Number of the representative rank."""
        return self.coordinates.grid.rank_at(self.coordinates.along)


def equivalent_ranks(schedule: Schedule, choices: Choices) -> list[EquivalentRanks]:
    """Returns a representative of each class of ranks; their counts add up to the number of ranks.

    Ranks of one class have blocks of equal sizes.  Each op sends and computes the same amount over all its instances,
    though possibly in different iterations of a loop (`root_distances.py`).

    Parameters
    ----------
    schedule : the schedule
    choices : implementation and algorithms of its collectives
    """
    return list(schedule.cached(_equivalent_ranks, choices))


def _equivalent_ranks(schedule: Schedule, choices: Choices) -> tuple[EquivalentRanks, ...]:
    """The representatives, computed once for a schedule."""
    classes = coordinate_classes(schedule, choices)
    changes = PerKind(schedule, lambda op, coordinates: frozenset(_size_changes(op, schedule, coordinates, choices)))
    walks = folded_walks(schedule, choices)
    while _split_by_pieces(schedule, classes, walks, changes):
        pass
    return tuple(_representatives(schedule, classes))


def _split_by_pieces(
    schedule: Schedule, classes: CoordinateClasses, walks: FoldedWalks, changes: PerKind[frozenset[int]]
) -> bool:
    """Whether pieces of collectives along some axis split classes further; that may split classes along other axes."""
    before = {axis: len(classes.intervals(axis)) for axis in AXES}
    for axis in AXES:
        if 1 < schedule.grid.length(axis) > len(classes.intervals(axis)):
            classes.starts[axis] |= _piece_boundaries(schedule, axis, classes, walks, changes)
    grid = schedule.grid
    for axis in EXPERT_AXES if grid.folds else ():
        if not grid.box_axes(axis) <= classes.distinct_axes and _piece_boundaries(
            schedule, axis, classes, walks, changes
        ):
            classes.distinct_axes |= grid.box_axes(axis)
    return any(len(classes.intervals(axis)) > before[axis] for axis in AXES)


def _representatives(
    schedule: Schedule, classes: CoordinateClasses, along: Axis | None = None
) -> Iterator[EquivalentRanks]:
    for coordinates, count in classes.representatives(along):
        yield EquivalentRanks(Coordinates(schedule.grid, schedule.sizes, coordinates), count)


def _piece_boundaries(
    schedule: Schedule, axis: Axis, classes: CoordinateClasses, walks: FoldedWalks, changes: PerKind[frozenset[int]]
) -> set[int]:
    """Returns the coordinates along the axis at which pieces of its collectives change their size."""
    length = schedule.grid.length(axis)
    starts: set[int] = set()
    for representative in _representatives(schedule, classes, axis):
        for instance in walks.of(representative.coordinates):
            if _goes_in_pieces(instance.op, axis):
                starts |= changes.of(instance.op, instance.coordinates)
        for tensor in schedule.tensors.values():
            if axis == "data" and axis in tensor.shards and tensor.kept is not None:
                from quadrille.algorithms.analysis.compressed_sizes import whole_compressed

                size = whole_compressed(tensor).block(representative.coordinates).elements
                starts |= uneven_cut_starts(size, length)
            elif axis in tensor.shards:
                before = tensor.shards[: tensor.shards.index(axis)]
                rows, columns = tensor.block(representative.coordinates).rectangle_shape
                for size in part_lengths(schedule, {rows * columns}, before):
                    starts |= uneven_cut_starts(size, length)
    return starts


def _goes_in_pieces(op: Op, axis: Axis) -> bool:
    """Whether an op is a collective along the axis in which each member has a piece of its own."""
    return isinstance(op, Collective) and not isinstance(op, Broadcast | Reduce | Barrier) and op.axis == axis


def _size_changes(op: Op, schedule: Schedule, coordinates: Coordinates, choices: Choices) -> set[int]:
    """Returns the interval starts along the axis of a collective that its pieces distinguish."""
    op_traffic = traffic(op, schedule, coordinates, choices) if isinstance(op, Collective) else None
    if op_traffic is None:
        return set()
    length = op_traffic.lowered.members
    if op_traffic.lowered.algorithm == "doubling" and isinstance(op, AllReduce):
        core = largest_power_of_two(length)
        return {length - core, core}
    sizes = _sizes(op_traffic.edges)
    changes = {i for i in range(len(sizes)) if sizes[i] != sizes[i - 1]}
    return {start for change in changes for start in starts_around(change, length)}


def _sizes(edges: tuple[int, ...]) -> list[int]:
    return [edges[i + 1] - edges[i] for i in range(len(edges) - 1)]
