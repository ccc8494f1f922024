"""A machine file made from what was measured on one GPU: a place of one core, which the ranks on it share in turn."""

from collections.abc import Sequence

from quadrille.algorithms.formats.measured_rows import GemmRow, KernelRow, MemoryRow, TransferRow
from quadrille.algorithms.provenance import Provenance
from quadrille.runtime.measuring.device_benchmarks import DeviceProduct, DeviceStream, LaunchCost
from quadrille.topologies.machines.machine import Device, Host, Machine

ON_DEVICE = ("copy", "add", "zero")
COPY_TOUCHES = 2
"""Bytes of memory read and written for one that a copy writes."""


def machine_of_device(
    name: str,
    memory_bytes: int,
    products: Sequence[DeviceProduct],
    streams: Sequence[DeviceStream],
    launch: LaunchCost,
    transfers: Sequence[TransferRow],
    provenance: Provenance,
    *,
    ranks: int,
    kernels: Sequence[KernelRow] = (),
    issue_seconds: float = 0.0,
    alone_seconds: float = 0.0,
) -> Machine:
    """The machine file of a GPU, from its measurements.

    Parameters
    ----------
    launch : launch cost; the time of an empty kernel alone is the overhead of every kernel that is no product
    ranks : number of ranks that may share the GPU
    issue_seconds, alone_seconds : cost of an op beyond its work, as in `Host` [s]
    """
    best: dict[str, float] = {}
    for product in products:
        best[product.dtype] = max(best.get(product.dtype, 0.0), product.flops_per_second)
    copies = [stream for stream in streams if stream.operation == "copy"]
    largest = max(copies, key=lambda stream: stream.bytes)
    return Machine(
        name=name,
        topology={"family": "host", "cores": 1},
        device=Device(
            peak_flops_per_second=best,  # type: ignore[arg-type]
            memory_bytes_per_second=COPY_TOUCHES * largest.bytes / largest.seconds,
            memory_bytes=float(memory_bytes),
            overhead_seconds=launch.alone_seconds,
            gemm=tuple(map(gemm_row, products)),
            memory=tuple(memory_row(stream) for stream in streams if stream.operation in ON_DEVICE),
            kernel=tuple(kernels),
        ),
        host=Host(
            cores=1,
            ranks=ranks,
            transfer=tuple(transfers),
            issue_seconds=issue_seconds,
            single_rank_op_seconds=alone_seconds,
        ),
        provenance=provenance,
    )


def gemm_row(product: DeviceProduct) -> GemmRow:
    """As a machine file has it; such rows may stand in the file of any machine with this device."""
    return GemmRow(
        m=product.m,
        k=product.k,
        n=product.n,
        dtype=product.dtype,
        layout=product.layout,
        flops_per_second=product.flops_per_second,
        spread=product.spread,
    )


def memory_row(stream: DeviceStream) -> MemoryRow:
    """As a machine file has it."""
    return MemoryRow(
        operation=stream.operation,  # type: ignore[arg-type]
        bytes=stream.bytes,
        bytes_per_second=stream.bytes / stream.seconds,
        spread=stream.spread,
    )
