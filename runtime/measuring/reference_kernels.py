"""Reference kernels that show the speed of the machine at a moment: a GEMM that fits into the cache, a copy, a sum.

The clock of a shared machine drifts by a quarter within a minute. These kernels are measured in the same way, on one
thread, during calibration and beside every repeat of a run, so a comparison can remove the drift. They are warmed up
first: a cold kernel would show a drift that is not there.
"""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

from quadrille.runtime.measuring.calibration_sizes import FULL, CalibrationSizes

SAMPLES = 5

Times = tuple[float, float, float]
"""Seconds of the product, the copy and the sum."""


class ReferenceBenchmark:
    """The reference kernels with their operands, allocated once."""

    def __init__(self, sizes: CalibrationSizes = FULL) -> None:
        side, length = sizes.reference_product, sizes.reference_bytes // 8
        random = np.random.default_rng(0)
        self._a = random.random((side, side))
        self._b = random.random((side, side))
        self._c = np.empty_like(self._a)
        self._source = np.ones(length)
        self._target = np.ones(length)

    def measure(self) -> Times:
        """The median seconds of the product, the copy and the sum."""
        with threadpool_limits(1, user_api="blas"):
            product = self.product()
        copy = _median_seconds(lambda: np.copyto(self._target, self._source))
        add = _median_seconds(lambda: np.add(self._target, self._source, out=self._target))
        return product, copy, add

    def product(self) -> float:
        """The median seconds of the product alone, on the current number of threads."""
        return _median_seconds(lambda: np.matmul(self._a, self._b, out=self._c))


def _median_seconds(kernel: Callable[[], object]) -> float:
    kernel()
    return median(seconds(kernel) for _ in range(SAMPLES))


def seconds(kernel: Callable[[], object]) -> float:
    """The seconds of one call."""
    start = time.perf_counter()
    kernel()
    return time.perf_counter() - start
