"""The three products: the factors of each, what a rank holds of it, and the tiles in which it is checked.

    C = A B        dA = dC B^T        dB = A^T dC

L and R are the two factors of any of them.  Tiles of a block and panels of the
contracted dimension keep the memory of a check bounded, whatever is checked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from algorithms.tensors import Block
from runtime.operands import Matrix, Operands
from runtime.rectangles import Rectangle, split_block

Product = Literal["C", "dA", "dB"]
Range = tuple[int, int]
Array = NDArray[np.float64]

TILE = 1024
"""Side of the tiles of a block and of the panels."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The two operands of a product, each turned (transposed) or not, and the dimension summed over."""

    left: Matrix
    right: Matrix
    left_turned: bool
    right_turned: bool
    contracted: Literal["m", "k", "n"]


FACTORS: dict[Product, Factors] = {
    "C": Factors("A", "B", False, False, "k"),
    "dA": Factors("dC", "B", False, True, "n"),
    "dB": Factors("A", "dC", True, False, "m"),
}


@dataclass(frozen=True, slots=True)
class Output:
    """What one rank holds of a product: rectangles of the whole matrix and their elements."""

    product: Product
    parts: tuple[tuple[Rectangle, NDArray[Any]], ...]

    def __post_init__(self) -> None:
        for rectangle, values in self.parts:
            assert values.shape == rectangle.shape, (self.product, rectangle, values.shape)


def output_of_block(product: Product, block: Block, stored: NDArray[Any]) -> Output:
    """What one rank holds, from its block as it is stored: a rectangle, or a flat piece of one."""
    return Output(product, tuple(split_block(block, stored)))


def contracted_length(product: Product, operands: Operands) -> int:
    """Length of the dimension that a product sums over."""
    return {"m": operands.m, "k": operands.k, "n": operands.n}[FACTORS[product].contracted]


def left_part(product: Product, rows: Range, inner: Range) -> tuple[Matrix, Rectangle]:
    """Where rows × inner of the left factor lie in its operand.

    >>> left_part("dB", (0, 3), (5, 9))
    ('A', Rectangle(row_start=5, row_stop=9, column_start=0, column_stop=3))
    """
    factors = FACTORS[product]
    return factors.left, Rectangle(*inner, *rows) if factors.left_turned else Rectangle(*rows, *inner)


def right_part(product: Product, inner: Range, columns: Range) -> tuple[Matrix, Rectangle]:
    """Where inner × columns of the right factor lie in its operand."""
    factors = FACTORS[product]
    return factors.right, Rectangle(*columns, *inner) if factors.right_turned else Rectangle(*inner, *columns)


def left_panel(product: Product, rows: Range, inner: Range, operands: Operands) -> Array:
    """Rows × inner of the left factor in float64, the caller's own."""
    values = np.asarray(operands.block(*left_part(product, rows, inner)), np.float64)
    return values.T if FACTORS[product].left_turned else values


def right_panel(product: Product, inner: Range, columns: Range, operands: Operands) -> Array:
    """Inner × columns of the right factor in float64, the caller's own."""
    values = np.asarray(operands.block(*right_part(product, inner, columns)), np.float64)
    return values.T if FACTORS[product].right_turned else values


def spans(length: int, tiles: int = 1) -> Iterator[Range]:
    """0 .. length in pieces of so many tiles."""
    for start in range(0, length, tiles * TILE):
        yield start, min(start + tiles * TILE, length)


def tiles(shape: tuple[int, int]) -> Iterator[tuple[Range, Range]]:
    """Rows and columns of tiles that cover `shape`."""
    for rows in spans(shape[0]):
        for columns in spans(shape[1]):
            yield rows, columns
