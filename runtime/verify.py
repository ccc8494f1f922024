"""Whether a product is right, each rank checking its own block against its own operands.

    C = A B        dA = dC B^T        dB = A^T dC

Nothing that was communicated is trusted: a rank makes or reads the rows and
columns that its block depends on, and the only exchange is of the verdicts
(`combine`).  Below, L and R are the two factors of any of the products.

"serial" computes the block once more in float64, in tiles and in panels of the
contracted dimension so that memory stays bounded, and takes

    error = max |C - L R| / (|L| |R|)        (element by element, 0/0 = 0)
    bound = (8 + 2 log2 P) eps               (P ranks, eps of the accumulating dtype)

In a float64 run the reference is float64 too and has an error of its own,
which the bound has to cover.  With operands that sum exactly the bound is 0.

"freivalds" is for products too large for that.  With v vectors r of random
signs it compares C r with L (R r), in O(v) operations per element.  If every
entry is within its bound, |Σ_j e_ij r_j| is for certain at most

    tolerance_i = bound · Σ_k |L_ik| Σ_j |R_kj|

and, since the signs know nothing of the errors, at most

    tolerance_i = bound · s Σ_k |L_ik| (Σ_j R_kj^2)^1/2,        s = 9.2

but for a chance of 2 exp(-s^2 / 2) = 8e-19 per row and vector (Hoeffding; the
second sum is no less than the norm of row i of |L| |R|).  The smaller is taken.
One wrong entry in a row is seen for certain from 2 · tolerance_i on, as every
r_j is a sign.  If several are wrong and one by more than tolerance_i, each
vector misses the row with a chance of at most 1/2: turning the sign of r_j
moves the sum by more than the width of what is tolerated.  So all v miss it
with at most 2^-v.

Source: Freivalds, "Probabilistic machines can use less running time", IFIP
Congress 1977; Higham, "Accuracy and Stability of Numerical Algorithms", 2nd
ed., SIAM 2002, section 3.5 (error of a product relative to |A| |B|); Hoeffding,
"Probability inequalities for sums of bounded random variables", JASA 58, 1963,
theorem 2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, log2
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from algorithms.tensors import Block, DType
from runtime.generator import signs
from runtime.operands import Matrix, Operands, Rectangle, split_block

Product = Literal["C", "dA", "dB"]
Method = Literal["serial", "freivalds"]
Range = tuple[int, int]
Array = NDArray[np.float64]

EPS: dict[DType, float] = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
VECTORS = 8
SPREAD = 9.2
"""Standard deviations that a sum of random signs is allowed: the s of the module's formula."""
TILE = 1024
"""Side of the tiles of a block and of the panels."""
TILES_AT_ONCE = 8
"""Float64 tiles that live at once, all that is smaller put together."""
VERIFY_BYTES = TILES_AT_ONCE * TILE * TILE * 8
"""Most memory that verification takes beside the products and the files, which are there already [B]."""
BAND_TILES = 64
"""Tiles of rows whose sums Freivalds' check keeps: its few columns for them are half a tile."""
SERIAL_PRODUCTS = 2**36
"""Most multiplications per rank for which the serial product is computed: a few seconds of one core."""


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


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on a rank's outputs, or on all (`combine`).

    Parameters
    ----------
    max_error, bound : relative to |L| |R|, for "freivalds" relative to tolerance / bound;
        a result with NaN or infinity has error inf
    ok : whether every error is within the bound
    vectors : number of random vectors, 0 for "serial"
    smallest_error_seen : the smallest change of a single entry that is certain
        to be noticed, in the units of the product; None for "serial"
    chance_of_missing : at most, when several entries of a row are wrong and one of
        them by more than half of that; None for "serial"
    reason : why not, in one line; empty if ok
    """

    method: Method
    max_error: float
    bound: float
    ok: bool
    vectors: int = 0
    smallest_error_seen: float | None = None
    chance_of_missing: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        verdict = "verified" if self.ok else "NOT VERIFIED"
        text = f"{verdict}: relative error {self.max_error:.2g}, bound {self.bound:.2g}"
        if self.method == "serial":
            text += ", by the serial check"
        else:
            seen = f"from {self.smallest_error_seen:.2g} on" if self.smallest_error_seen else "whatever its size"
            text += f", by Freivalds' check with {self.vectors} vectors: one wrong entry is seen {seen},"
            text += f" several in a row are missed with a chance of at most {self.chance_of_missing:.2g}"
        return text + (f"; {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Finding:
    """The largest error found, where it is, and the tolerance that one entry's change could hide in."""

    error: float = 0.0
    place: str = ""
    tolerance: float = 0.0


def error_bound(ranks: int, eps: float) -> float:
    """The error a right product may have, relative to |L| |R|: (8 + 2 log2 P) eps.

    >>> error_bound(4, 2.0**-23) / 2.0**-23
    12.0
    """
    return (8 + 2 * log2(ranks)) * eps


