"""What NCCL knows of a group: its nodes, and the channels that a search through their links has found.

Source: NVIDIA, NCCL 2.28, src/graph/search.cc (ncclTopoCompute) and
src/graph/connect.cc (channels are doubled after the search).
"""

from dataclasses import dataclass
from math import inf

from algorithms.errors import InputError
from algorithms.nccl.tables import (
    CHANNEL_SPEEDS,
    GB,
    GENERATIONS,
    MOST_CHANNELS,
    NVLINK,
    RING_LL128_MOST,
    Cpu,
    Generation,
    Hardware,
    Triple,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """What NCCL knows of a group when it chooses.

    Parameters
    ----------
    ranks, nodes : of the group; nodes have as many ranks each, or nearly
    channels : rings, or trees, that the search through a node has found; NCCL doubles them
    intra_bandwidth, inter_bandwidth : of one channel, inside a node and between nodes [B/s]
    network_latency : of the network card, beside what the tables have [s]
    nvls_channels : channels that use the switch's sums; 0 where there is no NVLink switch that sums
    nvls_bandwidth : of one of them, inside a node [B/s]
    ll128 : whether stores of 128 B arrive whole, which takes NVLink and cards close to the GPUs
    """

    ranks: int
    nodes: int
    channels: int
    intra_bandwidth: float
    inter_bandwidth: float
    generation: Generation
    intra_kind: Hardware = "nvlink"
    cpu: Cpu = "intel"
    network_latency: float = 0.0
    nvls_channels: int = 0
    nvls_bandwidth: float = 0.0
    ll128: bool = True

    def __post_init__(self) -> None:
        if self.generation not in GENERATIONS:
            raise InputError(f"NCCL: generation {self.generation!r}: accepted are {', '.join(GENERATIONS)}")
        if not 1 <= self.nodes <= self.ranks:
            raise InputError(f"NCCL: {self.ranks} ranks on {self.nodes} nodes: each node has a rank at least")
        if self.channels < 1:
            raise InputError(f"NCCL: {self.channels} channels: one at least is needed")
        for name in ("intra_bandwidth", "inter_bandwidth"):
            if not 0 < getattr(self, name) < inf:
                raise InputError(f"NCCL: {name} {getattr(self, name)}: a bandwidth above 0 B/s is needed")

    @property
    def ranks_per_node(self) -> float:
        return self.ranks / self.nodes

    @property
    def channels_in_all(self) -> int:
        return min(MOST_CHANNELS, 2 * self.channels)

    def by_nodes(self, row: Triple) -> float:
        """A row of a table for one node, two and more [B/s]."""
        return row[min(self.nodes, 3) - 1] * GB


def channels_inside(generation: Generation, bandwidth: float) -> tuple[int, float]:
    """Channels in a node whose GPUs have `bandwidth` in all, and the speed of each [B/s].

    NCCL tries its speeds from the fastest on and then wider; of those that one
    block of threads can carry by LL128, the fastest that fills the links best
    is what it ends with on the machines of its tables.

    >>> channels_inside("ampere", 12 * 20e9), channels_inside("hopper", 18 * 20.6e9)
    ((12, 20000000000.0), (12, 30000000000.0))
    """
    carried = [speed * GB for speed in CHANNEL_SPEEDS[generation] if speed <= RING_LL128_MOST[generation][0]]
    found = [(min(MOST_CHANNELS // 2, int(bandwidth / speed)), speed) for speed in carried]
    channels, speed = max(found, key=lambda one: (one[0] * one[1], one[1]))
    return (channels, speed) if channels else (1, bandwidth)


def communicator(
    ranks: int,
    nodes: int,
    generation: Generation,
    *,
    nvlinks: int,
    cards: int = 1,
    card_bandwidth: float = 0.0,
    cpu: Cpu = "intel",
    nvls: bool = False,
) -> Communicator:
    """A group on nodes of one kind.

    On several nodes a channel enters by one card and leaves by it, so there are
    as many channels as cards, two at least; each has its share of the links.

    Parameters
    ----------
    nvlinks : of each GPU
    cards : network cards of a node
    card_bandwidth : of one card [B/s]
    nvls : the switch sums
    """
    bandwidth = nvlinks * NVLINK[generation] * GB
    channels, intra = channels_inside(generation, bandwidth)
    inter = intra
    if nodes > 1:
        channels = max(2, cards)
        intra = bandwidth / channels
        inter = min(cards * card_bandwidth / channels, intra)
    return Communicator(
        ranks=ranks,
        nodes=nodes,
        channels=channels,
        intra_bandwidth=intra,
        inter_bandwidth=inter,
        generation=generation,
        cpu=cpu,
        nvls_channels=channels if nvls else 0,
        nvls_bandwidth=intra if nvls else 0.0,
    )
