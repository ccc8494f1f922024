"""What the sizes, peers and roots of an op depend on, and which coordinates make no difference.

A cut gives at most two sizes, the first parts being one longer.  So along an
axis there are few kinds of coordinates, and an op needs to be looked at once
for each combination of kinds.  Where a coordinate is used as a number (a turning
block, a turn of panels, a root or peer), every one is a kind of its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Generic, TypeVar

from quadrille.algorithms.schedule.expressions import Affine, Expression, IntExpression, PanelCount, PanelOwner, Sum
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
from quadrille.algorithms.schedule.ops import Communication, Op, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates, Panel, Part, cut, is_mean
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Tensor

Found = TypeVar("Found")
Kind = tuple[int, ...]
"""What an op needs to know of a place: kinds of its coordinates, and loop indices."""


@dataclass(slots=True)
class Dependence:
    """What an op must know of a place.

    Parameters
    ----------
    thresholds : by axis, the coordinates at which some block changes its size
    distinct_axes : axes of which every coordinate counts by itself
    loops : loops whose index counts
    """

    thresholds: dict[Axis, set[int]] = field(default_factory=dict)
    distinct_axes: set[Axis] = field(default_factory=set)
    loops: set[str] = field(default_factory=set)

    @property
    def axes(self) -> list[Axis]:
        return [axis for axis in AXES if axis in self.thresholds or axis in self.distinct_axes]

    def kinds(self, axis: Axis, length: int) -> tuple[list[int], list[int]]:
        """One coordinate of each kind, and the kind of every coordinate.

        >>> Dependence({"z": {2, 3}}).kinds("z", 5)
        ([0, 2, 3], [0, 0, 1, 2, 2])
        """
        if axis in self.distinct_axes:
            return list(range(length)), list(range(length))
        starts = sorted({0} | {one for one in self.thresholds.get(axis, set()) if 0 < one < length})
        of_each = [sum(start <= one for start in starts[1:]) for one in range(length)] if len(starts) > 1 else []
        return starts, of_each or [0] * length


def dependence(op: Op, schedule: Schedule) -> Dependence:
    """What the sizes, peers and root of an op depend on."""
    found = Dependence()
    for name in dict.fromkeys((*reads(op), *writes(op))):
        _tensor(schedule.tensors[name], schedule, found)
    for name in ("root", "to", "sender", "distance"):
        _number(getattr(op, name, 0), found)
    return found


class OpDependences:
    """What each op of a schedule needs to know of a place, found once; nobody changes it."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._found: dict[int, tuple[Op, Dependence]] = {}

    def of(self, op: Op) -> Dependence:
        """Of this one, which is kept, so that no other gets its id."""
        if id(op) not in self._found:
            self._found[id(op)] = op, dependence(op, self._schedule)
        return self._found[id(op)][1]


def tensor_dependence(tensor: Tensor, schedule: Schedule) -> Dependence:
    """What the size of a block of the tensor depends on."""
    found = Dependence()
    _tensor(tensor, schedule, found)
    return found


def lengths(part: Part, schedule: Schedule) -> set[int]:
    """The lengths that a part may have on any rank at any time, or a few more."""
    return _part(part, schedule, Dependence())


def _tensor(tensor: Tensor, schedule: Schedule, found: Dependence) -> None:
    sizes = [_part(part, schedule, found) for part in (tensor.rows, tensor.columns)]
    elements = {rows * columns for rows in sizes[0] for columns in sizes[1]}
    for axis in tensor.shards:
        elements = _cut(elements, axis, schedule.grid, found)
    if tensor.stages is not None:
        found.distinct_axes.add("pipeline")
    if tensor.held_at is not None:
        axis, coordinate = tensor.held_at
        found.thresholds.setdefault(axis, set()).update((coordinate, coordinate + 1))


def _part(part: Part, schedule: Schedule, found: Dependence) -> set[int]:
    """Notes what a part depends on; gives back the lengths that it may have, or more."""
    if part.panel is not None:
        _panel(part.panel, found)
        edges = part.panel.edges(schedule.grid, schedule.sizes[part.dimension])
        return {after - before for before, after in pairwise(edges)}
    sizes = {schedule.sizes[part.dimension]}
    for axis in part.axes:
        sizes = _cut(sizes, axis, schedule.grid, found)
    if part.rotated_by:
        found.distinct_axes.add(part.axes[-1])
        for name in part.rotated_by:
            _variable(name, found)
    sizes = {size * part.unit for size in sizes}
    for axis in part.finer:
        sizes = _cut(sizes, axis, schedule.grid, found)
    if part.band is not None:
        sizes = {last - first for first, last in map(part.band_of, sizes)}
    return sizes


