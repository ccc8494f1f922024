"""`quadrille flows`: simulates the flows of a traffic file, and reports their ends and the links that limit them."""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.field_units import Bytes, Seconds, Share, WholeBytes
from quadrille.algorithms.formats.record import PathPart
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.units import format_bytes, format_percent, format_seconds
from quadrille.experiments.network.late_flows import (
    MOST_LATE_FLOWS,
    LateFlow,
    late_flows,
    mean_seconds_by_cause,
    seconds_by_cause_of_last,
    simulated_flows,
)
from quadrille.experiments.network.traffic_file import TrafficRows, check_destinations, names_hosts, read_traffic
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.output.tables import duration, print_tables, table
from quadrille.simulator.machine.network import network_of, routes_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network

if TYPE_CHECKING:
    from quadrille.simulator.engine.flow_simulation import FlowSet, FlowTimes
    from quadrille.topologies.routes.paths import Paths

SCHEMA = "quadrille/flows/1"

Weights = Literal["none", "latency"]
Floats = NDArray[np.float64]


class ModelledMachine(msgspec.Struct, frozen=True):
    """The machine of an answer, and the number of its GPUs that are modelled."""

    name: str
    sha256: str
    gpus: int


class LinkTraffic(msgspec.Struct, frozen=True):
    """The bytes of a link, the time in which any flow used it [s], and bytes / (bandwidth · makespan)."""

    link: str
    bytes: Bytes
    busy_s: Seconds
    utilisation: Share


class FlowsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that `--json` writes: the ends of all flows, and the traffic of all links that carried bytes.

    Parameters
    ----------
    weights : weights by which flows share a link, as in `flows`
    links : traffic of the links, in the order of the topology
    finish_s : end of each flow, in the order of the rows [s]
    makespan_s : time from the first start to the last end [s]
    seconds_by_part, mean_seconds_by_part : the makespan by cause, for the last flow and for the mean flow [s]
    last : flows that ended last, and the links that limited them
    events : number of instants at which flows began or ended
    wall_seconds : time from parsed arguments to the result, without imports and compilation [s]
    """

    machine: ModelledMachine
    routing: str
    weights: Weights
    finish_s: list[Seconds]
    makespan_s: Seconds
    seconds_by_part: dict[PathPart, Seconds]
    mean_seconds_by_part: dict[PathPart, Seconds]
    last: list[LateFlow]
    links: list[LinkTraffic]
    events: int
    wall_seconds: Seconds
    peak_memory_bytes: WholeBytes
    provenance: Provenance


def flows(
    traffic: str,
    machine_for: Callable[[int], Machine],
    *,
    weights: Weights = "none",
    local: bool = True,
    destinations: Destinations | None = None,
    command: Sequence[str] = (),
) -> FlowsAnswer:
    """Simulates the traffic in a file on a machine, and prints the answer or writes it.

    Parameters
    ----------
    traffic : path of a CSV file, see `traffic_file.py`
    machine_for : function that returns the machine, or a topology alone, with a given number of GPUs
    weights : `none`, or `latency` for shares weighted by 1 / latency of the route, as SimGrid's CM02 does
    local : whether the engine recomputes only rates that may change at an event; the result is the same
    destinations : files of the answer; None to print it
    command : words of the command line, for provenance

    Raises
    ------
    InputError : an invalid row, machine, flag or file
    """
    begin = time.perf_counter()
    to = destinations or Destinations()
    to.check({"the traffic": traffic})
    hosts = network_of(machine_for(2)).host_names if names_hosts(traffic) else ()
    rows = read_traffic(traffic, hosts)
    machine = machine_for(rows.largest + 1)
    net = network_of(machine)
    check_destinations(rows, net.endpoint_count, net.endpoints[0], traffic)
    flow_ends = _simulate_ends(rows, machine, net, weights, local=local)
    if not flow_ends.finite:
        raise InputError(f"{traffic}: the flows are too large: they do not end within a finite number of seconds")
    answer = _answer(flow_ends, rows, machine, net, weights, begin, command)
    write_or_show(answer, to.json, SCHEMA, lambda: _print(answer, rows))
    if to.plot:
        from quadrille.experiments.drawing.links_figure import draw_links

        setting = f"{len(rows.sizes):,} flows on {machine.name}: {format_seconds(answer.makespan_s)}"
        draw_links({load.link: load.utilisation for load in answer.links}, net, to.plot, setting=setting)
    return answer


@dataclass(frozen=True, slots=True)
class _FlowEnds:
    """The simulated ends of flows, and the paths of the flows.

    Parameters
    ----------
    first : first start of a flow, from which the ends are counted [s]
    loading : time to import and compile the kernels [s]
    """

    first: float
    flows: "FlowTimes"
    paths: "Paths"
    loading: float

    @property
    def makespan(self) -> float:
        return float(self.flows.finish.max())

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.makespan + self.first) and np.isfinite(self.flows.carried).all())


def _simulate_ends(rows: TrafficRows, machine: Machine, net: Network, weights: Weights, *, local: bool) -> _FlowEnds:
    """Simulates the flows of all rows."""
    begin = time.perf_counter()
    from quadrille.simulator.engine.flow_simulation import load_kernels, simulate_flows  # with SimPy and more: 0.1 s

    loading = time.perf_counter() - begin + load_kernels(len(rows.sizes))
    paths = routes_of(machine, net).between(rows.sources, rows.destinations)
    first = float(rows.starts.min())
    with np.errstate(over="ignore"):
        flow_ends = simulate_flows(net.bandwidths, _weighted_flows(rows, paths, weights, first), local=local)
    return _FlowEnds(first, flow_ends, paths, loading)


def _answer(
    flow_ends: _FlowEnds,
    rows: TrafficRows,
    machine: Machine,
    net: Network,
    weights: Weights,
    begin: float,
    command: Sequence[str],
) -> FlowsAnswer:
    """The answer of the command; `begin` is the wall-clock time at which the work began [s]."""
    ran = simulated_flows(net, rows, flow_ends.paths, flow_ends.flows.finish)
    return FlowsAnswer(
        machine=ModelledMachine(machine.name, machine.sha256, net.endpoint_count),
        routing=machine.routing,
        weights=weights,
        finish_s=(flow_ends.first + flow_ends.flows.finish).tolist(),
        makespan_s=flow_ends.makespan,
        seconds_by_part=seconds_by_cause_of_last(ran),
        mean_seconds_by_part=mean_seconds_by_cause(ran),
        last=late_flows(ran),
        links=_link_traffic(net, flow_ends.flows.carried, flow_ends.flows.busy, flow_ends.makespan),
        events=flow_ends.flows.events,
        wall_seconds=time.perf_counter() - begin - flow_ends.loading,
        peak_memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        provenance=provenance(command),
    )


def _weighted_flows(rows: TrafficRows, paths: "Paths", weights: Weights, first: float) -> "FlowSet":
    """The rows as weighted flows; times are counted from the first start."""
    from quadrille.simulator.engine.flow_simulation import FlowSet

    share = np.ones(len(rows.sizes))
    if weights == "latency":
        if len(without_latency := np.flatnonzero(paths.latency <= 0)):
            row = int(without_latency[0])
            raise InputError(
                f"weights 'latency': the route from {rows.sources[row]} to {rows.destinations[row]} has no latency; "
                "accepted is none"
            )
        share = 1 / paths.latency
    unlimited = np.full(len(share), np.inf)
    return FlowSet(
        paths.offsets, paths.links, paths.shares, rows.sizes, rows.starts - first, paths.latency, share, unlimited
    )


def _link_traffic(net: Network, carried: Floats, busy: Floats, makespan: float) -> list[LinkTraffic]:
    """The traffic of the links that carried bytes, in the order of the topology."""
    used = np.flatnonzero(carried > 0)
    mean_use = carried[used] / (net.bandwidths[used] * makespan)
    columns = (net.link_names(used), carried[used].tolist(), busy[used].tolist(), mean_use.tolist())
    return [LinkTraffic(*row) for row in zip(*columns, strict=True)]


def _print(answer: FlowsAnswer, rows: TrafficRows) -> None:
    """Prints the makespan, the flows that ended last, and the busiest links."""
    late_rows = [
        (
            str(flow.row),
            f"{flow.source} > {flow.destination}",
            format_bytes(flow.bytes),
            duration(flow.start_s),
            duration(flow.finish_s),
            duration(flow.seconds_by_part["contention"]),
            _limiting_link_text(flow),
        )
        for flow in answer.last
    ]
    busy = sorted(answer.links, key=lambda load: -load.utilisation)[:MOST_LATE_FLOWS]
    link_rows = [
        (load.link, format_bytes(load.bytes), duration(load.busy_s), format_percent(load.utilisation)) for load in busy
    ]
    print(
        f"{len(rows.sizes):,} flows on {answer.machine.name} ({answer.machine.gpus:,} GPUs, routing {answer.routing}, "
        f"weights {answer.weights}): {format_seconds(answer.makespan_s)}; {answer.events:,} events "
        f"in {format_seconds(answer.wall_seconds)}"
    )
    print_tables(
        table(
            "last to end", ("row", "from > to", "bytes", "start", "end", "contention", "limited by"), late_rows, names=2
        ),
        table("busiest links", ("link", "bytes", "busy", "use of the makespan"), link_rows),
    )


def _limiting_link_text(flow: LateFlow) -> str:
    """The link of a flow's route with the highest utilisation while the flow ran."""
    if not flow.held_by:
        return ""
    return f"{flow.held_by[0].link} ({format_percent(flow.held_by[0].utilisation, digits=0)})"
