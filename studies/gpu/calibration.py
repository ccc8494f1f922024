"""The microbenchmarks of one GPU and of the ranks that share it, and the machine file that comes of them.

A calibration may be in parts: each benchmark fills its own, and a machine file can be made
as soon as products, streams and the cost of a launch are known.
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
from quadrille.algorithms.schedule.kernels import Function
from quadrille.algorithms.schedule.ops import GemmLayout
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.host.devices import GpuDevice
from quadrille.runtime.launching.launch import launch_or_raise
from quadrille.runtime.measuring.benchmark_kernels import MEASURED
from quadrille.runtime.measuring.device_benchmarks import (
    DeviceAttention,
    DeviceBench,
    DeviceProduct,
    DeviceStream,
    LaunchCost,
    Operation,
)
from quadrille.studies.gpu.device_machine import machine_of_device
from quadrille.studies.gpu.staged_steps import STEPS
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from quadrille.runtime.arrays.cupy_library import CupyLibrary

SCHEMA = "quadrille/gpu-calibration/1"
DTYPES: tuple[Dtype, ...] = ("bfloat16", "float16", "tf32", "float32", "float64")
LAYOUTS: tuple[GemmLayout, ...] = ("NN", "NT", "TN")
OPERATIONS: tuple[Operation, ...] = ("copy", "add", "zero", "to host", "to device")
KERNEL_DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
ATTENTION: tuple[Function, ...] = ("attention", "attention_gradient")
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurements.

    Parameters
    ----------
    products : m, k and n
    streams : bytes written
    elements : elements of the matrices that layers' functions run on
    vocabulary : rows and columns of a softmax over a vocabulary
    attention : sequences, tokens, heads, and columns of a head
    executed : rows and columns of the product of a whole run
    shared : m, k and n of the product of ranks that share the GPU
    """

    products: tuple[tuple[int, int, int], ...]
    streams: tuple[int, ...]
    elements: tuple[int, ...]
    vocabulary: tuple[tuple[int, int], ...]
    attention: tuple[tuple[int, int, int, int], ...]
    executed: int
    shared: str


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
)
"""For trying the programs where there is no GPU."""


class StagedSteps(msgspec.Struct, frozen=True):
    """Rows of messages between ranks that share the GPU, and what an op costs beyond its work."""

    rows: tuple[TransferRow, ...] = ()
    issue_seconds: float = 0.0
    alone_seconds: float = 0.0


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a GPU so far; `provenance` says when they were made and by which command."""

    device: str
    name: str
    memory_bytes: int
    provenance: Provenance = msgspec.field(name="made")
    products: tuple[DeviceProduct, ...] = ()
    streams: tuple[DeviceStream, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    attention: tuple[DeviceAttention, ...] = ()
    launch: LaunchCost | None = None
    staged: StagedSteps = StagedSteps()

    @property
    def is_enough(self) -> bool:
        """Whether the measurements suffice for a machine file."""
        return bool(self.products and self.streams and self.launch)

    def machine(self, ranks: int) -> Machine:
        """The machine file of the GPU, which so many ranks may share."""
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
        )


def empty_calibration(device: GpuDevice, provenance: Provenance) -> Calibration:
    """The calibration of a GPU before any measurement."""
    return Calibration(device=str(device), name=device.name, memory_bytes=device.memory_bytes, provenance=provenance)


def measure_device(
    library: "CupyLibrary", ranks: Sequence[int], provenance: Provenance, sizes: Sizes = FULL
) -> Calibration:
    """Measure everything of the GPU that a machine file needs.

    Parameters
    ----------
    ranks : numbers of ranks that will share the GPU
    provenance : date, commit and command, for the machine file
    """
    bench = DeviceBench(library)
    bench.warm_up()
    return msgspec.structs.replace(
        empty_calibration(library.device, provenance),
        products=tuple(product for dtype in DTYPES for product in measure_products(bench, dtype, sizes)),
        streams=measure_streams(bench, sizes),
        kernels=measure_kernels(bench, sizes),
        attention=measure_attention(bench, sizes),
        launch=bench.launch(),
        staged=measure_staged([count for count in ranks if count > 1]),
    )


def measure_products(bench: DeviceBench, dtype: Dtype, sizes: Sizes) -> tuple[DeviceProduct, ...]:
    """Every size in every layout."""
    return tuple(bench.product(*size, dtype, layout) for size in sizes.products for layout in LAYOUTS)


def measure_streams(bench: DeviceBench, sizes: Sizes) -> tuple[DeviceStream, ...]:
    """Work on memory and copies between host and device."""
    return tuple(bench.stream(operation, size) for operation in OPERATIONS for size in sizes.streams)


def measure_kernels(bench: DeviceBench, sizes: Sizes) -> tuple[KernelRow, ...]:
    """The functions of layers, and of a softmax; Adam's matrices are float32 in training of 16 bits too."""
    of_layers = (
        bench.kernel(function, dtype, elements)
        for function in MEASURED
        for dtype in KERNEL_DTYPES
        if dtype == "float32" or function != "adam"
        for elements in sizes.elements
    )
    softmax = (bench.softmax(dtype, *shape) for dtype in KERNEL_DTYPES for shape in sizes.vocabulary)
    return (*of_layers, *(kernel for kernels in softmax for kernel in kernels))


def measure_attention(bench: DeviceBench, sizes: Sizes) -> tuple[DeviceAttention, ...]:
    """Attention and its gradient."""
    return tuple(
        bench.attention(function, dtype, *shape)
        for shape in sizes.attention
        for dtype in KERNEL_DTYPES
        for function in ATTENTION
    )


def measure_staged(counts: Sequence[int], staged: StagedSteps | None = None) -> StagedSteps:
    """Staged steps on so many ranks of the GPU, behind those that are known.

    What ops cost is that of the first number of ranks, as a machine file has one number for all.
    """
    staged = staged or StagedSteps()
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            path = Path(folder) / f"{count}.json"
            launch_or_raise("staged steps", count, [str(path)], program=STEPS)
            staged = _with_steps(staged, json.loads(path.read_text()))
    return staged


def _with_steps(staged: StagedSteps, told: dict[str, list[list[float]]]) -> StagedSteps:
    """The rows with those of another number of ranks behind them."""
    rows = tuple(
        msgspec.convert(dict(zip(("pattern", "ranks", "bytes", "seconds", "spread"), row, strict=True)), TransferRow)
        for row in told["rows"]
    )
    if staged.rows:
        return msgspec.structs.replace(staged, rows=(*staged.rows, *rows))
    issue, _, alone = told["overheads"]
    return msgspec.convert({"rows": rows, "issue_seconds": issue, "alone_seconds": alone}, StagedSteps)


@contextmanager
def only_first_gpu() -> Iterator[None]:
    """Ranks that are started inside see the first of the GPUs that this process may use: all share it."""
    seen = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = (seen or "0").split(",")[0]
    try:
        yield
    finally:
        if seen is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = seen
