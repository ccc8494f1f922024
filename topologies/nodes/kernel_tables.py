"""Measured kernels of GPUs: seconds of matrix products and of attention, interpolated in tables of measurements.

A table holds the ratio of measured seconds to a bound that the data sheet gives,

    seconds = ratio · (flop / peak + bytes / memory bandwidth + `KERNEL_SECONDS`)

at the points of a grid of sizes.  Between the points, the logarithm of the ratio is linear in the logarithms of the
sizes; beyond the grid, the ratio of the nearest point holds, and the estimate is marked as extrapolated.  A ratio
varies far less with the sizes than the seconds do, so few points suffice.

`measured_kernels/README.md` names the source and the licence; `studies/kernel_tables` makes the files, and states how
far they are from measurements that they were not made from.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Literal

import msgspec

from quadrille.algorithms.errors import InputError

FOLDER = Path(__file__).resolve().parent / "measured_kernels"
Schema = Literal["quadrille/kernels/1"]
SCHEMA: Schema = "quadrille/kernels/1"
KERNEL_SECONDS = 2e-6
"""Seconds of the smallest kernel, without its launch."""
PER_UNIT = 1000
"""Steps of the stored logarithms in a unit: a step is a thousandth."""
PRODUCT_BYTES: dict[str, float] = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5}
"""Bytes of an operand's element by the precision of the product; the result has 16 bits."""
RESULT_BYTES = 2.0
FORWARD_PRODUCTS = 2
"""Matrix products of attention's forward pass."""


class RatioTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Ratios of measured seconds to the data sheet's bound, on a grid of sizes.

    Parameters
    ----------
    axes : names of the sizes and their grid points, ascending
    thousandths : logarithms of the ratios in thousandths, the last axis the fastest
    rows : number of measurements behind the table
    median_error, most_error : median and 90th percentile of |predicted / measured - 1| over measurements that were
        left out of the table
    """

    axes: dict[str, tuple[int, ...]]
    thousandths: tuple[int, ...]
    rows: int
    median_error: float
    most_error: float

    def ratio(self, *sizes: float) -> tuple[float, bool]:
        """The ratio at some sizes, in the order of the axes, and whether they lie beyond the grid.

        >>> table = RatioTable(
        ...     axes={"m": (1, 4), "k": (1, 16)}, thousandths=(0, 1000, 0, 1000), rows=4, median_error=0, most_error=0
        ... )
        >>> [round(ratio, 3) for ratio in (table.ratio(2, 1)[0], table.ratio(2, 4)[0], table.ratio(2, 64)[0])]
        [1.0, 1.649, 2.718]
        >>> table.ratio(2, 4)[1], table.ratio(2, 64)[1]
        (False, True)
        """
        corners, beyond = [], False
        for points, size in zip(self.axes.values(), sizes, strict=True):
            beyond |= not points[0] <= size <= points[-1]
            corners.append(_neighbours(points, size))
        total = 0.0
        for corner in product(*corners):
            index, weight = 0, 1.0
            for points, (place, share) in zip(self.axes.values(), corner, strict=True):
                index, weight = index * len(points) + place, weight * share
            total += weight * self.thousandths[index]
        return exp(total / PER_UNIT), beyond


def _neighbours(points: Sequence[int], size: float) -> tuple[tuple[int, float], ...]:
    """The grid points around a size and their weights, in the logarithm of the size."""
    if size <= points[0] or len(points) == 1:
        return ((0, 1.0),)
    if size >= points[-1]:
        return ((len(points) - 1, 1.0),)
    above = bisect_right(points, size)
    share = log(size / points[above - 1]) / log(points[above] / points[above - 1])
    return ((above - 1, 1.0 - share), (above, share)) if share else ((above - 1, 1.0),)


class KernelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured kernels of a GPU.

    Parameters
    ----------
    schema : version of the file's form
    gpu : name of the GPU
    source : source of the measurements
    peak_flops_per_second : data sheet's peaks by precision [flop/s]
    memory_bytes_per_second : data sheet's memory bandwidth [B/s]
    products : tables of m x k by k x n products over m, n and k, by precision
    attention : table of causal forward passes over the tokens of a sequence, sequences times query heads, and the size
        of a head
    experts : table of the forward pass of experts in 16 bits over rows of an expert, experts, columns of a row, and
        columns of an expert's hidden layer; None without measurements
    """

    schema: Schema
    gpu: str
    source: str
    peak_flops_per_second: dict[str, float]
    memory_bytes_per_second: float
    products: dict[str, RatioTable]
    attention: RatioTable
    experts: RatioTable | None = None

    def product_seconds(
        self, sizes: tuple[int, int, int], precision: str, peak: float, rate: float
    ) -> tuple[float, bool]:
        """Seconds of a product, and whether they are extrapolated.

        Parameters
        ----------
        sizes : m, k and n
        precision : precision of the operands
        peak, rate : peak of the precision [flop/s] and memory bandwidth [B/s]
        """
        m, k, n = sizes
        ratio, beyond = self.products[precision].ratio(m, n, k)
        return ratio * product_bound(m, k, n, precision, peak, rate), beyond

    def attention_seconds(
        self, sizes: tuple[int, int, int], pairs: int, touched: float, peak: float, rate: float
    ) -> tuple[float, bool]:
        """Seconds of the forward pass of causal attention, and whether they are extrapolated.

        Parameters
        ----------
        sizes : tokens of a sequence, sequences times query heads, and columns of a head
        pairs : twice the pairs of a token and a token that it sees, in a sequence (`seen_pairs`)
        touched : bytes of queries, keys, values and output [B]
        peak, rate : peak of products [flop/s] and memory bandwidth [B/s]
        """
        ratio, beyond = self.attention.ratio(*sizes)
        return ratio * attention_bound(pairs, *sizes[1:], touched, peak, rate), beyond

    def grouped_seconds(
        self, rows: Mapping[int, int], expert: tuple[int, int], matrix: tuple[int, int], peak: float, rate: float
    ) -> tuple[float, bool]:
        """Seconds of one grouped product of a rank's experts in 16 bits, and whether they are extrapolated.

        The table has the time of all products of an expert.  Each product has the same ratio to its bound.

        Parameters
        ----------
        rows : number of experts with each number of rows
        expert : columns of a row and of the hidden layer of an expert
        matrix : rows and columns of the matrix of an expert
        peak, rate : peak of products [flop/s] and memory bandwidth [B/s]

        Raises
        ------
        InputError : a GPU without measured experts
        """
        if self.experts is None:
            raise InputError(f"experts: no measured kernels of {self.gpu}")
        total, beyond, count = 0.0, False, sum(rows.values())
        for each, experts in rows.items():
            ratio, is_beyond = self.experts.ratio(each, count, *expert)
            bound = grouped_bound(each * experts, experts, *matrix, peak, rate)
            total += ratio * (bound + KERNEL_SECONDS * experts / count)
            beyond |= is_beyond
        return total, beyond


@lru_cache(16)
def best_product_share(name: str) -> float:
    """A share of the peak that no 16-bit product of a table exceeds.

    Within a cell of the grid, the ratio is at least that of the smallest corner, and flop / bound is at most that of
    the last corner, or flop / peak beyond the grid.

    >>> 0.8 < best_product_share("h100-sxm") <= 1
    True
    """
    kernels = kernel_table(name)
    table, peak, rate = (
        kernels.products["bfloat16"],
        kernels.peak_flops_per_second["bfloat16"],
        kernels.memory_bytes_per_second,
    )
    m, n, k = (list(points) for points in table.axes.values())
    best = 0.0
    for i, j, l in product(*(range(len(points)) for points in (m, n, k))):
        last = [min(index + 1, len(points) - 1) for index, points in zip((i, j, l), (m, n, k), strict=True)]
        corners = product(*({index, after} for index, after in zip((i, j, l), last, strict=True)))
        least = min(table.thousandths[(a * len(n) + b) * len(k) + c] for a, b, c in corners)
        sizes = [points[index] for points, index in zip((m, n, k), last, strict=True)]
        beyond = (i, j, l) == tuple(last)
        flops = 2.0 * sizes[0] * sizes[1] * sizes[2]
        bound = flops / peak if beyond else product_bound(sizes[0], sizes[2], sizes[1], "bfloat16", peak, rate)
        best = max(best, flops / peak / bound / exp(least / PER_UNIT))
    return min(1.0, best)


