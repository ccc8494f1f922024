"""Microbenchmarks of one GPU: GEMMs, memory-bound kernels, attention, staging copies and the launch overhead.

Work is submitted several times and awaited once, so the measured seconds are the device's. GEMMs are those of the
runtime (`cupy_library.py`) on random values, because a GPU that multiplies zeros stays cooler than in a run. The clock
frequency of a GPU rises from idle: `warm_up` runs GEMMs before anything is timed. No benchmark contains an algorithm,
except one: a GEMM by the executor on one rank, compared with CuPy's own GEMM.
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
from quadrille.algorithms.schedule.kernel_signatures import SIGNATURES, Function, attention_flops
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
"""The duration of the work that is submitted before one wait [s], and the most calls in it."""
REPEATS = 7
EXECUTOR_REPEATS = 15
"""Repeats of the comparison with CuPy's own product, whose ratio must be accurate to a percent."""
WARM_UP_SECONDS, WARM_UP_SIZE = 1.0, 4096
SUMS = ("m 1", "m 2", "1 1")
"""Shapes of sums and moments, which are float32 where matrices have 16 bits."""
VALUES = 1 << 20
"""The number of different random values; larger operands repeat them."""


@dataclass(frozen=True, slots=True)
class DeviceProduct:
    """The median seconds of a GEMM m x k by k x n, and their relative spread; dtype `tf32` is float32 in TF32 mode."""

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
    """The median seconds and spread of work that writes `bytes`: on the device, or to or from pinned host memory."""

    operation: Operation
    bytes: int
    seconds: float
    spread: float


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """The launch overhead of a kernel without work.

    Parameters
    ----------
    seconds : time of each kernel when many are submitted back to back [s]
    alone_seconds : time of a single kernel until the host notices its end [s]
    """

    seconds: float
    alone_seconds: float


@dataclass(frozen=True, slots=True)
class DeviceAttention:
    """The median seconds and spread of causal attention.

    Parameters
    ----------
    sequences, tokens : number of sequences, and tokens of each
    heads, head : number of heads, and columns of each
    bytes : size of all inputs and outputs [B]
    """

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
    """The time of a GEMM by CuPy alone compared with a run of the executor on one rank, measured alternately.

    Parameters
    ----------
    bare : name of the CuPy call
    bare_seconds, seconds : median times of the CuPy call and of the run [s]
    share : median ratio of the CuPy call's time to that of the run after it
    """

    bare: str
    bare_seconds: float
    seconds: float
    share: float


class Tf32Library(CupyLibrary):
    """CuPy with float32 products in TF32 mode: 10 bits of mantissa."""

    gemm_types = GEMM | {"float32": (CUDA_R_32F, "CUBLAS_COMPUTE_32F_FAST_TF32", np.float32)}


