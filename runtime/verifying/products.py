"""The three products of a matmul with gradients: factors, a rank's output of each, and the tiles of its verification.

    C = A B        dA = dC B^T        dB = A^T dC

or another form, with A or B stored transposed (`algorithms/matmuls/matmul.py`). L and R are the two factors of any of
them. Tiles of a block and panels of the contracted dimension bound the memory of a check.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.matmuls.matmul import FORMS, Factors, Operand, Product
from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.operands.operands import Operands
from quadrille.runtime.operands.rectangles import Rectangle, split_block

Range = tuple[int, int]
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tiling:
    """The sizes that bound the memory of a check.

    Parameters
    ----------
    tile : rows and columns of a tile of a block, and the width of a panel
    band_tiles : tiles of rows whose sums Freivalds' check keeps at once; their few columns take half a tile
    """

    tile: int = 1024
    band_tiles: int = 64

    def spans(self, length: int, tiles: int = 1) -> Iterator[Range]:
        """The ranges that divide 0 .. length into pieces of `tiles` tiles."""
        step = tiles * self.tile
        for start in range(0, length, step):
            yield start, min(start + step, length)

    def tiles(self, shape: tuple[int, int]) -> Iterator[tuple[Range, Range]]:
        """Rows and columns of the tiles that cover `shape`."""
        for rows in self.spans(shape[0]):
            for columns in self.spans(shape[1]):
                yield rows, columns


DEFAULT_TILING = Tiling()


@dataclass(frozen=True, slots=True)
class Output:
    """One rank's part of a product: rectangles of the whole matrix and their elements."""

    product: Product
    parts: tuple[tuple[Rectangle, NDArray[Any]], ...]

    def __post_init__(self) -> None:
        for rectangle, values in self.parts:
            assert values.shape == rectangle.shape, (self.product, rectangle, values.shape)


def output_of_block(product: Product, block: Block, stored: NDArray[Any]) -> Output:
    """One rank's part of a product, from its block in its stored shape: a rectangle, or a flat shard of one."""
    return Output(product, tuple(split_block(block, stored)))


def factors_of(product: Product, operands: Operands) -> Factors:
    """The two factors of a product."""
    return FORMS[operands.transposed].factors(product)


def contracted_length(product: Product, operands: Operands) -> int:
    """The length of the dimension over which a product sums."""
    return operands.sizes[factors_of(product, operands).contracted]


def left_part(factors: Factors, rows: Range, inner: Range) -> tuple[Operand, Rectangle]:
    """The rectangle of an operand that holds rows × inner of the left factor.

    >>> left_part(FORMS["none"].factors("dB"), (0, 3), (5, 9))
    ('A', Rectangle(row_start=5, row_stop=9, column_start=0, column_stop=3))
    """
    return factors.left, Rectangle(*inner, *rows) if factors.layout == "TN" else Rectangle(*rows, *inner)


def right_part(factors: Factors, inner: Range, columns: Range) -> tuple[Operand, Rectangle]:
    """The rectangle of an operand that holds inner × columns of the right factor."""
    return factors.right, Rectangle(*columns, *inner) if factors.layout == "NT" else Rectangle(*inner, *columns)


def left_panel(product: Product, rows: Range, inner: Range, operands: Operands) -> Array:
    """Rows × inner of the left factor in float64, as a new array."""
    factors = factors_of(product, operands)
    values = np.asarray(operands.block(*left_part(factors, rows, inner)), np.float64)
    return values.T if factors.layout == "TN" else values


def right_panel(product: Product, inner: Range, columns: Range, operands: Operands) -> Array:
    """Inner × columns of the right factor in float64, as a new array."""
    factors = factors_of(product, operands)
    values = np.asarray(operands.block(*right_part(factors, inner, columns)), np.float64)
    return values.T if factors.layout == "NT" else values


@dataclass(frozen=True, slots=True)
class ErrorFinding:
    """The largest error, its position, and the tolerance below which a change of one entry could stay unseen."""

    error: float = 0.0
    place: str = ""
    tolerance: float = 0.0


def relative_errors(differences: Array, magnitudes: Array) -> Array:
    """Each difference divided by its magnitude, with 0/0 = 0; infinite where an overflow makes it undefined."""
    errors = np.zeros_like(differences)
    np.divide(differences, magnitudes, out=errors, where=differences != 0)
    errors[np.isnan(errors) | ~np.isfinite(magnitudes)] = inf
    return errors
