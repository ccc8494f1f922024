"""Verification of matrix products: each rank checks its own block against operands that it generates or reads itself.

    C = A B        dA = dC B^T        dB = A^T dC

or another form, with A or B stored transposed. No communicated data are trusted: a rank generates or reads the rows and
columns on which its block depends, and only the verdicts are exchanged (`combine`). There are two methods:

    serial       the block is computed once more in float64 (`serial_product.py`)
    freivalds    the block is multiplied by random vectors, for larger products (`freivalds.py`)

Both allow an error of

    bound = (8 + 2 log2 P) eps               (P ranks, eps of the dtype of the operands)

relative to |L| |R|, where L and R are the factors of the product. If the operands sum exactly, the bound is 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, log2
from typing import Literal

from quadrille.algorithms.matmuls.matmul import Factors
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.operands.operands import Operands
from quadrille.runtime.verifying.freivalds import VECTORS, FreivaldsCheck, SignVectors, against_random_signs
from quadrille.runtime.verifying.impossible_entries import first_fault, first_fraction
from quadrille.runtime.verifying.products import DEFAULT_TILING, ErrorFinding, Output, Tiling, factors_of
from quadrille.runtime.verifying.serial_product import against_serial_product

Method = Literal["serial", "freivalds"]

EPS: dict[DType, float] = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
TILES_AT_ONCE = 8
"""The number of float64 tiles that exist at once, including the sum of all smaller arrays."""
VERIFY_BYTES = TILES_AT_ONCE * DEFAULT_TILING.tile**2 * 8
"""The most memory that verification takes beside the products and files, which exist already [B]."""
SERIAL_PRODUCTS = 2**36
"""The most multiplications per rank for the serial check: a few seconds of one core."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on one rank's outputs, or on all (`combine`).

    Parameters
    ----------
    max_error, bound : relative to |L| |R|, for "freivalds" relative to tolerance / bound; a result with NaN or infinity
        has error inf
    ok : whether every error is within the bound
    vectors : number of random vectors, 0 for "serial"
    smallest_error_seen : smallest change of a single entry that is certainly detected, in the units of the product;
        None for "serial"
    chance_of_missing : upper limit of the probability of a miss, when several entries of a row are wrong and one of
        them by more than half of that; None for "serial"
    reason : reason of a failure in one line; empty if ok
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


def error_bound(ranks: int, eps: float) -> float:
    """The error that a correct product may have, relative to |L| |R|: (8 + 2 log2 P) eps.

    >>> error_bound(4, 2.0**-23) / 2.0**-23
    12.0
    """
    return (8 + 2 * log2(ranks)) * eps


def choose_method(multiplications: int) -> Method:
    """The serial check while it takes the busiest rank only seconds, Freivalds' check otherwise.

    >>> choose_method(4096**3), choose_method(8192**3)
    ('serial', 'freivalds')

    Parameters
    ----------
    multiplications : multiplications behind the largest block of any product
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
    tiling: Tiling = DEFAULT_TILING,
) -> Verification:
    """The verdict on this rank's outputs.

    >>> from quadrille.runtime.operands.rectangles import Rectangle
    >>> operands = Operands(3, 5, 4, "float32", kind="integers")
    >>> a, b = (operands.block(name, Rectangle(0, rows, 0, columns)) for name, rows, columns in
    ...         [("A", 3, 5), ("B", 5, 4)])
    >>> verify([Output("C", ((Rectangle(0, 3, 1, 4), (a @ b)[:, 1:]),))], operands, ranks=2)
    Verification(method='serial', max_error=0.0, bound=0.0, ok=True, ...)

    Parameters
    ----------
    outputs : this rank's parts of the products
    operands : operands of the multiplication
    ranks : number of ranks that computed the product together
    method : serial check or Freivalds' check
    eps : machine epsilon of the accumulating dtype, if it is not the dtype of the operands
    exact : whether the product must be equal, because its operands are whole numbers that sum exactly; by default, if
        the operands are generated integers
    vectors, seed : number and seed of the vectors of Freivalds' check
    tiling : sizes of the tiles in which the outputs are checked
    """
    bound = error_bound(ranks, EPS[operands.dtype] if eps is None else eps)
    if operands.exact if exact is None else exact:
        bound = 0.0
    verdict = Verification(method, 0.0, bound, ok=True)
    if method == "freivalds":
        verdict = replace(verdict, vectors=vectors, smallest_error_seen=0.0, chance_of_missing=2.0**-vectors)
    fault = first_fault(outputs, operands, tiling) or (first_fraction(outputs, tiling) if bound == 0 else "")
    if fault:
        return replace(verdict, max_error=inf, ok=False, reason=fault)
    for output in outputs:
        check = FreivaldsCheck(output.product, operands, SignVectors(vectors, seed), tiling)
        for rectangle, values in output.parts:
            finding = (
                against_serial_product(output.product, rectangle, values, operands, tiling)
                if method == "serial"
                else against_random_signs(check, rectangle, values)
            )
            verdict = _judge(verdict, factors_of(output.product, operands), finding)
    return verdict


def _judge(verdict: Verification, factors: Factors, finding: ErrorFinding) -> Verification:
    """The verdict that also covers another finding."""
    if verdict.smallest_error_seen is not None:
        seen = max(verdict.smallest_error_seen, 2 * verdict.bound * finding.tolerance)
        verdict = replace(verdict, smallest_error_seen=seen)
    error = finding.error if isfinite(finding.error) else inf
    if error <= verdict.max_error:
        return verdict
    verdict = replace(verdict, max_error=error)
    if error <= verdict.bound:
        return verdict
    allowed = f"{verdict.bound:.3g} is allowed" if verdict.bound else "it must be equal"
    off = f"{factors.product} is off by {error:.3g} of |{factors.left}| |{factors.right}|"
    return replace(verdict, ok=False, reason=f"{off} {finding.place}, where {allowed}")


def combine(verdicts: Sequence[Verification]) -> Verification:
    """One verdict from the verdicts of all ranks, in rank order.

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
