"""The coordinates and loop indices that an op's sizes, peers and roots depend on.

A cut has parts of at most two sizes, longer parts first.  So the coordinates along an axis fall into a few kinds, and
an op is examined once for each combination of kinds.  Where the coordinate itself counts (a rotating block, a shared
range of panels, a root or peer), every coordinate is a kind of its own.
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

Result = TypeVar("Result")
Kind = tuple[int, ...]
"""Key of the coordinates for an op: kind along each relevant axis, then relevant loop indices."""


@dataclass(slots=True)
class Dependence:
    """The coordinates and loop indices that an op depends on.

    Parameters
    ----------
    thresholds : by axis, the coordinates at which some block changes its size
    distinct_axes : axes along which every coordinate counts
    loops : loops whose index counts
    """

    thresholds: dict[Axis, set[int]] = field(default_factory=dict)
    distinct_axes: set[Axis] = field(default_factory=set)
    loops: set[str] = field(default_factory=set)

    @property
    def axes(self) -> list[Axis]:
        return [axis for axis in AXES if axis in self.thresholds or axis in self.distinct_axes]

    def kinds(self, axis: Axis, length: int) -> tuple[list[int], list[int]]:
        """Returns one coordinate of each kind, and the kind of every coordinate.

        >>> Dependence({"z": {2, 3}}).kinds("z", 5)
        ([0, 2, 3], [0, 0, 1, 2, 2])
        """
        if axis in self.distinct_axes:
            return list(range(length)), list(range(length))
        starts = sorted(
            {0} | {coordinate for coordinate in self.thresholds.get(axis, set()) if 0 < coordinate < length}
        )
        of_each = (
            [sum(start <= coordinate for start in starts[1:]) for coordinate in range(length)]
            if len(starts) > 1
            else []
        )
        return starts, of_each or [0] * length


def dependence(op: Op, schedule: Schedule) -> Dependence:
    """Returns what the sizes, peers and root of an op depend on."""
    needed = Dependence()
    for name in dict.fromkeys((*reads(op), *writes(op))):
        _tensor(schedule.tensors[name], schedule, needed)
    for name in ("root", "to", "sender", "distance"):
        _number(getattr(op, name, 0), needed)
    return needed


class OpDependences:
    """Dependences of the ops of a schedule, computed once each; callers must not modify them."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._found: dict[int, tuple[Op, Dependence]] = {}

    def of(self, op: Op) -> Dependence:
        """Dependence of the op, which is kept alive so that its id stays unique."""
        if id(op) not in self._found:
            self._found[id(op)] = op, dependence(op, self._schedule)
        return self._found[id(op)][1]


def tensor_dependence(tensor: Tensor, schedule: Schedule) -> Dependence:
    """Returns what the size of a tensor's block depends on."""
    needed = Dependence()
    _tensor(tensor, schedule, needed)
    return needed


def lengths(part: Part, schedule: Schedule) -> set[int]:
    """Returns the lengths that a part may have on any rank in any iteration; a superset is possible."""
    return _part(part, schedule, Dependence())


def _tensor(tensor: Tensor, schedule: Schedule, needed: Dependence) -> None:
    sizes = [_part(part, schedule, needed) for part in (tensor.rows, tensor.columns)]
    elements = {rows * columns for rows in sizes[0] for columns in sizes[1]}
    for axis in tensor.shards:
        elements = _cut(elements, axis, schedule.grid, needed)
    if tensor.stages is not None:
        needed.distinct_axes.add("pipeline")
    if tensor.held_at is not None:
        axis, coordinate = tensor.held_at
        needed.thresholds.setdefault(axis, set()).update((coordinate, coordinate + 1))


