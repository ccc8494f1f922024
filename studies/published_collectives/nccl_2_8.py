"""What NCCL 2.8 takes, for rows that were measured with it: its tables and rules differ from today's.

Beside other constants, a ring's broadcast counts the latency of every step where
channels pass the node differently, so LL is kept for longer; and of LL's threads
only as many work as have 8 bytes a rank each, which bounds what a channel carries:

    threads x 8 B every time that a flag goes to the neighbour's memory and is seen

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
BASE = {"tree": (4.4, 4.4, 0.0), "ring": (3.6, 10.0, 8.4)}
INSIDE = {"tree": (0.52, 1.25, 28.0), "ring": (0.47, 1.9, 3.4)}
BETWEEN = {"tree": (5.0, 8.5, 28.0), "ring": (2.7, 4.0, 9.6)}
"""By LL, LL128, Simple: before the first step, of a step over NVLink, of one over the network [us]."""
LL_ACROSS = 1.8
"""How much longer LL's steps inside take where there are several nodes."""
LL128_MOST: dict[CollectiveKind, float] = {
    "broadcast": 18.8,
    "reduce": 12.0,
    "all_gather": 18.3,
    "reduce_scatter": 15.2,
    "all_reduce": 16.9,
}
"""Most of a channel by LL128 [GB/s]."""
AMPERE_MOST = 235.0
TREE_MOST: dict[Generation, Triple] = {"volta": (26.5, 18.5, 10.0), "ampere": (24.0, 22.5, 16.0)}
"""Most of a channel of a tree, by nodes [GB/s]."""
TREE_LL128 = {"one node": 7 / 9, "several": 0.915}
PLATEAU = 1.9
PLATEAU_BYTES_PER_RANK = 65536 / 16
CORRECTION: dict[Protocol, tuple[float, ...]] = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *[0.6] * 3, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 0.92, 0.92),
    "Simple": (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
}
"""Of a tree's bandwidth, what is left at 64 B, 128 B, …, and all of it from 512 MiB."""
THREADS: dict[Protocol, int] = {"LL": 512, "LL128": 640, "Simple": 512}
LEAST_THREADS = 128
"""Threads are halved as long as this divides them."""


def plan_2_8(
    kind: CollectiveKind,
    size_bytes: float,
    group: NcclGroup,
    *,
    held: str = "",
    alike: bool = True,
    alike_across: bool = False,
) -> NcclPlan:
    """What NCCL 2.8 would take, ready to be simulated.

    Parameters
    ----------
    held : `ring` or `tree`, where a row says so
    alike, alike_across : all channels pass a node alike: where it is the only one, as behind an NVSwitch, and where
        there are several, for which it must have one card; else a broadcast's every step counts
    """
    alike = alike if group.nodes == 1 else alike_across
    candidates = [
        (_seconds(kind, size_bytes, group, algorithm, protocol, alike), algorithm, protocol)
        for algorithm in _algorithms(kind, held)
        for protocol in PROTOCOLS
    ]
    seconds, algorithm, protocol = min(candidates)
    channels, threads = _crew(size_bytes, group, algorithm, protocol)
    p = PROTOCOLS.index(protocol)
    whole = _latency(kind, group, algorithm, protocol, alike) * _plateau(kind, size_bytes, group, algorithm, protocol)
    base = BASE[algorithm][p] * US
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
        BETWEEN[algorithm][p] * US + group.network_latency,
        max(0.0, whole - base) / steps,
        steps,
        min(slot, size_bytes / channels),
        seconds,
    )


def _algorithms(kind: CollectiveKind, held: str) -> tuple[Algorithm, ...]:
    if held == "ring" or kind != "all_reduce":
        return ("ring",)
    return ("tree",) if held == "tree" else ("tree", "ring")


def _seconds(
    kind: CollectiveKind, size: float, group: NcclGroup, algorithm: Algorithm, protocol: Protocol, alike: bool
) -> float:
    speed = _bandwidth(kind, group, algorithm, protocol)
    if speed <= 0 or (protocol == "LL128" and not group.ll128):
        return inf
    speed *= _correction(size, algorithm, protocol)
    return (
        _latency(kind, group, algorithm, protocol, alike) * _plateau(kind, size, group, algorithm, protocol)
        + size / speed
    )


