"""One collective on a machine: how long it takes, what it reaches, and what holds it back.

Bandwidths are those that nccl-tests prints: the algorithm's is the buffer by
the time, the bus's what a link carries if the algorithm moves no byte twice,
which can be held against the links.

Source: NVIDIA, nccl-tests, doc/PERFORMANCE.md.
"""

from dataclasses import dataclass

import numpy as np

from algorithms.collectives.lowering import lower
from algorithms.collectives.nccl.tables import Protocol
from algorithms.errors import InputError
from algorithms.formats.machine import Machine
from algorithms.formats.record import PathPart
from algorithms.ops import CollectiveKind
from simulator.collectives.channels import ring_orders
from simulator.collectives.collective import CollectiveResult, simulate_collective
from simulator.collectives.nccl_channels import nccl_collective
from simulator.collectives.programs import Ints, Job
from simulator.machine_network import network_of, placed, routes_of
from studies.explain.bottlenecks import Bottleneck, bottlenecks
from studies.network.question import ROOTED, Question
from topologies.network import Network
from topologies.routes.routing import Routes

__all__ = ["CollectivePrediction", "Question", "bus_factor", "bus_formula", "members_sharing", "predict_collective"]

MOST_RUNS = 1 << 22
"""Runs of all members that are held in memory, about 100 B each, several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePrediction:
    """What is said of a collective.

    Parameters
    ----------
    algorithm, why : how it is carried out, and why so
    protocol, channels, different_ways : NCCL's protocol; rings or trees at once; how many of them go over other links
    seconds_by_part, mean_seconds_by_part : what the time is made of for the last rank and for the mean one, if known
    shards_bound : how far off `seconds` may be, relative, because pieces have the mean size
    """

    question: Question
    machine: str
    routing: str
    seconds: float
    bottlenecks: tuple[Bottleneck, ...]
    algorithm: str
    why: str
    protocol: Protocol | None = None
    channels: int
    different_ways: int
    seconds_by_part: dict[PathPart, float] | None
    mean_seconds_by_part: dict[PathPart, float] | None
    method: str
    events: int
    transfers: int
    rank_classes: int
    flow_classes: int
    folded: bool
    why_not: str
    error_seconds: float
    shards_bound: float

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Bytes of the buffer per second; None where nothing moves [B/s]."""
        return self.question.bytes / self.seconds if self.seconds and self.question.bytes else None

    @property
    def bus_bandwidth(self) -> float | None:
        """[B/s]."""
        rate = self.algorithm_bandwidth
        return rate * bus_factor(self.question.kind, self.question.group) if rate is not None else None


