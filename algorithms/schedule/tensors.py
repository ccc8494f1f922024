"""Tensors of a schedule: matrices with their distribution over the grid, and the block that a rank holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

from quadrille.algorithms.schedule.expressions import IntExpression, evaluate, variables
from quadrille.algorithms.schedule.grid import AXES, EXPERT_AXES, WITHIN_STAGE, Axis
from quadrille.algorithms.schedule.parts import Coordinates, Part, cut

if TYPE_CHECKING:
    from quadrille.algorithms.schedule.kept_elements import Kept

DType = Literal["float64", "float32", "float16", "bfloat16"]
ElementType = DType | Literal["int32", "uint8"]
"""Element type of a tensor: a floating-point type, int32 for token indices, or uint8 for masks."""
ITEM_BYTES: dict[ElementType, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "uint8": 1}


@dataclass(frozen=True, slots=True)
class Block:
    """Part of a tensor that one rank holds: a rectangle, or a contiguous range of the flattened rectangle.

    Parameters
    ----------
    rows, columns : (start, stop) in the whole matrix
    flat_range : (start, stop) in the flattened rectangle, C order
    kept_range : (start, stop) in the compressed vector of the kept elements of a pruned matrix (`kept_elements.py`)
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    flat_range: tuple[int, int] | None = None
    kept_range: tuple[int, int] | None = None

    @property
    def rectangle_shape(self) -> tuple[int, int]:
        """Rows and columns of the rectangle."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the stored array: two-dimensional, or flat for a shard."""
        stored = self.stored_range
        return self.rectangle_shape if stored is None else (stored[1] - stored[0],)

    @property
    def stored_range(self) -> tuple[int, int] | None:
        """(start, stop) of a block that is stored flat, in the compressed vector or in the flattened rectangle."""
        return self.flat_range if self.kept_range is None else self.kept_range

    @property
    def elements(self) -> int:
        """Number of elements."""
        stored = self.stored_range
        if stored is not None:
            return stored[1] - stored[0]
        rows, columns = self.rectangle_shape
        return rows * columns


NOTHING = Block((0, 0), (0, 0))
Copies = tuple[tuple[str, IntExpression], ...]


def _copy_count(copies: Copies, coordinates: Coordinates) -> int:
    """Returns the number of copies over these loops."""
    if not copies:
        return 1
    (loop, outer), rest = copies[0], copies[1:]
    count = evaluate(outer, coordinates)
    if any(loop in variables(inner) for _, inner in rest):
        return sum(_copy_count(rest, coordinates.during(loop, index)) for index in range(count))
    return count * _copy_count(rest, coordinates)


def _copy_index(copies: Copies, coordinates: Coordinates, ahead: int) -> int:
    """Returns the copy that belongs to the current iteration, or to `ahead` iterations of the last loop later."""
    if not copies:
        return 0
    (loop, outer), rest = copies[0], copies[1:]
    index = (coordinates.indices.get(loop, 0) + (0 if rest else ahead)) % evaluate(outer, coordinates)
    return _copy_count(((loop, index), *rest), coordinates) + _copy_index(rest, coordinates, ahead)


def _shard(size: int, axes: tuple[Axis, ...], coordinates: Coordinates) -> tuple[int, int]:
    """Start and stop of a rank's part of a range that axes cut, outermost first."""
    start, stop = 0, size
    for axis in axes:
        first, last = cut(stop - start, coordinates.grid.length(axis), coordinates.along[axis])
        start, stop = start + first, start + last
    return start, stop


