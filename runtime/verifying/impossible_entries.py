"""Impossible entries of a product: NaN or infinity with finite operands, and fractions with integer operands."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.matmuls.matmul import Operand, Product
from quadrille.runtime.operands.operands import Operands
from quadrille.runtime.operands.rectangles import Rectangle
from quadrille.runtime.verifying.products import Output, Tiling, contracted_length, factors_of, left_part, right_part


def first_fault(outputs: Sequence[Output], operands: Operands, tiling: Tiling) -> str:
    """A message about a NaN or infinity in the operands of this rank's outputs, or in the outputs; empty if none."""
    for output in outputs:
        for rectangle, _ in output.parts:
            for matrix, needed in _needed(output.product, rectangle, operands):
                fault = _operand_fault(matrix, needed, operands, tiling)
                if fault:
                    return fault
    for output in outputs:
        for rectangle, values in output.parts:
            fault = _fault(output.product, rectangle, values, tiling)
            if fault:
                return f"{fault}, though its operands are finite"
    return ""


def first_fraction(outputs: Sequence[Output], tiling: Tiling) -> str:
    """A message about the first entry that is no whole number, for integer operands; empty if there is none.

    The error relative to a large sum would not show such an entry.
    """
    for output in outputs:
        for rectangle, values in output.parts:
            for rows, columns in tiling.tiles(rectangle.shape):
                tile, values_of_tile = rectangle.part(rows, columns), values[slice(*rows), slice(*columns)]
                if place := _first(values_of_tile != np.rint(values_of_tile), tile):
                    value = values_of_tile[place[0] - tile.row_start, place[1] - tile.column_start]
                    where = f"at row {place[0]}, column {place[1]}"
                    return f"{output.product} holds {value} {where}, though its operands are whole numbers"
    return ""


def _needed(product: Product, rectangle: Rectangle, operands: Operands) -> Iterator[tuple[Operand, Rectangle]]:
    """The parts of the two operands on which a rectangle of the product depends."""
    factors, inner = factors_of(product, operands), (0, contracted_length(product, operands))
    yield left_part(factors, (rectangle.row_start, rectangle.row_stop), inner)
    yield right_part(factors, inner, (rectangle.column_start, rectangle.column_stop))


def _operand_fault(matrix: Operand, rectangle: Rectangle, operands: Operands, tiling: Tiling) -> str:
    """A message about the first NaN or infinity in a part of an operand; generated elements are finite."""
    if matrix not in operands.files:
        return ""
    for rows, columns in tiling.tiles(rectangle.shape):
        tile = rectangle.part(rows, columns)
        fault = _fault(matrix, tile, operands.block(matrix, tile), tiling)
        if fault:
            return fault
    return ""


def _fault(name: str, rectangle: Rectangle, values: NDArray[Any], tiling: Tiling) -> str:
    """A message about a NaN or infinity among `values`, which fill `rectangle` of the matrix `name`."""
    for rows, columns in tiling.tiles(rectangle.shape):
        tile, values_of_tile = rectangle.part(rows, columns), values[slice(*rows), slice(*columns)]
        if place := _first(~np.isfinite(values_of_tile), tile):
            value = float(values_of_tile[place[0] - tile.row_start, place[1] - tile.column_start])
            return f"{name} holds {value} at row {place[0]}, column {place[1]}"
    return ""


def _first(flags: NDArray[np.bool_], tile: Rectangle) -> tuple[int, int] | None:
    """Row and column, in the whole matrix, of the first true entry of a tile; None if there is none."""
    if not flags.any():
        return None
    row, column = np.unravel_index(int(np.argmax(flags)), flags.shape)
    return tile.row_start + int(row), tile.column_start + int(column)