def choose_method(multiplications: int) -> Method:
    """The serial product as long as it takes the rank that has most of it to repeat seconds.

    >>> choose_method(4096**3), choose_method(8192**3)
    ('serial', 'freivalds')

    Parameters
    ----------
    multiplications : behind the largest block of any product
    """
    return "serial" if multiplications <= SERIAL_PRODUCTS else "freivalds"


def verify(
    outputs: Sequence[Output],
    operands: Operands,
    *,
    ranks: int,
    method: Method = "serial",
    eps: float | None = None,
    exact: bool | None = None,
    vectors: int = VECTORS,
    seed: int = 0,
) -> Verification:
    """The verdict on what this rank holds.

    >>> operands = Operands(3, 5, 4, "float32", kind="integers")
    >>> a, b = (operands.block(name, Rectangle(0, rows, 0, columns)) for name, rows, columns in
    ...         [("A", 3, 5), ("B", 5, 4)])
    >>> verify([Output("C", ((Rectangle(0, 3, 1, 4), (a @ b)[:, 1:]),))], operands, ranks=2)
    Verification(method='serial', max_error=0.0, bound=0.0, ok=True, ...)

    Parameters
    ----------
    ranks : that computed the product together
    eps : of the accumulating dtype, if that is not the dtype of the operands
    exact : whether the product must be equal, its operands being whole numbers that
        sum exactly; by default, if the operands are generated integers
    vectors, seed : of Freivalds' check
    """
    bound = error_bound(ranks, EPS[operands.dtype] if eps is None else eps)
    if operands.exact if exact is None else exact:
        bound = 0.0
    verdict = Verification(method, 0.0, bound, ok=True)
    if method == "freivalds":
        verdict = replace(verdict, vectors=vectors, smallest_error_seen=0.0, chance_of_missing=2.0**-vectors)
    fault = _first_fault(outputs, operands) or (_first_fraction(outputs) if bound == 0 else "")
    if fault:
        return replace(verdict, max_error=inf, ok=False, reason=fault)
    for output in outputs:
        for rectangle, values in output.parts:
            found = (
                _serial(output.product, rectangle, values, operands)
                if method == "serial"
                else _freivalds(output.product, rectangle, values, operands, vectors, seed)
            )
            verdict = _judge(verdict, output.product, found)
    return verdict


def _judge(verdict: Verification, product: Product, found: Finding) -> Verification:
    """The verdict after one more finding."""
    if verdict.smallest_error_seen is not None:
        seen = max(verdict.smallest_error_seen, 2 * verdict.bound * found.tolerance)
        verdict = replace(verdict, smallest_error_seen=seen)
    error = found.error if isfinite(found.error) else inf
    if error <= verdict.max_error:
        return verdict
    verdict = replace(verdict, max_error=error)
    if error <= verdict.bound:
        return verdict
    allowed = f"{verdict.bound:.3g} is allowed" if verdict.bound else "it must be equal"
    factors = FACTORS[product]
    reason = f"{product} is off by {error:.3g} of |{factors.left}| |{factors.right}| {found.place}, where {allowed}"
    return replace(verdict, ok=False, reason=reason)


def combine(verdicts: Sequence[Verification]) -> Verification:
    """One verdict from those of all ranks, in the order of the ranks.

    >>> right = Verification("serial", 1e-7, 1e-6, ok=True)
    >>> wrong = Verification("serial", 3e-3, 1e-6, ok=False, reason="C is off")
    >>> combine([right, wrong]).reason
    'rank 1: C is off'
    """
    rank = next((rank for rank, verdict in enumerate(verdicts) if not verdict.ok), 0)
    seen = [verdict.smallest_error_seen for verdict in verdicts if verdict.smallest_error_seen is not None]
    return replace(
        verdicts[rank],
        max_error=max(verdict.max_error for verdict in verdicts),
        smallest_error_seen=max(seen) if seen else None,
        reason="" if verdicts[rank].ok else f"rank {rank}: {verdicts[rank].reason}",
    )


# Numbers that are none


def _first_fault(outputs: Sequence[Output], operands: Operands) -> str:
    """A NaN or infinity in the operands of this rank's outputs, or else in the outputs."""
    for output in outputs:
        for rectangle, _ in output.parts:
            for matrix, needed in _needed(output.product, rectangle, operands):
                fault = _operand_fault(matrix, needed, operands)
                if fault:
                    return fault
    for output in outputs:
        for rectangle, values in output.parts:
            fault = _fault(output.product, rectangle, values)
            if fault:
                return f"{fault}, though its operands are finite"
    return ""


