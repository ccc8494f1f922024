"""The calibration of one GPU: microbenchmarks of the GPU and of ranks that share it, and its machine file.

A calibration may be filled part by part.  A machine file can be made from products, streams and the launch cost.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quadrille.algorithms.formats.measured_rows import Dtype, KernelRow, TransferRow
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.kernel_signatures import Function
from quadrille.algorithms.schedule.ops import GemmLayout
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.host.devices import GpuDevice
from quadrille.runtime.launching.launch import launch_or_raise
from quadrille.runtime.measuring.benchmark_kernels import MEASURED
from quadrille.runtime.measuring.device_benchmarks import (
    VALUES,
    WARM_UP_SIZE,
    DeviceAttention,
    DeviceBench,
    DeviceProduct,
    DeviceStream,
    LaunchCost,
    Operation,
)
from quadrille.studies.gpu.device_machine import machine_of_device
from quadrille.studies.gpu.staged_transfers import PROGRAM
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from quadrille.runtime.arrays.cupy_library import CupyLibrary

SCHEMA = "quadrille/gpu-calibration/1"
DTYPES: tuple[Dtype, ...] = ("bfloat16", "float16", "tf32", "float32", "float64")
LAYOUTS: tuple[GemmLayout, ...] = ("NN", "NT", "TN")
OPERATIONS: tuple[Operation, ...] = ("copy", "add", "zero", "to host", "to device")
KERNEL_DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
ATTENTION: tuple[Function, ...] = ("attention", "attention_gradient")
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of all measurements.

    Parameters
    ----------
    products : m, k and n of each matrix product
    streams : bytes that each memory operation writes
    elements : numbers of elements of the matrices that element-wise layer functions are measured on
    vocabulary : rows and columns of each softmax over a vocabulary
    attention : sequences, tokens, heads, and head size of each attention
    executed : m = k = n of the matmul that is run as a whole, for the cost of the executor
    shared : m, k and n of the matmul of ranks that share the GPU, with commas between them
    values : number of random values with which the arrays are filled
    warm_up : number of rows of the square matrices that are multiplied before anything is timed
    """

    products: tuple[tuple[int, int, int], ...]
    streams: tuple[int, ...]
    elements: tuple[int, ...]
    vocabulary: tuple[tuple[int, int], ...]
    attention: tuple[tuple[int, int, int, int], ...]
    executed: int
    shared: str
    values: int = VALUES
    warm_up: int = WARM_UP_SIZE


FULL = Sizes(
    products=(
        *((size, size, size) for size in (256, 512, 1024, 2048, 4096, 8192)),
        *((8192, 4096, 12288), (8192, 4096, 4096), (8192, 16384, 4096), (4096, 1024, 4096), (512, 8192, 8192)),
        (2048, 13312, 2048),
    ),
    streams=(1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 28, 1 << 30),
    elements=(1 << 16, 1 << 20, 1 << 24, 1 << 26),
    vocabulary=((256, 4096), (2048, 32768)),
    attention=((8, 512, 16, 64), (2, 2048, 16, 128)),
    executed=8192,
    shared="4096,4096,4096",
)
TINY = Sizes(
    products=((8, 8, 8), (4, 16, 8)),
    streams=(1 << 10, 1 << 12),
    elements=(1 << 8,),
    vocabulary=((4, 8),),
    attention=((2, 4, 2, 2),),
    executed=8,
    shared="16,16,16",
    values=1 << 10,
    warm_up=64,
)
"""Sizes that try the programs without a GPU."""