def bus_factor(kind: CollectiveKind, members: int) -> float:
    """Bus bandwidth by algorithm bandwidth.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    match kind:
        case "all_reduce":
            return 2 * (members - 1) / members
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return (members - 1) / members
        case "broadcast" | "reduce" | "barrier":
            return 1.0


def bus_formula(kind: CollectiveKind) -> str:
    """The bus bandwidth of a group of g in words."""
    match kind:
        case "all_reduce":
            return "bytes / seconds x 2 (g - 1) / g"
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return "bytes / seconds x (g - 1) / g"
        case "broadcast" | "reduce" | "barrier":
            return "bytes / seconds"


def predict_collective(question: Question, machine: Machine, *, net: Network | None = None) -> CollectivePrediction:
    """What the simulator says of the collective.

    Parameters
    ----------
    net : the machine's network, where it is built already

    Raises
    ------
    InputError : more ranks than the machine has GPUs, a network that is cut, a collective too large to simulate
    """
    _check_size(question)
    built = network_of(machine) if net is None else net
    routes = routes_of(machine, built)
    places = placed(built, question.gpus, 1, question.placement)
    groups = question.groups()
    if question.group == 1:
        return _nothing_moves(question, machine)
    ran: CollectiveResult
    protocol: Protocol | None = None
    if question.choices.carriage == "nccl":
        carried = nccl_collective(
            question.kind,
            question.bytes,
            groups,
            places,
            machine,
            routes,
            algorithm=question.choices.nccl_algorithm,
            protocol=question.choices.nccl_protocol,
            root=question.root,
            settings=question.nccl,
            ways=question.ways,
        )
        ran, label, why, different = carried.result, carried.label, carried.why, carried.ways
        protocol, channels = carried.plan.protocol, max(carried.plan.channels, different)
    else:
        jobs, label, why = _own_jobs(question, groups, places, routes)
        channels = different = len(jobs)
        ran = simulate_collective(
            jobs,
            built.bandwidths,
            routes.between,
            places=places,
            shards=question.sharding,
            ways=question.ways,
            link_name=lambda number: built.link(number).name,
        )
    return CollectivePrediction(
        question=question,
        machine=machine.name,
        routing=machine.routing,
        seconds=ran.seconds,
        bottlenecks=bottlenecks(built, ran.link_bytes, ran.busy_seconds, ran.seconds),
        algorithm=label,
        why=why,
        protocol=protocol,
        channels=channels,
        different_ways=different,
        seconds_by_part=ran.causes.of(ran.seconds) if ran.causes else None,
        mean_seconds_by_part=ran.causes.mean_of(ran.seconds) if ran.causes else None,
        method=ran.method,
        events=ran.events,
        transfers=ran.transfers,
        rank_classes=ran.rank_classes,
        flow_classes=ran.flow_classes,
        folded=ran.folded,
        why_not=ran.why_not,
        error_seconds=ran.error_seconds,
        shards_bound=_bound(question, max(job.runs.pieces for job in jobs) * len(jobs))
        if question.choices.carriage != "nccl"
        else 0.0,
    )


def _check_size(question: Question) -> None:
    """Refuse what would not fit into memory."""
    members = question.gpus if question.concurrent == "all" else question.group
    if question.kind == "all_to_all" and members * (question.group - 1) > MOST_RUNS:
        raise InputError(
            f"all-to-all of {members} ranks in groups of {question.group} has {members * (question.group - 1)} "
            f"transfers, each unlike the others; at most {MOST_RUNS} are simulated"
        )
    if members > MOST_RUNS:
        raise InputError(f"{members} ranks take part; at most {MOST_RUNS} are simulated")


def _nothing_moves(question: Question, machine: Machine) -> CollectivePrediction:
    return CollectivePrediction(
        question=question,
        machine=machine.name,
        routing=machine.routing,
        seconds=0.0,
        bottlenecks=(),
        algorithm="none",
        why="a group of one rank has what it needs: nothing moves",
        channels=0,
        different_ways=0,
        seconds_by_part=None,
        mean_seconds_by_part=None,
        method="none",
        events=0,
        transfers=0,
        rank_classes=0,
        flow_classes=0,
        folded=False,
        why_not="nothing moves",
        error_seconds=0.0,
        shards_bound=0.0,
    )


def _own_jobs(question: Question, groups: Ints, places: Ints, routes: Routes) -> tuple[list[Job], str, str]:
    """The lowered collective for each channel, its name, and why it is that."""
    kind, members = question.kind, question.group
    algorithm = question.choices.algorithm(kind)
    sharing = members_sharing(places[groups], routes.net.per_node) if algorithm == "hierarchical" else 1
    size = question.bytes
    elements = int(size // question.item_bytes) if question.item_bytes > 1 else None
    lowered = lower(kind, algorithm, members, root=question.root, size_bytes=size, per_node=sharing, elements=elements)
    runs = lowered.runs()
    rows = [groups]
    why = f"{question.choices} has {lowered.algorithm} for {kind}"
    if algorithm == "hierarchical":
        why += f"; {sharing} members of each group share a node" if sharing > 1 else "; members share no node regularly"
    if question.channels != 1:
        if kind in (*ROOTED, "barrier") or lowered.algorithm != "ring":
            raise InputError(
                f"--channels {question.channels}: rings are laid in channels, not {kind} by {lowered.algorithm}; "
                "own:ring all-gather, reduce-scatter and all-reduce are rings"
            )
        orders = ring_orders(routes, places[groups], question.channels or None)
        rows = [np.take_along_axis(groups, order, axis=1) for order in orders]
        why += f"; {len(rows)} channels on different links" + ("" if question.channels else ", the fewest that pay")
    jobs = [
        Job(
            runs,
            row,
            size / len(rows),
            item_bytes=question.item_bytes,
            empty_messages=kind == "barrier",
            crosswise=kind == "all_to_all",
        )
        for row in rows
    ]
    return jobs, lowered.algorithm, why


def members_sharing(places: Ints, per_node: int) -> int:
    """How many consecutive members share a node, in every group alike and on several nodes; else 1.

    >>> members_sharing(np.array([[0, 1, 4, 5]]), 4), members_sharing(np.array([[0, 4, 1, 5]]), 4)
    (2, 1)
    """
    node = places // per_node
    members = node.shape[1]
    changes = node[0] != node[0, 0]
    sharing = int(np.argmax(changes)) if changes.any() else 1
    if sharing <= 1 or members % sharing:
        return 1
    blocks = node.reshape(len(node), -1, sharing)
    together = bool((blocks == blocks[:, :, :1]).all())
    apart = bool((np.diff(np.sort(blocks[:, :, 0], axis=1), axis=1) != 0).all())
    return sharing if together and apart else 1


def _bound(question: Question, pieces: int) -> float:
    """How much longer or shorter, relative, the largest or smallest exact piece is than the mean one."""
    if question.sharding == "exact" or not question.bytes:
        return 0.0
    elements = question.bytes / question.item_bytes
    mean = elements / pieces
    return float(max(np.ceil(mean) / mean - 1, 1 - np.floor(mean) / mean))
