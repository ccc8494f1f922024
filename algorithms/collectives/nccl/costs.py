"""NCCL's own performance model: the time that NCCL predicts for a collective by each algorithm and protocol.

Every algorithm and protocol has a latency and a bandwidth,

    t = latency + bytes / bandwidth

computed from the constants of `tuning_constants.py`, the number of steps, and the channels (parallel rings or trees,
each run by one thread block).  `bytes` is the size of the whole buffer.

On AMD's GPUs the tables are RCCL's (`rccl_constants.py`): rings and trees by LL and Simple.

Not modelled: in-network sums (CollNet), the lower thread count on links slower than PCIe 3, and the 15 % that a tree
loses if both its links into a node share a card.

Source: NVIDIA, NCCL 2.28, src/graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime.
"""

from math import inf
from typing import TYPE_CHECKING

from quadrille.algorithms.collectives.nccl.communicator import NcclGroup
from quadrille.algorithms.collectives.nccl.tuning_constants import (
    ALGORITHMS,
    AMD,
    BASE_LATENCY,
    CORRECTED_SIZES,
    LL_MOST,
    NETWORK_OVERHEAD,
    NVLS_ARITY,
    NVLS_EFFICIENCY,
    NVLS_TREE_MOST,
    PAT_EFFICIENCY,
    PAT_LOG_SHARE,
    PAT_PER_RANK,
    PLATEAU,
    PLATEAU_BYTES,
    PROTOCOLS,
    RING_EFFICIENCY,
    RING_LL128_MOST,
    STEP_LATENCY,
    TREE_CORRECTION,
    TREE_EFFICIENCY,
    TREE_LL,
    TREE_LL128,
    TREE_LL128_MOST,
    TREE_MOST,
    US,
    Algorithm,
    Hardware,
    Protocol,
)
from quadrille.algorithms.schedule.ops import CollectiveKind

if TYPE_CHECKING:
    from quadrille.algorithms.collectives.nccl.rccl_constants import RcclAlgorithm, TuningModel

