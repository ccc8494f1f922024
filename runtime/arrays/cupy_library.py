"""The array library of CuPy on one GPU: functions are submitted to a CUDA stream and end later.

Products use cuBLAS's GemmEx on the arrays as they are, transposed arrays and windows included, without copies or
buffers of CuPy. They accumulate in float32 for the 16-bit dtypes (compute type 32F, without reductions in the output
dtype) and for float32; TF32 is never used.

bfloat16 elements are stored as uint16, because older CuPy lacks the dtype. cuBLAS and NCCL are told the true type, and
sums use a kernel of our own. On the host, 16-bit values are float32 arrays that hold exactly these values.

Source: NVIDIA, "cuBLAS library", sections cublasGemmEx and cublasMath_t.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.optional_packages import install_cupy_command
from quadrille.algorithms.schedule.tensors import DType, ElementType
from quadrille.runtime.arrays.array_library import Array, Backend, matrix_layout
from quadrille.runtime.arrays.pinned_memory import PinnedPool, fetch_in_chunks, put_in_chunks
from quadrille.runtime.host.devices import GpuDevice, load_cupy, use_device

STORED: dict[ElementType, str] = {
    "int32": "int32",
    "uint8": "uint8",
    "float64": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "uint16",
}
"""The dtype of the arrays by element type."""

CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14
"""Constants of cudaDataType_t (`library_types.h`); not every CuPy names them all."""

GEMM: dict[str, tuple[int, str, type[np.floating[Any]]]] = {
    "float64": (CUDA_R_64F, "CUBLAS_COMPUTE_64F", np.float64),
    "float32": (CUDA_R_32F, "CUBLAS_COMPUTE_32F", np.float32),
    "float16": (CUDA_R_16F, "CUBLAS_COMPUTE_32F", np.float32),
    "uint16": (CUDA_R_16BF, "CUBLAS_COMPUTE_32F", np.float32),
}
"""By array dtype: cuBLAS's element type, name of the compute type, and dtype of the scale factors."""

CUDA_SUCCESS, CUDA_ERROR_NOT_READY = 0, 600
"""Values of cudaError_t that the query of an event returns without a failure."""

CUBLAS_DEFAULT_MATH, DISALLOW_REDUCED_PRECISION_REDUCTION = 0, 16
"""Values of cublasMath_t: cuBLAS's own choice, and partial sums added in the accumulation dtype."""

LOWEST_CAPABILITY: dict[DType, tuple[int, int]] = {"float16": (5, 3), "bfloat16": (8, 0)}

ADD_BFLOAT16 = """
    float sum = __uint_as_float((unsigned int)one << 16) + __uint_as_float((unsigned int)other << 16);
    unsigned int bits = __float_as_uint(sum);
    result = sum != sum ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
"""


class EventMarker:
    """A point in a stream."""

    def __init__(self, event: Any, query: Callable[[int], int]) -> None:
        self._event = event
        self._query = query

    def done(self) -> bool:
        """Whether the device has passed the event.

        CuPy's `Event.done` returns "not yet" for ever if the device has failed.

        Raises
        ------
        RunError : the device failed in this or in earlier work
        """
        status = self._query(self._event.ptr)
        if status not in (CUDA_SUCCESS, CUDA_ERROR_NOT_READY):
            raise RunError(f"the GPU has failed with CUDA error {status} (cudaError_t), at this or at earlier work")
        return status == CUDA_SUCCESS

    def wait(self) -> None:
        """Block until the device has passed the event."""
        self._event.synchronize()


