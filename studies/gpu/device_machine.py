"""The machine file of one GPU, from its measurements: a host of one core, which its ranks share in time slices."""

from collections.abc import Sequence

from quadrille.algorithms.formats.measured_rows import GemmRow, KernelRow, MemoryRow, TransferRow
from quadrille.algorithms.provenance import Provenance
from quadrille.runtime.measuring.device_benchmarks import DeviceProduct, DeviceStream, LaunchCost
from quadrille.topologies.machines.machine import Device, Host, HostLink, Machine

DEVICE_OPERATIONS = ("copy", "add", "zero")
HOST_OPERATIONS = ("to host", "to device")
COPY_TOUCHES = 2
"""Bytes that a copy reads and writes for each byte of its result."""


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
    host_memory_bytes: int = 0,
) -> Machine:
    """The machine file of a GPU, from its measurements.

    The peak of each dtype is the rate of its fastest product; the memory rate is that of the largest copy.

    Parameters
    ----------
    name : name of the machine
    memory_bytes : memory of the GPU [bytes]
    products : rates of matrix products
    streams : rates of memory operations; the copies must not be missing
    launch : launch cost; the time of an empty kernel alone is the overhead of every kernel except matrix products
    transfers : times of messages between ranks that share the GPU
    provenance : command, date and versions of the measurements
    ranks : largest number of ranks that may share the GPU
    kernels : times of element-wise layer functions and of softmax
    issue_seconds : time between two ops of a rank [s]
    alone_seconds : time of a communication op in a group of one rank [s]
    host_memory_bytes : memory of the host [bytes]; 0 if it is unknown, for a machine without a host link
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
            memory=tuple(memory_row(stream) for stream in streams if stream.operation in DEVICE_OPERATIONS),
            kernel=tuple(kernels),
        ),
        host=Host(
            cores=1,
            ranks=ranks,
            transfer=tuple(transfers),
            issue_seconds=issue_seconds,
            single_rank_op_seconds=alone_seconds,
        ),
        host_link=host_link(streams, host_memory_bytes),
        provenance=provenance,
    )


def host_link(streams: Sequence[DeviceStream], host_memory_bytes: int) -> HostLink | None:
    """The link between the GPU and the memory of its host, from copies in both directions.

    The rate is that of the largest copy of the slower direction, the latency that of its smallest copy.  The memory of
    the host is not measured: its bandwidth is at least that of the copy.

    Parameters
    ----------
    streams : times of copies; without copies in both directions there is no link
    host_memory_bytes : memory of the host [bytes]; 0 if it is unknown
    """
    directions = [[stream for stream in streams if stream.operation == name] for name in HOST_OPERATIONS]
    if not (host_memory_bytes and all(directions)):
        return None
    slowest = max(directions, key=lambda copies: _largest(copies).seconds / _largest(copies).bytes)
    largest, smallest = _largest(slowest), min(slowest, key=lambda stream: stream.bytes)
    rate = largest.bytes / largest.seconds
    return HostLink(
        bytes_per_second=rate,
        latency_seconds=max(0.0, smallest.seconds - smallest.bytes / rate),
        memory_bytes=float(host_memory_bytes),
        memory_bytes_per_second=rate,
        memory_gpus=1,
    )


def _largest(copies: Sequence[DeviceStream]) -> DeviceStream:
    return max(copies, key=lambda stream: stream.bytes)


def gemm_row(product: DeviceProduct) -> GemmRow:
    """The row of a matrix product in a machine file; the file of any machine with this GPU may contain it."""
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
    """The row of a memory operation in a machine file."""
    return MemoryRow(
        operation=stream.operation,  # type: ignore[arg-type]
        bytes=stream.bytes,
        bytes_per_second=stream.bytes / stream.seconds,
        spread=stream.spread,
    )
