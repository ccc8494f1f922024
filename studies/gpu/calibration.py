"""All microbenchmarks of one GPU and of the ranks that share it, and the machine file that comes of them."""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.formats.measured_rows import Dtype, TransferRow
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.ops import GemmLayout
from quadrille.runtime.launching.launch import launch_or_raise
from quadrille.runtime.measuring.device_benchmarks import (
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

DTYPES: tuple[Dtype, ...] = ("float32", "tf32", "float16", "bfloat16")
LAYOUTS: tuple[GemmLayout, ...] = ("NN", "NT", "TN")
PRODUCTS = (
    *((size, size, size) for size in (256, 512, 1024, 2048, 4096, 8192)),
    *((8192, 4096, 12288), (8192, 4096, 4096), (8192, 16384, 4096), (4096, 1024, 4096), (512, 8192, 8192)),
)
SIZES = (1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 28)
OPERATIONS: tuple[Operation, ...] = ("copy", "add", "zero", "to host", "to device")
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """What was measured on a GPU, and the machine that it is for predictions."""

    products: tuple[DeviceProduct, ...]
    streams: tuple[DeviceStream, ...]
    launch: LaunchCost
    machine: Machine


def measure_device(library: "CupyLibrary", ranks: Sequence[int], made: Provenance) -> MeasuredDevice:
    """Products, work on memory, copies and launches of one rank, and staged steps of as many as share the GPU.

    Parameters
    ----------
    ranks : numbers of those that will share it
    made : when and by what, for the machine file
    """
    bench = DeviceBench(library)
    products = tuple(bench.product(*size, dtype, layout) for size, dtype, layout in asked())
    streams = tuple(bench.stream(operation, size) for operation in OPERATIONS for size in SIZES)
    launch = bench.launch()
    transfers, overheads = _staged([count for count in ranks if count > 1])
    machine = machine_of_device(
        library.device.name,
        library.device.memory_bytes,
        products,
        streams,
        launch,
        transfers,
        made,
        ranks=max(ranks),
        **overheads,
    )
    return MeasuredDevice(products, streams, launch, machine)


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


def asked() -> Iterator[tuple[tuple[int, int, int], Dtype, GemmLayout]]:
    """Every product, in every dtype and layout."""
    for dtype in DTYPES:
        for size in PRODUCTS:
            for layout in LAYOUTS:
                yield size, dtype, layout


def _staged(counts: Sequence[int]) -> tuple[list[TransferRow], dict[str, float]]:
    """Rows of staged steps on so many ranks of the GPU, and what ops cost beyond their work, by field of `Host`.

    What they cost is that of the fewest ranks: a machine file has one number for it.
    """
    rows, overheads = list[TransferRow](), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            found = Path(folder) / f"{count}.json"
            launch_or_raise("staged steps", count, [str(found)], program=STEPS)
            told = json.loads(found.read_text())
            rows += [
                TransferRow(pattern=pattern, ranks=among, bytes=size, seconds=seconds, spread=off)
                for pattern, among, size, seconds, off in told["rows"]
            ]
            issue, _, alone = told["overheads"]
            overheads = overheads or {"issue_seconds": issue, "alone_seconds": alone}
    return rows, overheads