def _first_fraction(outputs: Sequence[Output]) -> str:
    """An entry that is no whole number, where all should be; next to large ones a sum could lose it."""
    for output in outputs:
        for rectangle, values in output.parts:
            for rows, columns in _tiles(rectangle.shape):
                tile, found = rectangle.part(rows, columns), values[slice(*rows), slice(*columns)]
                if place := _first(found != np.rint(found), tile):
                    value = found[place[0] - tile.row_start, place[1] - tile.column_start]
                    where = f"at row {place[0]}, column {place[1]}"
                    return f"{output.product} holds {value} {where}, though its operands are whole numbers"
    return ""


def _needed(product: Product, rectangle: Rectangle, operands: Operands) -> Iterator[tuple[Matrix, Rectangle]]:
    """The parts of the two operands that a rectangle of the product depends on."""
    inner = (0, _contracted(product, operands))
    yield _left(product, (rectangle.row_start, rectangle.row_stop), inner)
    yield _right(product, inner, (rectangle.column_start, rectangle.column_stop))


def _operand_fault(matrix: Matrix, rectangle: Rectangle, operands: Operands) -> str:
    """The first NaN or infinity in a part of an operand; generated elements are finite."""
    if matrix not in operands.files:
        return ""
    for rows, columns in _tiles(rectangle.shape):
        tile = rectangle.part(rows, columns)
        fault = _fault(matrix, tile, operands.block(matrix, tile))
        if fault:
            return fault
    return ""


def _fault(name: str, rectangle: Rectangle, values: NDArray[Any]) -> str:
    """A NaN or infinity among `values`, which fill `rectangle` of the matrix `name`."""
    for rows, columns in _tiles(rectangle.shape):
        tile, found = rectangle.part(rows, columns), values[slice(*rows), slice(*columns)]
        if place := _first(~np.isfinite(found), tile):
            value = float(found[place[0] - tile.row_start, place[1] - tile.column_start])
            return f"{name} holds {value} at row {place[0]}, column {place[1]}"
    return ""


def _first(found: NDArray[np.bool_], tile: Rectangle) -> tuple[int, int] | None:
    """Row and column in the whole matrix of the first entry of a tile that is true; None if none is."""
    if not found.any():
        return None
    row, column = np.unravel_index(int(np.argmax(found)), found.shape)
    return tile.row_start + int(row), tile.column_start + int(column)


# The serial product


def _serial(product: Product, rectangle: Rectangle, values: NDArray[Any], operands: Operands) -> Finding:
    """The largest error of a rectangle against its serial product."""
    worst = Finding()
    for rows, columns in _tiles(rectangle.shape):
        tile = rectangle.part(rows, columns)
        errors = _tile_errors(product, tile, values[slice(*rows), slice(*columns)], operands)
        row, column = np.unravel_index(int(np.argmax(errors)), errors.shape)
        error = float(errors[row, column])
        if error > worst.error:
            worst = Finding(error, f"at row {tile.row_start + row}, column {tile.column_start + column}")
    return worst


def _tile_errors(product: Product, tile: Rectangle, values: NDArray[Any], operands: Operands) -> Array:
    """Error of each entry of a tile, relative to |L| |R|."""
    reference, magnitude = np.zeros(tile.shape), np.zeros(tile.shape)
    rows, columns = (tile.row_start, tile.row_stop), (tile.column_start, tile.column_stop)
    with np.errstate(all="ignore"):  # an overflow ends as an error of inf
        for inner in _spans(_contracted(product, operands)):
            left = _panel(operands, *_left(product, rows, inner), turned=FACTORS[product].left_turned)
            right = _panel(operands, *_right(product, inner, columns), turned=FACTORS[product].right_turned)
            reference += left @ right
            magnitude += np.abs(left, out=left) @ np.abs(right, out=right)
        np.subtract(values, reference, out=reference, dtype=np.float64)
        return _relative(np.abs(reference, out=reference), magnitude)


def _relative(differences: Array, magnitudes: Array) -> Array:
    """Each difference by its magnitude with 0/0 = 0; one that cannot be told, after an overflow, is infinite."""
    errors = np.zeros_like(differences)
    np.divide(differences, magnitudes, out=errors, where=differences != 0)
    errors[np.isnan(errors) | ~np.isfinite(magnitudes)] = inf
    return errors


# Freivalds' check


def _freivalds(
    product: Product, rectangle: Rectangle, values: NDArray[Any], operands: Operands, vectors: int, seed: int
) -> Finding:
    """The largest error of a row of a rectangle times a vector, relative to its tolerance / bound."""
    worst, tolerance = Finding(), 0.0
    for top in range(0, rectangle.shape[0], BAND_TILES * TILE):
        rows = (top, min(top + BAND_TILES * TILE, rectangle.shape[0]))
        band = rectangle.part(rows, (0, rectangle.shape[1]))
        found = _freivalds_of_band(product, band, values[slice(*rows)], operands, vectors, seed)
        worst, tolerance = max(worst, found, key=_size), max(tolerance, found.tolerance)
    return replace(worst, tolerance=tolerance)