def _part(part: Part, schedule: Schedule, needed: Dependence) -> set[int]:
    """Adds what a part depends on; returns the lengths that it may have, or a superset."""
    if part.panel is not None:
        _panel(part.panel, needed)
        edges = part.panel.edges(schedule.grid, schedule.sizes[part.dimension])
        return {after - before for before, after in pairwise(edges)}
    sizes = {schedule.sizes[part.dimension]}
    for axis in part.axes:
        sizes = _cut(sizes, axis, schedule.grid, needed)
    if part.rotated_by:
        needed.distinct_axes.add(part.axes[-1])
        for name in part.rotated_by:
            _variable(name, needed)
    sizes = {size * part.unit for size in sizes}
    for axis in part.finer:
        sizes = _cut(sizes, axis, schedule.grid, needed)
    if part.band is not None:
        sizes = {last - first for first, last in map(part.band_of, sizes)}
    return sizes


def _cut(sizes: set[int], axis: Axis, grid: Grid, needed: Dependence) -> set[int]:
    length = grid.length(axis)
    whole = {size for size in sizes if not is_mean(size)}
    needed.thresholds.setdefault(axis, set()).update(size % length for size in whole)
    return {part for size in sizes for part in _parts(size, length)}


def _parts(size: int, length: int) -> Iterator[int]:
    """Yields the lengths of the parts of a cut; fractional parts are equal."""
    first, last = cut(size, length, 0), cut(size, length, length - 1)
    yield first[1] - first[0]
    yield last[1] - last[0]


def _panel(panel: Panel, needed: Dependence) -> None:
    needed.loops.add(panel.loop)
    if panel.shared_over is not None:
        needed.distinct_axes.add(panel.shared_over)


def _number(value: IntExpression, needed: Dependence) -> None:
    match value:
        case PanelOwner():
            _panel(value.panel, needed)
        case Affine():
            _variable(value.variable, needed)
        case Sum():
            _number(value.left, needed)
            _number(value.right, needed)
        case Expression():
            for operand in value.operands:
                _number(operand, needed)
        case PanelCount():
            if value.panel.shared_over is not None:
                needed.distinct_axes.add(value.panel.shared_over)
        case int():
            pass


def _variable(name: str, needed: Dependence) -> None:
    for axis in AXES:
        if name == axis:
            needed.distinct_axes.add(axis)
            return
    needed.loops.add(name)


class CoordinateKinds:
    """The kinds of coordinates that a dependence distinguishes.

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
        """Kind of the coordinates."""
        coordinates, indices = place.along, place.indices
        kind = [kinds[coordinates[axis]] for axis, kinds in self._axes]
        kind += [indices.get(loop, 0) for loop in self._loops]
        return tuple(kind)


class OpKinds:
    """Kinds of coordinates for each op of a schedule; an op has blocks of equal sizes at coordinates of the same kind.

    A communication op distinguishes all members of its groups, and every op distinguishes ranks with different
    programs.  Shared through `schedule.cached(OpKinds)`.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._grid, self._needs = schedule.grid, schedule.cached(OpDependences)
        self._apart = {role.axis for role in schedule.roles if role.axis is not None}
        self._kinds: dict[int, CoordinateKinds] = {}

    def of(self, op: Op, coordinates: Coordinates) -> Kind:
        """Kind of the coordinates for this op."""
        kinds = self._kinds.get(id(op))
        if kinds is None:
            kinds = self._kinds[id(op)] = self._kinds_of(op)
        return kinds.of(coordinates)

    def _kinds_of(self, op: Op) -> CoordinateKinds:
        needed = self._needs.of(op)
        apart = self._apart | ({op.axis} if isinstance(op, Communication) else set())
        return CoordinateKinds(replace(needed, distinct_axes=needed.distinct_axes | apart), self._grid)


class PerKind(Generic[Result]):
    """A function of op and coordinates, evaluated once for each kind of coordinates.

    Parameters
    ----------
    find : function with the same result for all coordinates of a kind
    """

    def __init__(self, schedule: Schedule, find: Callable[[Op, Coordinates], Result]) -> None:
        self._kinds, self._find = schedule.cached(OpKinds), find
        self._found: dict[tuple[int, Kind], Result] = {}

    def of(self, op: Op, coordinates: Coordinates) -> Result:
        """Result for the op at the coordinates."""
        key = id(op), self._kinds.of(op, coordinates)
        if key not in self._found:
            self._found[key] = self._find(op, coordinates)
        return self._found[key]
