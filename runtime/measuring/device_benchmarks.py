"""Microbenchmarks of one GPU, as plain rows: products, memory-bound work, staging, and what handing work over costs.

Work is handed over several times and waited for once, so that seconds are the device's. Products are those of the
runtime (`cupy_library.py`) on random values, since zeros heat a GPU less than a run does. The clock of a GPU rises from
idle: `warm_up` runs products before anything is timed. Nothing here knows of an algorithm, but for one: a product by
the executor on one rank, beside CuPy's own.
"""

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal

import numpy as np

from quadrille.algorithms.formats.measured_rows import Dtype, KernelRow
from quadrille.algorithms.formats.percentiles import spread
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.kernels import SIGNATURES, Function, attention_flops
from quadrille.algorithms.schedule.ops import GemmLayout
from quadrille.algorithms.schedule.tensors import Block, DType
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.arrays.cupy_library import CUBLAS_DEFAULT_MATH, CUDA_R_32F, GEMM, CupyLibrary
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.kernels.kernel_arguments import KernelArguments
from quadrille.runtime.kernels.layer_kernels import carry_out
from quadrille.runtime.measuring.benchmark_kernels import arguments
from quadrille.runtime.operands.operands import Operands

Operation = Literal["copy", "add", "zero", "to host", "to device"]
LONG_ENOUGH_SECONDS, MOST_AT_ONCE = 5e-3, 200
"""So long is what is waited for at once, in at most so many pieces of work."""
REPEATS = 7
EXECUTOR_REPEATS = 15
"""Repeats of the executor beside CuPy's own product, since their ratio is judged to a percent."""
WARM_UP_SECONDS, WARM_UP_SIZE = 1.0, 4096
SUMS = ("m 1", "m 2", "1 1")
"""Shapes of sums and moments, which are float32 where matrices have 16 bits."""
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


@dataclass(frozen=True, slots=True)
class DeviceAttention:
    """Causal attention of so many sequences of `tokens`, with `heads` of `head` columns each; `bytes` in and out."""

    function: Function
    dtype: DType
    sequences: int
    tokens: int
    heads: int
    head: int
    bytes: int
    seconds: float
    spread: float

    @property
    def flops_per_second(self) -> float:
        rows, columns = self.sequences * self.tokens, self.heads * self.head
        return attention_flops(self.function, rows, columns, self.tokens) / self.seconds


@dataclass(frozen=True, slots=True)
class ExecutorRatio:
    """A product by CuPy alone and as a whole run of one rank, in turns.

    Parameters
    ----------
    bare : the call that makes the product by CuPy alone
    bare_seconds, seconds : medians of the bare product and of the run
    share : median of the bare product's seconds over those of the run next to it
    """

    bare: str
    bare_seconds: float
    seconds: float
    share: float


class Tf32Library(CupyLibrary):
    """The same with products of float32 in TF32: 10 bits of mantissa."""

    gemm_types = GEMM | {"float32": (CUDA_R_32F, "CUBLAS_COMPUTE_32F_FAST_TF32", np.float32)}


