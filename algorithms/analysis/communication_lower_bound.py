"""Communication lower bound of parallel matrix multiplication, and the algorithm that attains it.

C_mn = A_mk @ B_kn on P ranks with enough memory; each matrix is stored once and evenly distributed at the start and at
the end. With the dimensions sorted, d1 >= d2 >= d3,

    words >= D - (d1 d2 + d1 d3 + d2 d3) / P

    regime   range of P                       D                                grid along d1, d2, d3
    1d       P <= d1/d2                       (d1 d2 + d1 d3)/P + d2 d3        P, 1, 1
    2d       d1/d2 <= P <= d1 d2/d3^2         2 sqrt(d1 d2 d3^2/P) + d1 d2/P   sqrt(d1 P/d2), sqrt(d2 P/d1), 1
    3d       P >= d1 d2/d3^2                  3 (d1 d2 d3/P)^(2/3)             each dimension / (d1 d2 d3/P)^(1/3)

Words are elements.  Algorithms that start from replicated operands (1d, 4d, 2.5d with copies) may send less.

Source: Al Daas, Ballard, Grigori, Kumar, Rouse, "Tight memory-independent parallel matrix multiplication communication
lower bounds", SPAA 2022, arXiv 2205.13407, theorem 3 and section 5.
"""

from math import cbrt, sqrt
from typing import Literal

from quadrille.algorithms.errors import InputError

Regime = Literal["1d", "2d", "3d"]


def regime(m: int, k: int, n: int, ranks: int) -> Regime:
    """The regime of the lower bound for a product of m × k by k × n: the number of dimensions worth cutting.

    >>> [regime(9600, 2400, 600, ranks) for ranks in (3, 36, 512)]
    ['1d', '2d', '3d']
    """
    _check(m, k, n, ranks)
    d3, d2, d1 = sorted((m, k, n))
    if ranks * d2 <= d1:
        return "1d"
    return "2d" if ranks * d3**2 <= d1 * d2 else "3d"


def lower_bound_words(m: int, k: int, n: int, ranks: int) -> float:
    """The words (elements) that at least one rank sends or receives by any algorithm, for C_mn = A_mk @ B_kn.

    >>> lower_bound_words(9600, 2400, 600, 36)
    760000.0
    """
    case = regime(m, k, n, ranks)
    d3, d2, d1 = sorted((m, k, n))
    if case == "1d":
        return d2 * d3 * (ranks - 1) / ranks
    if case == "2d":
        return 2 * sqrt(d1 * d2 * d3**2 / ranks) - (d1 * d3 + d2 * d3) / ranks
    return 3 * cbrt(d1 * d2 * d3 / ranks) ** 2 - (d1 * d2 + d1 * d3 + d2 * d3) / ranks


def words_3d(m: int, k: int, n: int, *, z: float, y: float, x: float) -> float:
    """The words that each rank sends in the `3d` algorithm: all-gathers of A and B, and a reduce-scatter of C.

        (1 - 1/x) m k / (z y) + (1 - 1/z) k n / (y x) + (1 - 1/y) m n / (z x)

    >>> words_3d(1024, 1024, 1024, z=4, y=4, x=4)
    147456.0
    """
    for axis, length in (("z", z), ("y", y), ("x", x)):
        if not length >= 1:
            raise InputError(f"grid axis {axis}={length:g}: a length is a number from 1")
    return (1 - 1 / x) * m * k / (z * y) + (1 - 1 / z) * k * n / (y * x) + (1 - 1 / y) * m * n / (z * x)


def _check(m: int, k: int, n: int, ranks: int) -> None:
    for name, value in (("m", m), ("k", k), ("n", n), ("ranks", ranks)):
        if value < 1:
            raise InputError(f"{name}={value}: a whole number from 1 is needed")