class DeviceBench:
    """The microbenchmarks of one GPU.

    Parameters
    ----------
    library : array library of the GPU
    repeats : repeats of each measurement
    values : number of random values with which the arrays are filled
    """

    def __init__(self, library: CupyLibrary, repeats: int = REPEATS, values: int = VALUES) -> None:
        self._library, self._repeats = library, repeats
        self._tf32 = Tf32Library(library.device, parent=library)
        self._values = np.random.default_rng(0).uniform(-1, 1, values).astype(np.float32)

    def product(self, m: int, k: int, n: int, dtype: Dtype, layout: GemmLayout) -> DeviceProduct:
        """The time of a GEMM m x k by k x n. Layout TN stores the first operand transposed, NT the second."""
        library = self._tf32 if dtype == "tf32" else self._library
        stored: DType = "float32" if dtype == "tf32" else dtype
        a = self._random((k, m), stored).T if layout == "TN" else self._random((m, k), stored)
        b = self._random((n, k), stored).T if layout == "NT" else self._random((k, n), stored)
        seconds, relative_spread = self._timed(partial(library.matmul, a, b, self._random((m, n), stored)), library)
        return DeviceProduct(m, k, n, dtype, layout, seconds, relative_spread)

    def stream(self, operation: Operation, size: int) -> DeviceStream:
        """The time of memory-bound work, or of a copy between the device and pinned memory, on `size` bytes."""
        library, elements = self._library, max(1, size // 4)
        left, right = self._random((elements,), "float32"), self._random((elements,), "float32")
        pinned = library.pinned.take(size)
        calls_by_operation: dict[Operation, Callable[[], None]] = {
            "copy": partial(library.copy, left, right),
            "add": partial(library.add, left, right, left),
            "zero": partial(library.zero, left),
            "to host": partial(library.copy_to_host, pinned[: left.nbytes], left),
            "to device": partial(library.copy_to_device, left, pinned[: left.nbytes]),
        }
        seconds, relative_spread = self._timed(calls_by_operation[operation], library)
        library.pinned.give_back(pinned)
        return DeviceStream(operation, elements * 4, seconds, relative_spread)

    def launch(self) -> LaunchCost:
        """The launch overhead, measured with CuPy's sum of a single element."""
        library = self._library
        left, right = library.empty(1, "float32"), library.empty(1, "float32")
        call = partial(library.add, left, right, left)
        together = self._timed(call, library)[0]
        seconds_alone = [_seconds(call, library) for _ in range(self._repeats)]
        return LaunchCost(together, median(seconds_alone))

    def warm_up(self, size: int = WARM_UP_SIZE) -> None:
        """Multiply square matrices of `size` rows for `WARM_UP_SECONDS`, until the clock frequency is that of a busy
        device.
        """
        library, (a, b, c) = self._library, (self._random((size, size), "float16") for _ in range(3))
        call, stop = partial(library.matmul, a, b, c), time.perf_counter() + WARM_UP_SECONDS
        while time.perf_counter() < stop:
            _seconds(call, library, count=10)

    def kernel(self, function: Function, dtype: DType, elements: int) -> KernelRow:
        """The time of a layer function on a matrix of about `elements` elements; sums are float32."""
        signature, tensors = SIGNATURES[function], arguments(function, "float32", elements)
        into, updates, sources = (
            tuple(self._filled(tensor, _tensor_dtype(dtype, word)) for tensor, word in zip(arrays, words, strict=True))
            for arrays, words in (
                (tensors.into, signature.into),
                (tensors.updates, signature.updates),
                (tensors.sources, signature.sources),
            )
        )
        copies = KernelArguments(self._library.module, into, updates, sources, (), tensors.scalars, 0)
        return self._kernel(function, dtype, copies)

    def _filled(self, tensor: Array, dtype: DType) -> Array:
        """A device array like a host array: an index with its positions, other arrays with random numbers."""
        if tensor.dtype != np.int32:
            return self._random(tensor.shape, dtype)
        index = self._library.empty(tensor.size, "int32")
        self._library.put(index, tensor)
        return index

    def softmax(self, dtype: DType, rows: int, columns: int) -> tuple[KernelRow, ...]:
        """The times of a vocabulary softmax: row maxima, sums of exponentials, cross-entropy gradient."""
        library = self._library
        x, gradient_x = (self._random((rows, columns), dtype) for _ in range(2))
        maxima, sums, loss = (self._random(shape, "float32") for shape in ((rows, 1), (rows, 2), (1, 1)))
        targets = library.empty(rows, "int32")
        library.put(targets, np.arange(rows) % columns)
        targets = targets.reshape(rows, 1)
        whole, weight = (Block(rows=(0, rows), columns=(0, columns)),), {"weight": 1.0}
        calls: tuple[tuple[Function, tuple[Array, ...], tuple[Array, ...]], ...] = (
            ("row_maxima", (maxima,), (x,)),
            ("exponential_sums", (sums,), (x, maxima, targets)),
            ("cross_entropy", (gradient_x, loss), (x, maxima, sums, targets)),
        )
        return tuple(
            self._kernel(function, dtype, KernelArguments(library.module, into, (), sources, whole, weight, 0))
            for function, into, sources in calls
        )

    def attention(
        self, function: Function, dtype: DType, sequences: int, tokens: int, heads: int, head: int
    ) -> DeviceAttention:
        """The time of causal attention, or of its gradient.

        Parameters
        ----------
        function : `attention` or `attention_gradient`
        sequences, tokens : number of sequences, and tokens of each
        heads, head : number of heads, and columns of each
        """
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
        timed_kernel = self._kernel(
            function, dtype, KernelArguments(self._library.module, into, (), sources, (), scalars, 0)
        )
        return DeviceAttention(
            function,
            dtype,
            sequences,
            tokens,
            heads,
            head,
            timed_kernel.bytes,
            timed_kernel.seconds,
            timed_kernel.spread,
        )

    def _kernel(self, function: Function, dtype: DType, tensors: KernelArguments) -> KernelRow:
        library = self._library
        touched = sum(tensor.nbytes for tensor in (*tensors.into, *tensors.updates, *tensors.updates, *tensors.sources))
        call = partial(library.carry_out, partial(carry_out, function, tensors))
        seconds, relative_spread = self._timed(call, library)
        return KernelRow(function=function, dtype=dtype, bytes=touched, seconds=seconds, spread=relative_spread)

    def executor_ratio(self, size: int, dtype: DType, repeats: int = EXECUTOR_REPEATS) -> ExecutorRatio:
        """The time of a size³ GEMM by CuPy alone, compared with a run of the executor on one rank."""
        library, bare_times = self._library, list[float]()
        name, multiply = self.bare_product(*(self._random((size, size), dtype) for _ in range(3)), dtype=dtype)
        _seconds(multiply, library)
        execution = execute(
            matmul_schedule(Matmul(size, size, size, dtype), "4d", Grid()),
            Operands(size, size, size, dtype),
            InProcess(1),
            repeats=repeats,
            warmups=1,
            library=library,
            between=lambda _rank: bare_times.append(_seconds(multiply, library)),
        )
        run_times = [timeline.makespan for timeline in execution.timelines]
        shares = [seconds_alone / run for seconds_alone, run in zip(bare_times[1:], run_times, strict=True)]
        return ExecutorRatio(name, median(bare_times[1:]), median(run_times), median(shares))

    def bare_product(self, a: Array, b: Array, c: Array, *, dtype: DType) -> tuple[str, Callable[[], None]]:
        """The name and the call of the reference GEMM: CuPy's `matmul` with its own cuBLAS settings.

        bfloat16 needs CuPy 14 and ml_dtypes; without them the reference is the runtime's own cuBLAS call.
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
        """A device array of random values: copied from the host once, and then repeated on the device."""
        library, array = self._library, self._library.empty(int(np.prod(shape)), dtype)
        filled = min(array.size, self._values.size)
        library.put(array[:filled], self._values[:filled])
        while filled < array.size:
            more = min(filled, array.size - filled)
            library.copy(array[filled : filled + more], array[:more])
            filled += more
        library.synchronise()
        return array.reshape(shape)

    def _timed(self, call: Callable[[], None], library: CupyLibrary) -> tuple[float, float]:
        """The median seconds of a call, and their relative spread."""
        _seconds(call, library)
        count = max(1, min(MOST_AT_ONCE, int(LONG_ENOUGH_SECONDS / _seconds(call, library))))
        times = [_seconds(call, library, count) / count for _ in range(self._repeats)]
        return median(times), spread(times)


def _tensor_dtype(dtype: DType, word: str) -> DType:
    """The dtype of a tensor with the shape `word`, in a function whose matrix has `dtype`: sums stay float32."""
    return "float32" if word in SUMS and dtype in ("float16", "bfloat16") else dtype


def _cupy_product(cupy: Any, operands: Sequence[Array]) -> None:
    a, b, c = operands
    cublas = cupy.cuda.cublas
    cublas.setMathMode(cupy.cuda.device.get_cublas_handle(), CUBLAS_DEFAULT_MATH)
    cupy.matmul(a, b, out=c)


def _seconds(call: Callable[[], None], library: CupyLibrary, count: int = 1) -> float:
    """The seconds of `count` calls, submitted one after the other, with a single wait at the end."""
    library.synchronise()
    start = time.perf_counter()
    for _ in range(count):
        call()
    library.synchronise()
    return time.perf_counter() - start
