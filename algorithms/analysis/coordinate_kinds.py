"""Kinds of coordinates: what ops and blocks can tell of a rank, read off a schedule.

Along an axis kinds are intervals of coordinates, which begin where a block changes
its size or somebody plays a part of his own.  Neighbours matter too, as a rank
sends to them and receives from them: so the two coordinates at a boundary are
intervals of their own.  Where two coordinates count together, kinds are intervals
of their distance (`root_distances.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod

import numpy as np

from quadrille.algorithms.analysis.root_distances import CHAIN, Distance, from_root, owners_alike
from quadrille.algorithms.collectives.choices import Choices
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
"""Algorithms without a root whose members all do the same with pieces of one size."""
Interval = tuple[int, int]
Kind = tuple[dict[Axis, int], int]
"""The coordinates of a rank, and how many are of its kind."""


@dataclass(slots=True)
class GridKinds:
    """What tells the ranks of a grid apart.

    Parameters
    ----------
    starts : by axis, where intervals of coordinates begin
    whole : axes of which every coordinate is an interval
    distances : of two coordinates
    """

    grid: Grid
    starts: dict[Axis, set[int]] = field(default_factory=lambda: {axis: set() for axis in AXES})
    whole: set[Axis] = field(default_factory=set)
    distances: set[Distance] = field(default_factory=set)

    def intervals(self, axis: Axis) -> list[Interval]:
        """Of the coordinates of an axis.

        >>> GridKinds(Grid(x=5), {"x": {0, 3, 5}}).intervals("x")
        [(0, 3), (3, 5)]
        """
        length = self.grid.length(axis)
        starts = set(range(length)) if axis in self.whole else self.starts[axis]
        return list(pairwise(sorted({start for start in starts if 0 < start < length} | {0, length})))

    def each(self, along: Axis | None = None) -> Iterator[Kind]:
        """The first rank of each kind.

        Parameters
        ----------
        along : an axis along which all are taken for one, the first
        """
        intervals = {axis: self.intervals(axis) if axis != along else [(0, self.grid.length(axis))] for axis in AXES}
        told = [
            one for one in self.distances if along not in (one.axis, one.other_axis) and self._tells(one, intervals)
        ]
        if told:
            yield from self._by_distance(intervals, told)
            return
        for chosen in product(*(intervals[axis] for axis in AXES)):
            yield {axis: first for axis, (first, _) in zip(AXES, chosen, strict=True)}, prod(b - a for a, b in chosen)

    def _tells(self, distance: Distance, intervals: dict[Axis, list[Interval]]) -> bool:
        """Whether a distance tells ranks apart that their coordinates do not."""
        return any(len(intervals[axis]) < self.grid.length(axis) for axis in (distance.axis, distance.other_axis))

    def _by_distance(self, intervals: dict[Axis, list[Interval]], told: list[Distance]) -> Iterator[Kind]:
        grid = self.grid
        kind = np.zeros(grid.size, dtype=np.int64)
        for axis in AXES:
            starts = [start for start, _ in intervals[axis]]
            coordinates = np.arange(grid.size) // grid.stride(axis) % grid.length(axis)
            kind = kind * len(starts) + np.searchsorted(starts, coordinates, side="right") - 1
        for distance in told:
            of_rank = distance.kinds(grid)
            _, kind = np.unique(kind * (int(of_rank.max()) + 1) + of_rank, return_inverse=True)
        _, first, counts = np.unique(kind, return_index=True, return_counts=True)
        for rank, count in sorted(zip(first.tolist(), counts.tolist(), strict=True)):
            yield grid.coordinates(rank), count


def around(boundary: int, length: int) -> set[int]:
    """Starts of intervals such that neighbours of a coordinate lie on the same side as those of its class."""
    return {(boundary - 1) % length, boundary, min(length, boundary + 1)}


def uneven(size: int, length: int) -> set[int]:
    """Starts of intervals where a cut has parts of two lengths: after the longer ones, and at the ends, which meet."""
    return around(size % length, length) | around(0, length) if size % length else set()


def grid_kinds(schedule: Schedule, choices: Choices) -> GridKinds:
    """What cuts, roles, roots, peers and turns tell ranks apart by; pieces of collectives are looked at later."""
    found = GridKinds(schedule.grid)
    for name, tensor in schedule.tensors.items():
        for part in (tensor.rows, tensor.columns):
            _of_part(part, name, schedule, found)
        if tensor.held_at is not None:
            axis, coordinate = tensor.held_at
            found.starts[axis] |= around(coordinate, schedule.grid.length(axis))
    for role in schedule.roles:
        if role.axis is not None:
            length = schedule.grid.length(role.axis)
            for edge in (role.start, *(() if role.stop is None else (role.stop,))):
                found.starts[role.axis] |= around(edge, length)
        found.whole |= _counting(role.program)
    for op in all_ops(schedule):
        if isinstance(op, Communication) and schedule.grid.length(op.axis) > 1:
            _of_communication(op, schedule, choices, found)
    return found


def _counting(program: Program) -> set[Axis]:
    """Axes on whose coordinates it depends how often something is repeated."""
    found: set[Axis] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            count = entry.count
            told = variables(count) if not hasattr(count, "shared_over") else {count.shared_over}
            found |= {axis for axis in AXES if axis in told} | _counting(entry.body)
    return found


def _of_part(part: Part, name: str, schedule: Schedule, found: GridKinds) -> None:
    """Where its cuts have parts of two lengths."""
    if part.panel is not None:
        found.whole |= {axis for axis in AXES if axis == part.panel.shared_over}
        return
    turned = part.axes[-1] if part.rotated_by else None
    for axis in part.cut_over:
        length = schedule.grid.length(axis)
        starts = {start for size in sizes_before(schedule, part, axis) for start in uneven(size, length)}
        if axis == turned and starts:
            _of_turned(part, name, starts, schedule, found)
        else:
            found.starts[axis] |= starts


def _of_turned(part: Part, name: str, starts: set[int], schedule: Schedule, found: GridKinds) -> None:
    """Of blocks of two lengths that coordinates or loops turn; without a loop ranks at one distance have the same."""
    own, by = part.axes[-1], part.rotated_by
    others = [axis for axis in AXES if axis in by]
    if len(by) == 1 and len(others) == 1 and others[0] != own and not _passed_on(name, {own, others[0]}, schedule):
        found.distances.add(Distance(own, others[0], -1, 0, frozenset(starts | {0})))
    else:
        found.whole |= {own, *others}


def _passed_on(name: str, axes: set[Axis], schedule: Schedule) -> bool:
    """Whether a communication op along one of the axes, other than from or to a root, moves the tensor."""
    moving = (op for op in all_ops(schedule) if isinstance(op, Communication) and op.axis in axes)
    return any(name in (*reads(op), *writes(op)) for op in moving if not isinstance(op, Broadcast | Reduce))


def _of_communication(op: Op, schedule: Schedule, choices: Choices, found: GridKinds) -> None:
    assert isinstance(op, Communication)
    if isinstance(op, Broadcast | Reduce):
        _of_rooted(op, schedule, choices, found)
    elif isinstance(op, Shift):
        found.whole |= _of_shift(op.distance, op.axis, found)
    elif not isinstance(op, Collective) or choices.of(op.name).algorithm(collective_kind(op)) not in RINGED:
        found.whole.add(op.axis)


def _of_rooted(op: Broadcast | Reduce, schedule: Schedule, choices: Choices, found: GridKinds) -> None:
    algorithm, axis, root = choices.of(op.name).algorithm(collective_kind(op)), op.axis, op.root
    length = schedule.grid.length(axis)
    if isinstance(root, int) and algorithm == CHAIN:
        found.starts[axis] |= around(root, length)
        return
    if isinstance(root, PanelOwner) and root.axis == axis:
        size = schedule.sizes[root.panel.dimension]
        if owners_alike(root, size, schedule.grid, algorithm):
            found.starts[axis] |= uneven(size, length)
            return
    distance = from_root(root, axis, length, algorithm)
    if distance is not None:
        found.distances.add(distance)
    else:
        found.whole |= {axis, *(other for other in AXES if other in variables(root))}


def _of_shift(distance: IntExpression, axis: Axis, found: GridKinds) -> set[Axis]:
    """Notes who shifts nothing, as the distance is once around; gives back the axes of which each coordinate counts."""
    told = {other for other in AXES if other in variables(distance)}
    if not isinstance(distance, Affine) or axis in told or distance.modulo is not None:
        return told | {axis} if told else set()
    for other in told:
        still = (at for at in range(found.grid.length(other)) if _still(distance, at, found.grid.length(axis)))
        found.starts[other] |= {edge for at in still for edge in (at, at + 1)}
    return set()


def _still(distance: Affine, coordinate: int, length: int) -> bool:
    return (distance.factor * coordinate + distance.offset) % length == 0


def sizes_before(schedule: Schedule, part: Part, axis: Axis) -> set[int]:
    """The lengths, few, of the range that the cut over `axis` divides."""
    sizes = {schedule.sizes[part.dimension]}
    if axis in part.axes:
        return cut_on(schedule, sizes, part.axes[: part.axes.index(axis)])
    units = cut_on(schedule, sizes, part.axes)
    return cut_on(schedule, {size * part.unit for size in units}, part.finer[: part.finer.index(axis)])


def cut_on(schedule: Schedule, sizes: set[int], axes: tuple[Axis, ...]) -> set[int]:
    """The lengths of the parts of such ranges, cut over one axis after the other."""
    for axis in axes:
        length = schedule.grid.length(axis)
        sizes = {size // length + extra for size in sizes for extra in ((0, 1) if size % length else (0,))}
    return sizes