class StagedTransfers(msgspec.Struct, frozen=True):
    """Times of messages between ranks that share the GPU, and the overheads of an op.

    Parameters
    ----------
    rows : times by pattern, number of ranks and message size
    issue_seconds : time between two ops of a rank [s]
    alone_seconds : time of a communication op in a group of one rank [s]
    """

    rows: tuple[TransferRow, ...] = ()
    issue_seconds: float = 0.0
    alone_seconds: float = 0.0


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a GPU; those that have not been made are empty.

    Parameters
    ----------
    device : name and memory of the GPU, as a remark prints them
    name : name that CUDA gives the GPU
    memory_bytes : memory of the GPU [bytes]
    provenance : command, date and versions of the measurements
    products : rates of matrix products
    streams : rates of memory operations and of copies between host and device
    kernels : times of element-wise layer functions and of softmax
    attention : times of attention and its gradient
    launch : cost of a kernel launch
    staged : times of messages between ranks that share the GPU
    host_memory_bytes : memory of the host [bytes]; 0 if it is unknown
    """

    device: str
    name: str
    memory_bytes: int
    provenance: Provenance = msgspec.field(name="made")
    products: tuple[DeviceProduct, ...] = ()
    streams: tuple[DeviceStream, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    attention: tuple[DeviceAttention, ...] = ()
    launch: LaunchCost | None = None
    staged: StagedTransfers = StagedTransfers()
    host_memory_bytes: int = 0

    @property
    def suffices_for_machine(self) -> bool:
        """Whether the measurements suffice for a machine file."""
        return bool(self.products and self.streams and self.launch)

    def machine(self, ranks: int) -> Machine:
        """The machine file of the GPU, which at most `ranks` ranks may share."""
        assert self.launch is not None, "the cost of a launch is not measured"
        return machine_of_device(
            self.name,
            self.memory_bytes,
            self.products,
            self.streams,
            self.launch,
            self.staged.rows,
            self.provenance,
            ranks=ranks,
            kernels=self.kernels,
            issue_seconds=self.staged.issue_seconds,
            alone_seconds=self.staged.alone_seconds,
            host_memory_bytes=self.host_memory_bytes,
        )


def empty_calibration(device: GpuDevice, provenance: Provenance) -> Calibration:
    """The calibration of a GPU before any measurement."""
    import psutil  # takes 10 ms

    return Calibration(
        device=str(device),
        name=device.name,
        memory_bytes=device.memory_bytes,
        provenance=provenance,
        host_memory_bytes=psutil.virtual_memory().total,
    )


def measure_device(
    library: "CupyLibrary", ranks: Sequence[int], provenance: Provenance, sizes: Sizes = FULL
) -> Calibration:
    """Run all benchmarks of a GPU.

    Parameters
    ----------
    library : array library of the GPU
    ranks : numbers of ranks that will share the GPU
    provenance : command, date and versions, for the machine file
    sizes : sizes of the measurements
    """
    bench = DeviceBench(library, values=sizes.values)
    bench.warm_up(sizes.warm_up)
    return msgspec.structs.replace(
        empty_calibration(library.device, provenance),
        products=tuple(product for dtype in DTYPES for product in measure_products(bench, dtype, sizes)),
        streams=measure_streams(bench, sizes),
        kernels=measure_kernels(bench, sizes),
        attention=measure_attention(bench, sizes),
        launch=bench.launch(),
        staged=measure_staged_transfers([count for count in ranks if count > 1]),
    )


def measure_products(bench: DeviceBench, dtype: Dtype, sizes: Sizes) -> tuple[DeviceProduct, ...]:
    """Rates of matrix products of one dtype, for every size and every layout (transposes)."""
    return tuple(bench.product(*size, dtype, layout) for size in sizes.products for layout in LAYOUTS)


def measure_streams(bench: DeviceBench, sizes: Sizes) -> tuple[DeviceStream, ...]:
    """Rates of memory operations on the GPU and of copies between host and device, for every size."""
    return tuple(bench.stream(operation, size) for operation in OPERATIONS for size in sizes.streams)


def measure_kernels(bench: DeviceBench, sizes: Sizes) -> tuple[KernelRow, ...]:
    """Times of element-wise layer functions and of softmax, for every dtype and size.

    Adam is measured in float32 only, because training in 16 bits keeps its matrices in float32 too.
    """
    layer_functions = (
        bench.kernel(function, dtype, elements)
        for function in MEASURED
        for dtype in KERNEL_DTYPES
        if dtype == "float32" or function != "adam"
        for elements in sizes.elements
    )
    softmax = (bench.softmax(dtype, *shape) for dtype in KERNEL_DTYPES for shape in sizes.vocabulary)
    return (*layer_functions, *(kernel for kernels in softmax for kernel in kernels))


def measure_attention(bench: DeviceBench, sizes: Sizes) -> tuple[DeviceAttention, ...]:
    """Times of attention and its gradient, for every dtype and size."""
    return tuple(
        bench.attention(function, dtype, *shape)
        for shape in sizes.attention
        for dtype in KERNEL_DTYPES
        for function in ATTENTION
    )


def measure_staged_transfers(counts: Sequence[int], staged: StagedTransfers | None = None) -> StagedTransfers:
    """Measure staged messages between ranks on the GPU, and append the rows to earlier ones.

    The overheads are those of the first number of ranks: a machine file has one number for all.

    Parameters
    ----------
    counts : numbers of ranks
    staged : measurements on other numbers of ranks; None if there are none
    """
    staged = staged or StagedTransfers()
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            path = Path(folder) / f"{count}.json"
            launch_or_raise("staged steps", count, [str(path)], program=PROGRAM)
            staged = _with_rows(staged, json.loads(path.read_text()))
    return staged


def _with_rows(staged: StagedTransfers, output: dict[str, list[list[float]]]) -> StagedTransfers:
    """The measurements with the rows that `staged_transfers.py` wrote on another number of ranks."""
    rows = tuple(
        msgspec.convert(dict(zip(("pattern", "ranks", "bytes", "seconds", "spread"), row, strict=True)), TransferRow)
        for row in output["rows"]
    )
    if staged.rows:
        return msgspec.structs.replace(staged, rows=(*staged.rows, *rows))
    issue, _, alone = output["overheads"]
    return msgspec.convert({"rows": rows, "issue_seconds": issue, "alone_seconds": alone}, StagedTransfers)


@contextmanager
def first_gpu_visible() -> Iterator[None]:
    """A context in which started ranks see only the first GPU of this process, so that all ranks share it."""
    before = os.environ.get(VISIBLE_DEVICES)
    os.environ[VISIBLE_DEVICES] = (before or "0").split(",")[0]
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE_DEVICES]
        else:
            os.environ[VISIBLE_DEVICES] = before