def product_bound(m: float, k: float, n: float, precision: str, peak: float, rate: float) -> float:
    """The data sheet's bound of a product of m x k by k x n [s].

    Parameters
    ----------
    precision : precision of the operands
    peak, rate : peak of the precision [flop/s] and memory bandwidth [B/s]

    >>> product_bound(1000, 1000, 1000, "bfloat16", 1e12, 6e9) == 2e-3 + 1e-3 + KERNEL_SECONDS
    True
    """
    size = PRODUCT_BYTES[precision] * (m * k + k * n) + RESULT_BYTES * m * n
    return 2.0 * m * k * n / peak + size / rate + KERNEL_SECONDS


def attention_bound(pairs: float, count: float, head: float, touched: float, peak: float, rate: float) -> float:
    """The data sheet's bound of the forward pass of causal attention [s].

    Parameters
    ----------
    pairs : twice the pairs of a token and a token that it sees, in a sequence (`seen_pairs`)
    count : sequences times query heads
    head : columns of a head
    touched : bytes of queries, keys, values and output [B]
    peak, rate : peak of products [flop/s] and memory bandwidth [B/s]
    """
    return FORWARD_PRODUCTS * count * pairs * head / peak + touched / rate + KERNEL_SECONDS


def experts_bound(
    rows: float, experts: float, columns: float, hidden: float, peak: float, rate: float, *, gated: bool
) -> float:
    """The data sheet's bound of the forward pass of a rank's experts in 16 bits [s].

    Every row is multiplied by the two or three matrices of its expert; the matrices of all experts that have a row are
    read once, rows are read and written, and the hidden layer is written and read.

    >>> experts_bound(8, 2, 10, 100, 1e9, 1e9, gated=False) == 3.2e-5 + 1.152e-5 + 2 * KERNEL_SECONDS
    True
    """
    up = grouped_bound(rows, experts, columns, (2 if gated else 1) * hidden, peak, rate)
    return up + grouped_bound(rows, experts, hidden, columns, peak, rate) + 2 * KERNEL_SECONDS


def grouped_bound(rows: float, experts: float, k: float, n: float, peak: float, rate: float) -> float:
    """The data sheet's bound of a product for each expert in 16 bits, without the least time of a kernel [s].

    Parameters
    ----------
    rows : rows of all experts together
    k, n : rows and columns of the matrix of an expert
    peak, rate : peak of products [flop/s] and memory bandwidth [B/s]
    """
    moved = min(experts, rows) * k * n + rows * (k + n)
    return 2.0 * rows * k * n / peak + RESULT_BYTES * moved / rate


def kernel_table_names() -> tuple[str, ...]:
    """The names of the GPUs with measured kernels.

    >>> "h100-sxm" in kernel_table_names()
    True
    """
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@lru_cache(16)
def kernel_table(name: str) -> KernelTable:
    """The measured kernels of a GPU.

    Raises
    ------
    InputError : a name without a table
    """
    if name not in kernel_table_names():
        raise InputError(f"kernels {name!r}: accepted are {', '.join(kernel_table_names())}")
    return msgspec.json.decode(Path(FOLDER, f"{name}.json").read_bytes(), type=KernelTable)


def table_of_ratios(
    axes: Mapping[str, Sequence[int]], logarithms: Sequence[float], rows: int, errors: tuple[float, float]
) -> RatioTable:
    """The table with these logarithms of ratios.

    Parameters
    ----------
    axes : grid points by axis
    logarithms : logarithms of the ratios, the last axis the fastest
    rows : number of measurements
    errors : median and 90th percentile of the relative errors
    """
    return RatioTable(
        axes={name: tuple(points) for name, points in axes.items()},
        thousandths=tuple(round(PER_UNIT * value) for value in logarithms),
        rows=rows,
        median_error=round(errors[0], 4),
        most_error=round(errors[1], 4),
    )
