"""Microbenchmarks of one GPU, as plain rows: products, memory-bound work, staging, and what handing work over costs.

Work is handed over several times and waited for once, so that seconds are the device's.
Products are those of the runtime (`cupy_library.py`) on random values, since zeros heat a GPU less than a run does.
Nothing here knows of an algorithm, but for one: a product by the executor on one rank, beside CuPy's own.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Literal

import numpy as np

from quadrille.algorithms.formats.measured_rows import Dtype
from quadrille.algorithms.formats.percentiles import spread
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import GemmLayout
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.arrays.cupy_library import CUDA_R_32F, GEMM, CupyLibrary
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.operands.operands import Operands

Operation = Literal["copy", "add", "zero", "to host", "to device"]
LONG_ENOUGH_SECONDS, MOST_AT_ONCE = 5e-3, 200
"""So long is what is waited for at once, in at most so many pieces of work."""
REPEATS = 7
VALUES = 1 << 20
"""Random values that operands are made of, again and again."""


@dataclass(frozen=True, slots=True)
class DeviceProduct:
    """A product m x k by k x n on the device; `tf32` is of float32 arrays, multiplied in TF32."""

    m: int
    k: int
    n: int
    dtype: Dtype
    layout: GemmLayout
    seconds: float
    spread: float

    @property
    def flops_per_second(self) -> float:
        return 2.0 * self.m * self.k * self.n / self.seconds


@dataclass(frozen=True, slots=True)
class DeviceStream:
    """Work that writes `bytes`: on the device, or between it and pinned memory of the host."""

    operation: Operation
    bytes: int
    seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """What a piece of work without content takes: one after the other, and alone until the host knows of its end."""

    seconds: float
    alone_seconds: float


class Tf32Library(CupyLibrary):
    """The same with products of float32 in TF32: 10 bits of mantissa."""

    gemm_types = GEMM | {"float32": (CUDA_R_32F, "CUBLAS_COMPUTE_32F_FAST_TF32", np.float32)}


class DeviceBench:
    """The microbenchmarks of the GPU of a library."""

    def __init__(self, library: CupyLibrary, repeats: int = REPEATS) -> None:
        self._library, self._repeats = library, repeats
        self._tf32 = Tf32Library(library.device, of=library)
        self._values = np.random.default_rng(0).uniform(-1, 1, VALUES).astype(np.float32)

    def product(self, m: int, k: int, n: int, dtype: Dtype, layout: GemmLayout) -> DeviceProduct:
        """A product, in the layout in which its operands lie."""
        library = self._tf32 if dtype == "tf32" else self._library
        stored: DType = "float32" if dtype == "tf32" else dtype
        a = self._random((k, m), stored).T if layout == "TN" else self._random((m, k), stored)
        b = self._random((n, k), stored).T if layout == "NT" else self._random((k, n), stored)
        seconds, off = self._timed(partial(library.matmul, a, b, self._random((m, n), stored)), library)
        return DeviceProduct(m, k, n, dtype, layout, seconds, off)

    def stream(self, operation: Operation, size: int) -> DeviceStream:
        """Memory-bound work, or a copy between the device and pinned memory."""
        library, elements = self._library, max(1, size // 4)
        one, other = self._random((elements,), "float32"), self._random((elements,), "float32")
        pinned = library.pinned.take(size)
        acts: dict[Operation, Callable[[], None]] = {
            "copy": partial(library.copy, one, other),
            "add": partial(library.add, one, other, one),
            "zero": partial(library.zero, one),
            "to host": partial(library.copy_to_host, pinned[: one.nbytes], one),
            "to device": partial(library.copy_to_device, one, pinned[: one.nbytes]),
        }
        seconds, off = self._timed(acts[operation], library)
        library.pinned.give_back(pinned)
        return DeviceStream(operation, elements * 4, seconds, off)

    def launch(self) -> LaunchCost:
        """Of one element set to zero."""
        library = self._library
        one = library.empty(1, "float32")
        act = partial(library.zero, one)
        together = self._timed(act, library)[0]
        alone = [_seconds(act, library) for _ in range(self._repeats)]
        return LaunchCost(together, median(alone))

    def executor_ratio(self, size: int, dtype: DType) -> tuple[float, float]:
        """Median seconds of a product size^3 by CuPy alone and as a whole run of one rank, each beside the other.

        CuPy's own has no bfloat16: there the bare product is cuBLAS's, called as the runtime calls it.
        """
        library, bare = self._library, list[float]()
        a, b, c = (self._random((size, size), dtype) for _ in range(3))

        def multiply() -> None:
            if dtype == "bfloat16":
                library.matmul(a, b, c)
            else:
                library.carry_out(lambda: library.module.matmul(a, b, out=c))

        schedule = matmul_schedule(Matmul(size, size, size, dtype), "4d", Grid())
        execution = execute(
            schedule,
            Operands(size, size, size, dtype),
            InProcess(1),
            repeats=self._repeats,
            warmups=1,
            library=library,
            between=lambda _rank: bare.append(_seconds(multiply, library)),
        )
        return median(bare[1:]), median(timeline.makespan for timeline in execution.timelines)

    def _random(self, shape: tuple[int, ...], dtype: DType) -> Array:
        array = self._library.empty(int(np.prod(shape)), dtype)
        self._library.put(array, np.resize(self._values, array.size))
        return array.reshape(shape)

    def _timed(self, act: Callable[[], None], library: CupyLibrary) -> tuple[float, float]:
        """Median seconds of a piece of work, and their spread."""
        _seconds(act, library)
        count = max(1, min(MOST_AT_ONCE, int(LONG_ENOUGH_SECONDS / _seconds(act, library))))
        times = [_seconds(act, library, count) / count for _ in range(self._repeats)]
        return median(times), spread(times)


def _seconds(act: Callable[[], None], library: CupyLibrary, count: int = 1) -> float:
    """Of so many pieces of work, handed over one after the other and waited for once."""
    library.synchronise()
    start = time.perf_counter()
    for _ in range(count):
        act()
    library.synchronise()
    return time.perf_counter() - start