class DeviceBench:
    """The microbenchmarks of the GPU of a library."""

    def __init__(self, library: CupyLibrary, repeats: int = REPEATS) -> None:
        self._library, self._repeats = library, repeats
        self._tf32 = Tf32Library(library.device, parent=library)
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
        left, right = self._random((elements,), "float32"), self._random((elements,), "float32")
        pinned = library.pinned.take(size)
        acts: dict[Operation, Callable[[], None]] = {
            "copy": partial(library.copy, left, right),
            "add": partial(library.add, left, right, left),
            "zero": partial(library.zero, left),
            "to host": partial(library.copy_to_host, pinned[: left.nbytes], left),
            "to device": partial(library.copy_to_device, left, pinned[: left.nbytes]),
        }
        seconds, off = self._timed(acts[operation], library)
        library.pinned.give_back(pinned)
        return DeviceStream(operation, elements * 4, seconds, off)

    def launch(self) -> LaunchCost:
        """The launch cost, measured with a sum of a single element, which CuPy launches."""
        library = self._library
        left, right = library.empty(1, "float32"), library.empty(1, "float32")
        act = partial(library.add, left, right, left)
        together = self._timed(act, library)[0]
        alone = [_seconds(act, library) for _ in range(self._repeats)]
        return LaunchCost(together, median(alone))

    def warm_up(self) -> None:
        """Multiply for `WARM_UP_SECONDS`: the device's clock is then that of a device at work."""
        library, (a, b, c) = self._library, (self._random((WARM_UP_SIZE, WARM_UP_SIZE), "float16") for _ in range(3))
        act, stop = partial(library.matmul, a, b, c), time.perf_counter() + WARM_UP_SECONDS
        while time.perf_counter() < stop:
            _seconds(act, library, count=10)

    def kernel(self, function: Function, dtype: DType, elements: int) -> KernelRow:
        """A layer's function on a matrix of about so many elements, with sums and moments in float32."""
        signature, tensors = SIGNATURES[function], arguments(function, "float32", elements)
        into, updates, sources = (
            tuple(self._random(tensor.shape, _kept(dtype, word)) for tensor, word in zip(arrays, words, strict=True))
            for arrays, words in (
                (tensors.into, signature.into),
                (tensors.updates, signature.updates),
                (tensors.sources, signature.sources),
            )
        )
        copies = KernelArguments(self._library.module, into, updates, sources, (), tensors.scalars, 0)
        return self._kernel(function, dtype, copies)

    def softmax(self, dtype: DType, rows: int, columns: int) -> tuple[KernelRow, ...]:
        """The functions of a softmax over a vocabulary: maxima of rows, sums of exponentials, and the gradient."""
        library = self._library
        x, towards_x = (self._random((rows, columns), dtype) for _ in range(2))
        maxima, sums, loss = (self._random(shape, "float32") for shape in ((rows, 1), (rows, 2), (1, 1)))
        targets = library.empty(rows, "int32")
        library.put(targets, np.arange(rows) % columns)
        targets = targets.reshape(rows, 1)
        whole, weight = (Block(rows=(0, rows), columns=(0, columns)),), {"weight": 1.0}
        calls: tuple[tuple[Function, tuple[Array, ...], tuple[Array, ...]], ...] = (
            ("row_maxima", (maxima,), (x,)),
            ("exponential_sums", (sums,), (x, maxima, targets)),
            ("cross_entropy", (towards_x, loss), (x, maxima, sums, targets)),
        )
        return tuple(
            self._kernel(function, dtype, KernelArguments(library.module, into, (), sources, whole, weight, 0))
            for function, into, sources in calls
        )

    def attention(
        self, function: Function, dtype: DType, sequences: int, tokens: int, heads: int, head: int
    ) -> DeviceAttention:
        """Causal attention, or its gradient; `attention` or `attention_gradient`."""
        rows, columns = sequences * tokens, heads * head
        whole, part, sums = (rows, 3 * columns), (rows, columns), (rows, heads)
        shapes = {
            "attention": ((part, sums), (whole,)),
            "attention_gradient": ((whole,), (whole, part, sums, part)),
        }[function]
        into, sources = (
            tuple(self._random(shape, "float32" if shape == sums else dtype) for shape in side) for side in shapes
        )
        scalars = {"sequence": float(tokens), "head": float(head)}
        timed = self._kernel(function, dtype, KernelArguments(self._library.module, into, (), sources, (), scalars, 0))
        return DeviceAttention(
            function, dtype, sequences, tokens, heads, head, timed.bytes, timed.seconds, timed.spread
        )

    def _kernel(self, function: Function, dtype: DType, tensors: KernelArguments) -> KernelRow:
        library = self._library
        touched = sum(tensor.nbytes for tensor in (*tensors.into, *tensors.updates, *tensors.updates, *tensors.sources))
        act = partial(library.carry_out, partial(carry_out, function, tensors))
        seconds, off = self._timed(act, library)
        return KernelRow(function=function, dtype=dtype, bytes=touched, seconds=seconds, spread=off)

    def executor_ratio(self, size: int, dtype: DType, repeats: int = EXECUTOR_REPEATS) -> ExecutorRatio:
        """A product size^3 by CuPy alone and as a whole run of one rank, each beside the other."""
        library, bare = self._library, list[float]()
        name, multiply = self.bare_product(*(self._random((size, size), dtype) for _ in range(3)), dtype=dtype)
        _seconds(multiply, library)
        execution = execute(
            matmul_schedule(Matmul(size, size, size, dtype), "4d", Grid()),
            Operands(size, size, size, dtype),
            InProcess(1),
            repeats=repeats,
            warmups=1,
            library=library,
            between=lambda _rank: bare.append(_seconds(multiply, library)),
        )
        ours = [timeline.makespan for timeline in execution.timelines]
        shares = [alone / run for alone, run in zip(bare[1:], ours, strict=True)]
        return ExecutorRatio(name, median(bare[1:]), median(ours), median(shares))

    def bare_product(self, a: Array, b: Array, c: Array, *, dtype: DType) -> tuple[str, Callable[[], None]]:
        """CuPy's `matmul` with its own settings of cuBLAS, and its name.

        Of bfloat16 it takes CuPy 14 and ml_dtypes: without them the product is cuBLAS's call as the runtime makes it.
        """
        library = self._library
        operands: Sequence[Array] = (a, b, c)
        if dtype == "bfloat16":
            try:
                element = importlib.import_module("ml_dtypes").bfloat16
                operands = [array.view(element) for array in operands]
                library.carry_out(partial(_cupy_product, library.module, operands))
                library.synchronise()
            except (ImportError, TypeError, ValueError, RuntimeError, NotImplementedError):
                return "cublasGemmEx", partial(library.matmul, a, b, c)
        return "cupy.matmul", partial(library.carry_out, partial(_cupy_product, library.module, operands))

    def _random(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """Random values: those of the host once, and copies of them on the device behind."""
        library, array = self._library, self._library.empty(int(np.prod(shape)), dtype)
        filled = min(array.size, self._values.size)
        library.put(array[:filled], self._values[:filled])
        while filled < array.size:
            more = min(filled, array.size - filled)
            library.copy(array[filled : filled + more], array[:more])
            filled += more
        library.synchronise()
        return array.reshape(shape)

    def _timed(self, act: Callable[[], None], library: CupyLibrary) -> tuple[float, float]:
        """Median seconds of a piece of work, and their spread."""
        _seconds(act, library)
        count = max(1, min(MOST_AT_ONCE, int(LONG_ENOUGH_SECONDS / _seconds(act, library))))
        times = [_seconds(act, library, count) / count for _ in range(self._repeats)]
        return median(times), spread(times)


def _kept(dtype: DType, word: str) -> DType:
    """The dtype of a tensor of a function whose matrix has `dtype`."""
    return "float32" if word in SUMS and dtype in ("float16", "bfloat16") else dtype


def _cupy_product(cupy: Any, operands: Sequence[Array]) -> None:
    a, b, c = operands
    cublas = cupy.cuda.cublas
    cublas.setMathMode(cupy.cuda.device.get_cublas_handle(), CUBLAS_DEFAULT_MATH)
    cupy.matmul(a, b, out=c)


def _seconds(act: Callable[[], None], library: CupyLibrary, count: int = 1) -> float:
    """Seconds of `count` pieces of work, launched one after the other, with a single wait at the end."""
    library.synchronise()
    start = time.perf_counter()
    for _ in range(count):
        act()
    library.synchronise()
    return time.perf_counter() - start
