"""`ComputeModel`: seconds of local work on a device, fitted to measured rows or computed from its data sheet.

A product of m x k by k x n is fitted with

    t = c0 + c1 mkn + c2 kn + c3 mn + c4 mk + w (c5 mkn + c6 mn)

for each dtype, layout, number of threads and number of busy neighbours, by a fit of relative errors that gives
outliers little weight.  w is 1 if the rows of the result are a whole number of pages long, else 0: such rows share
cache sets, because the kernel adds to several rows at once, and their products take longer (1024 columns in float32
4 to 5 % at k = 1000, 11 % at k = 100; 1100 columns do not; m and k make no difference).  Memory-bound work is read
from the measured curve of its kind.  Without measured rows, products and fused attention are read from the table of
measured kernels that the machine names (`kernel_tables.py`).  Without a table, a product takes the longer of flop /
peak and bytes / memory bandwidth, or the time of `rooflines.py`, and is marked as extrapolated.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from quadrille.algorithms.analysis.volumes import AttentionProducts, Work
from quadrille.algorithms.formats.measured_rows import GemmRow, MemoryRow
from quadrille.algorithms.schedule.kernel_signatures import Function, seen_pairs
from quadrille.algorithms.schedule.ops import GemmLayout, SmallPrecision
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType
from quadrille.simulator.machine.rooflines import attention_seconds, best_product_seconds, is_fused, pass_seconds
from quadrille.simulator.machine.seconds_by_size import SecondsBySize
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:  # most machines have no measured passes and name no table
    from quadrille.algorithms.analysis.host_passes import KernelShape
    from quadrille.simulator.machine.pass_costs import PassCosts
    from quadrille.simulator.machine.small_products import SmallProducts
    from quadrille.topologies.nodes.kernel_tables import KernelTable

LEAST_ROWS = 6
"""Smallest number of measured rows for a fit."""
USUAL_TERMS = 5
"""Number of terms of the fit without w."""
REWEIGHTINGS = 40
"""Iterations of the reweighted fit."""
TOUCHES = {"copy": 2, "add": 3, "zero": 1}
PAGE_BYTES = 4096
CALL_BYTES = 64
"""Size up to which the time of a copy, sum or fill is that of its call."""
LEAST_ROWS_IN_PAGES = 6
"""Smallest number of rows with w = 1 for which c5 and c6 are fitted, if there are enough other rows too."""
TABLE_DTYPES, TABLE_PRECISION = ("float16", "bfloat16"), "bfloat16"
"""Dtypes of products that are read from a table of measured kernels, and the table's precision for them."""
SMALL_PASSES: tuple[Function, ...] = ("largest", "to_columns")
"""Passes over small numbers that have a cost of their own."""
WEIGHT_GRADIENT: GemmLayout = "TN"
"""Layout of the products of weight gradients."""
BACKWARD_BYTES = 2.0
"""Bytes that the backward pass touches / those that the forward pass touches."""
MARGIN = 2.0
"""Factor beyond the measured dimensions up to which a dimension counts as interpolated."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A time [s], and whether it was extrapolated beyond the measured range."""

    seconds: float
    extrapolated: bool


@dataclass(frozen=True, slots=True)
class GemmFit:
    """The coefficients of the fit, and the range of dimensions of its rows.

    If there are too few rows with w = 0 or with w = 1, the fit has no c5 and c6.
    """

    dtype: DType
    coefficients: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    least_seconds_per_flop: float
    residual: float

    def estimate(self, m: int, k: int, n: int) -> Estimate:
        terms = _terms(m, k, n, self.dtype)[: len(self.coefficients)]
        fitted = sum(c * term for c, term in zip(self.coefficients, terms, strict=True))
        inside = all(
            low / MARGIN <= size <= high * MARGIN
            for size, low, high in zip((m, k, n), self.low, self.high, strict=True)
        )
        return Estimate(max(fitted, 2.0 * m * k * n * self.least_seconds_per_flop), not inside)