def _correction(size: float, algorithm: Algorithm, protocol: Protocol) -> float:
    """The share of a tree's bandwidth that short pipelines leave."""
    step = halvings(int(size) >> 6)
    return CORRECTION[protocol][step] if algorithm == "tree" and step < len(CORRECTION[protocol]) else 1.0


def _bandwidth(kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> float:
    """Bytes of the buffer per second, as NCCL counts them."""
    bus = group.ring_bandwidth if algorithm == "ring" else group.tree_bandwidth
    if group.generation == "ampere":
        bus = min(bus, AMPERE_MOST * GB)
    if algorithm == "ring":
        return _ring_bus(kind, group, protocol, bus) * group.ranks / ring_steps(kind, group.ranks)
    return _tree_bus(kind, group, protocol, bus) / 2


def _ring_bus(kind: CollectiveKind, group: NcclGroup, protocol: Protocol, bus: float) -> float:
    match protocol:
        case "LL":
            share = 1 / 4 if group.nodes > 1 or kind in ("all_reduce", "reduce") else 1 / 3
            return min(bus * share, largest_ll_bandwidth(group))
        case "LL128":
            return min(bus * (0.7 if group.ranks_per_node < 2 else 0.92), LL128_MOST[kind] * GB * group.channels)
        case "Simple":
            return bus


def _tree_bus(kind: CollectiveKind, group: NcclGroup, protocol: Protocol, bus: float) -> float:
    row = TREE_MOST["volta" if group.generation == "volta" else "ampere"]
    bus = min(bus * TREE_EFFICIENCY, group.by_nodes(row) * group.channels)
    match protocol:
        case "LL":
            return min(bus * TREE_LL, largest_ll_bandwidth(group))
        case "LL128":
            share = TREE_LL128["one node" if group.nodes == 1 else "several"]
            return min(bus * share, LL128_MOST[kind] * GB * group.channels)
        case "Simple":
            return bus


def _channel_rate(
    kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm, protocol: Protocol, threads: int
) -> float:
    """Most of one channel [B/s]: what its kind carries, and for LL what its threads do, 8 bytes at a time."""
    each = group.channels / group.channels_in_all
    most = group.by_nodes(TREE_MOST["volta" if group.generation == "volta" else "ampere"]) * each
    most = most if algorithm == "tree" else inf
    match protocol:
        case "LL":
            of_all = _bandwidth(kind, group, "ring", "LL") * ring_steps(kind, group.ranks) / group.ranks
            in_turn = threads * BYTES_PER_THREAD["LL"] / _inside(group, algorithm, protocol)
            return min(most, in_turn, of_all / group.channels_in_all)
        case "LL128":
            return min(most, LL128_MOST[kind] * GB * each)
        case "Simple":
            return most


def _inside(group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> float:
    slower = LL_ACROSS if group.nodes > 1 and protocol == "LL" else 1.0
    return INSIDE[algorithm][PROTOCOLS.index(protocol)] * slower * US


def _latency(kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm, protocol: Protocol, alike: bool) -> float:
    p = PROTOCOLS.index(protocol)
    base, inside = BASE[algorithm][p] * US, _inside(group, algorithm, protocol)
    between = BETWEEN[algorithm][p] * US + group.network_latency
    if algorithm == "tree":
        return base + 2 * ((group.ranks // group.nodes - 1) * inside + halvings(group.nodes) * between)
    steps = ring_steps(kind, group.ranks)
    if kind in ("broadcast", "reduce"):
        rows = INSIDE if group.nodes == 1 else BETWEEN
        if alike:
            return base + rows["ring"][p] * US
        return base + steps * rows["tree" if protocol == "Simple" else "ring"][p] * US
    crossing = 0 if group.nodes == 1 else steps * (group.nodes - 1) // (group.ranks - 1)
    return base + (steps - crossing) * inside + crossing * between


def _plateau(kind: CollectiveKind, size: float, group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> float:
    affected = kind == "all_reduce" and algorithm == "ring" and protocol == "Simple" and group.nodes > 1
    return PLATEAU if affected and size >= group.ranks * PLATEAU_BYTES_PER_RANK else 1.0


def _crew(size: float, group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> tuple[int, int]:
    """Channels, and threads of each, that have enough to do."""
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
    if algorithm == "ring":
        return RING_EFFICIENCY[protocol]
    share = {"LL": TREE_LL, "LL128": TREE_LL128["one node" if group.nodes == 1 else "several"], "Simple": 1.0}
    return TREE_EFFICIENCY * share[protocol]
