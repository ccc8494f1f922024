"""One collective on a machine: how long it takes, what it reaches, and what holds it back."""

from dataclasses import dataclass, replace

from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.collectives.nccl.tables import Protocol
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import PathPart
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.network.bandwidths import bus_factor
from quadrille.experiments.network.bottlenecks import LinkUse, bottlenecks
from quadrille.experiments.network.own_collective import lowered_for, members_sharing, own_collective
from quadrille.experiments.network.question import CollectiveQuestion
from quadrille.experiments.predict.collectives_choice import OWN, comparable, different
from quadrille.simulator.collectives.collective import CollectiveResult
from quadrille.simulator.collectives.nccl.collective import nccl_collective
from quadrille.simulator.collectives.programs import Ints
from quadrille.simulator.machine.network import network_of, routes_of
from quadrille.simulator.machine.placement import placed
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes

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

    question: CollectiveQuestion
    machine: str
    routing: str
    seconds: float
    bottlenecks: tuple[LinkUse, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Carried:
    """What came of a collective, and how it was carried out."""

    ran: CollectiveResult
    algorithm: str
    why: str
    protocol: Protocol | None = None
    channels: int
    different_ways: int
    shards_bound: float = 0.0


def predict_collective(
    question: CollectiveQuestion, machine: Machine, *, net: Network | None = None
) -> CollectivePrediction:
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
    if question.choices.auto:
        return _chosen(question, members_sharing(places[groups], built.per_node), machine, built)
    carried = _carried(question, groups, places, machine, routes)
    ran = carried.ran
    return CollectivePrediction(
        question=question,
        machine=machine.name,
        routing=machine.routing,
        seconds=ran.seconds,
        bottlenecks=bottlenecks(built, ran.link_bytes, ran.busy_seconds, ran.seconds),
        algorithm=carried.algorithm,
        why=carried.why,
        protocol=carried.protocol,
        channels=carried.channels,
        different_ways=carried.different_ways,
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
        shards_bound=carried.shards_bound,
    )


def _chosen(question: CollectiveQuestion, sharing: int, machine: Machine, net: Network) -> CollectivePrediction:
    """The collective by what takes least of our own; where it is to go in channels, a ring alone does.

    Parameters
    ----------
    sharing : consecutive members of a group that share a node
    """
    ways = different(OWN, lambda choices: lowered_for(replace(question, choices=choices), sharing)[0])
    sets = ways if question.channels == 1 else [Choices("own", "ring")]
    tried = [predict_collective(replace(question, choices=choices), machine, net=net) for choices in sets]
    best, *others = sorted(tried, key=lambda choices: comparable(choices.seconds))
    longer = ", ".join(f"{choices.question.choices} {format_seconds(choices.seconds)}" for choices in others)
    return replace(best, why=f"{best.why}; others take longer: {longer}") if longer else best


def _carried(question: CollectiveQuestion, groups: Ints, places: Ints, machine: Machine, routes: Routes) -> _Carried:
    """The collective by NCCL or by our own algorithms, as was chosen."""
    if question.choices.carriage != "nccl":
        own = own_collective(question, groups, places, routes)
        return _Carried(
            ran=own.result,
            algorithm=own.algorithm,
            why=own.why,
            channels=own.channels,
            different_ways=own.channels,
            shards_bound=own.shards_bound,
        )
    nccl = nccl_collective(
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
        options=question.options,
    )
    return _Carried(
        ran=nccl.result,
        algorithm=nccl.label,
        why=nccl.why,
        protocol=nccl.plan.protocol,
        channels=max(nccl.plan.channels, nccl.path_count),
        different_ways=nccl.path_count,
    )


def _check_size(question: CollectiveQuestion) -> None:
    """Refuse what would not fit into memory."""
    members = question.gpus if question.concurrent == "all" else question.group
    if question.kind == "all_to_all" and members * (question.group - 1) > MOST_RUNS:
        raise InputError(
            f"all-to-all of {members} ranks in groups of {question.group} has {members * (question.group - 1)} "
            f"transfers, each unlike the others; at most {MOST_RUNS} are simulated"
        )
    if members > MOST_RUNS:
        raise InputError(f"{members} ranks take part; at most {MOST_RUNS} are simulated")


def _nothing_moves(question: CollectiveQuestion, machine: Machine) -> CollectivePrediction:
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
