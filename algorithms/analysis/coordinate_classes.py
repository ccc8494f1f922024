"""Classes of grid coordinates whose ranks do equal work, read off a schedule.

Along an axis the classes are intervals of coordinates.  They begin where a block changes its size or a rank has a
special role. Neighbours matter too, since a rank sends to them and receives from them, so the two coordinates at a
boundary form intervals of their own.  Where two coordinates count together, the classes are intervals of their distance
(`root_distances.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod

import numpy as np

from quadrille.algorithms.analysis.root_distances import CHAIN, Distance, from_root, owners_alike
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.expressions import Affine, IntExpression, PanelOwner, variables
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
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

RINGED = {"ring", "pairwise"}
"""Algorithms without a root, in which all members do the same with pieces of one size."""
Interval = tuple[int, int]
Kind = tuple[dict[Axis, int], int]
"""Coordinates of a rank, and the number of ranks of its kind."""


@dataclass(slots=True)
class GridKinds:
    """What distinguishes the ranks of a grid.

    Parameters
    ----------
    grid : grid of ranks
    starts : by axis, the starts of the intervals of coordinates
    whole : axes along which every coordinate is an interval of its own
    distances : distances between two coordinates that count
    """

    grid: Grid
    starts: dict[Axis, set[int]] = field(default_factory=lambda: {axis: set() for axis in AXES})
    whole: set[Axis] = field(default_factory=set)
    distances: set[Distance] = field(default_factory=set)

    def intervals(self, axis: Axis) -> list[Interval]:
        """Returns the intervals of the coordinates of an axis.

        >>> GridKinds(Grid(x=5), {"x": {0, 3, 5}}).intervals("x")
        [(0, 3), (3, 5)]
        """
        length = self.grid.length(axis)
        starts = set(range(length)) if axis in self.whole else self.starts[axis]
        return list(pairwise(sorted({start for start in starts if 0 < start < length} | {0, length})))

    def each(self, along: Axis | None = None) -> Iterator[Kind]:
        """Yields the first rank of each kind.

        Parameters
        ----------
        along : axis along which all coordinates count as the first
        """
        intervals = {axis: self.intervals(axis) if axis != along else [(0, self.grid.length(axis))] for axis in AXES}
        distances = [
            distance
            for distance in self.distances
            if along not in (distance.axis, distance.other_axis) and self._tells(distance, intervals)
        ]
        if distances:
            yield from self._by_distance(intervals, distances)
            return
        for chosen in product(*(intervals[axis] for axis in AXES)):
            yield {axis: first for axis, (first, _) in zip(AXES, chosen, strict=True)}, prod(b - a for a, b in chosen)

    def _tells(self, distance: Distance, intervals: dict[Axis, list[Interval]]) -> bool:
        """Whether a distance distinguishes ranks that their coordinates do not."""
        return any(len(intervals[axis]) < self.grid.length(axis) for axis in (distance.axis, distance.other_axis))

    def _by_distance(self, intervals: dict[Axis, list[Interval]], distances: list[Distance]) -> Iterator[Kind]:
        grid = self.grid
        kind = np.zeros(grid.size, dtype=np.int64)
        for axis in AXES:
            starts = [start for start, _ in intervals[axis]]
            coordinates = np.arange(grid.size) // grid.stride(axis) % grid.length(axis)
            kind = kind * len(starts) + np.searchsorted(starts, coordinates, side="right") - 1
        for distance in distances:
            of_rank = distance.kinds(grid)
            _, kind = np.unique(kind * (int(of_rank.max()) + 1) + of_rank, return_inverse=True)
        _, first, counts = np.unique(kind, return_index=True, return_counts=True)
        for rank, count in sorted(zip(first.tolist(), counts.tolist(), strict=True)):
            yield grid.coordinates(rank), count


def around(boundary: int, length: int) -> set[int]:
    """Returns interval starts such that neighbours of a coordinate lie on the same side of a boundary as those of its
    class.
    """
    return {(boundary - 1) % length, boundary, min(length, boundary + 1)}


def uneven(size: int, length: int) -> set[int]:
    """Returns interval starts where a cut has parts of two lengths: after the longer parts, and at both ends."""
    return around(size % length, length) | around(0, length) if size % length else set()


def grid_kinds(schedule: Schedule, choices: Choices) -> GridKinds:
    """Returns what cuts, roles, roots, peers and loops distinguish; pieces of collectives are handled elsewhere."""
    kinds = GridKinds(schedule.grid)
    for name, tensor in schedule.tensors.items():
        for part in (tensor.rows, tensor.columns):
            _of_part(part, name, schedule, kinds)
        if tensor.held_at is not None:
            axis, coordinate = tensor.held_at
            kinds.starts[axis] |= around(coordinate, schedule.grid.length(axis))
    for role in schedule.roles:
        if role.axis is not None:
            length = schedule.grid.length(role.axis)
            for edge in (role.start, *(() if role.stop is None else (role.stop,))):
                kinds.starts[role.axis] |= around(edge, length)
        kinds.whole |= _counting(role.program)
    for op in all_ops(schedule):
        if isinstance(op, Communication) and schedule.grid.length(op.axis) > 1:
            _of_communication(op, schedule, choices, kinds)
    return kinds


def _counting(program: Program) -> set[Axis]:
    """Returns the axes whose coordinates determine trip counts."""
    axes: set[Axis] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            count = entry.count
            names = variables(count) if not hasattr(count, "shared_over") else {count.shared_over}
            axes |= {axis for axis in AXES if axis in names} | _counting(entry.body)
    return axes


def _of_part(part: Part, name: str, schedule: Schedule, kinds: GridKinds) -> None:
    """Adds the boundaries at which cuts have parts of two lengths."""
    if part.panel is not None:
        kinds.whole |= {axis for axis in AXES if axis == part.panel.shared_over}
        return
    turned = part.axes[-1] if part.rotated_by else None
    for axis in part.cut_over:
        length = schedule.grid.length(axis)
        starts = {start for size in sizes_before(schedule, part, axis) for start in uneven(size, length)}
        if axis == turned and starts:
            _of_turned(part, name, starts, schedule, kinds)
        else:
            kinds.starts[axis] |= starts


def _of_turned(part: Part, name: str, starts: set[int], schedule: Schedule, kinds: GridKinds) -> None:
    """Adds rotated blocks of two lengths; without a loop, ranks at one distance have equal blocks."""
    own, by = part.axes[-1], part.rotated_by
    others = [axis for axis in AXES if axis in by]
    if len(by) == 1 and len(others) == 1 and others[0] != own and not _passed_on(name, {own, others[0]}, schedule):
        kinds.distances.add(Distance(own, others[0], -1, 0, frozenset(starts | {0})))
    else:
        kinds.whole |= {own, *others}


def _passed_on(name: str, axes: set[Axis], schedule: Schedule) -> bool:
    """Whether a communication op along one of the axes, other than a rooted one, moves the tensor."""
    moving = (op for op in all_ops(schedule) if isinstance(op, Communication) and op.axis in axes)
    return any(name in (*reads(op), *writes(op)) for op in moving if not isinstance(op, Broadcast | Reduce))


def _of_communication(op: Op, schedule: Schedule, choices: Choices, kinds: GridKinds) -> None:
    assert isinstance(op, Communication)
    if isinstance(op, Broadcast | Reduce):
        _of_rooted(op, schedule, choices, kinds)
    elif isinstance(op, Shift):
        kinds.whole |= _of_shift(op.distance, op.axis, kinds)
    elif not isinstance(op, Collective) or choices.of(op.name).algorithm(collective_kind(op)) not in RINGED:
        kinds.whole.add(op.axis)


def _of_rooted(op: Broadcast | Reduce, schedule: Schedule, choices: Choices, kinds: GridKinds) -> None:
    algorithm, axis, root = choices.of(op.name).algorithm(collective_kind(op)), op.axis, op.root
    length = schedule.grid.length(axis)
    if isinstance(root, int) and algorithm == CHAIN:
        kinds.starts[axis] |= around(root, length)
        return
    if isinstance(root, PanelOwner) and root.axis == axis:
        size = schedule.sizes[root.panel.dimension]
        if owners_alike(root, size, schedule.grid, algorithm):
            kinds.starts[axis] |= uneven(size, length)
            return
    distance = from_root(root, axis, length, algorithm)
    if distance is not None:
        kinds.distances.add(distance)
    else:
        kinds.whole |= {axis, *(rooted_by for rooted_by in AXES if rooted_by in variables(root))}


def _of_shift(distance: IntExpression, axis: Axis, kinds: GridKinds) -> set[Axis]:
    """Adds ranks whose shift distance is a multiple of the ring length; returns the axes along which every coordinate
    counts.
    """
    named = {named_axis for named_axis in AXES if named_axis in variables(distance)}
    if not isinstance(distance, Affine) or axis in named or distance.modulo is not None:
        return named | {axis} if named else set()
    for named_axis in named:
        still = (at for at in range(kinds.grid.length(named_axis)) if _still(distance, at, kinds.grid.length(axis)))
        kinds.starts[named_axis] |= {edge for at in still for edge in (at, at + 1)}
    return set()


def _still(distance: Affine, coordinate: int, length: int) -> bool:
    return (distance.factor * coordinate + distance.offset) % length == 0


def sizes_before(schedule: Schedule, part: Part, axis: Axis) -> set[int]:
    """Returns the few lengths of the range that the cut over `axis` divides."""
    sizes = {schedule.sizes[part.dimension]}
    if axis in part.axes:
        return cut_on(schedule, sizes, part.axes[: part.axes.index(axis)])
    units = cut_on(schedule, sizes, part.axes)
    return cut_on(schedule, {size * part.unit for size in units}, part.finer[: part.finer.index(axis)])


def cut_on(schedule: Schedule, sizes: set[int], axes: tuple[Axis, ...]) -> set[int]:
    """Returns the lengths of the parts of such ranges, cut over one axis after the other."""
    for axis in axes:
        length = schedule.grid.length(axis)
        sizes = {size // length + extra for size in sizes for extra in ((0, 1) if size % length else (0,))}
    return sizes
