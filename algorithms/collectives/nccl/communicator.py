"""What NCCL knows of a group: its nodes, and the channels that a search through their links has found.

A channel enters a node by one card and leaves it by the same, over every GPU;
all channels have one speed, which is tried from a list, from the fastest on:

    4 cards of 25 GB/s    24 GB/s: 4 channels      inside 4 x 24, between 4 x 24
    for trees             inside as fast as the links have it, up to twice that

Source: NVIDIA, NCCL 2.28, src/graph/search.cc (ncclTopoCompute,
ncclTopoDupChannels) and src/graph/connect.cc (channels are doubled after the
search).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from quadrille.algorithms.collectives.nccl.tables import (
    CHANNEL_SPEEDS,
    CHANNEL_SPEEDS_ACROSS,
    DOUBLED_FROM,
    DOUBLED_WHERE_FEW,
    GB,
    GENERATIONS,
    MOST_CHANNELS,
    NVLINK,
    SLOWEST_TRIED,
    TREES_FASTER_INSIDE,
    Cpu,
    Generation,
    Hardware,
    Triple,
)
from quadrille.algorithms.errors import InputError

ALONE = 5e12
"""What NCCL counts for a GPU's way to itself, where it has no neighbour in its node (LOC_BW) [B/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """What NCCL knows of a group when it chooses.

    Parameters
    ----------
    ranks, nodes : of the group; nodes have as many ranks each, or nearly
    channels : rings, or trees, that the search through a node has found; NCCL doubles them
    intra_bandwidth : of one channel inside a node; where there are several nodes, of a tree's [B/s]
    inter_bandwidth : of one channel between nodes, and of a ring's inside each of several [B/s]
    network_latency : of the network card, beside what the tables have [s]
    nvls_channels : channels that use the switch's sums, one for each GPU of a node that is the only one; 0 where there
        is no NVLink switch that sums
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

    @property
    def ring_bandwidth(self) -> float:
        """Of all rings together: they have one speed all the way around [B/s]."""
        return self.channels * (self.intra_bandwidth if self.nodes == 1 else self.inter_bandwidth)

    @property
    def tree_bandwidth(self) -> float:
        """Of all trees together: a node of two has one neighbour, so what it does inside counts [B/s]."""
        return self.channels * (self.intra_bandwidth if self.nodes <= 2 else self.inter_bandwidth)

    def by_nodes(self, row: Triple) -> float:
        """A row of a table for one node, two and more [B/s]."""
        return row[min(self.nodes, 3) - 1] * GB


def channels_inside(generation: Generation, bandwidth: float) -> tuple[int, float]:
    """Channels in a node whose GPUs have `bandwidth` in all, and the speed of each [B/s].

    >>> channels_inside("ampere", 12 * 20e9), channels_inside("hopper", 18 * 20.6e9)
    ((12, 20000000000.0), (12, 30000000000.0))
    """
    speeds = [speed * GB for speed in CHANNEL_SPEEDS[generation]]
    found = _most([(int(bandwidth / speed), speed) for speed in speeds])
    return _split(generation, *found) if found else (1, bandwidth)


def channels_between(generation: Generation, cards: int, rate: float, inside: float) -> tuple[int, float]:
    """Channels through nodes with so many cards of this rate, and the speed of each [B/s].

    >>> channels_between("ampere", 4, 25e9, 240e9), channels_between("hopper", 1, 50e9, 370e9)
    ((4, 24000000000.0), (2, 24000000000.0))

    Parameters
    ----------
    inside : of each GPU's links [B/s]
    """
    speeds = [speed * GB for speed in CHANNEL_SPEEDS_ACROSS[generation]]
    found = _most([(int(min(cards * int(rate / speed), inside / speed)), speed) for speed in speeds])
    return _split(generation, *found) if found else (1, min(rate, inside))


def _most(found: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
    """Of channels and speeds from the fastest on, those that carry the most: slower ones only if they carry more."""
    best: tuple[int, float] | None = None
    for channels, speed in found:
        if best is not None and speed <= SLOWEST_TRIED * best[1]:
            break
        count = min(channels, MOST_CHANNELS // 2)
        if count and (best is None or count * speed > best[0] * best[1]):
            best = (count, speed)
    return best


def _split(generation: Generation, channels: int, speed: float) -> tuple[int, float]:
    """Fast channels as two of half the speed each: one block of threads does not fill them."""
    many = generation in ("hopper", "blackwell") and channels > DOUBLED_WHERE_FEW
    if speed < DOUBLED_FROM * GB * (2 if many else 1) or 2 * channels > MOST_CHANNELS // 2:
        return channels, speed
    return 2 * channels, speed / 2


def _tree_inside(generation: Generation, channels: int, between: float, inside: float) -> float:
    """The speed inside of as many tree channels, raised step by step while the links have it [B/s]."""
    speed = between
    for wanted in reversed(CHANNEL_SPEEDS_ACROSS[generation]):
        if wanted * GB > speed:
            if speed >= TREES_FASTER_INSIDE * between or channels * wanted * GB > inside:
                break
            speed = wanted * GB
    return speed


def _head(generation: Generation, heads: int, inside: float) -> float:
    """The speed of each channel that uses the switch's sums, where every GPU heads one; 0 for too many [B/s].

    >>> _head("hopper", 8, 370.8e9), _head("hopper", 2, 370.8e9)
    (40000000000.0, 60000000000.0)
    """
    return next((speed * GB for speed in CHANNEL_SPEEDS[generation] if heads * speed * GB <= inside), 0.0)


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

    Parameters
    ----------
    nvlinks : from each GPU to the others of its node; 0 where it is alone there
    cards : network cards of a node
    card_bandwidth : of one card [B/s]
    nvls : the switch sums
    """
    bandwidth = nvlinks * NVLINK[generation] * GB if nvlinks else ALONE
    if nodes > 1:
        channels, inter = channels_between(generation, cards, card_bandwidth, bandwidth)
        intra, head = _tree_inside(generation, channels, inter, bandwidth), bandwidth / channels
    else:
        channels, intra = channels_inside(generation, bandwidth)
        inter, head = intra, _head(generation, ranks, bandwidth)
    return Communicator(
        ranks=ranks,
        nodes=nodes,
        channels=channels,
        intra_bandwidth=intra,
        inter_bandwidth=inter,
        generation=generation,
        cpu=cpu,
        nvls_channels=0 if not nvls or head == 0 else channels if nodes > 1 else ranks,
        nvls_bandwidth=head if nvls else 0.0,
    )
