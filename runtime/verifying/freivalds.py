"""Freivalds' check: a product verified with random vectors, where computing it again would take too long.

With v vectors r of random signs it compares C r with L (R r), in O(v) operations per element. If every entry is within
its bound, then certainly

    |Σ_j e_ij r_j| ≤ tolerance_i = bound · Σ_k |L_ik| Σ_j |R_kj|

and, because the signs are independent of the errors,

    |Σ_j e_ij r_j| ≤ tolerance_i = bound · s Σ_k |L_ik| (Σ_j R_kj^2)^1/2,        s = 9.2

except with probability 2 exp(-s^2 / 2) = 8e-19 per row and vector (Hoeffding; the second sum is at least the norm of
row i of |L| |R|). The smaller tolerance is used.

A single wrong entry in a row is certainly detected from 2 · tolerance_i on, as every r_j is a sign. If several entries
are wrong and one of them by more than tolerance_i, each vector misses the row with probability at most 1/2: flipping
the sign of r_j moves the sum by more than the tolerated width. So all v vectors miss it with probability at most 2^-v.

Source: Freivalds, "Probabilistic machines can use less running time", IFIP Congress 1977; Hoeffding, "Probability
inequalities for sums of bounded random variables", JASA 58, 1963, theorem 2.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.matmuls.matmul import Product
from quadrille.runtime.operands.generator import signs
from quadrille.runtime.operands.operands import Operands
from quadrille.runtime.operands.rectangles import Rectangle
from quadrille.runtime.verifying.products import (
    Array,
    ErrorFinding,
    Range,
    Tiling,
    contracted_length,
    left_panel,
    relative_errors,
    right_panel,
)

VECTORS = 8
SPREAD = 9.2
"""Standard deviations that a sum of random signs may have: the s of the module's formula."""


@dataclass(frozen=True, slots=True)
class SignVectors:
    """The random vectors of the check: their number and their seed."""

    count: int = VECTORS
    seed: int = 0

    def rows(self, span: Range) -> Array:
        """A range of rows of the vectors, which are the columns of a tall matrix."""
        return signs(self.seed, "freivalds", *span, self.count)


@dataclass(frozen=True, slots=True)
class FreivaldsCheck:
    """What a rectangle of a product is checked against, and how.

    Parameters
    ----------
    product : product to which the rectangle belongs
    operands : operands of the multiplication
    vectors : random vectors
    tiling : tiles in which the check works
    """

    product: Product
    operands: Operands
    vectors: SignVectors
    tiling: Tiling


def against_random_signs(check: FreivaldsCheck, rectangle: Rectangle, values: NDArray[Any]) -> ErrorFinding:
    """The largest error of a row of a rectangle times a vector, relative to its tolerance / bound."""
    worst, tolerance = ErrorFinding(), 0.0
    for rows in check.tiling.spans(rectangle.shape[0], check.tiling.band_tiles):
        band = rectangle.part(rows, (0, rectangle.shape[1]))
        finding = _freivalds_of_band(check, band, values[slice(*rows)])
        worst, tolerance = max(worst, finding, key=_size), max(tolerance, finding.tolerance)
    return replace(worst, tolerance=tolerance)


def _size(finding: ErrorFinding) -> float:
    """The error as a number for comparison; NaN counts as infinite."""
    return finding.error if isfinite(finding.error) else inf


def _freivalds_of_band(check: FreivaldsCheck, rectangle: Rectangle, values: NDArray[Any]) -> ErrorFinding:
    """The largest error in some rows of a rectangle."""
    height = rectangle.shape[0]
    expected, scale = np.zeros((height, check.vectors.count)), np.zeros((height, 2))
    with np.errstate(all="ignore"):
        for inner in check.tiling.spans(contracted_length(check.product, check.operands)):
            sums, sizes = _right_times_signs(check, inner, rectangle)
            for rows in check.tiling.spans(height):
                above = (rectangle.row_start + rows[0], rectangle.row_start + rows[1])
                left = left_panel(check.product, above, inner, check.operands)
                expected[slice(*rows)] += left @ sums
                scale[slice(*rows)] += np.abs(left, out=left) @ sizes
        tolerances = np.fmin(scale[:, 0], SPREAD * scale[:, 1])
        differences = np.abs(_values_times_signs(check, rectangle, values) - expected)
        errors = relative_errors(differences, np.broadcast_to(tolerances[:, np.newaxis], differences.shape))
    row = int(np.argmax(errors.max(axis=1)))
    place = f"in the sum over row {rectangle.row_start + row} with random signs"
    return ErrorFinding(float(errors[row].max()), place, float(tolerances.max()))


def _right_times_signs(check: FreivaldsCheck, inner: Range, rectangle: Rectangle) -> tuple[Array, Array]:
    """R r for a panel of R's rows, and the sum and the norm of each row of |R|."""
    length = inner[1] - inner[0]
    sums, sizes = np.zeros((length, check.vectors.count)), np.zeros((length, 2))
    for columns in check.tiling.spans(rectangle.shape[1]):
        across = (rectangle.column_start + columns[0], rectangle.column_start + columns[1])
        right = right_panel(check.product, inner, across, check.operands)
        sums += right @ check.vectors.rows(across)
        sizes[:, 1] += np.einsum("ij,ij->i", right, right)
        sizes[:, 0] += np.abs(right, out=right).sum(axis=1)
    # The norm is at least sum / sqrt(length): this holds it up where squares underflow.
    sizes[:, 1] = np.maximum(np.sqrt(sizes[:, 1]), sizes[:, 0] / np.sqrt(max(1, rectangle.shape[1])))
    return sums, sizes


def _values_times_signs(check: FreivaldsCheck, rectangle: Rectangle, values: NDArray[Any]) -> Array:
    """C r for a rectangle of the product."""
    sums = np.zeros((rectangle.shape[0], check.vectors.count))
    for rows, columns in check.tiling.tiles(rectangle.shape):
        across = (rectangle.column_start + columns[0], rectangle.column_start + columns[1])
        tile = np.asarray(values[slice(*rows), slice(*columns)], np.float64)
        sums[slice(*rows)] += tile @ check.vectors.rows(across)
    return sums
