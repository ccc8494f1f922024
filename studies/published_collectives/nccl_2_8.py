"""What NCCL 2.8 takes, for rows that were measured with it: its tables and rules differ from today's.

Beside other constants, a ring's broadcast counts the latency of every step, so
LL is kept for longer; and of LL's threads only as many work as have 8 bytes a
rank each, which bounds what a channel carries:

    threads x 8 B every time that a flag goes to the neighbour's memory and is seen

Source: NVIDIA, NCCL, src/graph/tuning.cc and src/enqueue.cc at commit
01afd20a77b5 (2020/21, functions ncclTopoTuneModel, ncclTopoGetAlgoTime and
getAlgoInfo).
"""

from math import inf, log2

from algorithms.nccl import Communicator, NcclPlan
from algorithms.nccl.costs import ring_steps
from algorithms.nccl.tables import (
    BUFFER_BYTES,
    BYTES_PER_THREAD,
    DATA_IN_BUFFER,
    PROTOCOLS,
    RING_EFFICIENCY,
    STEPS,
    TREE_EFFICIENCY,
    TREE_LL,
    TREE_LL128,
    Algorithm,
    Protocol,
)
from algorithms.ops import CollectiveKind

US, GB = 1e-6, 1e9
BASE = {"tree": (4.4, 4.4, 0.0), "ring": (3.6, 10.0, 8.4)}
INSIDE = {"tree": (0.52, 1.2, 28.0), "ring": (0.47, 1.9, 3.4)}
BETWEEN = {"tree": (5.0, 8.5, 50.0), "ring": (2.7, 4.0, 9.6)}
"""By LL, LL128, Simple: before the first step, of a step over NVLink, of one over the network [us]."""
LL_ACROSS = 1.8
"""How much longer LL's steps inside take where there are several nodes."""
LL128_MOST: dict[CollectiveKind, float] = {
    "broadcast": 18.8,
    "reduce": 12.0,
    "all_gather": 18.3,
    "reduce_scatter": 15.2,
    "all_reduce": 16.7,
}
"""Most of a channel by LL128 [GB/s]."""
AMPERE_MOST = 235.0
TREE_MOST = {("ampere", "LL128"): (130.0, 105.0)}
TREE_MOST_ELSE = (110.0, 80.0)
"""Most of all trees, up to two nodes and beyond [GB/s]."""
PLATEAU = 1.9
PLATEAU_BYTES_PER_RANK = 65536 / 16
CORRECTION: dict[Protocol, tuple[float, ...]] = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 1),
    "Simple": (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 6, 0.6, 0.6, 0.7, 0.8, 0.9),
}
"""Of a tree's bandwidth, what is left at 64 B, 128 B, …, and all of it from 256 MiB."""
THREADS: dict[Protocol, int] = {"LL": 512, "LL128": 640, "Simple": 512}
LEAST_THREADS = 128
"""Threads are halved as long as this divides them."""


def plan_2_8(
    kind: CollectiveKind, size_bytes: float, group: Communicator, *, held: str = "", alike: bool = True
) -> NcclPlan:
    """What NCCL 2.8 would take, ready to be simulated.

    Parameters
    ----------
    held : `ring` or `tree`, where a row says so
    alike : all channels pass a node alike, as behind an NVSwitch; else a broadcast's every step counts
    """
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
        else max(1, round(2 * (group.ranks_per_node - 1 + log2(group.nodes))))
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
    kind: CollectiveKind, size: float, group: Communicator, algorithm: Algorithm, protocol: Protocol, alike: bool
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
    """Of a tree's bandwidth, what short pipelines leave."""
    step = max(int(size) >> 6, 1).bit_length() - 1
    return CORRECTION[protocol][step] if algorithm == "tree" and step < len(CORRECTION[protocol]) else 1.0


def _bus(group: Communicator) -> float:
    speed = group.channels * (group.intra_bandwidth if group.nodes <= 2 else group.inter_bandwidth)
    return min(speed, AMPERE_MOST * GB) if group.generation == "ampere" else speed