@dataclass(frozen=True, slots=True)
class Tensor:
    """A matrix and its distribution: axes that cut its dimensions, axes that shard its block, axes that replicate it.

    Parameters
    ----------
    rows, columns : parts of the two dimensions
    sharded_over : axis, or axes from the outermost, that cut the flattened block into contiguous shards (AxoNN's z
        shards)
    held_at : (axis, coordinate) whose ranks alone hold the tensor (layer 0 of 2.5d)
    copies : (loop, count) of the loops whose iterations have copies of their own; count copies are used cyclically
    first_indices : (loop, index) where a loop of `copies` does not start at 0 (layers of a pipeline stage)
    stages : pipeline coordinates whose ranks hold the tensor
    dtype : element type, if it differs from the schedule's
    on_host : whether the tensor is in host memory, where a HostCopy and work on the host reach it
    band_of : tensor of which this is a band of rows, in the same buffer
    shard_of : tensor whose buffer stores this tensor, which is a shard of that tensor's block
    buckets : (loop, count): each iteration of the loop uses one of `count` contiguous parts of the flattened block
    staged_in : tensor whose buffer stores this tensor, from its start
    value_of : tensor of the state whose initial values this tensor has, rounded to its own dtype
    kept : the tensor holds only the kept elements of a pruned matrix, as a compressed vector
    routed : its rows come from other ranks, and only a run tells their number; the block has the expected number

    >>> str(Tensor("B", Part("k", ("y",)), Part("n", ("x",)), sharded_over="z"))
    'B (k/y × n/x) sharded over z'
    """

    name: str
    rows: Part
    columns: Part
    sharded_over: Axis | tuple[Axis, ...] | None = None
    held_at: tuple[Axis, int] | None = None
    copies: Copies = ()
    dtype: ElementType | None = None
    on_host: bool = False
    first_indices: tuple[tuple[str, IntExpression], ...] = ()
    stages: tuple[int, ...] | None = None
    band_of: str | None = None
    shard_of: str | None = None
    buckets: tuple[str, int] | None = None
    staged_in: str | None = None
    value_of: str | None = None
    kept: "Kept | None" = None
    routed: bool = False

    @property
    def variants(self) -> tuple["Tensor", ...]:
        """The tensor in most iterations and, if there is an iteration in which it has other sizes, the tensor in it."""
        pairs = list(zip_longest(self.rows.variants, self.columns.variants))
        rows, columns = pairs[0]
        return tuple(replace(self, rows=row or rows, columns=column or columns) for row, column in pairs)

    @property
    def shards(self) -> tuple[Axis, ...]:
        """Axes that cut the flattened block, outermost first.

        >>> Tensor("B", Part("k"), Part("n"), sharded_over="z").shards
        ('z',)
        """
        if self.sharded_over is None:
            return ()
        return (self.sharded_over,) if isinstance(self.sharded_over, str) else self.sharded_over

    @property
    def cut_over(self) -> frozenset[Axis]:
        """Axes along which ranks hold different elements."""
        axes = {*self.rows.cut_over, *self.columns.cut_over, *self.shards}
        for part in (self.rows, self.columns):
            axes |= {axis for axis in AXES if axis in part.rotated_by}
        if self.stages is not None or any(axis in variables(begin) for axis in AXES for _, begin in self.first_indices):
            axes.add("pipeline")
        return frozenset(axes)

    @property
    def repeated_over(self) -> frozenset[Axis]:
        """Axes along which ranks hold the same elements."""
        cut_over = self.cut_over
        repeated = frozenset(AXES) - cut_over - ({self.held_at[0]} if self.held_at else set())
        if not cut_over & {*EXPERT_AXES}:
            return repeated
        outside, within = repeated - {*WITHIN_STAGE}, frozenset(EXPERT_AXES) - cut_over
        return outside if cut_over & {*WITHIN_STAGE} else outside | within

    def block(self, coordinates: Coordinates) -> Block:
        """The block of the rank at the coordinates."""
        if self.held_at is not None and coordinates.along[self.held_at[0]] != self.held_at[1]:
            return NOTHING
        if self.stages is not None and coordinates.along["pipeline"] not in self.stages:
            return NOTHING
        whole = Block(self.rows.bounds(coordinates), self.columns.bounds(coordinates))
        if self.kept is not None:
            return self._compressed(whole, self.kept, coordinates)
        if not self.shards and self.buckets is None:
            return whole
        shard = _shard(whole.elements, self.shards, coordinates)
        return Block(whole.rows, whole.columns, self._bucket(shard, coordinates))

    def _compressed(self, whole: Block, kept: "Kept", coordinates: Coordinates) -> Block:
        """The compressed block: data and buckets cut the compressed vector, other axes cut the flattened rectangle."""
        axes = tuple(axis for axis in self.shards if axis != "data")
        flat_range = _shard(whole.elements, axes, coordinates) if axes else None
        shape = (
            coordinates.sizes[self.rows.dimension] * self.rows.unit,
            coordinates.sizes[self.columns.dimension] * self.columns.unit,
        )
        size = kept.capacity(whole.rows, whole.columns, flat_range, shape)
        over_data = tuple(axis for axis in self.shards if axis == "data")
        kept_range = self._bucket(_shard(size, over_data, coordinates), coordinates)
        return Block(whole.rows, whole.columns, flat_range, kept_range)

    def _bucket(self, shard: tuple[int, int], coordinates: Coordinates) -> tuple[int, int]:
        """Start and stop of the current bucket of a rank's shard; of the whole shard without buckets."""
        if self.buckets is None:
            return shard
        (start, stop), (loop, count) = shard, self.buckets
        first, last = cut(stop - start, count, coordinates.indices.get(loop, 0) % count)
        return start + first, start + last

    def copy_count(self, coordinates: Coordinates) -> int:
        """Number of copies on a rank; the count of an inner loop may depend on the index of an outer loop."""
        return _copy_count(self.copies, coordinates)

    def copy_index(self, coordinates: Coordinates, ahead: int = 0) -> int:
        """The copy that belongs to the current iteration, or to `ahead` iterations of the last loop later."""
        if not self.copies:
            return 0
        index = 0
        for position, (loop, count) in enumerate(self.copies, 1):
            if not isinstance(count, int):
                return _copy_index(self.copies, coordinates, ahead)
            later = ahead if position == len(self.copies) else 0
            index = index * count + (coordinates.indices.get(loop, 0) + later) % count
        return index

    def copy_coordinates(self, coordinates: Coordinates) -> Iterator[Coordinates]:
        """Coordinates of each copy, in order."""
        coordinates_of_copies = [coordinates]
        for loop, count in self.copies:
            first = dict(self.first_indices).get(loop, 0)
            coordinates_of_copies = [
                copy_coordinates.during(loop, evaluate(first, copy_coordinates) + index)
                for copy_coordinates in coordinates_of_copies
                for index in range(evaluate(count, copy_coordinates))
            ]
        yield from coordinates_of_copies

    def copy_name(self, coordinates: Coordinates) -> str:
        """Name of the tensor with the loop indices that identify the copy, as files and random generators use it.

        The buckets of a tensor are parts of one matrix, so they have one name.
        """
        begins = dict(self.first_indices)
        named_by_first_index = frozenset[str]().union(*(variables(begin) for begin in begins.values()))
        name = self.value_of or self.name
        for loop, count in self.copies:
            if self.buckets is not None and loop == self.buckets[0]:
                continue
            index = coordinates.indices.get(loop, 0)
            if loop not in named_by_first_index:  # otherwise the index of the other loop is in the name already
                name += f" {loop} {index if loop in begins else index % evaluate(count, coordinates)}"
        return name

    def capacity(self, coordinates: Coordinates) -> int:
        """Elements of the largest block that one copy holds while the schedule runs."""
        parts = (self.rows, self.columns)
        if not any(part.panel is not None or part.rotates for part in parts):
            return self.block(coordinates).elements
        return self.rows.longest(coordinates) * self.columns.longest(coordinates)

    def __str__(self) -> str:
        text = f"{self.name} ({self.rows} × {self.columns})"
        text += f" compressed at sparsity {self.kept.sparsity:g}" if self.kept else ""
        text += f" sharded over {', '.join(self.shards)}" if self.shards else ""
        text += f" in {self.buckets[1]} buckets" if self.buckets else ""
        text += " on the host" if self.on_host else ""
        text += f" on {self.held_at[0]}={self.held_at[1]}" if self.held_at else ""
        text += f" on stages {', '.join(map(str, self.stages))}" if self.stages is not None else ""
        text += " of routed rows" if self.routed else ""
        counts = [str(count) for _, count in self.copies if count != 1]
        return text + (f" {'·'.join(counts)} copies" if counts else "")


def bands_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """Returns the bands of every tensor that is cut into bands.

    >>> whole = Tensor("C", Part("m"), Part("n"))
    >>> bands = [Tensor(f"C {i}", Part("m", band=(i, 2)), Part("n"), band_of="C") for i in range(2)]
    >>> bands_of({one.name: one for one in (whole, *bands)})
    {'C': ('C 0', 'C 1')}
    """
    bands: dict[str, tuple[str, ...]] = {}
    for name, tensor in tensors.items():
        if tensor.band_of is not None:
            bands[tensor.band_of] = (*bands.get(tensor.band_of, ()), name)
    return bands