def fit_gemm(rows: Sequence[GemmRow], dtype: DType) -> GemmFit:
    """The fit of the measured rows of one dtype."""
    seconds = np.array([2.0 * row.m * row.k * row.n / row.flops_per_second for row in rows])
    in_pages = sum(in_whole_pages(row.n, dtype) for row in rows)
    both_kinds = in_pages >= LEAST_ROWS_IN_PAGES and len(rows) - in_pages >= LEAST_ROWS
    terms = np.array([_terms(row.m, row.k, row.n, dtype)[: None if both_kinds else USUAL_TERMS] for row in rows])
    terms /= seconds[:, None]
    scale = np.abs(terms).max(axis=0)
    weights = np.ones(len(rows))
    solution = np.zeros(len(scale))
    residuals = np.zeros(len(rows))
    for _ in range(REWEIGHTINGS):
        solution, *_ = np.linalg.lstsq(terms / scale * weights[:, None], weights, rcond=None)
        residuals = terms / scale @ solution - 1
        width = 1.48 * float(np.median(np.abs(residuals))) + 1e-9
        weights = 1 / np.sqrt(np.maximum(1.0, np.abs(residuals) / (2 * width)))
    sizes = np.array([(row.m, row.k, row.n) for row in rows], float)
    return GemmFit(
        dtype,
        tuple(float(c) for c in solution / scale),
        tuple(float(low) for low in sizes.min(axis=0)),
        tuple(float(high) for high in sizes.max(axis=0)),
        0.8 / max(row.flops_per_second for row in rows),
        float(np.median(np.abs(residuals))),
    )


def _terms(m: int, k: int, n: int, dtype: DType) -> tuple[float, ...]:
    """Factors of c0 to c6."""
    w = in_whole_pages(n, dtype)
    return 1.0, m * k * n, k * n, m * n, m * k, w * m * k * n, w * m * n


def in_whole_pages(columns: int, dtype: DType) -> bool:
    """Whether rows of this number of columns are a whole number of pages long.

    >>> in_whole_pages(1024, "float32"), in_whole_pages(1536, "float32"), in_whole_pages(1536, "float64")
    (True, False, True)
    """
    return columns * ITEM_BYTES[dtype] % PAGE_BYTES == 0


def touched(operation: str, size: int) -> int:
    """Bytes of memory read and written by an operation that writes `size` bytes."""
    return TOUCHES[operation] * size


def _kernel_table(name: str) -> "KernelTable | None":
    """The table of measured kernels with this name; None for no name."""
    if not name:
        return None
    from quadrille.topologies.nodes.kernel_tables import kernel_table  # most machines name no table

    return kernel_table(name)