def _bandwidth(kind: CollectiveKind, group: Communicator, algorithm: Algorithm, protocol: Protocol) -> float:
    """Bytes of the buffer per second, as NCCL counts them."""
    bus, most = _bus(group), _most(kind, group, protocol)
    if algorithm == "ring":
        if protocol == "LL":
            bus *= 1 / 4 if group.nodes > 1 or kind in ("all_reduce", "reduce") else 1 / 3
        elif protocol == "LL128":
            bus = min(bus * (0.7 if group.ranks_per_node < 2 else 0.92), most)
        return bus * group.ranks / ring_steps(kind, group.ranks)
    bus = min(bus * 0.9, TREE_MOST.get((group.generation, protocol), TREE_MOST_ELSE)[group.nodes > 2] * GB)
    if protocol == "LL":
        bus /= 3.8
    elif protocol == "LL128":
        bus = min(bus * (7 / 9 if group.nodes == 1 else 0.915), most * 7 / 9)
    return bus / 2


def _most(kind: CollectiveKind, group: Communicator, protocol: Protocol) -> float:
    """Most that all channels carry by LL128 [B/s]."""
    return LL128_MOST[kind] * GB * group.channels if protocol == "LL128" else inf


def _channel_rate(
    kind: CollectiveKind, group: Communicator, algorithm: Algorithm, protocol: Protocol, threads: int
) -> float:
    """Most of one channel [B/s]: for LL by its threads too, each 8 bytes at a time."""
    if protocol != "LL":
        return _most(kind, group, protocol) / group.channels_in_all
    of_bus = _bandwidth(kind, group, "ring", "LL") * ring_steps(kind, group.ranks) / group.ranks
    in_turn = threads * BYTES_PER_THREAD["LL"] / _inside(group, algorithm, protocol)
    return min(in_turn, of_bus / group.channels_in_all)


def _inside(group: Communicator, algorithm: Algorithm, protocol: Protocol) -> float:
    slower = LL_ACROSS if group.nodes > 1 and protocol == "LL" else 1.0
    return INSIDE[algorithm][PROTOCOLS.index(protocol)] * slower * US


def _latency(kind: CollectiveKind, group: Communicator, algorithm: Algorithm, protocol: Protocol, alike: bool) -> float:
    p = PROTOCOLS.index(protocol)
    base, inside = BASE[algorithm][p] * US, _inside(group, algorithm, protocol)
    between = BETWEEN[algorithm][p] * US + group.network_latency
    if algorithm == "tree":
        return base + 2 * ((group.ranks // group.nodes - 1) * inside + int(log2(group.nodes)) * between)
    steps = ring_steps(kind, group.ranks)
    if kind in ("broadcast", "reduce"):
        rows = INSIDE if group.nodes == 1 else BETWEEN
        if alike:
            return base + rows["ring"][p] * US
        return base + steps * rows["tree" if protocol == "Simple" else "ring"][p] * US
    crossing = 0 if group.nodes == 1 else steps * (group.nodes - 1) // (group.ranks - 1)
    return base + (steps - crossing) * inside + crossing * between


def _plateau(kind: CollectiveKind, size: float, group: Communicator, algorithm: Algorithm, protocol: Protocol) -> float:
    affected = kind == "all_reduce" and algorithm == "ring" and protocol == "Simple" and group.nodes > 1
    return PLATEAU if affected and size >= group.ranks * PLATEAU_BYTES_PER_RANK else 1.0


def _crew(size: float, group: Communicator, algorithm: Algorithm, protocol: Protocol) -> tuple[int, int]:
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


def _efficiency(group: Communicator, algorithm: Algorithm, protocol: Protocol) -> float:
    if algorithm == "ring":
        return RING_EFFICIENCY[protocol]
    share = {"LL": TREE_LL, "LL128": TREE_LL128["one node" if group.nodes == 1 else "several"], "Simple": 1.0}
    return TREE_EFFICIENCY * share[protocol]
