"""The serial check: a block of a product computed once more in float64.

The block is computed in tiles, and in panels of the contracted dimension, so memory stays bounded:

    error = max |C - L R| / (|L| |R|)        (element by element, 0/0 = 0)

In a float64 run the reference is float64 too and has an error of its own; the bound of `verify.py` covers it.

Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., SIAM 2002, section 3.5 (error of a product
relative to |A| |B|).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.matmuls.matmul import Product
from quadrille.runtime.operands.operands import Operands
from quadrille.runtime.operands.rectangles import Rectangle
from quadrille.runtime.verifying.products import (
    Array,
    ErrorFinding,
    Tiling,
    contracted_length,
    left_panel,
    relative_errors,
    right_panel,
)


def against_serial_product(
    product: Product, rectangle: Rectangle, values: NDArray[Any], operands: Operands, tiling: Tiling
) -> ErrorFinding:
    """The largest error of a rectangle of a product, compared with a serial product in float64.

    Parameters
    ----------
    product : product (C, dA or dB)
    rectangle : part of the whole matrix
    values : elements of the rectangle to check
    operands : operands of the multiplication
    tiling : sizes of the tiles and panels
    """
    worst = ErrorFinding()
    for rows, columns in tiling.tiles(rectangle.shape):
        tile = rectangle.part(rows, columns)
        errors = _tile_errors(product, tile, values[slice(*rows), slice(*columns)], operands, tiling)
        row, column = np.unravel_index(int(np.argmax(errors)), errors.shape)
        error = float(errors[row, column])
        if error > worst.error:
            worst = ErrorFinding(error, f"at row {tile.row_start + row}, column {tile.column_start + column}")
    return worst


def _tile_errors(product: Product, tile: Rectangle, values: NDArray[Any], operands: Operands, tiling: Tiling) -> Array:
    """The error of each entry of a tile, relative to |L| |R|."""
    reference, magnitude = np.zeros(tile.shape), np.zeros(tile.shape)
    rows, columns = (tile.row_start, tile.row_stop), (tile.column_start, tile.column_stop)
    with np.errstate(all="ignore"):  # an overflow ends as an error of inf
        for inner in tiling.spans(contracted_length(product, operands)):
            left = left_panel(product, rows, inner, operands)
            right = right_panel(product, inner, columns, operands)
            reference += left @ right
            magnitude += np.abs(left, out=left) @ np.abs(right, out=right)
        np.subtract(values, reference, out=reference, dtype=np.float64)
        return relative_errors(np.abs(reference, out=reference), magnitude)
