"""The GPU of a rank: its assignment, its properties, and the check whether other ranks share it.

The ranks of a host take its GPUs round-robin: the rank's number on the host modulo the number of GPUs. If the batch
system shows each rank only one GPU, the rank uses that GPU.

Two ranks share a GPU if the UUIDs are equal, or if host and PCI address are. Both are compared, because CuPy cuts a
UUID at its first zero byte (it is read as a C string), and because containers may give one GPU two host names.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.optional_packages import install_cupy_command

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU as one process sees it.

    Parameters
    ----------
    number : index among the GPUs that CUDA shows to this process
    name : product name
    uuid : hexadecimal digits, cut at the first zero byte
    pci_address : domain, bus and device on its host
    memory_bytes : total memory [B]
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

    def is_same(self, device: "GpuDevice") -> bool:
        """Whether both are the same GPU."""
        is_whole = len(self.uuid) == 2 * UUID_BYTES
        here, there = (self.host, self.pci_address), (device.host, device.pci_address)
        return here == there or (is_whole and self.uuid == device.uuid)

    def __str__(self) -> str:
        return f"{self.name} GPU-{self.uuid} at {self.pci_address} on {self.host}"


def load_cupy() -> Any:
    """The module cupy, if it is installed and finds a usable GPU.

    Raises
    ------
    InputError : CuPy is not installed, or there is no GPU
    """
    try:
        import cupy
    except ImportError as error:
        raise InputError(
            f"backend 'cupy': CuPy cannot be imported ({error}); install it: {install_cupy_command()}"
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f"backend 'cupy': no CUDA device ({error}); accepted without one is: numpy") from None
    if count == 0:
        raise InputError("backend 'cupy': devices=0; accepted without a CUDA device is: numpy")
    return cupy


def device_number(rank_on_host: int, devices: int) -> int:
    """The index of a rank's GPU: the ranks of a host take the GPUs round-robin.

    >>> [device_number(rank, 4) for rank in range(6)]
    [0, 1, 2, 3, 0, 1]
    """
    return rank_on_host % devices


def number_on_host(communicator: "Intracomm") -> int:
    """The number of lower ranks on this rank's host; a collective call."""
    from quadrille.runtime.host.world import host_of, hosts

    return host_of(communicator.rank, hosts(communicator)).ranks.index(communicator.rank)


def use_device(rank_on_host: int) -> GpuDevice:
    """Make the rank's GPU the current device of this process.

    Raises
    ------
    InputError : no CuPy, or no GPU
    """
    cupy = load_cupy()
    number = device_number(rank_on_host, cupy.cuda.runtime.getDeviceCount())
    cupy.cuda.Device(number).use()
    return describe_device(cupy, number)


def describe_device(cupy: Any, number: int) -> GpuDevice:
    """The properties of a GPU, as CUDA reports them."""
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
    """The free memory of the GPU [B]. Ranks that share the GPU ask at the same time."""
    cupy = load_cupy()
    with cupy.cuda.Device(device.number):
        free, _ = cupy.cuda.runtime.memGetInfo()
    return int(free)


def sharing_ranks(devices: Sequence[GpuDevice]) -> dict[tuple[int, ...], GpuDevice]:
    """The GPUs that several ranks share, by the tuple of these ranks.

    >>> first, second = (GpuDevice(i, "H200", f"{i}" * 32, f"0000:{i}8:00.0", "node1", 1, (9, 0)) for i in (1, 2))
    >>> [ranks for ranks in sharing_ranks([first, second, first])]
    [(0, 2)]

    Parameters
    ----------
    devices : GPU of every rank, in rank order
    """
    first = [next(i for i, earlier in enumerate(devices) if device.is_same(earlier)) for device in devices]
    groups = {i: tuple(rank for rank, leader in enumerate(first) if leader == i) for i in set(first)}
    return {ranks: devices[i] for i, ranks in sorted(groups.items()) if len(ranks) > 1}


def check_unshared(devices: Sequence[GpuDevice]) -> None:
    """Check that every rank has its own GPU, as NCCL needs it.

    Raises
    ------
    InputError : several ranks on one GPU
    """
    shared = sharing_ranks(devices)
    if shared:
        who = "; ".join(f"ranks {', '.join(map(str, ranks))} share {device}" for ranks, device in shared.items())
        raise InputError(f"NCCL needs one GPU per rank, but {who}; start fewer ranks, or let MPI carry (staging)")
