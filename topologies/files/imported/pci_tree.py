"""A compute node from its PCI devices: GPUs, NICs, bridges and processors become the parts of a `NodeKind`.

NCCL's XML, hwloc's XML and the matrix of nvidia-smi describe the same tree:

    cpu:0 ─ pcie:0 ─┬─ gpu:0 ─ nvswitch:0
                    └─ nic:0
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from quadrille.algorithms.errors import InputError
from quadrille.topologies.nodes.gpu_node import LATENCY, MAX_GPUS, PCIE4, Cable, NodeKind

Kind = Literal["gpu", "nic", "bridge", "cpu"]
NIC_LATENCY = 1.35e-6
"""Latency of the cable from a NIC to the network [s]; the source is `NET_LATENCY` of `nodes/gpu_node.py`."""
NVLINK_BYTES_PER_SECOND = 25e9
"""Bandwidth of an NVLink 2, 3 or 4 each way [B/s]; `NVLINK2` to `NVLINK4` of `nodes/gpu_node.py` are the sources."""
NVLINK5_BYTES_PER_SECOND = 50e9
"""Bandwidth of an NVLink 5 each way [B/s]; `NVLINK5` of `nodes/gpu_node.py` is the source."""
MOST_NVLINKS = 18
"""Most NVLinks of a GPU. Source: NVIDIA, "H100 Tensor Core GPU Architecture" whitepaper, 2022."""
BETWEEN_CPUS = {"amd": 16e9, "intel": 10e9, "ibm": 32e9, "arm": 6e9, "": 16e9}
"""Bandwidth between two processors by their vendor [B/s].

Source: NCCL, src/graph/topo.h (AMD_BW, SKL_QPI_BW, P9_BW, ARM_BW); 16e9 for others is an assumption.
"""
MOST_PARTS = 4096
GENERATIONS = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 242 / 256}
"""Share of the bits of a PCIe lane that are data, by the rate of the lane [GT/s].

