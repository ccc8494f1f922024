"""Coordinate classes: the classes of ranks that do equal work, as intervals of coordinates along each grid axis.

The classes are derived from the schedule, without a visit of every rank.  An interval begins where a block changes its
size or a rank has a special role (a root, a pipeline stage).  A rank also sends to its neighbours and receives from
them, so the two coordinates at a boundary form intervals of their own.  Where two coordinates count together, as for a
root that moves along a diagonal, the classes are intervals of their distance (`root_distances.py`).

    7 columns on x=3: parts of 3, 2 and 2      classes of x: {0}, {1}, {2}
    9 columns on x=3: parts of 3               classes of x: {0, 1, 2}
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod

import numpy as np

from quadrille.algorithms.analysis.coordinate_dependence import lengths
from quadrille.algorithms.analysis.root_distances import CHAIN, RootDistanceRule, owners_are_equivalent, root_distance
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.expressions import Affine, IntExpression, PanelOwner, variables
from quadrille.algorithms.schedule.grid import AXES, EXPERT, EXPERT_AXES, Axis, Grid
from quadrille.algorithms.schedule.ops import (
    Broadcast,
    Collective,
    Communication,
    Op,
    Reduce,
    Shift,
    collective_kind,
    reads,
    writes,
)
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule, all_ops

ROOTLESS = {"ring", "pairwise", "direct"}
"""Algorithms without a root, in which all members do the same with pieces of one size."""
Interval = tuple[int, int]
"""First coordinate of an interval, and the coordinate after its last."""
RankClass = tuple[dict[Axis, int], int]
"""Coordinates of the first rank of a class, and the number of ranks in the class."""


@dataclass(slots=True)
class CoordinateClasses:
    """The classes of the ranks of a grid.

    Parameters
    ----------
    grid : grid of ranks
    starts : by axis, the starts of the intervals of coordinates
    distinct_axes : axes along which every coordinate is an interval of its own
    distances : distances between two coordinates that distinguish ranks
    """

    grid: Grid
    starts: dict[Axis, set[int]] = field(default_factory=lambda: {axis: set() for axis in AXES})
    distinct_axes: set[Axis] = field(default_factory=set)
    distances: set[RootDistanceRule] = field(default_factory=set)

    def intervals(self, axis: Axis) -> list[Interval]:
        """Returns the intervals of the coordinates of an axis.

        >>> CoordinateClasses(Grid(x=5), {"x": {0, 3, 5}}).intervals("x")
        [(0, 3), (3, 5)]
        """
        length = self.grid.length(axis)
        starts = set(range(length)) if axis in self.distinct_axes else self.starts[axis]
        return list(pairwise(sorted({start for start in starts if 0 < start < length} | {0, length})))

    def representatives(self, along: Axis | None = None) -> Iterator[RankClass]:
        """Yields the first rank of each class, with the number of ranks in the class.

        Parameters
        ----------
        along : axis whose coordinates are not distinguished
        """
        intervals = {axis: self.intervals(axis) if axis != along else [(0, self.grid.length(axis))] for axis in AXES}
        distances = [
            distance
            for distance in self.distances
            if along not in (distance.axis, distance.other_axis) and self._distinguishes(distance, intervals)
        ]
        if distances:
            yield from self._by_distance(intervals, distances)
            return
        for chosen in product(*(intervals[axis] for axis in AXES)):
            yield {axis: first for axis, (first, _) in zip(AXES, chosen, strict=True)}, prod(b - a for a, b in chosen)

    def _distinguishes(self, distance: RootDistanceRule, intervals: dict[Axis, list[Interval]]) -> bool:
        """Whether a distance distinguishes ranks that their coordinates do not."""
        return any(len(intervals[axis]) < self.grid.length(axis) for axis in (distance.axis, distance.other_axis))

    def _by_distance(
        self, intervals: dict[Axis, list[Interval]], distances: list[RootDistanceRule]
    ) -> Iterator[RankClass]:
        grid = self.grid
        label = np.zeros(grid.size, dtype=np.int64)
        for axis in AXES:
            starts = [start for start, _ in intervals[axis]]
            coordinates = np.arange(grid.size) // grid.stride(axis) % grid.length(axis)
            label = label * len(starts) + np.searchsorted(starts, coordinates, side="right") - 1
        for distance in distances:
            of_rank = distance.classes(grid)
            _, label = np.unique(label * (int(of_rank.max()) + 1) + of_rank, return_inverse=True)
        _, first, counts = np.unique(label, return_index=True, return_counts=True)
        for rank, count in sorted(zip(first.tolist(), counts.tolist(), strict=True)):
            yield grid.coordinates(rank), count


def starts_around(boundary: int, length: int) -> set[int]:
    """Returns the interval starts around a boundary, such that the neighbours of all coordinates of a class lie on the
    same side of the boundary.
    """
    return {(boundary - 1) % length, boundary, min(length, boundary + 1)}


def uneven_cut_starts(size: int, length: int) -> set[int]:
    """Returns the interval starts of a cut into parts of two lengths: after the longer parts, and at both ends.

    Parameters
    ----------
    size : number of elements that are cut
    length : number of parts
    """
    return starts_around(size % length, length) | starts_around(0, length) if size % length else set()


def coordinate_classes(schedule: Schedule, choices: Choices) -> CoordinateClasses:
    """Returns the classes that cuts, roles, roots, peers and loops distinguish.

    Pieces of collectives may split these classes further (`rank_symmetry.py`).
    """
    classes = CoordinateClasses(schedule.grid)
    for name, tensor in schedule.tensors.items():
        for part in (tensor.rows, tensor.columns):
            _add_part(part, name, schedule, classes)
        if tensor.kept is not None:
            from quadrille.algorithms.analysis.compressed_sizes import distinct_axes

            lengths_of = lengths(tensor.rows, schedule), lengths(tensor.columns, schedule)
            classes.distinct_axes |= distinct_axes(tensor, lengths_of, schedule)
        if tensor.held_at is not None:
            axis, coordinate = tensor.held_at
            classes.starts[axis] |= starts_around(coordinate, schedule.grid.length(axis))
    for role in schedule.roles:
        if role.axis is not None:
            length = schedule.grid.length(role.axis)
            for edge in (role.start, *(() if role.stop is None else (role.stop,))):
                classes.starts[role.axis] |= starts_around(edge, length)
        classes.distinct_axes |= _trip_count_axes(role.program)
    for op in all_ops(schedule):
        if isinstance(op, Communication) and schedule.grid.length(op.axis) > 1:
            _add_communication(op, schedule, choices, classes)
    return classes


def _trip_count_axes(program: Program) -> set[Axis]:
    """Returns the axes whose coordinates determine trip counts."""
    axes: set[Axis] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            count = entry.count
            names = variables(count) if not hasattr(count, "shared_over") else {count.shared_over}
            axes |= {axis for axis in AXES if axis in names} | _trip_count_axes(entry.body)
    return axes


def _add_part(part: Part, name: str, schedule: Schedule, classes: CoordinateClasses) -> None:
    """Adds the boundaries at which cuts have parts of two lengths."""
    if part.panel is not None:
        classes.distinct_axes |= {axis for axis in AXES if axis == part.panel.shared_over}
        return
    if part.loads and schedule.grid.expert > 1:
        classes.distinct_axes |= schedule.grid.box_axes(EXPERT)
    rotated_axis = part.cut_over[-1] if part.rotated_by else None
    for axis in part.cut_over:
        length = schedule.grid.length(axis)
        starts = {
            start for size in lengths_before_cut(schedule, part, axis) for start in uneven_cut_starts(size, length)
        }
        if axis in EXPERT_AXES:  # factors of the ranks of a stage
            classes.distinct_axes |= schedule.grid.box_axes(axis) if starts else set()
        elif axis == rotated_axis and starts:
            _add_rotated_part(part, name, starts, schedule, classes)
        else:
            classes.starts[axis] |= starts


def _add_rotated_part(part: Part, name: str, starts: set[int], schedule: Schedule, classes: CoordinateClasses) -> None:
    """Adds the boundaries of rotated blocks of two lengths; without a loop, ranks at one distance have equal blocks."""
    own, by = part.cut_over[-1], part.rotated_by
    others = [axis for axis in AXES if axis in by]
    if len(by) == 1 and len(others) == 1 and others[0] != own and not _is_passed_on(name, {own, others[0]}, schedule):
        classes.distances.add(RootDistanceRule(own, others[0], -1, 0, frozenset(starts | {0})))
    else:
        classes.distinct_axes |= {own, *others}


def _is_passed_on(name: str, axes: set[Axis], schedule: Schedule) -> bool:
    """Whether a communication op along one of the axes, other than a rooted one, moves the tensor."""
    moving = (op for op in all_ops(schedule) if isinstance(op, Communication) and op.axis in axes)
    return any(name in (*reads(op), *writes(op)) for op in moving if not isinstance(op, Broadcast | Reduce))


def _add_communication(op: Op, schedule: Schedule, choices: Choices, classes: CoordinateClasses) -> None:
    assert isinstance(op, Communication)
    if isinstance(op, Broadcast | Reduce):
        _add_rooted(op, schedule, choices, classes)
    elif isinstance(op, Shift):
        classes.distinct_axes |= _add_shift(op.distance, op.axis, classes)
    elif not isinstance(op, Collective) or choices.of(op.name).algorithm(collective_kind(op)) not in ROOTLESS:
        classes.distinct_axes |= schedule.grid.box_axes(op.axis)


def _add_rooted(op: Broadcast | Reduce, schedule: Schedule, choices: Choices, classes: CoordinateClasses) -> None:
    algorithm, axis, root = choices.of(op.name).algorithm(collective_kind(op)), op.axis, op.root
    length = schedule.grid.length(axis)
    if isinstance(root, int) and algorithm == CHAIN:
        classes.starts[axis] |= starts_around(root, length)
        return
    if isinstance(root, PanelOwner) and root.axis == axis:
        size = schedule.sizes[root.panel.dimension]
        if owners_are_equivalent(root, size, schedule.grid, algorithm):
            classes.starts[axis] |= uneven_cut_starts(size, length)
            return
    distance = root_distance(root, axis, length, algorithm)
    if distance is not None:
        classes.distances.add(distance)
    else:
        classes.distinct_axes |= {axis, *(rooted_by for rooted_by in AXES if rooted_by in variables(root))}


def _add_shift(distance: IntExpression, axis: Axis, classes: CoordinateClasses) -> set[Axis]:
    """Adds ranks whose shift distance is a multiple of the ring length; returns the axes along which every coordinate
    counts.
    """
    named = {named_axis for named_axis in AXES if named_axis in variables(distance)}
    if not isinstance(distance, Affine) or axis in named or distance.modulo is not None:
        return named | {axis} if named else set()
    for named_axis in named:
        still = (
            coordinate
            for coordinate in range(classes.grid.length(named_axis))
            if _stays(distance, coordinate, classes.grid.length(axis))
        )
        classes.starts[named_axis] |= {edge for coordinate in still for edge in (coordinate, coordinate + 1)}
    return set()


def _stays(distance: Affine, coordinate: int, length: int) -> bool:
    return (distance.factor * coordinate + distance.offset) % length == 0


def lengths_before_cut(schedule: Schedule, part: Part, axis: Axis) -> set[int]:
    """Returns the lengths (at most two) of the range that the cut over `axis` divides [elements]."""
    sizes = {schedule.sizes[variant.dimension] for variant in part.variants}
    if axis in part.axes:
        return part_lengths(schedule, sizes, part.axes[: part.axes.index(axis)])
    units = part_lengths(schedule, sizes, part.axes)
    return part_lengths(schedule, {size * part.unit for size in units}, part.finer[: part.finer.index(axis)])


def part_lengths(schedule: Schedule, sizes: set[int], axes: tuple[Axis, ...]) -> set[int]:
    """Returns the lengths of the parts of ranges that are cut over one axis after the other [elements].

    Parameters
    ----------
    sizes : lengths of the ranges [elements]
    axes : axes of the cuts, outermost first
    """
    for axis in axes:
        length = schedule.grid.length(axis)
        sizes = {size // length + extra for size in sizes for extra in ((0, 1) if size % length else (0,))}
    return sizes
