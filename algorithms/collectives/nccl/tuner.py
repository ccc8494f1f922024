"""NCCL's tuner: the algorithm, protocol and channels that NCCL chooses, as input of a flow simulation.

NCCL takes the algorithm and protocol with the least predicted time, on as many channels as have enough data.  The tuner
says what NCCL does; the simulator computes how long that takes on a given network.

Source: NVIDIA, NCCL 2.28, src/enqueue.cc, topoGetAlgoInfo and calcCollChunking, and the constants of
`tuning_constants.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf

from quadrille.algorithms.collectives.nccl.communicator import NcclGroup
from quadrille.algorithms.collectives.nccl.costs import (
    ALGORITHMS_OF_KIND,
    halvings,
    largest_ll_bandwidth,
    latency,
    predicted_seconds,
    rccl_share,
    ring_steps,
    step_latencies,
)
from quadrille.algorithms.collectives.nccl.tuning_constants import (
    ALGORITHMS,
    AMD,
    BUFFER_BYTES,
    BYTES_PER_THREAD,
    DATA_IN_BUFFER,
    GB,
    MANY_SENDERS,
    MOST_THREADS,
    NVLS_EFFICIENCY,
    NVLS_TREE_MOST,
    PAT_EFFICIENCY,
    RING_EFFICIENCY,
    RING_LL128_MOST,
    SEND_ACROSS,
    SEND_CHANNELS,
    SEND_COPY_RATE,
    SEND_LL_BYTES,
    SEND_PART_BYTES,
    STEPS,
    TREE_EFFICIENCY,
    TREE_LL,
    TREE_LL128,
    TREE_LL128_MOST,
    TREE_MOST,
    Algorithm,
    Protocol,
    SendReceive,
)
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind

REQUIREMENTS: dict[Algorithm, str] = {
    "nvls": "nvls takes one node whose NVSwitch sums, from Hopper on, and at most 32 GPUs but for all-reduce",
    "nvls_tree": "nvls_tree takes all-reduce on two GPUs or more of several nodes whose NVSwitches sum, from Hopper on",
    "pat": "pat takes one GPU a node, on several nodes",
}
"""Requirements of algorithms that are not always available."""


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """The algorithm, protocol and number of channels that NCCL chooses, and the time that NCCL predicts [s]."""

    algorithm: Algorithm
    protocol: Protocol
    channels: int
    seconds: float

    def __str__(self) -> str:
        return _label(self.algorithm, self.protocol, self.channels)


def _label(algorithm: Algorithm | SendReceive, protocol: Protocol, channels: int) -> str:
    return f"nccl ({algorithm}, {protocol}, {channels} channel{'s' if channels != 1 else ''})"


def choose(
    kind: CollectiveKind,
    size_bytes: float,
    group: NcclGroup,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
) -> NcclChoice:
    """Returns NCCL's choice: the algorithm and protocol with the least predicted time.

    Parameters
    ----------
    kind : kind of collective
    size_bytes : size of the whole buffer [B]
    group : group of ranks
    algorithm, protocol : restrictions of the choice; None for any

    Raises
    ------
    InputError : NCCL has nothing of the kind for this group
    """
    candidates = [
        NcclChoice(choice, candidate_protocol, used_channels(size_bytes, group, choice, candidate_protocol), seconds)
        for choice, candidate_protocol in _allowed(kind, algorithm, protocol)
        if (seconds := predicted_seconds(kind, size_bytes, group, choice, candidate_protocol)) < inf
    ]
    if not candidates:
        raise InputError(_missing(kind, size_bytes, group, algorithm, protocol))
    return min(candidates, key=lambda choice: choice.seconds)


def _missing(
    kind: CollectiveKind,
    size_bytes: float,
    group: NcclGroup,
    algorithm: Algorithm | None,
    protocol: Protocol | None,
) -> str:
    """The message that NCCL lacks an algorithm for a group, with its alternatives and the algorithm's requirements."""
    requested = " ".join(word for word in (algorithm, protocol) if word) or "any algorithm"
    nodes = f"{group.nodes} node{'s' if group.nodes != 1 else ''}"
    available = [
        f"{candidate} ({', '.join(protocols)})"
        for candidate in ALGORITHMS_OF_KIND[kind]
        if (
            protocols := [
                candidate_protocol
                for candidate_protocol in ALGORITHMS[candidate]
                if predicted_seconds(kind, size_bytes, group, candidate, candidate_protocol) < inf
            ]
        )
    ]
    message = f"NCCL has no {kind} by {requested} for {group.ranks} {group.generation} GPUs on {nodes}"
    instead = f"; there it has {', '.join(available)}" if available else "; it has none at all"
    return (
        message
        + instead
        + (
            f"; {REQUIREMENTS[algorithm]}"
            if algorithm in REQUIREMENTS and algorithm in ALGORITHMS_OF_KIND[kind]
            else ""
        )
    )


