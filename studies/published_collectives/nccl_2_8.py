"""The cost model of NCCL 2.8: its choice of algorithm and protocol, and their times, for rows measured with it.

NCCL chooses the ring or the tree and one of its protocols LL, LL128 and Simple by a table of latencies and bandwidths.
Version 2.8 has other constants than the current version (`algorithms/collectives/nccl`), and two other rules:

    broadcast, reduce  If the channels of a ring do not all visit the node's GPUs in the same order, the latency counts
                       for every step of the ring, so that LL is chosen up to larger messages.
    LL                 A thread works only if it has 8 bytes for each rank.  This bounds the rate of a channel to
                       threads x 8 B per step latency.

Source: NVIDIA, NCCL 2.8.3, src/graph/tuning.cc (ncclTopoTuneModel,
ncclTopoGetAlgoTime), src/enqueue.cc (getAlgoInfo, computeColl) and
src/graph/search.cc at commit 920dbe5b359f; 2.8.4, which the rows name, is the
nearest to it.
"""

from math import inf

from quadrille.algorithms.collectives.nccl.communicator import NcclGroup
from quadrille.algorithms.collectives.nccl.costs import halvings, largest_ll_bandwidth, ring_steps
from quadrille.algorithms.collectives.nccl.tuner import NcclPlan
from quadrille.algorithms.collectives.nccl.tuning_constants import (
    BUFFER_BYTES,
    BYTES_PER_THREAD,
    DATA_IN_BUFFER,
    PROTOCOLS,
    RING_EFFICIENCY,
    STEPS,
    TREE_EFFICIENCY,
    TREE_LL,
    Algorithm,
    Generation,
    Protocol,
    Triple,
)
from quadrille.algorithms.schedule.ops import CollectiveKind