class CupyLibrary:
    """CuPy on one GPU and one stream, which does not wait for the default stream.

    Parameters
    ----------
    device : GPU that is current in this process (`use_device`)
    parent : library on another stream, whose pinned buffers and compiled kernels are shared
    """

    name: Backend = "cupy"
    gemm_types = GEMM

    def __init__(self, device: GpuDevice, parent: "CupyLibrary | None" = None) -> None:
        self.cupy = load_cupy()
        self.device = device
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.pinned: PinnedPool = PinnedPool() if parent is None else parent.pinned
        self._add_bfloat16: Any = (
            self.cupy.ElementwiseKernel("uint16 one, uint16 other", "uint16 result", ADD_BFLOAT16, "add_bfloat16")
            if parent is None
            else parent._add_bfloat16
        )

    def lane(self) -> "CupyLibrary":
        """A library on another stream of the GPU; work on this stream does not delay it."""
        return CupyLibrary(self.device, parent=self)

    def empty(self, elements: int, dtype: ElementType) -> Array:
        """An uninitialised flat array."""
        with self.stream:
            return self.cupy.empty(elements, STORED[dtype])

    def empty_on_host(self, elements: int, dtype: ElementType) -> Array:
        """An uninitialised flat array in pinned host memory, with the dtype of the device array."""
        stored = np.dtype(STORED[dtype])
        size = elements * stored.itemsize
        return np.frombuffer(self.pinned.take(size), np.uint8, size).view(stored)

    def put(self, into: Array, host_values: np.ndarray[Any, Any]) -> None:
        """Copy host values into a contiguous array, rounded to its dtype."""
        values = from_host(host_values, str(into.dtype)).reshape(-1)
        if isinstance(into, np.ndarray):
            np.copyto(into, values)
            return
        assert into.flags.c_contiguous and into.size == values.size, (into.shape, values.shape)
        put_in_chunks(self, into, values.view(np.uint8))

    def fetch(self, array: Array) -> np.ndarray[Any, Any]:
        """The values as a host array of the same dtype; float32 for the 16-bit dtypes."""
        if isinstance(array, np.ndarray):
            return to_host_values(array)
        with self.stream:
            source = array if array.flags.c_contiguous else self.cupy.ascontiguousarray(array)
        host = np.empty(array.size, str(array.dtype))
        fetch_in_chunks(self, host.view(np.uint8), source)
        return to_host_values(host).reshape(array.shape)

    @property
    def module(self) -> Any:
        return self.cupy

    def carry_out(self, work: Callable[[], None]) -> None:
        with self.stream:
            work()

    def maximum(self, left: Array, right: Array, out: Array) -> None:
        """Write the elementwise maximum of `left` and `right`."""
        assert out.dtype != np.uint16, "no maximum of bfloat16 is needed: maxima are taken of float32"
        with self.stream:
            self.cupy.maximum(left, right, out=out)

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        """C_mn = A_mk B_kn.

        cuBLAS reads columns first and so sees the transposes: C^T = B^T A^T.
        """
        (rows, inner), columns = a.shape, b.shape[1]
        assert b.shape[0] == inner and out.shape == (rows, columns), (a.shape, b.shape, out.shape)
        if out.size == 0:
            return
        if inner == 0:
            self.zero(out)
            return
        with self.stream:
            self._gemm(a, b, out)

    def _gemm(self, a: Array, b: Array, out: Array) -> None:
        cublas = self.cupy.cuda.cublas
        element, compute_name, factor_type = self.gemm_types[str(out.dtype)]
        compute = getattr(cublas, compute_name)
        unit, zero = np.ones(1, factor_type), np.zeros(1, factor_type)
        operations = (cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T)
        (transposed_a, leading_a), (transposed_b, leading_b), (transposed_c, leading_c) = (
            matrix_layout(matrix) for matrix in (a, b, out)
        )
        assert not transposed_c, (out.shape, out.strides)
        handle = self.cupy.cuda.device.get_cublas_handle()
        cublas.setMathMode(handle, DISALLOW_REDUCED_PRECISION_REDUCTION)
        cublas.gemmEx(
            handle, operations[transposed_b], operations[transposed_a], out.shape[1], out.shape[0], a.shape[1],
            unit.ctypes.data, b.data.ptr, element, leading_b, a.data.ptr, element, leading_a,
            zero.ctypes.data, out.data.ptr, element, leading_c, compute, cublas.CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip

    def add(self, left: Array, right: Array, out: Array) -> None:
        """Write the elementwise sum of `left` and `right`."""
        with self.stream:
            if out.dtype == np.uint16:
                self._add_bfloat16(left, right, out)
            else:
                self.cupy.add(left, right, out=out)

    def copy(self, into: Array, source: Array) -> None:
        """Copy an array of the same shape."""
        with self.stream:
            self.cupy.copyto(into, source)

    def zero(self, array: Array) -> None:
        """Set every element to 0."""
        with self.stream:
            array.fill(0)

    def mark(self) -> EventMarker:
        """A marker after all work submitted to the stream."""
        event = self.stream.record(self.cupy.cuda.Event(disable_timing=True))
        return EventMarker(event, self.cupy.cuda.runtime.eventQuery)

    def synchronise(self) -> None:
        """Wait until all work submitted to the stream has ended."""
        self.stream.synchronize()

    def copy_to_host(self, pinned: NDArray[Any], source: Array) -> None:
        """Submit a copy of a contiguous array to pinned memory."""
        self.copy_bytes_to_host(pinned, source.data.ptr)

    def copy_to_device(self, into: Array, pinned: NDArray[Any]) -> None:
        """Submit a copy of pinned memory to a contiguous array."""
        self.copy_bytes_to_device(into.data.ptr, pinned)

    def copy_bytes_to_host(self, pinned: NDArray[Any], address: int) -> None:
        """Submit a copy from a device address to pinned memory."""
        cuda = self.cupy.cuda.runtime
        if pinned.nbytes:
            cuda.memcpyAsync(pinned.ctypes.data, address, pinned.nbytes, cuda.memcpyDeviceToHost, self.stream.ptr)

    def copy_bytes_to_device(self, address: int, pinned: NDArray[Any]) -> None:
        """Submit a copy from pinned memory to a device address."""
        cuda = self.cupy.cuda.runtime
        if pinned.nbytes:
            cuda.memcpyAsync(address, pinned.ctypes.data, pinned.nbytes, cuda.memcpyHostToDevice, self.stream.ptr)


def from_host(values: NDArray[Any], stored: str) -> NDArray[Any]:
    """Contiguous host values in the dtype of the device array, rounded to the nearest, ties to even.

    >>> [hex(bits) for bits in from_host(np.array([1.0, 1.00390625, -3.0], np.float32), "uint16")]
    ['0x3f80', '0x3f80', '0xc040']
    """
    if stored != "uint16":
        return np.ascontiguousarray(values, stored)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(bits.view(np.float32)), np.uint16(0x7FC0), rounded)


