"""Coordinate dependence: the coordinates and loop indices that the sizes, peers and root of an op depend on.

A *kind* is a set of coordinates for which an op has equal block sizes, peers and roots; results of a function of op and
coordinates are cached by kind (`PerKind`).  A cut has parts of at most two sizes, longer parts first, so the
coordinates along an axis fall into a few kinds.  Where the coordinate itself counts (a rotating block, a shared range
of panels, a root or peer), every coordinate is a kind of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Generic, TypeVar

from quadrille.algorithms.schedule.expressions import Affine, Expression, IntExpression, PanelCount, PanelOwner, Sum
from quadrille.algorithms.schedule.grid import ALL_AXES, AXES, EXPERT, Axis, Grid
from quadrille.algorithms.schedule.ops import Communication, Op, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates, Panel, Part, cut, is_mean
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Tensor

Result = TypeVar("Result")
Kind = tuple[int, ...]
"""Key of the kind of coordinates for an op: the kind along each relevant axis, then relevant loop indices."""


@dataclass(slots=True)
class Dependence:
    """The coordinates and loop indices that an op depends on.

    Parameters
    ----------
    thresholds : by axis, the coordinates at which some block changes its size
    distinct_axes : axes along which every coordinate counts
    loops : loops whose index counts
    iterations : (loop, index) of single iterations that differ from all others of their loop
    """

    thresholds: dict[Axis, set[int]] = field(default_factory=dict)
    distinct_axes: set[Axis] = field(default_factory=set)
    loops: set[str] = field(default_factory=set)
    iterations: set[tuple[str, int]] = field(default_factory=set)

    def of_indices(self, indices: Mapping[str, int]) -> tuple[int | None, ...]:
        """A key that is equal for loop indices between which an op does not distinguish.

        >>> needs = Dependence(loops={"panel"}, iterations={("microbatch", 3)})
        >>> needs.of_indices({"panel": 7, "microbatch": 2}), needs.of_indices({"panel": 7, "microbatch": 3})
        ((7, 0), (7, 1))
        """
        return (
            *(indices.get(loop) for loop in sorted(self.loops)),
            *(int(indices.get(loop) == index) for loop, index in sorted(self.iterations)),
        )

    def include(self, added: "Dependence") -> None:
        """Adds what another tensor or op depends on."""
        for axis, coordinates in added.thresholds.items():
            self.thresholds.setdefault(axis, set()).update(coordinates)
        self.distinct_axes |= added.distinct_axes
        self.loops |= added.loops
        self.iterations |= added.iterations

    @property
    def axes(self) -> list[Axis]:
        """Axes whose coordinates the op depends on."""
        return [axis for axis in ALL_AXES if axis in self.thresholds or axis in self.distinct_axes]

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
    """Returns the coordinates and loop indices that the sizes, peers and root of an op depend on."""
    result, tensors = Dependence(), schedule.cached(TensorDependences)
    for name in dict.fromkeys((*reads(op), *writes(op))):
        result.include(tensors.of(name))
    for name in ("root", "to", "sender", "distance"):
        _add_expression(getattr(op, name, 0), result)
    return result


class OpDependences:
    """Dependences of the ops of a schedule, computed once each; callers must not modify them."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._results: dict[int, tuple[Op, Dependence]] = {}

    def of(self, op: Op) -> Dependence:
        """The dependence of the op; the op is stored too, so that its id stays unique."""
        if id(op) not in self._results:
            self._results[id(op)] = op, dependence(op, self._schedule)
        return self._results[id(op)][1]