Source: PCI-SIG: 8b/10b until PCIe 2, 128b/130b from PCIe 3, 242 of the 256 bytes of a flit in PCIe 6.
"""


def pcie_bandwidth(giga_transfers: float, lanes: int) -> float:
    """Bandwidth of a PCIe link each way [B/s].

    >>> round(pcie_bandwidth(32.0, 16) / 1e9)
    63

    Parameters
    ----------
    giga_transfers : rate of a lane [GT/s]
    """
    return giga_transfers * 1e9 * GENERATIONS.get(giga_transfers, 128 / 130) * lanes / 8


@dataclass(slots=True)
class Device:
    """A device of the tree.

    Parameters
    ----------
    key : sort key: devices of one kind are numbered in its order
    name : name of the device, such as that of a NIC
    bandwidth : bandwidth of the PCIe link upwards [B/s]; None if unknown
    network_bandwidth : bandwidth of a NIC's cables to the network together [B/s]; None if unknown
    vendor : vendor of a processor, as in `BETWEEN_CPUS`
    """

    kind: Kind
    key: tuple[int, ...] = ()
    name: str = ""
    bandwidth: float | None = None
    network_bandwidth: float | None = None
    vendor: str = ""
    children: list["Device"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NvLinks:
    """The NVLinks of a node.

    Parameters
    ----------
    to_switch : number of links of each GPU to the NVSwitches, by GPU
    between : number of links between two GPUs, the smaller first
    link_bandwidth : bandwidth of a link each way [B/s]
    """

    to_switch: Mapping[int, int] = field(default_factory=dict)
    between: Mapping[tuple[int, int], int] = field(default_factory=dict)
    link_bandwidth: float = NVLINK_BYTES_PER_SECOND

    def through_switch(self, gpus: int) -> "NvLinks":
        """The links with those between GPUs turned into links to NVSwitches, if a GPU has not so many links.

        A tool names the links to NVSwitches as links to every other GPU.

        >>> NvLinks(between={(0, 1): 12, (0, 2): 12, (1, 2): 12}).through_switch(3).to_switch
        {0: 12, 1: 12, 2: 12}
        """
        counts = {*self.between.values()}
        everywhere = len(self.between) == gpus * (gpus - 1) // 2 and len(counts) == 1
        if self.to_switch or not everywhere or max(counts) * (gpus - 1) <= MOST_NVLINKS:
            return self
        return NvLinks(dict.fromkeys(range(gpus), max(counts)), {}, self.link_bandwidth)


def numbered(roots: Sequence[Device], kind: Kind) -> list[Device]:
    """The devices of one kind, in the order of their keys."""
    return sorted((device for device in _walk(roots) if device.kind == kind), key=lambda device: device.key)


def _walk(devices: Sequence[Device]) -> Iterator[Device]:
    for device in devices:
        yield device
        yield from _walk(device.children)


def node_of_tree(path: str, name: str, roots: Sequence[Device], nvlinks: NvLinks) -> NodeKind:
    """The kind of node whose processors are the roots of a tree.

    Parameters
    ----------
    path : path of the file, for messages
    nvlinks : links between the GPUs, by their numbers

    Raises
    ------
    InputError : no GPUs, too many parts
    """
    kinds: tuple[Kind, ...] = ("gpu", "nic", "cpu", "bridge")
    members = {kind: numbered(roots, kind) for kind in kinds}
    gpus, nics = members["gpu"], members["nic"]
    if not 1 <= len(gpus) <= MAX_GPUS or sum(map(len, members.values())) > MOST_PARTS:
        raise InputError(f"{path}: has {len(gpus)} GPUs; a node of 1 to {MAX_GPUS} GPUs is accepted")
    words = {"gpu": "gpu", "nic": "nic", "cpu": "cpu", "bridge": "pcie"}
    names = {id(device): f"{words[kind]}:{i}" for kind, devices in members.items() for i, device in enumerate(devices)}
    links = nvlinks.through_switch(len(gpus))
    cables = [*_nvlink_cables(links), *_pcie_cables(roots, names), *_cables_between(members["cpu"], names)]
    between = {"nvswitch": int(bool(links.to_switch)), "cpu": len(members["cpu"]), "pcie": len(members["bridge"])}
    rates = [nic.network_bandwidth or nic.bandwidth or PCIE4[0] for nic in nics]
    return NodeKind(
        name,
        len(gpus),
        len(nics),
        tuple(cables),
        min(rates, default=PCIE4[0]),
        NIC_LATENCY,
        sum(cable.bandwidth for cable in cables if cable.joins_gpus and "gpu:0" in (cable.first, cable.second)),
        tuple((part, count) for part, count in between.items() if count),
    )


def _nvlink_cables(links: NvLinks) -> Iterator[Cable]:
    for gpu, count in sorted(links.to_switch.items()):
        yield Cable(f"gpu:{gpu}", "nvswitch:0", count * links.link_bandwidth, LATENCY / 2)
    for (first, second), count in sorted(links.between.items()):
        yield Cable(f"gpu:{first}", f"gpu:{second}", count * links.link_bandwidth, LATENCY)


def _pcie_cables(devices: Sequence[Device], names: Mapping[int, str]) -> Iterator[Cable]:
    """A cable from each device to the devices below it; a NIC or GPU stands first, as in the named nodes."""
    for device in devices:
        for child in device.children:
            ends = names[id(child)], names[id(device)]
            yield Cable(*ends, child.bandwidth or PCIE4[0], 0.0)
        yield from _pcie_cables(device.children, names)


def _cables_between(cpus: Sequence[Device], names: Mapping[int, str]) -> Iterator[Cable]:
    for first, second in combinations(cpus, 2):
        yield Cable(names[id(first)], names[id(second)], BETWEEN_CPUS[first.vendor], 0.0)
