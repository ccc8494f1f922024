"""Kept elements of pruned matrices: how many elements of a block a compressed vector has room for.

A pruned matrix is divided into tiles of 16 rows and 64 columns, counted from its first element.  Pruning at sparsity S
keeps an exact number of the n elements of each tile, n - round(S n).  So every count follows from sizes alone, on any
grid, and the places of the kept elements change no size.

    a block of whole tiles     a compressed vector holds its kept elements
    a cut tile                 the block may hold any share of the kept elements: there is room for min(kept, held)

The order of a compressed vector is: rectangle by rectangle of the block, tile by tile, row by row.

Source: Singh, Bhatele, "Exploiting Sparsity in Pruned Neural Networks to Optimize Large Model Training", IPDPS 2023,
section III (one shared index behind all compressed states).  There, a whole network is pruned to S; here, each tile is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import cast

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.parts import is_mean

TILE = (16, 64)
"""Rows and columns of a tile."""
Range = tuple[int, int]
MOST_ELEMENTS = 2**31
"""Elements of a matrix from which on an index of 4 bytes is too short."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The share of the elements that pruning removes.

    Parameters
    ----------
    sparsity : share of the elements that are zero, from 0 and below 1

    >>> Kept(0.9).of_tile(16 * 64), Kept(0.5).of_tile(7)
    (102, 3)
    """

    sparsity: float

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise InputError(f"sparsity {self.sparsity}: a number from 0 and below 1 is accepted")

    def of_tile(self, elements: int) -> int:
        """Number of kept elements of a tile."""
        return elements - int(self.sparsity * elements + 0.5)

    def of_matrix(self, rows: int, columns: int) -> int:
        """Number of kept elements of a whole matrix."""
        return self.capacity((0, rows), (0, columns), None, (rows, columns))

    def capacity(self, rows: Range, columns: Range, flat_range: Range | None, shape: tuple[int, int]) -> int:
        """Elements of the compressed vector of a block.

        >>> Kept(0.9).capacity((0, 16), (0, 128), None, (16, 128)), Kept(0.9).capacity((0, 8), (0, 64), None, (16, 64))
        (204, 102)

        Parameters
        ----------
        rows, columns : (start, stop) in the matrix
        flat_range : (start, stop) in the flattened block, if the block is a shard
        shape : rows and columns of the matrix
        """
        if any(is_mean(edge) for edge in (*rows, *columns, *(flat_range or ()))):
            size = (rows[1] - rows[0]) * (columns[1] - columns[0])
            size = size if flat_range is None else flat_range[1] - flat_range[0]
            return cast(int, size * Fraction(self.of_tile(TILE[0] * TILE[1]), TILE[0] * TILE[1]))
        if shape[0] * shape[1] >= MOST_ELEMENTS:
            raise InputError(
                f"sparsity {self.sparsity}: a matrix of {shape[0]} x {shape[1]} elements has no 4-byte index"
            )
        return sum(self._of_rectangle(*rectangle, shape) for rectangle in rectangles(rows, columns, flat_range))

    def _of_rectangle(self, rows: Range, columns: Range, shape: tuple[int, int]) -> int:
        """Sum of min(kept, held) over the tiles that a rectangle overlaps."""
        return sum(
            row_count * column_count * min(self.of_tile(height * width), held_rows * held_columns)
            for held_rows, height, row_count in _overlaps(rows, shape[0], TILE[0])
            for held_columns, width, column_count in _overlaps(columns, shape[1], TILE[1])
        )


@lru_cache(maxsize=4096)
def _overlaps(span: Range, size: int, tile: int) -> tuple[tuple[int, int, int], ...]:
    """The overlaps of a range with tiles: overlap, length of the tile, and number of such tiles.

    >>> _overlaps((8, 100), 100, 16)
    ((8, 16, 1), (16, 16, 5), (4, 4, 1))
    """
    first, last = span[0] // tile, -(-span[1] // tile)
    counts: dict[tuple[int, int], int] = {}
    ends = {number for number in (first, last - 1) if first <= number < last}
    for number in sorted(ends):
        start, stop = number * tile, min((number + 1) * tile, size)
        key = min(stop, span[1]) - max(start, span[0]), stop - start
        counts[key] = counts.get(key, 0) + 1
        if number == first and last - first > len(ends):
            counts[tile, tile] = counts.get((tile, tile), 0) + last - first - len(ends)
    return tuple((held, length, count) for (held, length), count in counts.items() if held > 0)


def rectangles(rows: Range, columns: Range, flat_range: Range | None) -> Iterator[tuple[Range, Range]]:
    """Yields the rectangles of a block; a shard has a part of its first row, whole rows, and a part of its last row.

    >>> list(rectangles((0, 4), (0, 10), (5, 32)))
    [((0, 1), (5, 10)), ((1, 3), (0, 10)), ((3, 4), (0, 2))]
    """
    if flat_range is None:
        yield rows, columns
        return
    width = columns[1] - columns[0]
    start, stop = flat_range
    while start < stop:
        row, column = divmod(start, width)
        whole_rows = (stop - start) // width if column == 0 else 0
        height, length = (whole_rows, width) if whole_rows else (1, min(width - column, stop - start))
        yield (rows[0] + row, rows[0] + row + height), (columns[0] + column, columns[0] + column + length)
        start += height * length