class TensorDependences:
    """Coordinates and loop indices that the sizes of tensors' blocks depend on, computed once for each tensor.

    Callers must not modify the results.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._results: dict[str, Dependence] = {}

    def of(self, name: str) -> Dependence:
        """The dependence of the tensor of a name."""
        if name not in self._results:
            self._results[name] = result = Dependence()
            _add_tensor(self._schedule.tensors[name], self._schedule, result)
        return self._results[name]


def lengths(part: Part, schedule: Schedule) -> set[int]:
    """Returns the lengths that a part may have on any rank in any iteration; a superset is possible."""
    return _add_part(part, schedule, Dependence())


def _add_tensor(tensor: Tensor, schedule: Schedule, result: Dependence) -> None:
    sizes = [_add_part(part, schedule, result) for part in (tensor.rows, tensor.columns)]
    elements = {rows * columns for rows in sizes[0] for columns in sizes[1]}
    if tensor.kept is not None:
        elements = _add_compressed(tensor, (sizes[0], sizes[1]), schedule, result)
    for axis in tensor.shards if tensor.kept is None else ():
        elements = _cut(elements, axis, schedule.grid, result)
    if tensor.buckets is not None and any(not is_mean(size) and size % tensor.buckets[1] for size in elements):
        result.loops.add(tensor.buckets[0])
    if tensor.stages is not None:
        result.distinct_axes.add("pipeline")
    if tensor.held_at is not None:
        axis, coordinate = tensor.held_at
        result.thresholds.setdefault(axis, set()).update((coordinate, coordinate + 1))


def _add_compressed(
    tensor: Tensor, sizes: tuple[set[int], set[int]], schedule: Schedule, result: Dependence
) -> set[int]:
    """Adds the dependence of a compressed block, whose size depends on the tiles that it cuts; returns its sizes."""
    from quadrille.algorithms.analysis.compressed_sizes import compressed_sizes, distinct_axes

    axes = distinct_axes(tensor, sizes, schedule)
    result.distinct_axes |= axes
    for name in (*tensor.rows.rotated_by, *tensor.columns.rotated_by) if axes else ():
        _add_variable(name, result)
    elements = compressed_sizes(tensor, sizes, schedule) if tensor.buckets or "data" in tensor.shards else set[int]()
    return _cut(elements, "data", schedule.grid, result) if "data" in tensor.shards else elements


def _add_part(part: Part, schedule: Schedule, result: Dependence) -> set[int]:
    """Adds the dependence of a part to `result`; returns the lengths that the part may have, or a superset."""
    if part.in_iteration is not None:
        result.iterations.add(part.in_iteration[:2])
        return set[int]().union(*(_add_part(variant, schedule, result) for variant in part.variants))
    if part.panel is not None:
        _add_panel(part.panel, result)
        edges = part.panel.edges(schedule.grid, schedule.sizes[part.dimension])
        return {after - before for before, after in pairwise(edges)}
    if part.gathered > 1:
        own = _add_part(replace(part, gathered=1), schedule, result)
        return {length * part.gathered for length in own}
    if part.loads:
        return _add_loaded(part, schedule, result)
    sizes = {schedule.sizes[part.dimension]}
    lengths_differ = False
    for axis in part.axes:
        lengths_differ = any(len(set(_parts(size, schedule.grid.length(axis)))) > 1 for size in sizes)
        sizes = _cut(sizes, axis, schedule.grid, result)
    sizes = {size * part.unit for size in sizes}
    for axis in part.finer:
        lengths_differ = any(len(set(_parts(size, schedule.grid.length(axis)))) > 1 for size in sizes)
        sizes = _cut(sizes, axis, schedule.grid, result)
    if part.rotated_by and lengths_differ:
        result.distinct_axes.add(part.cut_over[-1])
        for name in part.rotated_by:
            _add_variable(name, result)
    if part.band is not None:
        sizes = {last - first for first, last in map(part.band_of, sizes)}
    return sizes


def _add_loaded(part: Part, schedule: Schedule, result: Dependence) -> set[int]:
    """Adds the dependence of rows that experts have, which differ from rank to rank; returns their numbers."""
    sizes, grid = _add_part(replace(part, loads=()), schedule, result), schedule.grid
    if grid.expert == 1:
        return sizes
    result.distinct_axes.add("expert")
    ranks = [Coordinates(grid, schedule.sizes, grid.coordinates(rank)) for rank in grid.group(0, EXPERT)]
    return {part.loaded(size, rank) for size in sizes for rank in ranks}


def _cut(sizes: set[int], axis: Axis, grid: Grid, result: Dependence) -> set[int]:
    length = grid.length(axis)
    whole = {size for size in sizes if not is_mean(size)}
    result.thresholds.setdefault(axis, set()).update(size % length for size in whole)
    return {part for size in sizes for part in _parts(size, length)}


def _parts(size: int, length: int) -> Iterator[int]:
    """Yields the lengths of the parts of a cut; fractional parts are equal."""
    first, last = cut(size, length, 0), cut(size, length, length - 1)
    yield first[1] - first[0]
    yield last[1] - last[0]


def _add_panel(panel: Panel, result: Dependence) -> None:
    result.loops.add(panel.loop)
    if panel.shared_over is not None:
        result.distinct_axes.add(panel.shared_over)


def _add_expression(value: IntExpression, result: Dependence) -> None:
    match value:
        case PanelOwner():
            _add_panel(value.panel, result)
        case Affine():
            _add_variable(value.variable, result)
        case Sum():
            _add_expression(value.left, result)
            _add_expression(value.right, result)
        case Expression():
            for operand in value.operands:
                _add_expression(operand, result)
        case PanelCount():
            if value.panel.shared_over is not None:
                result.distinct_axes.add(value.panel.shared_over)
        case int():
            pass


def _add_variable(name: str, result: Dependence) -> None:
    for axis in AXES:
        if name == axis:
            result.distinct_axes.add(axis)
            return
    result.loops.add(name)


class CoordinateKinds:
    """The kinds of coordinates that a dependence distinguishes.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> kinds = CoordinateKinds(Dependence({"x": {2}}), Grid(z=2, x=4))
    >>> [kinds.of(Coordinates(Grid(z=2, x=4), {}, {"z": 1, "x": x})) for x in range(4)]
    [(0,), (0,), (1,), (1,)]
    """

    def __init__(self, result: Dependence, grid: Grid) -> None:
        self._axes: list[tuple[Axis, list[int]]] = []
        for axis in result.axes:
            _, kinds = result.kinds(axis, grid.length(axis))
            if len(set(kinds)) > 1:
                self._axes.append((axis, kinds))
        self._loops, self._iterations = sorted(result.loops), sorted(result.iterations)

    def of(self, coordinates: Coordinates) -> Kind:
        """Kind of the coordinates."""
        along, indices = coordinates.along, coordinates.indices
        kind = [kinds[along[axis]] for axis, kinds in self._axes]
        kind += [indices.get(loop, 0) for loop in self._loops]
        kind += [indices.get(loop) == index for loop, index in self._iterations]
        return tuple(kind)


class OpKinds:
    """The kind of coordinates for each op of a schedule: an op has blocks of equal sizes at coordinates of one kind.

    A communication op distinguishes all members of its groups, and every op distinguishes ranks with different
    roles.  `schedule.cached(OpKinds)` shares one instance among all users of a schedule.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._grid, self._dependences = schedule.grid, schedule.cached(OpDependences)
        self._roles = Dependence()
        for role in schedule.roles:
            if role.axis is not None:
                bounds = {role.start} if role.stop is None else {role.start, role.stop}
                self._roles.include(Dependence({role.axis: bounds}))
        self._kinds: dict[int, CoordinateKinds] = {}

    def of(self, op: Op, coordinates: Coordinates) -> Kind:
        """Kind of the coordinates for this op."""
        kinds = self._kinds.get(id(op))
        if kinds is None:
            kinds = self._kinds[id(op)] = self._kinds_of(op)
        return kinds.of(coordinates)

    def _kinds_of(self, op: Op) -> CoordinateKinds:
        result = Dependence(distinct_axes={op.axis} if isinstance(op, Communication) else set())
        result.include(self._dependences.of(op))
        result.include(self._roles)
        return CoordinateKinds(result, self._grid)


class PerKind(Generic[Result]):
    """A cached function of op and coordinates, which is evaluated once for each kind of coordinates.

    Parameters
    ----------
    schedule : schedule of the ops
    compute : function with the same result for all coordinates of a kind
    """

    def __init__(self, schedule: Schedule, compute: Callable[[Op, Coordinates], Result]) -> None:
        self._kinds, self._compute = schedule.cached(OpKinds), compute
        self._results: dict[tuple[int, Kind], Result] = {}

    def of(self, op: Op, coordinates: Coordinates) -> Result:
        """Result for the op at the coordinates."""
        key = id(op), self._kinds.of(op, coordinates)
        if key not in self._results:
            self._results[key] = self._compute(op, coordinates)
        return self._results[key]
