"""Rectangles of a whole matrix, and the rectangles that a contiguous shard of a flattened block covers.

A shard covers at most three rectangles: the end of a row, whole rows, the beginning of a row.

    . . # #
    # # # #
    # # # #
    # . . .
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from quadrille.algorithms.schedule.tensors import Block


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A part of a whole matrix: rows and columns from start up to, not including, stop.

    >>> Rectangle(2, 5, 0, 7).shape
    (3, 7)
    """

    row_start: int
    row_stop: int
    column_start: int
    column_stop: int

    def __post_init__(self) -> None:
        assert 0 <= self.row_start <= self.row_stop and 0 <= self.column_start <= self.column_stop, self

    @property
    def shape(self) -> tuple[int, int]:
        return self.row_stop - self.row_start, self.column_stop - self.column_start

    @property
    def elements(self) -> int:
        rows, columns = self.shape
        return rows * columns

    def part(self, rows: tuple[int, int], columns: tuple[int, int]) -> "Rectangle":
        """The rectangle at these rows and columns, counted from this rectangle's corner.

        >>> Rectangle(2, 5, 10, 17).part((1, 3), (0, 2))
        Rectangle(row_start=3, row_stop=5, column_start=10, column_stop=12)
        """
        top, left = self.row_start, self.column_start
        return Rectangle(top + rows[0], top + rows[1], left + columns[0], left + columns[1])


def whole(shape: tuple[int, int]) -> Rectangle:
    """The rectangle that covers a whole matrix."""
    return Rectangle(0, shape[0], 0, shape[1])


def rectangles_of_piece(rectangle: Rectangle, start: int, stop: int) -> list[Rectangle]:
    """Elements `start` to `stop` of the flattened rectangle, as at most three rectangles in flat order.

    >>> for part in rectangles_of_piece(Rectangle(0, 4, 0, 4), 2, 13):
    ...     print(part)
    Rectangle(row_start=0, row_stop=1, column_start=2, column_stop=4)
    Rectangle(row_start=1, row_stop=3, column_start=0, column_stop=4)
    Rectangle(row_start=3, row_stop=4, column_start=0, column_stop=1)
    """
    assert 0 <= start <= stop <= rectangle.elements, (rectangle, start, stop)
    if start == stop:
        return []
    width = rectangle.shape[1]
    (first, left), (last, right) = divmod(start, width), divmod(stop, width)
    if first == last:
        return [rectangle.part((first, first + 1), (left, right))]
    parts = [rectangle.part((first, first + 1), (left, width))] if left else []
    middle = first + (left > 0)
    parts += [rectangle.part((middle, last), (0, width))] if middle < last else []
    parts += [rectangle.part((last, last + 1), (0, right))] if right else []
    return parts


def split_piece(
    rectangle: Rectangle, start: int, stop: int, flat: NDArray[Any]
) -> list[tuple[Rectangle, NDArray[Any]]]:
    """The rectangles of a shard, each with the view of `flat` that holds it."""
    assert flat.shape == (stop - start,), (flat.shape, start, stop)
    parts, position = [], 0
    for part in rectangles_of_piece(rectangle, start, stop):
        parts.append((part, flat[position : position + part.elements].reshape(part.shape)))
        position += part.elements
    return parts


def split_block(block: Block, stored: NDArray[Any]) -> list[tuple[Rectangle, NDArray[Any]]]:
    """The rectangles of a rank's block, each with the view of the `stored` array that holds it."""
    assert stored.shape == block.shape, (stored.shape, block)
    rectangle = Rectangle(*block.rows, *block.columns)
    if block.flat_range is not None:
        return split_piece(rectangle, *block.flat_range, stored)
    return [(rectangle, stored)] if rectangle.elements else []
