"""`quadrille replay`: simulates a message graph of another program on a machine, and reports its time."""

import resource
import time
from collections.abc import Callable, Sequence

import msgspec

from quadrille.algorithms.analysis.graph_steps import with_steps
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.field_units import Bytes, Seconds, WholeBytes
from quadrille.algorithms.formats.message_graph import MessageGraph
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.units import format_bytes, format_percent, format_seconds
from quadrille.experiments.import_.file_kinds import other_kinds_named
from quadrille.experiments.import_.message_graphs import ACCEPTED, read_graph
from quadrille.experiments.network.flows_command import LinkTraffic, ModelledMachine
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.output.tables import duration, print_tables, table
from quadrille.runtime.host.console import remark_all
from quadrille.simulator.machine.network import network_of
from quadrille.simulator.ranks.graph_simulation import GraphTimes, simulate_graph
from quadrille.topologies.machines.machine import Machine

SCHEMA = "quadrille/replay/1"
RINGS = Choices()
LATE_RANKS = 5
"""Ranks that the printed answer lists, those that end last."""


class ReplayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that `--json` writes.

    Parameters
    ----------
    calculations, messages : numbers of tasks; each message is a send and a receive
    bytes : bytes of all messages [B]
    makespan_s : end of the last rank [s]
    finish_s : end of each rank [s]
    calculating_s : seconds of each rank's calculations, those of its stream 0 [s]
    links : traffic of the most used links
    wall_seconds : time from parsed arguments to the result [s]
    """

    machine: ModelledMachine
    routing: str
    placement: str
    ranks: int
    calculations: int
    messages: int
    bytes: Bytes
    makespan_s: Seconds
    finish_s: list[Seconds]
    calculating_s: list[Seconds]
    links: list[LinkTraffic]
    wall_seconds: Seconds
    peak_memory_bytes: WholeBytes
    provenance: Provenance


def replay(
    paths: Sequence[str],
    machine_for: Callable[[int], Machine],
    *,
    placement: str = "packed",
    choices: Choices = RINGS,
    destinations: Destinations | None = None,
    command: Sequence[str] = (),
) -> ReplayAnswer:
    """Simulates the message graph in files on a machine, and prints the answer or writes it.

    Parameters
    ----------
    paths : files of a graph, see `import_/message_graphs.py`
    machine_for : function that returns the machine, or a topology alone, with a given number of GPUs
    placement : rule of the rank placement
    choices : algorithms of collectives that the files do not write as steps
    destinations : files of the answer; None to print it
    command : words of the command line, for provenance

    Raises
    ------
    InputError : an invalid file, machine or flag
    Deadlock : tasks that wait for each other
    """
    begin = time.perf_counter()
    to = destinations or Destinations()
    to.check({f"FILE {number}": path for number, path in enumerate(paths, 1)})
    with other_kinds_named("replay", paths, f"accepted is {ACCEPTED}"):
        graph, remarks = read_graph(paths)
    remark_all(remarks)
    graph = with_steps(graph, choices, paths[0])
    machine = machine_for(len(graph.ranks))
    times = simulate_graph(graph, machine, placement)
    answer = _answer(graph, machine, placement, times, begin, command)
    write_or_show(answer, to.json, SCHEMA, lambda: _print(answer))
    if to.plot:
        _draw(answer, machine, times, to.plot)
    return answer


def _answer(
    graph: MessageGraph, machine: Machine, placement: str, times: GraphTimes, begin: float, command: Sequence[str]
) -> ReplayAnswer:
    return ReplayAnswer(
        machine=ModelledMachine(machine.name, machine.sha256, network_of(machine).endpoint_count),
        routing=machine.routing,
        placement=placement,
        ranks=len(graph.ranks),
        calculations=graph.count("calculate"),
        messages=graph.count("send"),
        bytes=graph.bytes,
        makespan_s=times.makespan,
        finish_s=list(times.finish),
        calculating_s=list(times.calculating),
        links=[LinkTraffic(load.link, load.bytes, load.busy_s, load.utilisation) for load in times.links],
        wall_seconds=time.perf_counter() - begin,
        peak_memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        provenance=provenance(command),
    )


def _draw(answer: ReplayAnswer, machine: Machine, times: GraphTimes, path: str) -> None:
    """Writes the figure of the use of links."""
    from quadrille.experiments.drawing.links_figure import draw_links

    setting = (
        f"{answer.messages:,} messages of {answer.ranks:,} ranks on {machine.name}: {format_seconds(answer.makespan_s)}"
    )
    draw_links({load.link: load.utilisation for load in times.every_link}, network_of(machine), path, setting=setting)


def _print(answer: ReplayAnswer) -> None:
    """Prints the makespan, the ranks that end last and the busiest links."""
    print(
        f"{answer.ranks:,} ranks with {answer.messages:,} messages of {format_bytes(answer.bytes)} in all on "
        f"{answer.machine.name} ({answer.machine.gpus:,} GPUs, routing {answer.routing}): "
        f"{format_seconds(answer.makespan_s)}; simulated in {format_seconds(answer.wall_seconds)}"
    )
    last = sorted(range(answer.ranks), key=lambda rank: -answer.finish_s[rank])[:LATE_RANKS]
    rank_rows = [(str(rank), duration(answer.finish_s[rank]), duration(answer.calculating_s[rank])) for rank in last]
    link_rows = [
        (load.link, format_bytes(load.bytes), duration(load.busy_s), format_percent(load.utilisation))
        for load in answer.links[:LATE_RANKS]
    ]
    print_tables(
        table("last to end", ("rank", "end", "calculations"), rank_rows),
        table("busiest links", ("link", "bytes", "busy", "use of the makespan"), link_rows),
    )
