"""`quadrille collective`: predicts one collective, and prints the answer or writes it as JSON."""

import resource
import time
from collections.abc import Iterator, Sequence

import msgspec

from quadrille.algorithms.collectives.nccl.tuning_constants import Protocol
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.field_units import BytesPerSecond, Seconds, Share, WholeBytes
from quadrille.algorithms.formats.record import PathPart
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.schedule.short_names import hyphenated
from quadrille.algorithms.units import format_bytes, format_bytes_per_second, format_seconds
from quadrille.experiments.network.bottlenecks import LinkUse
from quadrille.experiments.network.bus_bandwidth import bus_formula
from quadrille.experiments.network.collective import CollectivePrediction, predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion, ConcurrentGroups
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.output.tables import duration, percent, print_tables, table
from quadrille.experiments.predict.idle_cards import idle_line, most_idle
from quadrille.runtime.host.console import remark, remark_all
from quadrille.simulator.collectives.programs import Shards
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.gpu_kind import gpu_generation
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import larger_machine_remark
from quadrille.topologies.network import Network

SCHEMA = "quadrille/collective/1"
CONTRADICTION = 1.5
"""Ratio of two predictions of one collective from which the answer says that they contradict each other."""
MANY_TRANSFERS = 5e7
"""Number of transfers of rings that share links from which the command announces a long simulation."""


class CollectiveAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that `--json` writes; bandwidths are in B/s, and null for a collective without bytes.

    Parameters
    ----------
    classes : number of rank classes; the ranks of a class are equivalent
    shards_bound : largest relative error of `seconds` because shards have the mean size
    protocol : protocol of NCCL; null for other libraries
    channels : number of concurrent rings or trees, as NCCL or Quadrille chooses
    different_paths : number of channels that use different links; the other channels use the same links as these
    seconds_by_part, mean_seconds_by_part : time by cause [s], for the last rank and for the mean rank
        (`quadrille.simulator.collectives.run`); each adds up to `seconds`; null without a simulation
    wall_seconds : time from parsed arguments to the result, without imports [s]
    """

    kind: CollectiveKind
    bytes: WholeBytes
    gpus: int
    group: int
    stride: int
    concurrent: ConcurrentGroups
    machine: str
    routing: str
    placement: str
    collectives: str
    shards: Shards
    shards_bound: Share
    algorithm: str
    protocol: Protocol | None
    channels: int
    different_paths: int
    why: str
    seconds: Seconds
    algorithm_bandwidth: BytesPerSecond | None
    bus_bandwidth: BytesPerSecond | None
    bus_bandwidth_formula: str
    seconds_by_part: dict[PathPart, Seconds] | None
    mean_seconds_by_part: dict[PathPart, Seconds] | None
    bottlenecks: tuple[LinkUse, ...]
    method: str
    events: int
    transfers: int
    classes: int
    rank_classes: int
    flow_classes: int
    folded: bool
    not_folded_reason: str
    error_seconds: Seconds
    wall_seconds: Seconds
    peak_memory_bytes: WholeBytes
    provenance: Provenance


def collective(
    question: CollectiveQuestion,
    machine: Machine,
    *,
    no_memory: bool = False,
    destinations: Destinations | None = None,
    command: Sequence[str] = (),
) -> CollectiveAnswer:
    """Predicts a collective, and prints the answer or writes it as JSON.

    Parameters
    ----------
    question : collective, its size and its groups
    machine : machine, or a topology alone
    no_memory : whether `--no-memory` was given, which has no effect
    destinations : files of the answer; None to print it
    command : words of the command line, for provenance

    Raises
    ------
    InputError : an invalid machine, or a file that cannot be written
    """
    from quadrille.simulator.engine.kernel_compiler import loading_seconds

    begin, loaded = time.perf_counter(), loading_seconds()
    to = destinations or Destinations()
    to.check()
    if to.plot and not question.bytes:
        raise InputError(f"--plot {to.plot}: {question.kind.replace('_', '-')} of 0 bytes has no size to vary")
    net = network_of(machine)
    if (most := question.most_transfers) > MANY_TRANSFERS and question.channels != 1:
        remark(f"{most:.2g} transfers in rings that share links: a minute for each 2e8 different transfers")
    predicted = predict_collective(question, machine, net=net)
    wall = time.perf_counter() - begin - (loading_seconds() - loaded)
    answer = _answer(predicted, wall, provenance(command))
    if no_memory:
        remark("--no-memory changes nothing: a collective stores no states of its links")
    if rounded := question.rounding:
        remark(rounded)
    remark_all(collective_remarks(predicted, machine, net))
    write_or_show(answer, to.json, SCHEMA, lambda: _print(answer))
    if to.plot:
        from quadrille.experiments.network.collective_figure import draw_sizes

        draw_sizes(predicted, machine, net, to.plot)
    return answer


# To answers


def _answer(predicted: CollectivePrediction, wall: float, origin: Provenance) -> CollectiveAnswer:
    question = predicted.question
    return CollectiveAnswer(
        kind=question.kind,
        bytes=question.bytes,
        gpus=question.gpus,
        group=question.group,
        stride=question.stride,
        concurrent=question.concurrent,
        machine=predicted.machine,
        routing=predicted.routing,
        placement=question.placement,
        collectives=str(question.choices),
        shards=question.sharding,
        shards_bound=predicted.shards_bound,
        algorithm=predicted.algorithm,
        protocol=predicted.protocol,
        channels=predicted.channels,
        different_paths=predicted.different_paths,
        why=predicted.why,
        seconds=predicted.seconds,
        algorithm_bandwidth=predicted.algorithm_bandwidth,
        bus_bandwidth=predicted.bus_bandwidth,
        bus_bandwidth_formula=bus_formula(question.kind),
        seconds_by_part=predicted.seconds_by_part,
        mean_seconds_by_part=predicted.mean_seconds_by_part,
        bottlenecks=predicted.bottlenecks,
        method=predicted.method,
        events=predicted.events,
        transfers=predicted.transfers,
        classes=predicted.rank_classes,
        rank_classes=predicted.rank_classes,
        flow_classes=predicted.flow_classes,
        folded=predicted.folded,
        not_folded_reason=predicted.not_folded_reason,
        error_seconds=predicted.error_seconds,
        wall_seconds=wall,
        peak_memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        provenance=origin,
    )


def collective_remarks(predicted: CollectivePrediction, machine: Machine, net: Network) -> Iterator[str]:
    """Remarks for the user about simplifications of the prediction and options without effect."""
    question = predicted.question
    if larger := larger_machine_remark(machine, question.gpus):
        yield larger
    if net.endpoints[0] == "host" and machine.host is not None and machine.host.cores > 1:
        yield f"each host has one rank here; simulate places one rank on each of its {machine.host.cores} cores"
    if question.choices.implementation == "nccl" and gpu_generation(machine) is None:
        yield f"{machine.name} names no kind of GPU: NCCL is modelled as on A100"
    if predicted.cards is not None and most_idle(predicted.cards):
        yield idle_line(predicted.cards, "messages leave a node", _remedy(question))
    if (contradiction := contradiction_remark(predicted)) is not None:
        yield contradiction
    if machine.faults is not None and machine.faults.slow:
        yield "a slow GPU changes nothing: a collective has no local work"
    if question.group == 1:
        yield "a group of one rank sends nothing"


def _remedy(question: CollectiveQuestion) -> str:
    """What would use more of a node's network cards, or why nothing does."""
    if question.kind == "send_receive":
        return "each node sends one message in the ring"
    return "nccl uses all" if question.choices.implementation != "nccl" else "so few leave the node"