class ComputeModel:
    """Seconds of the local work of one rank.

    Parameters
    ----------
    machine : machine with the device's measured rows and data sheet
    dtype : dtype of the matrices
    threads : BLAS threads of the rank
    busy_ranks : number of ranks that compute on the same host at once
    speed : fraction of the machine's usual speed at which this device works
    """

    def __init__(self, machine: Machine, dtype: DType, threads: int, busy_ranks: int, speed: float = 1.0) -> None:
        self._device, self.host_link = machine.device, machine.host_link
        self._machine = machine
        self._small: SmallProducts | None = None
        self._speed = speed
        self._dtype = dtype
        self._threads = threads
        self._busy = busy_ranks
        self._fits: dict[GemmLayout, tuple[GemmFit, bool] | None] = {}
        self._curves: dict[str, SecondsBySize | None] = {}
        self._kernels: dict[Function, SecondsBySize | None] = {}
        self._passes: PassCosts | None = None
        self.gemm = lru_cache(4096)(self._slowed_gemm)
        self.memory = lru_cache(4096)(self._slowed_memory)
        self._table = _kernel_table(machine.device.measured_kernels) if dtype in TABLE_DTYPES else None
        self._measured = frozenset(row.operation for row in machine.device.memory)

    def _slowed_gemm(
        self, m: int, k: int, n: int, layout: GemmLayout, precision: SmallPrecision | None = None
    ) -> Estimate:
        """Seconds of a product; an empty product takes the overhead of an op."""
        if precision is not None and m * k * n:
            return self._at_speed(self._small_gemm(m, k, n, precision))
        return self._at_speed(self._gemm(m, k, n, layout))

    def expert_products(
        self,
        rows: tuple[int, ...],
        product: tuple[int, int, int],
        layout: GemmLayout,
        expert: tuple[int, int],
        precision: SmallPrecision | None = None,
    ) -> Estimate:
        """Seconds of one product for each expert of a rank, which start as one op.

        Without a table of measured experts, and in small numbers, they are products one after the other.

        Parameters
        ----------
        rows : rows of each expert
        product : rows, inner dimension and columns; the rows of all experts are the inner dimension in layout TN
        expert : columns of a row and of the hidden layer of an expert
        precision : precision of operands with 8 or 4 bits
        """
        m, k, n = product
        table, is_fitted = self._table, self._fitted(layout) is not None
        if (
            precision is None
            and table is not None
            and table.experts is not None
            and not is_fitted
            and min(*expert, sum(rows))
        ):
            matrix = {"NN": (k, n), "NT": (n, k), "TN": (m, n)}[layout]
            return self._at_speed(self._grouped(Counter(filter(None, rows)), expert, matrix, layout, table))
        overhead, estimates = self._device.overhead_seconds, list[Estimate]()
        for each, count in Counter(number for number in rows if number).items():
            sizes = (m, each, n) if layout == "TN" else (each, k, n)
            if not is_fitted and table is None and precision is None:
                estimates.append(Estimate(self._from_data_sheet(*sizes, count=count) - overhead, True))
                continue
            alone = self.gemm(*sizes, layout, precision)
            estimates.append(Estimate(count * (alone.seconds * self._speed - overhead), alone.extrapolated))
        seconds = overhead + sum(estimate.seconds for estimate in estimates)
        return self._at_speed(Estimate(seconds, any(estimate.extrapolated for estimate in estimates)))

    def _fitted(self, layout: GemmLayout) -> tuple[GemmFit, bool] | None:
        """The fit of measured rows of a layout, as `_fit`; None without rows."""
        if layout not in self._fits:
            self._fits[layout] = self._fit(layout)
        return self._fits[layout]

    def _grouped(
        self,
        rows: Mapping[int, int],
        expert: tuple[int, int],
        matrix: tuple[int, int],
        layout: GemmLayout,
        kernels: "KernelTable",
    ) -> Estimate:
        """Seconds of a grouped product of training: of measured experts, or of products one after the other if faster.

        With few experts on a rank, kernels of inference take many times as long as dense products.
        """
        from quadrille.topologies.nodes.training_factors import training_factors

        device = self._device
        factors = training_factors(device.measured_kernels)
        rates = self._peak, device.memory_bytes_per_second
        alone = [
            (count, *kernels.product_seconds((each, *matrix), TABLE_PRECISION, *rates)) for each, count in rows.items()
        ]
        one_by_one = sum(count * seconds for count, seconds, _ in alone), any(beyond for *_, beyond in alone)
        seconds, beyond = min(kernels.grouped_seconds(rows, expert, matrix, *rates), one_by_one)
        factor = factors.grouped_weight_gradient if layout == WEIGHT_GRADIENT else factors.product
        return Estimate(factor * seconds + device.overhead_seconds, beyond)

    def _small_gemm(self, m: int, k: int, n: int, precision: SmallPrecision) -> Estimate:
        """Seconds of a product of operands with 8 or 4 bits."""
        if self._small is None:
            from quadrille.simulator.machine.small_products import SmallProducts

            self._small = SmallProducts(self._machine, self._dtype)
        seconds, extrapolated = self._small.seconds((m, k, n), precision)
        return Estimate(seconds + self._device.overhead_seconds, extrapolated)

    def _at_speed(self, estimate: Estimate) -> Estimate:
        return estimate if self._speed == 1.0 else Estimate(estimate.seconds / self._speed, estimate.extrapolated)

    def _gemm(self, m: int, k: int, n: int, layout: GemmLayout) -> Estimate:
        if not m * k * n:
            return Estimate(self._device.overhead_seconds, False)
        fit = self._fitted(layout)
        if fit is None and self._table is not None:
            return self._from_table(m, k, n, self._table)
        if fit is None:
            return Estimate(self._from_data_sheet(m, k, n), True)
        estimate = fit[0].estimate(m, k, n)
        return Estimate(
            max(estimate.seconds, 2.0 * m * k * n / self._rank_peak) + self._device.overhead_seconds,
            estimate.extrapolated or fit[1],
        )

    def _fit(self, layout: GemmLayout) -> tuple[GemmFit, bool] | None:
        """Fit of the measured rows nearest to this rank, and whether they were measured under other conditions.

        The number of threads counts more than the number of busy neighbours, and that more than the layout; conditions
        with too few rows are skipped.
        """
        groups: dict[tuple[int, int], list[GemmRow]] = {}
        for row in self._device.gemm:
            if row.dtype == self._dtype:
                distance = abs(row.threads - self._threads), abs(row.busy_ranks - self._busy)
                groups.setdefault(distance, []).append(row)
        for distance, rows in sorted(groups.items(), key=lambda group: group[0]):
            own_layout = [row for row in rows if row.layout == layout]
            if len(own_layout) >= LEAST_ROWS:
                return fit_gemm(own_layout, self._dtype), distance != (0, 0)
            if len(rows) >= LEAST_ROWS:
                return fit_gemm(rows, self._dtype), True
        return None

    def _from_table(self, m: int, k: int, n: int, kernels: "KernelTable") -> Estimate:
        """Seconds of a product of training, from a table of measured kernels.

        The sum of weight gradients in 32 bits is an op of its own, so all products have one factor.
        """
        from quadrille.topologies.nodes.training_factors import training_factors

        rates = self._peak, self._device.memory_bytes_per_second
        factor = training_factors(self._device.measured_kernels).product
        seconds, beyond = kernels.product_seconds((m, k, n), TABLE_PRECISION, *rates)
        return Estimate(factor * seconds + self._device.overhead_seconds, beyond)

    def _fused_attention(self, work: Work, products: AttentionProducts, kernels: "KernelTable") -> Estimate:
        """Seconds of fused attention from a table of measured kernels."""
        from quadrille.topologies.nodes.attention_kernels import attention_kernel

        touched = work.touched / (BACKWARD_BYTES if products.backward else 1.0)
        pairs = seen_pairs(products.sequence, products.window)
        sizes, rate = (products.sequence, products.count, products.head), self._device.memory_bytes_per_second
        seconds, beyond = kernels.attention_seconds(sizes, pairs, touched, self._peak, rate)
        kernel = attention_kernel(self._device.measured_kernels, products.kernel)
        factor = kernel.backward if products.backward else 1.0
        return Estimate(factor * kernel.slower * seconds + self._device.overhead_seconds, beyond)

    def _from_data_sheet(self, m: int, k: int, n: int, count: int = 1) -> float:
        """Seconds of `count` simultaneous products."""
        achieved, rate = self._device.achieved, self._device.memory_bytes_per_second
        size = count * (m * k + k * n + m * n) * ITEM_BYTES[self._dtype]
        if achieved is None:
            arithmetic, traffic = 2.0 * count * m * k * n / self._peak, size / rate
        else:
            arithmetic = best_product_seconds(count, m, k, n, self._peak, achieved)
            traffic = size / (rate * achieved.memory_share)
        return max(arithmetic, traffic) + self._device.overhead_seconds

    def _slowed_memory(self, operation: str, size: int) -> Estimate:
        """Seconds of `copy`, `add` or `zero` that writes `size` bytes."""
        return self._at_speed(self._memory(operation, size)) if size else Estimate(0.0, False)

    def call_seconds(self, operation: str) -> float:
        """Seconds of an operation on next to nothing, which its measured times contain; 0 if that was not measured.

        The overhead of an op was measured on such an operation, so it contains these seconds, too.
        """
        curve = self._measured_curve(operation)
        return curve.least if curve is not None and curve.sizes[0] <= CALL_BYTES else 0.0

    def _measured_curve(self, operation: str) -> SecondsBySize | None:
        if operation not in self._curves:
            self._curves[operation] = self._curve(operation)
        return self._curves[operation]

    def _memory(self, operation: str, size: int) -> Estimate:
        curve = self._measured_curve(operation)
        if curve is None:
            share = self._device.achieved.memory_share if self._device.achieved is not None else 1.0
            return Estimate(touched(operation, size) / (self._device.memory_bytes_per_second * share), True)
        return Estimate(curve.seconds(size), not curve.covers(size))

    def kernel(self, work: Work, function: Function) -> Estimate:
        """Seconds of a layer function: measured, else from its measured passes, else from its bytes or its products."""
        device = self._device
        if not work.touched:
            return Estimate(device.overhead_seconds, False)
        if function not in self._kernels:
            self._kernels[function] = self._kernel_curve(function)
        measured = self._kernels[function]
        if measured is not None:
            seconds = (
                max(measured.seconds(work.touched), work.product_flops / self._rank_peak) + device.overhead_seconds
            )
            return self._at_speed(Estimate(seconds, not measured.covers(work.touched)))
        if (passed := self._passes_seconds(function, work.shape)) is not None:
            return self._at_speed(Estimate(passed + device.overhead_seconds, False))
        rate, achieved, squares = device.memory_bytes_per_second, device.achieved, work.squares
        if function in SMALL_PASSES and (passed := self._small_pass_seconds(function, work.touched)) is not None:
            return self._at_speed(Estimate(passed + (device.overhead_seconds if passed else 0.0), True))
        if self._table is not None and squares is not None and is_fused(squares, achieved):
            return self._at_speed(self._fused_attention(work, squares, self._table))
        if achieved is None:
            seconds = max(work.product_flops / self._peak, work.touched / rate)
        elif squares is not None:
            seconds = attention_seconds(squares, work.touched, self._peak, rate, achieved)
        else:
            seconds = pass_seconds(function, work.touched, rate, achieved, ITEM_BYTES[self._dtype])
        return self._at_speed(Estimate(seconds + (device.overhead_seconds if seconds else 0.0), True))

    def _small_pass_seconds(self, function: Function, touched: int) -> float | None:
        """Seconds of a pass that finds the largest magnitude or transposes small numbers."""
        from quadrille.simulator.machine.small_products import small_pass_seconds

        achieved = self._device.achieved
        share = achieved.memory_share if achieved is not None else 1.0
        return small_pass_seconds(function, touched, self._machine, self._device.memory_bytes_per_second, share)

    def _passes_seconds(self, function: Function, shape: "KernelShape | None") -> float | None:
        """Seconds of the passes in the cache, and of the operands from memory; None if the passes were not measured.

        Operands move as in a copy, which reads half of its bytes and writes the other half.
        """
        if shape is None or not self._device.passes:
            return None
        from quadrille.algorithms.analysis.host_passes import host_passes
        from quadrille.simulator.machine.pass_costs import PassCosts

        if self._passes is None:
            self._passes = PassCosts.nearest(self._device.passes, self._dtype, self._busy)
        seconds = self._passes.seconds(host_passes(function, shape))
        if seconds is None:
            return None
        return seconds + self._memory("copy", shape.streamed_bytes // 2).seconds - self._memory("copy", 1).seconds

    @property
    def _peak(self) -> float:
        """Peak of the dtype, or the device's highest peak [flop/s]."""
        peaks = self._device.peak_flops_per_second
        return peaks.get(self._dtype) or max(peaks.values())

    @property
    def _rank_peak(self) -> float:
        """Peak rate of all threads of the rank [flop/s], which no product exceeds."""
        return self._device.peak(self._dtype, self._threads) or self._peak * self._threads

    def measured(self, operation: str) -> bool:
        """Whether the machine file has rows of this memory-bound operation."""
        return operation in self._measured

    def _kernel_curve(self, function: Function) -> SecondsBySize | None:
        """Seconds by bytes read and written, from rows of the dtype and the nearest number of busy ranks.

        `expand_bucket` has the rows of `expand`, of which it is a part.
        """
        name = "expand" if function == "expand_bucket" else function
        rows = [row for row in self._device.kernel if (row.function, row.dtype) == (name, self._dtype)]
        if not rows:
            return None
        nearest = min(abs(row.busy_ranks - self._busy) for row in rows)
        return SecondsBySize.of((row.bytes, row.seconds) for row in rows if abs(row.busy_ranks - self._busy) == nearest)

    def _curve(self, operation: str) -> SecondsBySize | None:
        rows = [row for row in self._device.memory if row.operation == operation]
        if not rows:
            return None
        nearest = min(abs(row.busy_ranks - self._busy) for row in rows)
        chosen: list[MemoryRow] = [row for row in rows if abs(row.busy_ranks - self._busy) == nearest]
        return SecondsBySize.of((row.bytes, row.bytes / row.bytes_per_second) for row in chosen)