ALGORITHMS_OF_KIND: dict[CollectiveKind, tuple[Algorithm, ...]] = {
    "all_reduce": ("tree", "ring", "nvls", "nvls_tree"),
    "all_gather": ("ring", "nvls", "pat"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_to_all": (),
    "send_receive": (),
    "barrier": (),
}
"""NCCL's algorithms for each kind of collective, in tie-breaking order."""


def predicted_seconds(
    kind: CollectiveKind, size_bytes: float, group: NcclGroup, algorithm: Algorithm, protocol: Protocol
) -> float:
    """The time that NCCL predicts [s]; inf if NCCL has no such algorithm for this group.

    Parameters
    ----------
    kind : kind of collective
    size_bytes : size of the whole buffer [B]
    group : group of ranks
    algorithm, protocol : NCCL's algorithm and protocol
    """
    if group.ranks == 1:
        return 0.0
    speed = bandwidth(kind, group, algorithm, protocol)
    if speed <= 0:
        return inf
    if group.generation in AMD:
        speed *= _rccl_factor(size_bytes, group, algorithm, protocol)
    elif algorithm == "tree" and kind == "all_reduce":
        speed *= _tree_correction(size_bytes, protocol)
    return latency(kind, group, algorithm, protocol, size_bytes) + size_bytes / speed


def ring_steps(kind: CollectiveKind, ranks: int) -> int:
    """Steps of a ring; a broadcast goes around once."""
    match kind:
        case "all_reduce":
            return 2 * (ranks - 1)
        case "all_gather" | "reduce_scatter":
            return ranks - 1
        case _:
            return ranks


def bandwidth(kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> float:
    """The buffer size over the time without latencies [B/s]; 0 if NCCL has no such algorithm for this group.

    Parameters
    ----------
    kind : kind of collective
    group : group of ranks
    algorithm, protocol : NCCL's algorithm and protocol
    """
    if algorithm not in ALGORITHMS_OF_KIND[kind] or protocol not in ALGORITHMS[algorithm]:
        return 0.0
    if protocol == "LL128" and not group.ll128:
        return 0.0
    if group.generation in AMD:
        return _rccl_bandwidth(kind, group, algorithm, protocol)
    match algorithm:
        case "ring":
            return _ring_bandwidth(group, protocol) * group.ranks / ring_steps(kind, group.ranks)
        case "tree":
            return _tree_bandwidth(group, protocol) / 2
        case "nvls" | "nvls_tree":
            return _nvls_bandwidth(kind, group, algorithm)
        case "pat":  # one GPU to a node only; its bandwidth is the buffer's, not the bus's
            return PAT_EFFICIENCY * group.ring_bandwidth if group.nodes == group.ranks else 0.0


def _rccl_bandwidth(kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> float:
    """RCCL's bandwidth: the share of the channels' bandwidth that its table has [B/s]."""
    if algorithm == "ring":
        ratio = group.ranks / ring_steps(kind, group.ranks)
        return group.ring_bandwidth * rccl_share(group, "ring", protocol) * ratio
    # RCCL has no trees by Simple on a single node of MI300X and of MI355X
    lacks = group.generation in ("cdna3", "cdna4") and group.nodes == 1 and protocol == "Simple"
    if algorithm != "tree" or lacks:
        return 0.0
    return group.tree_bandwidth * rccl_share(group, "tree", protocol) / 2


def _rccl_model(group: NcclGroup) -> "TuningModel":
    """RCCL's tables for a group; they are loaded for AMD's GPUs only."""
    from quadrille.algorithms.collectives.nccl.rccl_constants import tuning_model

    return tuning_model(group.generation, group.nodes)


def rccl_share(group: NcclGroup, algorithm: "RcclAlgorithm", protocol: Protocol) -> float:
    """Share of the channels' bandwidth that RCCL counts on; 0 for LL128, which RCCL does not use here."""
    if protocol == "LL128":
        return 0.0
    model = _rccl_model(group)
    shares = model.share_of_two if group.nodes <= 2 else model.share_of_more
    return shares[algorithm][PROTOCOLS.index(protocol)]


def _rccl_factor(size_bytes: float, group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> float:
    """RCCL's factor on the bandwidth by the size of the buffer, of trees, and of rings on several nodes."""
    if algorithm not in ("tree", "ring") or (algorithm == "ring" and group.nodes == 1):
        return 1.0
    row = _rccl_model(group).factors[algorithm][protocol == "Simple"]
    return row[min(halvings(int(size_bytes) >> 6), len(row) - 1)]


def largest_ll_bandwidth(group: NcclGroup) -> float:
    """Largest bandwidth of all channels together with the protocol LL [B/s]."""
    row = group.generation if group.nodes == 1 else "ampere" if group.cpu == "amd" else "volta"
    return group.by_nodes(LL_MOST[row])


def _ring_bandwidth(group: NcclGroup, protocol: Protocol) -> float:
    """Data bandwidth of the links [B/s]."""
    bandwidth_of_protocol = group.ring_bandwidth * RING_EFFICIENCY[protocol]
    match protocol:
        case "LL":
            return min(bandwidth_of_protocol, largest_ll_bandwidth(group))
        case "LL128":
            return min(bandwidth_of_protocol, group.channels * group.by_nodes(RING_LL128_MOST[group.generation]))
        case "Simple":
            return bandwidth_of_protocol


def _tree_bandwidth(group: NcclGroup, protocol: Protocol) -> float:
    bandwidth_of_trees = min(
        group.tree_bandwidth * TREE_EFFICIENCY, group.channels * group.by_nodes(TREE_MOST[group.generation])
    )
    match protocol:
        case "LL":
            return min(bandwidth_of_trees * TREE_LL, largest_ll_bandwidth(group))
        case "LL128":
            share = TREE_LL128["one node" if group.nodes == 1 else "several"]
            return min(bandwidth_of_trees * share, group.channels * group.by_nodes(TREE_LL128_MOST[group.generation]))
        case "Simple":
            return bandwidth_of_trees


def _nvls_bandwidth(kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm) -> float:
    """Bandwidth of in-switch sums in a node, and of trees between several nodes."""
    channels, per_node = group.nvls_channels, group.ranks_per_node
    alone = group.nodes == 1
    if channels < 2 or alone != (algorithm == "nvls") or (kind != "all_reduce" and not alone):
        return 0.0
    if kind != "all_reduce" and max(group.ranks, channels) > NVLS_ARITY:
        return 0.0  # where a GPU heads no channel, only all-reduce uses the switch
    intra = group.nvls_bandwidth * NVLS_EFFICIENCY[group.generation] * (channels - 1) / channels
    intra *= 2 if kind == "all_reduce" else (per_node - 1) / per_node
    speed = intra
    if not alone:
        inter = group.inter_bandwidth * (2 if group.nodes == 2 else 1)
        speed = min(intra, inter, group.by_nodes(NVLS_TREE_MOST[group.generation]))
    ratio = group.ranks / ring_steps(kind, group.ranks) if kind == "all_reduce" else 1.0
    return channels * speed * ratio


def latency(
    kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm, protocol: Protocol, size_bytes: float
) -> float:
    """NCCL's latency term: the part of the predicted time that does not grow in proportion to the buffer [s].

    Parameters
    ----------
    kind : kind of collective
    group : group of ranks
    algorithm, protocol : NCCL's algorithm and protocol
    size_bytes : size of the whole buffer, on which ring steps of large all-reduces depend [B]
    """
    base, inside, between = step_latencies(group, algorithm, protocol)
    match algorithm:
        case "ring":
            return (
                base
                + _ring_latency(kind, group, protocol, inside, between) * _plateau(kind, group, protocol, size_bytes)
                + base * (_plateau(kind, group, protocol, size_bytes) - 1)
            )
        case "tree":
            return base + 2 * ((group.ranks // group.nodes - 1) * inside + halvings(group.nodes) * between)
        case "nvls":
            return inside
        case "nvls_tree":
            return base + inside + 2 * halvings(group.nodes) * between
        case "pat":
            return base + halvings(group.nodes) * between * PAT_LOG_SHARE + group.ranks * PAT_PER_RANK * US


def step_latencies(group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> tuple[float, float, float]:
    """Latencies before the first step, of a step inside a node, and of a step between nodes [s]."""
    p = PROTOCOLS.index(protocol)
    if group.generation in AMD and algorithm in ("tree", "ring"):
        from quadrille.algorithms.collectives.nccl.rccl_constants import BASE_LATENCY as RCCL_BASE_LATENCY

        model = _rccl_model(group)
        base, inside, between = RCCL_BASE_LATENCY[p], model.inside[algorithm][p], model.between[algorithm][p]
    else:
        exposed: Algorithm = "tree" if group.ranks_per_node == 1 else algorithm  # one GPU to a node hides nothing
        base, inside = BASE_LATENCY[algorithm][p], STEP_LATENCY[group.intra_kind][algorithm][p]
        between = STEP_LATENCY["net"][exposed][p]
    flushed = 2 if protocol == "Simple" else 1
    if algorithm == "ring" and group.nodes > 1:
        inside = max(inside, NETWORK_OVERHEAD[group.cpu] * (3 if protocol == "Simple" else 1))
    return base * US, inside * US, between * US + flushed * group.network_latency


def _ring_latency(kind: CollectiveKind, group: NcclGroup, protocol: Protocol, inside: float, between: float) -> float:
    steps = ring_steps(kind, group.ranks)
    if kind in ("broadcast", "reduce"):
        return _pipeline_latency(group, protocol) if group.generation not in AMD else max(inside, between)
    crossing = 0 if group.nodes == 1 else steps * (group.nodes - 1) // (group.ranks - 1)
    if crossing and kind == "all_reduce" and group.generation in AMD:
        crossing = 2 * group.nodes  # as RCCL counts them
    return (steps - crossing) * inside + crossing * between


def _pipeline_latency(group: NcclGroup, protocol: Protocol) -> float:
    """Latency of a pipelined broadcast, for which NCCL counts one step."""
    hardware: Hardware = group.intra_kind if group.nodes == 1 else "net"
    return STEP_LATENCY[hardware]["ring"][PROTOCOLS.index(protocol)] * US


def _plateau(kind: CollectiveKind, group: NcclGroup, protocol: Protocol, size_bytes: float) -> float:
    """Factor by which ring steps are longer between the latency and the bandwidth regime."""
    enough = size_bytes // (group.channels_in_all * group.ranks) >= PLATEAU_BYTES
    affected = kind == "all_reduce" and protocol == "Simple" and group.nodes > 1 and group.generation not in AMD
    return PLATEAU[group.generation] if affected and enough else 1.0


def _tree_correction(size_bytes: float, protocol: Protocol) -> float:
    size = halvings(int(size_bytes) >> 6) if size_bytes >= PLATEAU_BYTES else -1
    return TREE_CORRECTION[protocol][size] if 0 <= size < CORRECTED_SIZES else 1.0


def halvings(number: int) -> int:
    """Largest s with 2**s <= number."""
    return max(number, 1).bit_length() - 1