US, GB = 1e-6, 1e9
BASE_LATENCY = {"tree": (4.4, 4.4, 0.0), "ring": (3.6, 10.0, 8.4)}
INTRA_NODE_LATENCY = {"tree": (0.52, 1.25, 28.0), "ring": (0.47, 1.9, 3.4)}
INTER_NODE_LATENCY = {"tree": (5.0, 8.5, 28.0), "ring": (2.7, 4.0, 9.6)}
"""Latencies of LL, LL128 and Simple [us]: before the first step, of a step over NVLink, of a step over the network."""
LL_STEP_FACTOR_ACROSS_NODES = 1.8
"""Factor on the latency of LL's steps inside a node if the group has several nodes."""
LL128_CHANNEL_LIMIT: dict[CollectiveKind, float] = {
    "broadcast": 18.8,
    "reduce": 12.0,
    "all_gather": 18.3,
    "reduce_scatter": 15.2,
    "all_reduce": 16.9,
}
"""Largest bandwidth of a channel with LL128 [GB/s]."""
AMPERE_BUS_LIMIT = 235.0
TREE_CHANNEL_LIMIT: dict[Generation, Triple] = {"volta": (26.5, 18.5, 10.0), "ampere": (24.0, 22.5, 16.0)}
"""Largest bandwidth of a tree's channel [GB/s], on one, two and more nodes."""
TREE_LL128 = {"one node": 7 / 9, "several": 0.915}
PLATEAU_FACTOR = 1.9
PLATEAU_BYTES_PER_RANK = 65536 / 16
TREE_CORRECTION: dict[Protocol, tuple[float, ...]] = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *[0.6] * 3, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 0.92, 0.92),
    "Simple": (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
"""Share of a tree's bandwidth at messages of 64 B, 128 B, …; the full bandwidth from 512 MiB."""
THREADS: dict[Protocol, int] = {"LL": 512, "LL128": 640, "Simple": 512}
LEAST_THREADS = 128
"""The number of threads is halved while it is a multiple of this number."""


def plan_2_8(
    kind: CollectiveKind,
    size_bytes: float,
    group: NcclGroup,
    *,
    forced_algorithm: str = "",
    same_channels: bool = True,
    same_channels_across_nodes: bool = False,
) -> NcclPlan:
    """The plan of NCCL 2.8 for a collective: its algorithm and protocol, and the parameters of their simulation.

    Parameters
    ----------
    kind : kind of collective
    size_bytes : size of the message [bytes]
    group : ranks, nodes and channels of the communicator
    forced_algorithm : `ring` or `tree` if the algorithm was forced; empty if NCCL chose it
    same_channels : whether all channels visit the GPUs in the same order if the group is one node, as behind NVSwitches
    same_channels_across_nodes : the same if the group has several nodes, which need one NIC each for it
    """
    same_channels = same_channels if group.nodes == 1 else same_channels_across_nodes
    candidates = [
        (_seconds(kind, size_bytes, group, algorithm, protocol, same_channels), algorithm, protocol)
        for algorithm in _algorithms(kind, forced_algorithm)
        for protocol in PROTOCOLS
    ]
    seconds, algorithm, protocol = min(candidates)
    channels, threads = _channels_and_threads(size_bytes, group, algorithm, protocol)
    p = PROTOCOLS.index(protocol)
    whole = _latency(kind, group, algorithm, protocol, same_channels) * _plateau(
        kind, size_bytes, group, algorithm, protocol
    )
    base = BASE_LATENCY[algorithm][p] * US
    inside = _inside(group, algorithm, protocol)
    steps = (
        ring_steps(kind, group.ranks)
        if algorithm == "ring"
        else max(1, 2 * (group.ranks // group.nodes - 1 + halvings(group.nodes)))
    )
    slot = BUFFER_BYTES[protocol] / STEPS * DATA_IN_BUFFER[protocol]
    return NcclPlan(
        algorithm,
        protocol,
        channels,
        1 / (_efficiency(group, algorithm, protocol) * _correction(size_bytes, algorithm, protocol)),
        _channel_rate(kind, group, algorithm, protocol, threads),
        base,
        inside,
        INTER_NODE_LATENCY[algorithm][p] * US + group.network_latency,
        max(0.0, whole - base) / steps,
        steps,
        min(slot, size_bytes / channels),
        seconds,
    )


def _algorithms(kind: CollectiveKind, forced_algorithm: str) -> tuple[Algorithm, ...]:
    """The algorithms that NCCL chooses from."""
    if forced_algorithm == "ring" or kind != "all_reduce":
        return ("ring",)
    return ("tree",) if forced_algorithm == "tree" else ("tree", "ring")


def _seconds(
    kind: CollectiveKind, size: float, group: NcclGroup, algorithm: Algorithm, protocol: Protocol, same_channels: bool
) -> float:
    """The time by which NCCL chooses: latency + size / bandwidth [s]; infinite if the protocol cannot be used."""
    speed = _bandwidth(kind, group, algorithm, protocol)
    if speed <= 0 or (protocol == "LL128" and not group.ll128):
        return inf
    speed *= _correction(size, algorithm, protocol)
    return (
        _latency(kind, group, algorithm, protocol, same_channels) * _plateau(kind, size, group, algorithm, protocol)
        + size / speed
    )


def _correction(size: float, algorithm: Algorithm, protocol: Protocol) -> float:
    """The share of a tree's bandwidth that a short pipeline reaches; 1 for a ring."""
    step = halvings(int(size) >> 6)
    return TREE_CORRECTION[protocol][step] if algorithm == "tree" and step < len(TREE_CORRECTION[protocol]) else 1.0


def _bandwidth(kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> float:
    """The algorithm bandwidth, size of the buffer / time [bytes/s]."""
    bus = group.ring_bandwidth if algorithm == "ring" else group.tree_bandwidth
    if group.generation == "ampere":
        bus = min(bus, AMPERE_BUS_LIMIT * GB)
    if algorithm == "ring":
        return _ring_bus(kind, group, protocol, bus) * group.ranks / ring_steps(kind, group.ranks)
    return _tree_bus(kind, group, protocol, bus) / 2


def _ring_bus(kind: CollectiveKind, group: NcclGroup, protocol: Protocol, bus: float) -> float:
    """The bus bandwidth of a ring with a protocol [bytes/s], from that of the links."""
    match protocol:
        case "LL":
            share = 1 / 4 if group.nodes > 1 or kind in ("all_reduce", "reduce") else 1 / 3
            return min(bus * share, largest_ll_bandwidth(group))
        case "LL128":
            return min(
                bus * (0.7 if group.ranks_per_node < 2 else 0.92), LL128_CHANNEL_LIMIT[kind] * GB * group.channels
            )
        case "Simple":
            return bus


def _tree_bus(kind: CollectiveKind, group: NcclGroup, protocol: Protocol, bus: float) -> float:
    """The bus bandwidth of a tree with a protocol [bytes/s], from that of the links."""
    row = TREE_CHANNEL_LIMIT["volta" if group.generation == "volta" else "ampere"]
    bus = min(bus * TREE_EFFICIENCY, group.by_nodes(row) * group.channels)
    match protocol:
        case "LL":
            return min(bus * TREE_LL, largest_ll_bandwidth(group))
        case "LL128":
            share = TREE_LL128["one node" if group.nodes == 1 else "several"]
            return min(bus * share, LL128_CHANNEL_LIMIT[kind] * GB * group.channels)
        case "Simple":
            return bus


def _channel_rate(
    kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm, protocol: Protocol, threads: int
) -> float:
    """The largest rate of one channel [bytes/s]: a constant of the protocol, and for LL the rate of its threads."""
    each = group.channels / group.channels_in_all
    most = group.by_nodes(TREE_CHANNEL_LIMIT["volta" if group.generation == "volta" else "ampere"]) * each
    most = most if algorithm == "tree" else inf
    match protocol:
        case "LL":
            ring_rate = _bandwidth(kind, group, "ring", "LL") * ring_steps(kind, group.ranks) / group.ranks
            thread_rate = threads * BYTES_PER_THREAD["LL"] / _inside(group, algorithm, protocol)
            return min(most, thread_rate, ring_rate / group.channels_in_all)
        case "LL128":
            return min(most, LL128_CHANNEL_LIMIT[kind] * GB * each)
        case "Simple":
            return most


def _inside(group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> float:
    """The latency of a step inside a node [s]."""
    slower = LL_STEP_FACTOR_ACROSS_NODES if group.nodes > 1 and protocol == "LL" else 1.0
    return INTRA_NODE_LATENCY[algorithm][PROTOCOLS.index(protocol)] * slower * US


def _latency(
    kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm, protocol: Protocol, same_channels: bool
) -> float:
    """The latency of the whole collective [s]."""
    p = PROTOCOLS.index(protocol)
    base, inside = BASE_LATENCY[algorithm][p] * US, _inside(group, algorithm, protocol)
    between = INTER_NODE_LATENCY[algorithm][p] * US + group.network_latency
    if algorithm == "tree":
        return base + 2 * ((group.ranks // group.nodes - 1) * inside + halvings(group.nodes) * between)
    steps = ring_steps(kind, group.ranks)
    if kind in ("broadcast", "reduce"):
        rows = INTRA_NODE_LATENCY if group.nodes == 1 else INTER_NODE_LATENCY
        if same_channels:
            return base + rows["ring"][p] * US
        return base + steps * rows["tree" if protocol == "Simple" else "ring"][p] * US
    crossing = 0 if group.nodes == 1 else steps * (group.nodes - 1) // (group.ranks - 1)
    return base + (steps - crossing) * inside + crossing * between


def _plateau(kind: CollectiveKind, size: float, group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> float:
    """NCCL's factor on the latency of large ring all-reduces with Simple across nodes; 1 otherwise."""
    affected = kind == "all_reduce" and algorithm == "ring" and protocol == "Simple" and group.nodes > 1
    return PLATEAU_FACTOR if affected and size >= group.ranks * PLATEAU_BYTES_PER_RANK else 1.0


def _channels_and_threads(size: float, group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> tuple[int, int]:
    """The number of channels, and of threads of each channel, that have enough data."""
    channels, threads = group.channels_in_all, THREADS[protocol]
    each = BYTES_PER_THREAD[protocol] * (group.ranks if (algorithm, protocol) == ("ring", "LL") else 1)
    while size < channels * threads * each:
        if channels >= 2:
            channels -= 1
        elif threads % LEAST_THREADS == 0:
            threads //= 2
        else:
            break
    return channels, threads


def _efficiency(group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> float:
    """The share of the bus bandwidth that an algorithm reaches with a protocol."""
    if algorithm == "ring":
        return RING_EFFICIENCY[protocol]
    share = {"LL": TREE_LL, "LL128": TREE_LL128["one node" if group.nodes == 1 else "several"], "Simple": 1.0}
    return TREE_EFFICIENCY * share[protocol]