def _cut(sizes: set[int], axis: Axis, grid: Grid, found: Dependence) -> set[int]:
    length = grid.length(axis)
    whole = {size for size in sizes if not is_mean(size)}
    found.thresholds.setdefault(axis, set()).update(size % length for size in whole)
    return {part for size in sizes for part in _parts(size, length)}


def _parts(size: int, length: int) -> Iterator[int]:
    """Lengths of the parts of a cut; those of a fraction are alike."""
    first, last = cut(size, length, 0), cut(size, length, length - 1)
    yield first[1] - first[0]
    yield last[1] - last[0]


def _panel(panel: Panel, found: Dependence) -> None:
    found.loops.add(panel.loop)
    if panel.shared_over is not None:
        found.distinct_axes.add(panel.shared_over)


def _number(value: IntExpression, found: Dependence) -> None:
    match value:
        case PanelOwner():
            _panel(value.panel, found)
        case Affine():
            _variable(value.variable, found)
        case Sum():
            _number(value.left, found)
            _number(value.right, found)
        case Expression():
            for operand in value.operands:
                _number(operand, found)
        case PanelCount():
            if value.panel.shared_over is not None:
                found.distinct_axes.add(value.panel.shared_over)
        case int():
            pass


def _variable(name: str, found: Dependence) -> None:
    for axis in AXES:
        if name == axis:
            found.distinct_axes.add(axis)
            return
    found.loops.add(name)


class CoordinateKinds:
    """The kinds of places that whoever has these needs tells apart.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> kinds = CoordinateKinds(Dependence({"x": {2}}), Grid(z=2, x=4))
    >>> [kinds.of(Coordinates(Grid(z=2, x=4), {}, {"z": 1, "x": x})) for x in range(4)]
    [(0,), (0,), (1,), (1,)]
    """

    def __init__(self, needed: Dependence, grid: Grid) -> None:
        self._axes: list[tuple[Axis, list[int]]] = []
        for axis in needed.axes:
            _, kinds = needed.kinds(axis, grid.length(axis))
            if len(set(kinds)) > 1:
                self._axes.append((axis, kinds))
        self._loops = sorted(needed.loops)

    def of(self, place: Coordinates) -> Kind:
        """The kind of this one."""
        coordinates, indices = place.along, place.indices
        found = [kinds[coordinates[axis]] for axis, kinds in self._axes]
        found += [indices.get(loop, 0) for loop in self._loops]
        return tuple(found)


class OpKinds:
    """The kind of a place for each op of a schedule: where it is the same, an op has blocks of the same sizes.

    A communication op tells apart all members of its groups, and every op the coordinates that have programs of
    their own.  One for all who ask: `schedule.once(OpKinds)`.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._grid, self._needs = schedule.grid, schedule.cached(OpDependences)
        self._apart = {role.axis for role in schedule.roles if role.axis is not None}
        self._kinds: dict[int, CoordinateKinds] = {}

    def of(self, op: Op, place: Coordinates) -> Kind:
        """The kind of this one, for this op."""
        found = self._kinds.get(id(op))
        if found is None:
            found = self._kinds[id(op)] = self._kinds_of(op)
        return found.of(place)

    def _kinds_of(self, op: Op) -> CoordinateKinds:
        needed = self._needs.of(op)
        apart = self._apart | ({op.axis} if isinstance(op, Communication) else set())
        return CoordinateKinds(replace(needed, distinct_axes=needed.distinct_axes | apart), self._grid)


class PerKind(Generic[Found]):
    """What an op comes to, found once for each kind of place: of hundreds of ranks that differ, it tells few apart.

    Parameters
    ----------
    find : the same for all places of a kind
    """

    def __init__(self, schedule: Schedule, find: Callable[[Op, Coordinates], Found]) -> None:
        self._kinds, self._find = schedule.cached(OpKinds), find
        self._found: dict[tuple[int, Kind], Found] = {}

    def of(self, op: Op, place: Coordinates) -> Found:
        """What it comes to at this one."""
        key = id(op), self._kinds.of(op, place)
        if key not in self._found:
            self._found[key] = self._find(op, place)
        return self._found[key]