def _size(found: Finding) -> float:
    """Its error, one that is no number above all others."""
    return found.error if isfinite(found.error) else inf


def _freivalds_of_band(
    product: Product, rectangle: Rectangle, values: NDArray[Any], operands: Operands, vectors: int, seed: int
) -> Finding:
    """The same of some rows."""
    height = rectangle.shape[0]
    expected, scale = np.zeros((height, vectors)), np.zeros((height, 2))
    with np.errstate(all="ignore"):
        for inner in _spans(_contracted(product, operands)):
            sums, sizes = _right_times_signs(product, inner, rectangle, operands, vectors, seed)
            for rows in _spans(height):
                above = (rectangle.row_start + rows[0], rectangle.row_start + rows[1])
                left = _panel(operands, *_left(product, above, inner), turned=FACTORS[product].left_turned)
                expected[slice(*rows)] += left @ sums
                scale[slice(*rows)] += np.abs(left, out=left) @ sizes
        tolerances = np.fmin(scale[:, 0], SPREAD * scale[:, 1])
        differences = np.abs(_values_times_signs(rectangle, values, vectors, seed) - expected)
        errors = _relative(differences, np.broadcast_to(tolerances[:, np.newaxis], differences.shape))
    row = int(np.argmax(errors.max(axis=1)))
    place = f"in the sum over row {rectangle.row_start + row} with random signs"
    return Finding(float(errors[row].max()), place, float(tolerances.max()))


def _right_times_signs(
    product: Product, inner: Range, rectangle: Rectangle, operands: Operands, vectors: int, seed: int
) -> tuple[Array, Array]:
    """R r for a panel of R's rows; and the sum and the norm of each row of |R|."""
    length = inner[1] - inner[0]
    sums, sizes = np.zeros((length, vectors)), np.zeros((length, 2))
    for columns in _spans(rectangle.shape[1]):
        across = (rectangle.column_start + columns[0], rectangle.column_start + columns[1])
        right = _panel(operands, *_right(product, inner, across), turned=FACTORS[product].right_turned)
        sums += right @ signs(seed, "freivalds", *across, vectors)
        sizes[:, 1] += np.einsum("ij,ij->i", right, right)
        sizes[:, 0] += np.abs(right, out=right).sum(axis=1)
    # The norm is at least sum / sqrt(length): this holds it up where squares underflow.
    sizes[:, 1] = np.maximum(np.sqrt(sizes[:, 1]), sizes[:, 0] / np.sqrt(max(1, rectangle.shape[1])))
    return sums, sizes


def _values_times_signs(rectangle: Rectangle, values: NDArray[Any], vectors: int, seed: int) -> Array:
    """C r for a rectangle of the product."""
    sums = np.zeros((rectangle.shape[0], vectors))
    for rows, columns in _tiles(rectangle.shape):
        across = (rectangle.column_start + columns[0], rectangle.column_start + columns[1])
        tile = np.asarray(values[slice(*rows), slice(*columns)], np.float64)
        sums[slice(*rows)] += tile @ signs(seed, "freivalds", *across, vectors)
    return sums


# Panels of the operands


def _contracted(product: Product, operands: Operands) -> int:
    """Length of the dimension that a product sums over."""
    return {"m": operands.m, "k": operands.k, "n": operands.n}[FACTORS[product].contracted]


def _left(product: Product, rows: Range, inner: Range) -> tuple[Matrix, Rectangle]:
    """Where rows × inner of the left factor lie in its operand."""
    factors = FACTORS[product]
    return factors.left, Rectangle(*inner, *rows) if factors.left_turned else Rectangle(*rows, *inner)


def _right(product: Product, inner: Range, columns: Range) -> tuple[Matrix, Rectangle]:
    """Where inner × columns of the right factor lie in its operand."""
    factors = FACTORS[product]
    return factors.right, Rectangle(*columns, *inner) if factors.right_turned else Rectangle(*inner, *columns)


def _panel(operands: Operands, matrix: Matrix, rectangle: Rectangle, *, turned: bool) -> Array:
    """A part of a factor in float64, the caller's own."""
    values = np.asarray(operands.block(matrix, rectangle), np.float64)
    return values.T if turned else values


def _spans(length: int) -> Iterator[Range]:
    """0 .. length in pieces of TILE."""
    for start in range(0, length, TILE):
        yield start, min(start + TILE, length)


def _tiles(shape: tuple[int, int]) -> Iterator[tuple[Range, Range]]:
    """Rows and columns of tiles that cover `shape`."""
    for rows in _spans(shape[0]):
        for columns in _spans(shape[1]):
            yield rows, columns
