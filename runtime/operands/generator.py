"""Matrices from a counter-based random generator: any rank computes any element, whatever the partition.

Element (row, column) of a matrix with `columns` columns is element i = row · columns + column of the matrix's stream:

    element = scale(mix(key + i γ mod 2^64)),    key = stream_key(seed, matrix)

`mix` is the finaliser of SplitMix64 and γ its odd increment. So the i are spread over all 2^64 states, and no element
depends on another. There is no sequential state: a block costs only its own elements.

"uniform" elements lie in [-1, 1) and use every bit of the dtype there: multiples of 2^-53 in float64, of 2^-24 in
float32.  "integers" are whole numbers from -4 to 4, whose products sum exactly in any order.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, figure 17 (constants of the
finaliser: Stafford's variant 13).
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quadrille.algorithms.errors import InputError
from quadrille.runtime.operands.rectangles import Rectangle

Kind = Literal["uniform", "integers"]

LARGEST_INTEGER = 4
SIGNIFICANT_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
MASK = 2**64 - 1
INCREMENT = 0x9E3779B97F4A7C15
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB
SLAB_ELEMENTS = 32_768
"""Elements computed at a time: two buffers of 256 KiB stay in a core's cache."""


def mix(number: int) -> int:
    """A 64-bit number in which every bit depends on all bits of `number`.

    >>> hex(mix(INCREMENT))
    '0xe220a8397b1dcdaf'
    """
    number = ((number ^ number >> 30) * FIRST_FACTOR) & MASK
    number = ((number ^ number >> 27) * SECOND_FACTOR) & MASK
    return number ^ number >> 31


def stream_key(seed: int, matrix: str) -> int:
    """The first state of a matrix's stream under a seed.

    >>> len({stream_key(seed, matrix) for seed in range(3) for matrix in ("A", "B", "dC")})
    9
    """
    key = mix((seed + INCREMENT) & MASK)
    name = matrix.encode()
    for start in range(0, len(name), 8):
        key = mix(((key ^ int.from_bytes(name[start : start + 8], "little")) + INCREMENT) & MASK)
    return key


def longest_exact_sum(dtype: str) -> int:
    """The most terms of a product of integer operands that sum exactly in `dtype`, in any order.

    Each term is at most 16, so k · 16 < 2^bits suffices.

    >>> longest_exact_sum("float32")
    1048575
    """
    longest: int = ((1 << SIGNIFICANT_BITS[dtype]) - 1) // LARGEST_INTEGER**2
    return longest


def check_exact(dimension: str, length: int, dtype: str) -> None:
    """Refuse a sum over `dimension` that is too long to be exact with integer operands.

    Raises
    ------
    InputError : more terms than `longest_exact_sum`
    """
    longest = longest_exact_sum(dtype)
    if length > longest:
        raise InputError(
            f"{dimension}={length} is too long for integer operands in {dtype}: "
            f"sums are exact as long as {dimension} * 16 < 2^{SIGNIFICANT_BITS[dtype]}, {dimension} up to {longest}"
        )


