"""Tensors of a schedule and the block of one that a rank holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from quadrille.algorithms.schedule.expressions import IntExpression, evaluate, variables
from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.schedule.parts import Coordinates, Part, cut

DType = Literal["float64", "float32", "float16", "bfloat16"]
ElementType = DType | Literal["int32"]
"""What a tensor may hold: numbers, or the indices of tokens."""
ITEM_BYTES: dict[ElementType, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}


@dataclass(frozen=True, slots=True)
class Block:
    """What one rank holds of a tensor: a rectangle, or a contiguous piece of the flattened rectangle.

    Ranges are in the whole matrix; `flat_range` counts elements of the rectangle in C order.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    flat_range: tuple[int, int] | None = None

    @property
    def rectangle_shape(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that stores it: two-dimensional, or flat for a piece."""
        return self.rectangle_shape if self.flat_range is None else (self.flat_range[1] - self.flat_range[0],)

    @property
    def elements(self) -> int:
        if self.flat_range is not None:
            return self.flat_range[1] - self.flat_range[0]
        rows, columns = self.rectangle_shape
        return rows * columns


NOTHING = Block((0, 0), (0, 0))
Copies = tuple[tuple[str, IntExpression], ...]


def _slots(copies: Copies, place: Coordinates) -> int:
    """How many copies there are over these loops."""
    if not copies:
        return 1
    (loop, outer), rest = copies[0], copies[1:]
    count = evaluate(outer, place)
    if any(loop in variables(inner) for _, inner in rest):
        return sum(_slots(rest, place.during(loop, index)) for index in range(count))
    return count * _slots(rest, place)


def _slot(copies: Copies, place: Coordinates, ahead: int) -> int:
    """Which of the copies belongs to this moment, or to `ahead` iterations of the last loop later."""
    if not copies:
        return 0
    (loop, outer), rest = copies[0], copies[1:]
    index = (place.indices.get(loop, 0) + (0 if rest else ahead)) % evaluate(outer, place)
    return _slots(((loop, index), *rest), place) + _slot(rest, place, ahead)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A matrix and its layout: which axes cut which dimension, which shard the block, which repeat it.

    Parameters
    ----------
    rows, columns : the parts of the two dimensions
    sharded_over : the axis over which the block is cut once more, as contiguous
        pieces of the flattened block (AxoNN's z shard), or several, one inside the other
    held_at : the only coordinate of an axis whose ranks hold it (layer 0 of 2.5d)
    copies : the loops whose iterations have instances of their own, and how many
        of each are alive at once, used in turn
    first_indices : the loops, of these, whose indices on a rank do not begin at 0 (the layers of a pipeline stage)
    stages : the only coordinates along the pipeline whose ranks hold it
    dtype : if it differs from the schedule's
    on_host : kept in the host's memory, where only a HostCopy reaches it
    band_of : the tensor of whose rows it is a band, within that one's buffer

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

    @property
    def shards(self) -> tuple[Axis, ...]:
        """The axes over which the block is cut in pieces, the outermost first.

        >>> Tensor("B", Part("k"), Part("n"), sharded_over="z").shards
        ('z',)
        """
        if self.sharded_over is None:
            return ()
        return (self.sharded_over,) if isinstance(self.sharded_over, str) else self.sharded_over

    @property
    def cut_over(self) -> frozenset[Axis]:
        """Axes along which the ranks hold different elements."""
        axes = {*self.rows.cut_over, *self.columns.cut_over, *self.shards}
        for part in (self.rows, self.columns):
            axes |= {axis for axis in AXES if axis in part.rotated_by}
        if self.stages is not None or any(axis in variables(begin) for axis in AXES for _, begin in self.first_indices):
            axes.add("pipeline")
        return frozenset(axes)

    @property
    def repeated_over(self) -> frozenset[Axis]:
        """Axes along which the ranks hold the same elements."""
        return frozenset(AXES) - self.cut_over - ({self.held_at[0]} if self.held_at else set())

    def block(self, place: Coordinates) -> Block:
        """The block of the rank at `place`."""
        if self.held_at is not None and place.along[self.held_at[0]] != self.held_at[1]:
            return NOTHING
        if self.stages is not None and place.along["pipeline"] not in self.stages:
            return NOTHING
        whole = Block(self.rows.bounds(place), self.columns.bounds(place))
        if not self.shards:
            return whole
        start, stop = 0, whole.elements
        for axis in self.shards:
            first, last = cut(stop - start, place.grid.length(axis), place.along[axis])
            start, stop = start + first, start + last
        return Block(whole.rows, whole.columns, (start, stop))

    def copy_count(self, place: Coordinates) -> int:
        """How many copies a rank has; the number of inner ones may depend on the turn of an outer loop."""
        return _slots(self.copies, place)

    def copy_index(self, place: Coordinates, ahead: int = 0) -> int:
        """Which of the copies belongs to this moment, or to `ahead` iterations of the last loop later."""
        if not self.copies:
            return 0
        found = 0
        for position, (loop, count) in enumerate(self.copies, 1):
            if not isinstance(count, int):
                return _slot(self.copies, place, ahead)
            later = ahead if position == len(self.copies) else 0
            found = found * count + (place.indices.get(loop, 0) + later) % count
        return found

    def copy_coordinates(self, place: Coordinates) -> Iterator[Coordinates]:
        """A moment of each copy, in the order of the copies."""
        moments = [place]
        for loop, count in self.copies:
            first = dict(self.first_indices).get(loop, 0)
            moments = [
                moment.during(loop, evaluate(first, moment) + index)
                for moment in moments
                for index in range(evaluate(count, moment))
            ]
        yield from moments

    def copy_name(self, place: Coordinates) -> str:
        """The tensor's name with the indices that tell its copies apart: what a file or a generator knows it by."""
        begins = dict(self.first_indices)
        told = frozenset[str]().union(*(variables(begin) for begin in begins.values()))
        name = self.name
        for loop, count in self.copies:
            index = place.indices.get(loop, 0)
            if loop not in told:  # an index that begins elsewhere for each of its turns tells them apart already
                name += f" {loop} {index if loop in begins else index % evaluate(count, place)}"
        return name

    def capacity(self, place: Coordinates) -> int:
        """Elements of the largest block that one copy holds while the schedule runs."""
        parts = (self.rows, self.columns)
        if not any(part.panel is not None or part.rotates for part in parts):
            return self.block(place).elements
        return self.rows.longest(place) * self.columns.longest(place)

    def __str__(self) -> str:
        text = f"{self.name} ({self.rows} × {self.columns})"
        text += f" sharded over {', '.join(self.shards)}" if self.shards else ""
        text += f" on {self.held_at[0]}={self.held_at[1]}" if self.held_at else ""
        text += f" on stages {', '.join(map(str, self.stages))}" if self.stages is not None else ""
        counts = [str(count) for _, count in self.copies if count != 1]
        return text + (f" {'·'.join(counts)} copies" if counts else "")


def bands_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """The bands of every tensor that has some: together they are the whole of it.

    >>> whole = Tensor("C", Part("m"), Part("n"))
    >>> bands = [Tensor(f"C {i}", Part("m", band=(i, 2)), Part("n"), band_of="C") for i in range(2)]
    >>> bands_of({one.name: one for one in (whole, *bands)})
    {'C': ('C 0', 'C 1')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, tensor in tensors.items():
        if tensor.band_of is not None:
            found[tensor.band_of] = (*found.get(tensor.band_of, ()), name)
    return found
