"""Which ranks behave alike, read off their coordinates.

A cut gives at most two sizes, and a coordinate's size depends only on which
side of the boundary it lies.  So the coordinates of each axis fall into a few
intervals whose members do the same to blocks of the same size, and one
representative of each stands for all: counts over a hundred thousand ranks
need a handful of evaluations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from algorithms.choices import Choices
from algorithms.exchanges import largest_power_of_two
from algorithms.grid import AXES, Axis
from algorithms.ops import AllReduce, Collective, Communication, Op, collective_kind
from algorithms.parts import Part, Place
from algorithms.schedule import Schedule, all_ops, differing_loops, walk_alike
from algorithms.traffic import traffic


@dataclass(frozen=True, slots=True)
class Alike:
    """One rank that stands for `count` ranks."""

    place: Place
    count: int

    @property
    def rank(self) -> int:
        return self.place.grid.rank_at(self.place.coordinates)


def alike(schedule: Schedule, choices: Choices) -> list[Alike]:
    """Representatives of all ranks: those of one class have blocks of the same sizes and send the same bytes."""
    intervals = {axis: _intervals(schedule, axis, choices) for axis in AXES}
    for axis in AXES:
        if len(intervals[axis]) < schedule.grid.length(axis):
            starts = {first for first, _ in intervals[axis]}
            starts |= _piece_boundaries(schedule, axis, intervals, choices)
            intervals[axis] = _split(starts, schedule.grid.length(axis))
    return list(_representatives(schedule, intervals))


Intervals = list[tuple[int, int]]


def _representatives(schedule: Schedule, intervals: dict[Axis, Intervals]) -> Iterator[Alike]:
    for chosen in product(*(intervals[axis] for axis in AXES)):
        coordinates = {axis: first for axis, (first, _) in zip(AXES, chosen, strict=True)}
        count = prod(stop - first for first, stop in chosen)
        yield Alike(Place(schedule.grid, schedule.sizes, coordinates), count)


def _split(starts: set[int], length: int) -> Intervals:
    edges = sorted({start for start in starts if 0 < start < length} | {0, length})
    return list(pairwise(edges))


def _uneven(size: int, length: int) -> set[int]:
    """Starts of intervals where a cut has parts of two lengths: after the longer ones, and at the ends, which meet."""
    return _around(size % length, length) | _around(0, length) if size % length else set()


def _around(boundary: int, length: int) -> set[int]:
    """Starts of intervals such that neighbours of a coordinate lie on the same side as those of its class."""
    return {(boundary - 1) % length, boundary, min(length, boundary + 1)}


def _intervals(schedule: Schedule, axis: Axis, choices: Choices) -> Intervals:
    """Intervals of the axis from the cuts of dimensions; single coordinates where each one plays its own part."""
    length = schedule.grid.length(axis)
    if _every_coordinate_differs(schedule, axis, choices):
        return _split(set(range(length)), length)
    starts: set[int] = set()
    for tensor in schedule.tensors.values():
        for part in (tensor.rows, tensor.columns):
            if axis in part.cut_over:
                for size in _sizes_before(schedule, part, axis):
                    starts |= _uneven(size, length)
        if tensor.held_at is not None and tensor.held_at[0] == axis:
            starts |= _around(tensor.held_at[1], length)
    for role in schedule.roles:
        if role.axis == axis:
            starts |= _around(role.start, length) | (set() if role.stop is None else _around(role.stop, length))
    return _split(starts, length)


def _every_coordinate_differs(schedule: Schedule, axis: Axis, choices: Choices) -> bool:
    """Panels, turning blocks, roots and peers that depend on coordinates, and steps that are not a ring's."""
    for tensor in schedule.tensors.values():
        for part in (tensor.rows, tensor.columns):
            if part.panel is not None and axis in (*part.panel.axes, part.panel.shared_over):
                return True
            if part.rotated_by and (axis in part.rotated_by or axis in part.axes):
                return True
    ringed = {"ring", "pairwise"}
    for op in all_ops(schedule):
        if not isinstance(op, Communication) or op.axis != axis:
            continue
        if not isinstance(op, Collective) or choices.algorithm(collective_kind(op)) not in ringed:
            return True
    return False


def _sizes_before(schedule: Schedule, part: Part, axis: Axis) -> set[int]:
    """The lengths, few, of the range that the cut over `axis` divides."""
    sizes = {schedule.sizes[part.dimension]}
    if axis in part.axes:
        return _cut_on(schedule, sizes, part.axes[: part.axes.index(axis)])
    units = _cut_on(schedule, sizes, part.axes)
    return _cut_on(schedule, {size * part.each for size in units}, part.finer[: part.finer.index(axis)])


def _cut_on(schedule: Schedule, sizes: set[int], axes: tuple[Axis, ...]) -> set[int]:
    """The lengths of the parts of such ranges, cut over one axis after the other."""
    for axis in axes:
        length = schedule.grid.length(axis)
        sizes = {size // length + extra for size in sizes for extra in ((0, 1) if size % length else (0,))}
    return sizes


def _piece_boundaries(schedule: Schedule, axis: Axis, intervals: dict[Axis, Intervals], choices: Choices) -> set[int]:
    """Where, along the axis, the pieces of its collectives change their size."""
    length = schedule.grid.length(axis)
    starts: set[int] = set()
    loops = differing_loops(schedule)
    for one in _representatives(schedule, {**intervals, axis: [(0, length)]}):
        for found in walk_alike(schedule.program(one.place), one.place, loops):
            if isinstance(found.op, Communication) and found.op.axis == axis:
                starts |= _size_changes(found.op, schedule, found.moment, choices, length)
    for tensor in schedule.tensors.values():
        if axis in tensor.shards:
            before = tensor.shards[: tensor.shards.index(axis)]
            for one in _representatives(schedule, {**intervals, axis: [(0, length)]}):
                rows, columns = tensor.block(one.place).rectangle_shape
                for size in _cut_on(schedule, {rows * columns}, before):
                    starts |= _uneven(size, length)
    return starts


def _size_changes(op: Op, schedule: Schedule, moment: Place, choices: Choices, length: int) -> set[int]:
    moved = traffic(op, schedule, moment, choices) if isinstance(op, Communication) else None
    if moved is None:
        return set()
    if moved.lowered.algorithm == "doubling" and isinstance(op, AllReduce):
        core = largest_power_of_two(length)
        return {length - core, core}
    sizes = _sizes(moved.edges)
    changes = {i for i in range(len(sizes)) if sizes[i] != sizes[i - 1]}
    return {start for change in changes for start in _around(change, length)}


def _sizes(edges: tuple[int, ...]) -> list[int]:
    return [edges[i + 1] - edges[i] for i in range(len(edges) - 1)]