def _allowed(
    kind: CollectiveKind, algorithm: Algorithm | None, protocol: Protocol | None
) -> Iterator[tuple[Algorithm, Protocol]]:
    for candidate in ALGORITHMS_OF_KIND[kind]:
        for candidate_protocol in ALGORITHMS[candidate]:
            if algorithm in (None, candidate) and protocol in (None, candidate_protocol):
                yield candidate, candidate_protocol


def used_channels(size_bytes: float, group: NcclGroup, algorithm: Algorithm, protocol: Protocol) -> int:
    """Number of channels that NCCL uses: fewer for small buffers, so that each channel has enough data.

    Parameters
    ----------
    size_bytes : size of the whole buffer [B]
    group : group of ranks
    algorithm, protocol : NCCL's algorithm and protocol
    """
    if algorithm in ("nvls", "nvls_tree"):
        return group.nvls_channels
    per_thread = BYTES_PER_THREAD[protocol] * (group.ranks if (algorithm, protocol) == ("ring", "LL") else 1)
    busy = int(size_bytes // (MOST_THREADS[protocol] * per_thread))
    return max(1, min(group.channels_in_all, busy))


@dataclass(frozen=True, slots=True)
class NcclPlan:
    """NCCL's choice as input of a flow simulation.

    The buffer is split over `channels`; each is a ring or tree of its own.  In-switch sums (nvls) have no steps between
    GPUs: every link carries 1 + 1/n buffers in each direction, as each GPU's summands go up once, every sum comes down
    once, and one GPU fetches and returns each part of the sum.  NCCL's latencies cover a whole hop, so they replace
    those of the links.

    Parameters
    ----------
    algorithm, protocol, channels : the choice
    wire_factor : bytes on a link for each byte of data
    channel_rate : largest data rate of one channel; inf if only the links limit it [B/s]
    base_latency : latency before the first step [s]
    step_latency_intra, step_latency_inter : latency of one hop inside a node and between nodes [s]
    mean_step_latency : mean time of a ring step, plateau included [s]; `STEPS` chunks are buffered, so the slowest hop
        does not delay
        every step: simulate with this value
    steps : steps of a ring, or up and down a tree
    chunk_bytes : data in one chunk of a pipelined channel [B]
    seconds : NCCL's own prediction; 0 for messages in a group, which NCCL does not predict [s]
    """

    algorithm: Algorithm | SendReceive
    protocol: Protocol
    channels: int
    wire_factor: float
    channel_rate: float
    base_latency: float
    step_latency_intra: float
    step_latency_inter: float
    mean_step_latency: float
    steps: int
    chunk_bytes: float
    seconds: float

    @property
    def label(self) -> str:
        """Name of the plan in records."""
        return _label(self.algorithm, self.protocol, self.channels)


def plan(kind: CollectiveKind, size_bytes: float, group: NcclGroup, choice: NcclChoice) -> NcclPlan:
    """Returns the input of a flow simulation for NCCL's choice.

    Parameters
    ----------
    kind : kind of collective
    size_bytes : size of the whole buffer [B]
    group : group of ranks
    choice : NCCL's choice
    """
    base, inside, between = step_latencies(group, choice.algorithm, choice.protocol)
    steps = _steps(kind, group, choice.algorithm)
    whole = latency(kind, group, choice.algorithm, choice.protocol, size_bytes)
    return NcclPlan(
        choice.algorithm,
        choice.protocol,
        choice.channels,
        _wire_factor(group, choice),
        _channel_rate(group, choice),
        base,
        inside,
        between,
        max(0.0, whole - base) / steps,
        steps,
        _chunk_bytes(size_bytes, group, choice),
        choice.seconds,
    )


def send_receive_plan(message_bytes: float, group: NcclGroup, *, turns: int = 1) -> NcclPlan:
    """Returns the input of a flow simulation for messages that are sent and received in one group, as an all-to-all is.

    NCCL's tuner does not predict these messages; the latency is that of one step of a ring.  Inside a node, the
    ranks share the channels, and a large message takes more of them (`send_channels`).

    Parameters
    ----------
    message_bytes : size of each message [B]
    group : group of ranks
    turns : number of other nodes to which each rank sends, one after the other

    Source: NVIDIA, NCCL 2.28, src/enqueue.cc, scheduleP2pTasksToPlan; NCCL_P2P_LL_THRESHOLD.
    """
    protocol: Protocol = "LL" if message_bytes <= SEND_LL_BYTES else "Simple"
    base, inside, between = step_latencies(group, "ring", protocol)
    channels, rate = send_channels(message_bytes, group)
    return NcclPlan(
        algorithm="sendrecv",
        protocol=protocol,
        channels=channels,
        wire_factor=1 / RING_EFFICIENCY[protocol],
        channel_rate=rate,
        base_latency=base,
        step_latency_intra=inside,
        step_latency_inter=between,
        mean_step_latency=between * max(1, turns) if group.nodes > 1 else inside,
        steps=1,
        chunk_bytes=BUFFER_BYTES[protocol] / STEPS * DATA_IN_BUFFER[protocol],
        seconds=0.0,
    )


def send_channels(message_bytes: float, group: NcclGroup) -> tuple[int, float]:
    """Number of channels of one message in a group, and the rate of each [B/s]; inf if only the links limit it.

    >>> from quadrille.algorithms.collectives.nccl.communicator import communicator
    >>> [send_channels(size << 20, communicator(8, 1, "hopper", nvlinks=18))[0] for size in (1, 64, 128, 256, 1024)]
    [8, 8, 16, 32, 64]
    """
    if group.generation not in SEND_COPY_RATE:
        return group.channels_in_all, inf
    if group.nodes > 1:
        of_two, of_more, of_many = SEND_ACROSS[group.generation]
        rate = of_two if group.nodes == 2 else of_more if group.ranks <= MANY_SENDERS else of_many
        channels = 2 if group.ranks <= MANY_SENDERS else 1
        return channels, rate * GB / channels
    channels = max(1, 1 << halvings(SEND_CHANNELS // group.ranks))
    while message_bytes > channels * SEND_PART_BYTES and channels < SEND_CHANNELS:
        channels *= 2
    return channels, SEND_COPY_RATE[group.generation] * GB


def _steps(kind: CollectiveKind, group: NcclGroup, algorithm: Algorithm) -> int:
    match algorithm:
        case "ring":
            return max(1, ring_steps(kind, group.ranks))
        case "tree":
            return max(1, 2 * (group.ranks // group.nodes - 1 + halvings(group.nodes)))
        case "nvls":
            return 1
        case "nvls_tree":
            return 1 + 2 * halvings(group.nodes)
        case "pat":
            return max(1, (group.ranks - 1).bit_length())


def _wire_factor(group: NcclGroup, choice: NcclChoice) -> float:
    match choice.algorithm:
        case "ring":
            return 1 / RING_EFFICIENCY[choice.protocol]
        case "tree":
            several = TREE_LL128["one node" if group.nodes == 1 else "several"]
            return 1 / (TREE_EFFICIENCY * {"LL": TREE_LL, "LL128": several, "Simple": 1.0}[choice.protocol])
        case "nvls" | "nvls_tree":
            return 1 / NVLS_EFFICIENCY[group.generation]
        case "pat":
            return 1 / PAT_EFFICIENCY


def _channel_rate(group: NcclGroup, choice: NcclChoice) -> float:
    """Largest rate of a channel; NCCL's limits are for the channels of the search, half of those that run."""
    share = group.channels / group.channels_in_all
    match choice.algorithm, choice.protocol:
        case (("ring" | "tree"), _) if group.generation in AMD:
            return _rccl_channel_rate(group, choice)
        case (("ring" | "tree"), "LL"):
            return largest_ll_bandwidth(group) / group.channels_in_all
        case "ring", "LL128":
            return group.by_nodes(RING_LL128_MOST[group.generation]) * share
        case "tree", "LL128":
            return group.by_nodes(TREE_LL128_MOST[group.generation]) * share
        case "tree", "Simple":
            return group.by_nodes(TREE_MOST[group.generation]) * share
        case "nvls_tree", _:
            return group.by_nodes(NVLS_TREE_MOST[group.generation])
        case _:
            return inf


def _rccl_channel_rate(group: NcclGroup, choice: NcclChoice) -> float:
    """RCCL's rate of a channel: its share of all channels' bandwidth, however many run; a full share is free."""
    share = rccl_share(group, "ring" if choice.algorithm == "ring" else "tree", choice.protocol)
    whole = group.ring_bandwidth if choice.algorithm == "ring" else group.tree_bandwidth
    return whole * share / choice.channels if share < 1 else inf


def _chunk_bytes(size_bytes: float, group: NcclGroup, choice: NcclChoice) -> float:
    """Size of a buffer slot; LL128 trees halve it until enough chunks fill the pipeline."""
    slot = BUFFER_BYTES[choice.protocol] / STEPS
    if (choice.algorithm, choice.protocol) == ("tree", "LL128"):
        depth = 1 + halvings(group.nodes) + 0.1 * group.ranks_per_node
        for wanted, least in ((64, 1 << 17), (16, 1 << 15)):
            while size_bytes // (choice.channels * slot) < depth * wanted / group.ranks_per_node and slot > least:
                slot /= 2
    return min(slot * DATA_IN_BUFFER[choice.protocol], ceil(size_bytes / choice.channels))