def block(
    seed: int,
    matrix: str,
    rows: int,
    columns: int,
    rectangle: Rectangle,
    dtype: DTypeLike,
    kind: Kind = "uniform",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """The elements of one rectangle of the rows × columns matrix named `matrix`.

    >>> whole = block(7, "A", 5, 3, Rectangle(0, 5, 0, 3), "float64")
    >>> part = block(7, "A", 5, 3, Rectangle(1, 4, 2, 3), "float64")
    >>> bool((part == whole[1:4, 2:3]).all())
    True

    Parameters
    ----------
    dtype : float32 or float64; the two hold different numbers, not roundings of each other
    out : array of the rectangle's shape and dtype that is filled instead of a new one
    """
    assert rectangle.row_stop <= rows, (rectangle, rows)
    assert rectangle.column_stop <= columns, (rectangle, columns)
    dtype = np.dtype(dtype)
    assert dtype in (np.float32, np.float64), dtype
    filled = np.empty(rectangle.shape, dtype) if out is None else out
    assert filled.shape == rectangle.shape and filled.dtype == dtype, (filled.shape, filled.dtype, rectangle, dtype)
    first = stream_key(seed, matrix) + (rectangle.row_start * columns + rectangle.column_start) * INCREMENT
    _fill(filled, first & MASK, columns, kind)
    return filled


def signs(seed: int, name: str, start: int, stop: int, vectors: int) -> NDArray[np.float64]:
    """Rows `start` to `stop` of a tall matrix of +1 and -1, `vectors` columns wide.

    >>> signs(0, "r", 0, 3, 2).shape, set(abs(signs(0, "r", 0, 3, 2)).ravel().tolist())
    ((3, 2), {1.0})
    """
    uniform = np.empty((stop - start, vectors))
    _fill(uniform, (stream_key(seed, name) + start * vectors * INCREMENT) & MASK, vectors, "uniform")
    return np.where(uniform < 0, -1.0, 1.0)


def _fill(out: NDArray[Any], first: int, columns: int, kind: Kind) -> None:
    """Fill `out` slab by slab; `first` is the state of its first element in a matrix `columns` wide."""
    height, width = out.shape
    down = np.arange(height, dtype=np.uint64) * np.uint64(columns * INCREMENT & MASK) + np.uint64(first)
    right = np.arange(width, dtype=np.uint64) * np.uint64(INCREMENT)
    states = np.empty(min(SLAB_ELEMENTS, out.size), np.uint64)
    spare = np.empty_like(states)
    for rows, cols in _slabs(height, width):
        target = out[rows, cols]
        slab = states[: target.size]
        np.add(down[rows, np.newaxis], right[np.newaxis, cols], out=slab.reshape(target.shape))
        _mix_all(slab, spare[: target.size])
        _scale(slab, target, kind)


def _slabs(height: int, width: int) -> Iterator[tuple[slice, slice]]:
    wide = min(width, SLAB_ELEMENTS)
    high = SLAB_ELEMENTS // max(wide, 1)
    for top in range(0, height, high):
        for left in range(0, width, max(wide, 1)):
            yield slice(top, min(top + high, height)), slice(left, min(left + wide, width))


def _mix_all(states: NDArray[np.uint64], spare: NDArray[np.uint64]) -> None:
    """Apply `mix` to every state in place."""
    np.right_shift(states, np.uint64(30), out=spare)
    np.bitwise_xor(states, spare, out=states)
    np.multiply(states, np.uint64(FIRST_FACTOR), out=states)
    np.right_shift(states, np.uint64(27), out=spare)
    np.bitwise_xor(states, spare, out=states)
    np.multiply(states, np.uint64(SECOND_FACTOR), out=states)
    np.right_shift(states, np.uint64(31), out=spare)
    np.bitwise_xor(states, spare, out=states)


def _scale(states: NDArray[np.uint64], out: NDArray[Any], kind: Kind) -> None:
    """Convert mixed states into numbers of `kind` in `out`; the states are overwritten."""
    if kind == "integers":
        np.right_shift(states, np.uint64(32), out=states)
        np.multiply(states, np.uint64(2 * LARGEST_INTEGER + 1), out=states)
        np.right_shift(states, np.uint64(32), out=states)
        np.copyto(out, states.reshape(out.shape), casting="unsafe")
        np.subtract(out, out.dtype.type(LARGEST_INTEGER), out=out)
        return
    # A signed number of one bit more than the significand: each is held exactly.
    bits = np.finfo(out.dtype).nmant + 1
    signed = states.view(np.int64)
    np.right_shift(signed, np.int64(63 - bits), out=signed)
    np.copyto(out, signed.reshape(out.shape), casting="unsafe")
    np.multiply(out, out.dtype.type(2.0**-bits), out=out)
