"""NCCL communicator: the nodes of a group, and the number and speed of the channels that NCCL finds through them.

A channel enters and leaves a node through one network card and visits every GPU.  All channels have one speed, taken
from a list that is tried from the fastest:

    4 cards of 25 GB/s    24 GB/s: 4 channels      inside 4 x 24, between 4 x 24
    for trees             inside as fast as the links allow, up to twice that

Source: NVIDIA, NCCL 2.28, src/graph/search.cc (ncclTopoCompute, ncclTopoDupChannels) and src/graph/connect.cc (channels
are doubled after the search).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from quadrille.algorithms.collectives.nccl.tuning_constants import (
    CHANNEL_SPEEDS,
    CHANNEL_SPEEDS_ACROSS,
    DOUBLED_FROM,
    DOUBLED_WHERE_FEW,
    GB,
    GENERATIONS,
    MOST_CHANNELS,
    NVLINK,
    NVLS_ARITY,
    SLOWEST_TRIED,
    TREES_FASTER_INSIDE,
    Cpu,
    Generation,
    Hardware,
    Triple,
)
from quadrille.algorithms.errors import InputError

SINGLE_GPU_BANDWIDTH = 5e12
"""Bandwidth that NCCL assumes for a GPU without a neighbour in its node (LOC_BW) [B/s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclGroup:
    """The properties of a group of ranks from which NCCL chooses an algorithm.

    Parameters
    ----------
    ranks, nodes : numbers of ranks and nodes; all nodes have nearly the same number of ranks
    channels : rings or trees found by the search through a node; NCCL doubles them
    intra_bandwidth : bandwidth of one channel inside a node; of a tree channel if there are several nodes [B/s]
    inter_bandwidth : bandwidth of one channel between nodes, and of a ring channel inside each of several nodes [B/s]
    generation : GPU generation
    intra_kind : hardware between the GPUs of a node
    cpu : CPU vendor of the hosts
    network_latency : latency of the network card, beyond the tables [s]
    nvls_channels : channels that use in-switch sums, one for each GPU of a single node, but at most 32; 0 without an
        NVLink switch that sums, and with fewer than two GPUs a node (NCCL, src/transport/nvls.cc, ncclNvlsInit)
    nvls_bandwidth : bandwidth of one of them inside a node [B/s]
    ll128 : whether 128-byte stores arrive whole, which takes NVLink and nearby cards
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
        """Mean number of ranks on a node."""
        return self.ranks / self.nodes

    @property
    def channels_in_all(self) -> int:
        """Number of channels that run, after NCCL doubles those of its search."""
        return min(MOST_CHANNELS, 2 * self.channels)

    @property
    def ring_bandwidth(self) -> float:
        """Bandwidth of all rings together; a ring has one speed all the way around [B/s]."""
        return self.channels * (self.intra_bandwidth if self.nodes == 1 else self.inter_bandwidth)

    @property
    def tree_bandwidth(self) -> float:
        """Bandwidth of all trees together; with two nodes the speed inside counts [B/s]."""
        return self.channels * (self.intra_bandwidth if self.nodes <= 2 else self.inter_bandwidth)

    def by_nodes(self, row: Triple) -> float:
        """Entry of a table row for one node, two nodes or more [B/s]."""
        return row[min(self.nodes, 3) - 1] * GB


def channels_inside(generation: Generation, bandwidth: float) -> tuple[int, float]:
    """Number of channels in a single node, and the speed of each [B/s].

    >>> channels_inside("ampere", 12 * 20e9), channels_inside("hopper", 18 * 20.6e9)
    ((12, 20000000000.0), (12, 30000000000.0))
    """
    speeds = [speed * GB for speed in CHANNEL_SPEEDS[generation]]
    channels = _fastest_channels([(int(bandwidth / speed), speed) for speed in speeds])
    return _split_fast_channels(generation, *channels) if channels else (1, bandwidth)


def channels_between(generation: Generation, cards: int, rate: float, inside: float) -> tuple[int, float]:
    """Number of channels through nodes with `cards` cards of `rate`, and the speed of each [B/s].

    >>> channels_between("ampere", 4, 25e9, 240e9), channels_between("hopper", 1, 50e9, 370e9)
    ((4, 24000000000.0), (2, 24000000000.0))

    Parameters
    ----------
    inside : bandwidth of each GPU's links [B/s]
    """
    speeds = [speed * GB for speed in CHANNEL_SPEEDS_ACROSS[generation]]
    channels = _fastest_channels([(int(min(cards * int(rate / speed), inside / speed)), speed) for speed in speeds])
    return _split_fast_channels(generation, *channels) if channels else (1, min(rate, inside))


def _fastest_channels(candidates: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
    """Returns the channels with the largest total speed, from the fastest; slower channels only if they carry more."""
    best: tuple[int, float] | None = None
    for channels, speed in candidates:
        if best is not None and speed <= SLOWEST_TRIED * best[1]:
            break
        count = min(channels, MOST_CHANNELS // 2)
        if count and (best is None or count * speed > best[0] * best[1]):
            best = (count, speed)
    return best


def _split_fast_channels(generation: Generation, channels: int, speed: float) -> tuple[int, float]:
    """Splits fast channels into two of half the speed each, since one thread block does not saturate them."""
    many = generation in ("hopper", "blackwell") and channels > DOUBLED_WHERE_FEW
    if speed < DOUBLED_FROM * GB * (2 if many else 1) or 2 * channels > MOST_CHANNELS // 2:
        return channels, speed
    return 2 * channels, speed / 2


def _tree_speed_inside(generation: Generation, channels: int, between: float, inside: float) -> float:
    """Speed inside a node of tree channels, raised stepwise while the links allow it [B/s]."""
    speed = between
    for faster in reversed(CHANNEL_SPEEDS_ACROSS[generation]):
        if faster * GB > speed:
            if speed >= TREES_FASTER_INSIDE * between or channels * faster * GB > inside:
                break
            speed = faster * GB
    return speed


def _nvls_channel_speed(generation: Generation, heads: int, inside: float) -> float:
    """Speed of each channel with in-switch sums if every GPU heads one; 0 for too many [B/s].

    >>> _nvls_channel_speed("hopper", 8, 370.8e9), _nvls_channel_speed("hopper", 2, 370.8e9)
    (40000000000.0, 60000000000.0)
    """
    return next((speed * GB for speed in CHANNEL_SPEEDS[generation] if heads * speed * GB <= inside), 0.0)


def _nvls_channels_between(
    generation: Generation, per_node: int, channels: int, cards: int, inside: float
) -> tuple[int, float]:
    """Number of channels with in-switch sums through several nodes, and the speed of each inside a node [B/s].

    In a node of up to 32 GPUs the channels are those of the search, and each has its part of the links.  In a larger
    node each of 32 GPUs with a card of its own heads a channel.  A channel goes up and down the links of every GPU
    once, and twice at its head.

    >>> _nvls_channels_between("blackwell", 8, 8, 8, 721.8e9)
    (8, 90225000000.0)
    >>> _nvls_channels_between("blackwell", 72, 15, 72, 721.8e9)
    (32, 20000000000.0)
    """
    if per_node <= NVLS_ARITY:
        return channels, inside / channels
    heads = min(NVLS_ARITY, cards)
    speeds = (speed * GB for speed in CHANNEL_SPEEDS_ACROSS[generation])
    return heads, next((speed for speed in speeds if (heads + 1) * speed <= inside), 0.0)


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
) -> NcclGroup:
    """Returns the properties of a group on identical nodes.

    Parameters
    ----------
    ranks, nodes : numbers of ranks and of nodes
    generation : GPU generation
    nvlinks : NVLinks from each GPU to the others of its node; 0 for a single GPU
    cards : number of network cards of a node
    card_bandwidth : bandwidth of one card [B/s]
    cpu : CPU vendor of the hosts
    nvls : whether the NVLink switch reduces (NVLink SHARP)
    """
    bandwidth = nvlinks * NVLINK[generation] * GB if nvlinks else SINGLE_GPU_BANDWIDTH
    if nodes > 1:
        channels, inter = channels_between(generation, cards, card_bandwidth, bandwidth)
        intra = _tree_speed_inside(generation, channels, inter, bandwidth)
        heads, head = _nvls_channels_between(generation, ranks // nodes, channels, cards, bandwidth)
    else:
        channels, intra = channels_inside(generation, bandwidth)
        heads = min(ranks, NVLS_ARITY)
        inter, head = intra, _nvls_channel_speed(generation, heads, bandwidth)
    return NcclGroup(
        ranks=ranks,
        nodes=nodes,
        channels=channels,
        intra_bandwidth=intra,
        inter_bandwidth=inter,
        generation=generation,
        cpu=cpu,
        nvls_channels=heads if nvls and head and ranks >= 2 * nodes else 0,
        nvls_bandwidth=head if nvls else 0.0,
    )