def to_host_values(stored: NDArray[Any]) -> NDArray[Any]:
    """Values of a device array's elements; float32 for 16-bit ones.

    >>> to_host_values(np.array([0x3F80, 0xC040], np.uint16))
    array([ 1., -3.], dtype=float32)
    """
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32) if stored.dtype == np.float16 else stored


def open_cupy(dtype: DType, rank_on_host: int) -> CupyLibrary:
    """CuPy on the rank's GPU, after a check that the GPU can multiply matrices of that dtype.

    Raises
    ------
    InputError : no CuPy, no GPU, a GPU too old for the dtype, or missing CUDA libraries
    """
    device = use_device(rank_on_host)
    lowest = LOWEST_CAPABILITY.get(dtype, (0, 0))
    if device.compute_capability < lowest:
        has, needs = (".".join(map(str, capability)) for capability in (device.compute_capability, lowest))
        raise InputError(f"dtype {dtype!r}: {device.name} has compute capability {has}, it takes {needs} or higher")
    library = CupyLibrary(device)
    try:
        _multiply_once(library, dtype)
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"backend 'cupy': {device.name} cannot multiply {dtype} ({reason}); {install_cupy_command()}"
        ) from None
    return library


def _multiply_once(library: CupyLibrary, dtype: DType) -> None:
    """Load cuBLAS and compile the sum before any measurement."""
    a, b, c = (library.empty(1, dtype) for _ in range(3))
    for array in (a, b):
        library.put(array, np.ones(1, np.float32))
    library.matmul(a.reshape(1, 1), b.reshape(1, 1), c.reshape(1, 1))
    library.add(a, c, c)
    total = library.fetch(c)[0]
    if total != 2:
        raise RuntimeError(f"1 x 1 + 1 = {total}")