def contradiction_remark(predicted: CollectivePrediction) -> str | None:
    """A remark if the library's own estimate and the simulation differ by more than `CONTRADICTION`; else None."""
    estimate, simulated = predicted.library_seconds, predicted.seconds
    if estimate is None or max(estimate, simulated) <= CONTRADICTION * min(estimate, simulated):
        return None
    reason = (
        "it knows no other groups and no links beyond the cards" if simulated > estimate else "a link may be faster"
    )
    return (
        f"the simulation ({format_seconds(simulated)}) and NCCL's own estimate ({format_seconds(estimate)}) contradict "
        f"each other by {max(estimate, simulated) / min(estimate, simulated):.2g}: {reason}"
    )


def _print(answer: CollectiveAnswer) -> None:
    kind = hyphenated(answer.kind)
    groups = answer.gpus // answer.group if answer.concurrent == "all" else 1
    print(
        f"{kind} of {format_bytes(answer.bytes)} by {groups:,} group{'s' if groups > 1 else ''} of {answer.group:,}"
        f"{f' with stride {answer.stride:,}' if answer.stride > 1 else ''} among {answer.gpus:,} GPUs of "
        f"{answer.machine}, routing {answer.routing}: {format_seconds(answer.seconds)}"
    )
    if answer.algorithm_bandwidth is not None and answer.bus_bandwidth is not None:
        print(
            f"algorithm bandwidth {format_bytes_per_second(answer.algorithm_bandwidth)} (bytes / seconds), "
            f"bus bandwidth {format_bytes_per_second(answer.bus_bandwidth)} ({answer.bus_bandwidth_formula})"
        )
    channels = f", {answer.channels} channels" if answer.channels > 1 and answer.protocol is None else ""
    print(f"algorithm {answer.algorithm}{channels}: {answer.why}")
    bound = f", seconds off by at most {100 * answer.shards_bound:.2g} %" if answer.shards_bound else ""
    print(f"shards {answer.shards}{bound}")
    if answer.seconds_by_part:
        parts = (f"{part} {format_seconds(amount)}" for part, amount in answer.seconds_by_part.items() if amount)
        print(f"of this {', '.join(parts)}")
    print(_effort_line(answer))
    if answer.bottlenecks:
        rows = [
            (
                link.link,
                f"{link.alike:,}",
                format_bytes(link.bytes),
                duration(link.busy_s),
                percent(link.utilisation, signed=False),
            )
            for link in answer.bottlenecks
        ]
        print()
        print_tables(table("busiest links", ("link", "links", "bytes of each", "in use", "use of the time"), rows))


def _effort_line(answer: CollectiveAnswer) -> str:
    """The effort of the simulation: events, transfers and wall time."""
    if answer.folded:
        classes = "class" if answer.rank_classes == 1 else "classes"
        how = f"{answer.rank_classes:,} {classes} of ranks, {answer.flow_classes:,} of flows"
    else:
        how = f"every one of {answer.flow_classes:,} flows by itself: {answer.not_folded_reason}"
    return (
        f"{answer.transfers:,} transfers in {answer.events:,} events, {how}; "
        f"{format_seconds(answer.wall_seconds)}, {format_bytes(answer.peak_memory_bytes)} at most"
    )
