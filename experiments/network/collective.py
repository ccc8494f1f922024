"""`predict_collective`: the predicted time of one collective on a machine, its bandwidth, and its bottlenecks."""

from dataclasses import dataclass, replace

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.collectives.nccl.tuning_constants import Protocol
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import PathPart
from quadrille.algorithms.tabular import Tabular
from quadrille.algorithms.units import format_bytes, format_bytes_per_second, format_seconds
from quadrille.experiments.network.bottlenecks import LinkUse, bottlenecks
from quadrille.experiments.network.bus_bandwidth import bus_factor
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.network.own_collective import lowered_collective, members_sharing, simulate_own_collective
from quadrille.experiments.predict.collectives_choice import OWN_CHOICES, distinct_choices, rounded_seconds
from quadrille.experiments.predict.idle_cards import Cards, cards_that_carry
from quadrille.simulator.collectives.collective import CollectiveResult
from quadrille.simulator.collectives.nccl.collective import nccl_collective
from quadrille.simulator.collectives.nccl.layout import machine_settings
from quadrille.simulator.collectives.programs import Ints
from quadrille.simulator.machine.network import network_of, routes_of
from quadrille.simulator.machine.placement import endpoints_by_rule
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes

MOST_RUNS = 1 << 22
"""Largest number of runs of all members in memory, about 100 B each, in several copies."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CollectivePrediction(Tabular):
    """The prediction of a collective.

    Parameters
    ----------
    seconds : time until the last rank has ended [s]
    bottlenecks : links with the highest utilisation
    algorithm, why : algorithm of the collective, and the reason for it
    protocol : protocol of NCCL; None for other libraries
    channels, different_paths : number of concurrent rings or trees, and number of them that use different links
    cards : number of a node's network cards that carry messages, and number that could; None inside a node
    library_seconds : time that NCCL itself predicts, and the machine's time of a call; None for other libraries, and
        where NCCL predicts none [s]
    seconds_by_part, mean_seconds_by_part : time by cause for the last rank and for the mean rank [s]; None if unknown
    method, events, transfers : method of the simulation, and its numbers of events and of simulated transfers
    rank_classes, flow_classes : numbers of classes of equivalent ranks and of equivalent flows
    folded, not_folded_reason : whether one member of each class was simulated, and the reason if not
    error_seconds : bound of the simulation's error [s]
    shards_bound : largest relative error of `seconds` because shards have the mean size
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
    different_paths: int
    cards: Cards | None = None
    library_seconds: float | None = None
    seconds_by_part: dict[PathPart, float] | None
    mean_seconds_by_part: dict[PathPart, float] | None
    method: str
    events: int
    transfers: int
    rank_classes: int
    flow_classes: int
    folded: bool
    not_folded_reason: str
    error_seconds: float
    shards_bound: float

    def rows(self) -> list[dict[str, object]]:
        """One row: the collective, its time and its bandwidths."""
        asked = self.question
        facts = {"kind": asked.kind, "gpus": asked.gpus, "group": asked.group, "bytes": asked.bytes}
        answers = ("seconds", "algorithm_bandwidth", "bus_bandwidth", "algorithm", "protocol", "channels")
        return [{**facts, **{name: getattr(self, name) for name in answers}}]

    @property
    def heading(self) -> str:
        """The collective, its size, its time and its bus bandwidth, in one line."""
        asked, rate = self.question, self.bus_bandwidth
        moved = f"{asked.kind} of {format_bytes(asked.bytes)} over {asked.group} ranks on {self.machine}"
        return f"{moved}: {format_seconds(self.seconds)}" + (
            f", bus bandwidth {format_bytes_per_second(rate)}" if rate is not None else ""
        )

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Size of the buffer / time [B/s]; None for a collective without bytes."""
        return self.question.bytes / self.seconds if self.seconds and self.question.bytes else None

    @property
    def bus_bandwidth(self) -> float | None:
        """Bus bandwidth as nccl-tests defines it [B/s]; None for a collective without bytes."""
        rate = self.algorithm_bandwidth
        return rate * bus_factor(self.question.kind, self.question.group) if rate is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SimulatedCollective:
    """A simulated collective, its algorithm and its channels."""

    result: CollectiveResult
    algorithm: str
    why: str
    protocol: Protocol | None = None
    channels: int
    different_paths: int
    library_seconds: float | None = None
    shards_bound: float = 0.0


def predict_collective(
    question: CollectiveQuestion, machine: Machine, *, net: Network | None = None
) -> CollectivePrediction:
    """The prediction of a collective: simulated by NCCL's algorithms or by Quadrille's own.

    Parameters
    ----------
    question : collective, its size and its groups
    net : network of the machine; None to build it

    Raises
    ------
    InputError : more ranks than the machine has GPUs, a network without a path, or a collective too large to simulate
    """
    _check_size(question)
    question = question.on_machine(machine)
    built = network_of(machine) if net is None else net
    routes = routes_of(machine, built)
    places = endpoints_by_rule(built, question.gpus, 1, question.placement)
    groups = question.groups()
    if question.group == 1:
        return _prediction_without_messages(question, machine)
    if question.choices.auto:
        return _fastest_own_algorithm(question, members_sharing(places[groups], built.per_node), machine, built)
    simulated = _simulated_collective(question, groups, places, machine, routes)
    result = simulated.result
    return CollectivePrediction(
        question=question,
        machine=machine.name,
        routing=machine.routing,
        seconds=result.seconds,
        bottlenecks=bottlenecks(built, result.link_bytes, result.busy_seconds, result.seconds),
        algorithm=simulated.algorithm,
        why=simulated.why,
        protocol=simulated.protocol,
        channels=simulated.channels,
        different_paths=simulated.different_paths,
        cards=cards_that_carry(routes, places[groups], result.link_bytes),
        library_seconds=simulated.library_seconds,
        seconds_by_part=result.causes.of(result.seconds) if result.causes else None,
        mean_seconds_by_part=result.causes.mean_of(result.seconds) if result.causes else None,
        method=result.method,
        events=result.events,
        transfers=result.transfers,
        rank_classes=result.rank_classes,
        flow_classes=result.flow_classes,
        folded=result.folded,
        not_folded_reason=result.not_folded_reason,
        error_seconds=result.error_seconds,
        shards_bound=simulated.shards_bound,
    )


def _fastest_own_algorithm(
    question: CollectiveQuestion, sharing: int, machine: Machine, net: Network
) -> CollectivePrediction:
    """The prediction of the fastest of Quadrille's own algorithms; with several channels, of the ring.

    Parameters
    ----------
    sharing : consecutive members of a group that share a node
    """
    choices = distinct_choices(
        OWN_CHOICES, lambda choices: lowered_collective(replace(question, choices=choices), sharing)[0]
    )
    sets = choices if question.channels == 1 else [Choices("own", "ring")]
    predictions = [predict_collective(replace(question, choices=choices), machine, net=net) for choices in sets]
    best, *others = sorted(predictions, key=lambda choices: rounded_seconds(choices.seconds))
    others_text = ", ".join(f"{choices.question.choices} {format_seconds(choices.seconds)}" for choices in others)
    return replace(best, why=f"{best.why}; others take longer: {others_text}") if others_text else best


def _simulated_collective(
    question: CollectiveQuestion, groups: Ints, endpoints: Ints, machine: Machine, routes: Routes
) -> _SimulatedCollective:
    """The collective, simulated by NCCL's algorithms or by Quadrille's own, as the question asks.

    Parameters
    ----------
    groups : ranks of each group [groups, members]
    places : endpoint of each rank [ranks]
    """
    if question.choices.implementation != "nccl":
        own = simulate_own_collective(question, groups, endpoints, routes)
        return _SimulatedCollective(
            result=own.result,
            algorithm=own.algorithm,
            why=own.why,
            channels=own.channels,
            different_paths=own.channels,
            shards_bound=own.shards_bound,
        )
    nccl = nccl_collective(
        question.kind,
        question.bytes,
        groups,
        endpoints,
        machine,
        routes,
        algorithm=question.choices.nccl_algorithm,
        two_level=question.choices.two_level,
        protocol=question.choices.nccl_protocol,
        root=question.root,
        item_bytes=question.item_bytes,
        settings=machine_settings(machine, question.kind, question.nccl),
        options=question.options,
    )
    return _SimulatedCollective(
        result=nccl.result,
        algorithm=nccl.label,
        why=nccl.why,
        protocol=nccl.plan.protocol,
        channels=max(nccl.plan.channels, nccl.path_count),
        different_paths=nccl.path_count,
        library_seconds=nccl.plan.seconds + machine.device.collective_call_seconds if nccl.plan.seconds else None,
    )


def _check_size(question: CollectiveQuestion) -> None:
    """Raises InputError for a collective that does not fit into memory."""
    members = question.gpus if question.concurrent == "all" else question.group
    if question.kind == "all_to_all" and members * (question.group - 1) > MOST_RUNS:
        raise InputError(
            f"all-to-all of {members} ranks in groups of {question.group} has {members * (question.group - 1)} "
            f"transfers, each unlike the others; at most {MOST_RUNS} are simulated"
        )
    if members > MOST_RUNS:
        raise InputError(f"{members} ranks take part; at most {MOST_RUNS} are simulated")


def _prediction_without_messages(question: CollectiveQuestion, machine: Machine) -> CollectivePrediction:
    return CollectivePrediction(
        question=question,
        machine=machine.name,
        routing=machine.routing,
        seconds=0.0,
        bottlenecks=(),
        algorithm="none",
        why="a group of one rank sends nothing",
        channels=0,
        different_paths=0,
        seconds_by_part=None,
        mean_seconds_by_part=None,
        method="none",
        events=0,
        transfers=0,
        rank_classes=0,
        flow_classes=0,
        folded=False,
        not_folded_reason="a group of one rank sends nothing",
        error_seconds=0.0,
        shards_bound=0.0,
    )
