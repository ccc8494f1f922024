"""Tensors of a schedule and the block of one that a rank holds."""

from dataclasses import dataclass
from typing import Literal

from algorithms.grid import AXES, Axis
from algorithms.parts import Part, Place, cut

DType = Literal["float64", "float32", "float16", "bfloat16"]
ITEM_BYTES: dict[DType, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Block:
    """What one rank holds of a tensor: a rectangle, or a contiguous piece of the flattened rectangle.

    Ranges are in the whole matrix; `piece` counts elements of the rectangle in C order.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    piece: tuple[int, int] | None = None

    @property
    def rectangle_shape(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that stores it: two-dimensional, or flat for a piece."""
        return self.rectangle_shape if self.piece is None else (self.piece[1] - self.piece[0],)

    @property
    def elements(self) -> int:
        if self.piece is not None:
            return self.piece[1] - self.piece[0]
        rows, columns = self.rectangle_shape
        return rows * columns


NOTHING = Block((0, 0), (0, 0))


@dataclass(frozen=True, slots=True)
class Tensor:
    """A matrix and its layout: which axes cut which dimension, which shard the block, which repeat it.

    Parameters
    ----------
    rows, columns : the parts of the two dimensions
    sharded_over : the axis over which the block is cut once more, as contiguous
        pieces of the flattened block (AxoNN's z shard)
    held_at : the only coordinate of an axis whose ranks hold it (layer 0 of 2.5d)
    copies : how many instances are alive at once, one per iteration of `loop`, in turn
    dtype : if it differs from the schedule's
    on_host : kept in the host's memory, where only a HostCopy reaches it

    >>> str(Tensor("B", Part("k", ("y",)), Part("n", ("x",)), sharded_over="z"))
    'B (k/y × n/x) sharded over z'
    """

    name: str
    rows: Part
    columns: Part
    sharded_over: Axis | None = None
    held_at: tuple[Axis, int] | None = None
    copies: int = 1
    loop: str | None = None
    dtype: DType | None = None
    on_host: bool = False

    @property
    def cut_over(self) -> frozenset[Axis]:
        """Axes along which the ranks hold different elements."""
        axes = {*self.rows.axes, *self.columns.axes}
        for part in (self.rows, self.columns):
            axes |= {axis for axis in AXES if axis in part.rotated_by}
        return frozenset(axes if self.sharded_over is None else axes | {self.sharded_over})

    @property
    def repeated_over(self) -> frozenset[Axis]:
        """Axes along which the ranks hold the same elements."""
        return frozenset(AXES) - self.cut_over - ({self.held_at[0]} if self.held_at else set())

    def block(self, place: Place) -> Block:
        """The block of the rank at `place`."""
        if self.held_at is not None and place.coordinates[self.held_at[0]] != self.held_at[1]:
            return NOTHING
        whole = Block(self.rows.bounds(place), self.columns.bounds(place))
        if self.sharded_over is None:
            return whole
        axis = self.sharded_over
        return Block(whole.rows, whole.columns, cut(whole.elements, place.grid.length(axis), place.coordinates[axis]))

    def instance(self, place: Place, ahead: int = 0) -> int:
        """Which of the copies belongs to this moment, or to `ahead` iterations later."""
        return (place.indices.get(self.loop, 0) + ahead) % self.copies if self.loop is not None else 0

    def capacity(self, place: Place) -> int:
        """Elements of the largest block that one copy holds while the schedule runs."""
        if self.rows.panel is None and self.columns.panel is None and not self.copies > 1:
            return self.block(place).elements
        return self.rows.longest(place) * self.columns.longest(place)

    def __str__(self) -> str:
        text = f"{self.name} ({self.rows} × {self.columns})"
        text += f" sharded over {self.sharded_over}" if self.sharded_over else ""
        text += f" on {self.held_at[0]}={self.held_at[1]}" if self.held_at else ""
        return text + (f" {self.copies} copies" if self.copies > 1 else "")
