"""Which GPU a rank uses, what it is, and whether another rank uses it too.

Ranks of one host take its GPUs in turn: rank on host modulo number of GPUs.  Where
the batch system shows every rank one GPU of its own, that one is taken.

Two ranks share a GPU if its UUIDs are equal, or its host and PCI address are.  Both
are compared since CuPy ends a UUID at its first zero byte (it is made from a C string),
and since hosts may be containers that give one GPU two host names.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quadrille.algorithms.errors import InputError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

UUID_BYTES = 16
INSTALL = "pip install 'quadrille-hpc[cuda12]' or 'quadrille-hpc[cuda13]', whichever the driver supports"


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU as one process sees it.

    Parameters
    ----------
    number : among those that CUDA shows to this process
    uuid : in hexadecimal digits, cut at the first zero byte
    pci_address : domain, bus and device on its host
    memory_bytes : all its memory [B]
    compute_capability : major and minor version of the architecture

    >>> print(GpuDevice(0, "NVIDIA H200", "6f" * 16, "0000:18:00.0", "node1", 150_000_000_000, (9, 0)))
    NVIDIA H200 GPU-6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f at 0000:18:00.0 on node1
    """

    number: int
    name: str
    uuid: str
    pci_address: str
    host: str
    memory_bytes: int
    compute_capability: tuple[int, int]

    def is_same(self, other: "GpuDevice") -> bool:
        """Whether both are one GPU."""
        is_whole = len(self.uuid) == 2 * UUID_BYTES
        here, there = (self.host, self.pci_address), (other.host, other.pci_address)
        return here == there or (is_whole and self.uuid == other.uuid)

    def __str__(self) -> str:
        return f"{self.name} GPU-{self.uuid} at {self.pci_address} on {self.host}"


def load_cupy() -> Any:
    """The module cupy, where there is one and a GPU that it can use.

    Raises
    ------
    InputError : not installed, or no GPU
    """
    try:
        import cupy
    except ImportError as error:
        raise InputError(f"backend 'cupy': CuPy cannot be imported ({error}); install it: {INSTALL}") from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f"backend 'cupy': no CUDA device ({error}); accepted without one is: numpy") from None
    if count == 0:
        raise InputError("backend 'cupy': devices=0; accepted without a CUDA device is: numpy")
    return cupy


def device_number(rank_on_host: int, devices: int) -> int:
    """The GPU of a rank: in turn.

    >>> [device_number(rank, 4) for rank in range(6)]
    [0, 1, 2, 3, 0, 1]
    """
    return rank_on_host % devices


def number_on_host(communicator: "Intracomm") -> int:
    """How many ranks with a lower number are on this rank's host; all ranks call it."""
    from quadrille.runtime.host.world import host_of, hosts

    return host_of(communicator.rank, hosts(communicator)).ranks.index(communicator.rank)


def use_device(rank_on_host: int) -> GpuDevice:
    """Make the rank's GPU the current one of this process.

    Raises
    ------
    InputError : no CuPy, or no GPU
    """
    cupy = load_cupy()
    number = device_number(rank_on_host, cupy.cuda.runtime.getDeviceCount())
    cupy.cuda.Device(number).use()
    return describe_device(cupy, number)


def describe_device(cupy: Any, number: int) -> GpuDevice:
    """What CUDA says of a GPU."""
    properties = cupy.cuda.runtime.getDeviceProperties(number)
    return GpuDevice(
        number=number,
        name=bytes(properties["name"]).split(b"\0")[0].decode(errors="replace"),
        uuid=bytes(properties["uuid"]).hex(),
        pci_address=cupy.cuda.runtime.deviceGetPCIBusId(number),
        host=socket.gethostname(),
        memory_bytes=properties["totalGlobalMem"],
        compute_capability=(properties["major"], properties["minor"]),
    )


def free_bytes(device: GpuDevice) -> int:
    """Bytes of the GPU's memory that nobody has allocated; ranks that share it ask at the same moment."""
    cupy = load_cupy()
    with cupy.cuda.Device(device.number):
        free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free)


def sharing_ranks(devices: Sequence[GpuDevice]) -> dict[tuple[int, ...], GpuDevice]:
    """The GPUs that several ranks use, by those ranks.

    >>> one, other = (GpuDevice(i, "H200", f"{i}" * 32, f"0000:{i}8:00.0", "node1", 1, (9, 0)) for i in (1, 2))
    >>> [ranks for ranks in sharing_ranks([one, other, one])]
    [(0, 2)]

    Parameters
    ----------
    devices : of every rank, in the order of the ranks
    """
    first = [next(i for i, earlier in enumerate(devices) if device.is_same(earlier)) for device in devices]
    groups = {i: tuple(rank for rank, leader in enumerate(first) if leader == i) for i in set(first)}
    return {ranks: devices[i] for i, ranks in sorted(groups.items()) if len(ranks) > 1}


def check_unshared(devices: Sequence[GpuDevice]) -> None:
    """Nothing, where every rank has a GPU of its own, as NCCL needs it.

    Raises
    ------
    InputError : several ranks on one GPU
    """
    shared = sharing_ranks(devices)
    if shared:
        who = "; ".join(f"ranks {', '.join(map(str, ranks))} share {device}" for ranks, device in shared.items())
        raise InputError(f"NCCL needs one GPU per rank, but {who}; start fewer ranks, or let MPI carry (staging)")
