"""`quadrille flows`: simulates the transfers of a traffic file; their ends, and the links that limit them."""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import PathPart
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.network.late_flows import (
    SHOWN,
    LateFlow,
    flows_ran,
    late_flows,
    parts_of_last,
    parts_of_mean,
)
from quadrille.experiments.network.traffic_file import TrafficRows, check_destinations, read_traffic
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.output.tables import print_tables, table
from quadrille.simulator.machine.network import network_of, routes_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network

if TYPE_CHECKING:
    from quadrille.simulator.engine.flow_simulation import FlowSet, FlowTimes
    from quadrille.topologies.routes.paths import Paths

SCHEMA = "quadrille/flows/1"

Weights = Literal["none", "latency"]
Floats = NDArray[np.float64]


class OnMachine(msgspec.Struct, frozen=True):
    """The machine, and the number of its GPUs that are modelled."""

    name: str
    sha256: str
    gpus: int


class LinkTraffic(msgspec.Struct, frozen=True):
    """The bytes of a link, the time in which any flow used it [s], and bytes / (bandwidth · makespan)."""

    link: str
    bytes: float
    busy_s: float
    utilisation: float


class FlowsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of all flows, and the loads of all links that carried bytes.

    Parameters
    ----------
    finish_s : end of each flow, in the order of the rows [s]
    makespan_s : time from the first start to the last end [s]
    seconds_by_part, mean_seconds_by_part : the makespan by cause, for the last flow and for the mean flow [s]
    last : flows that ended last, and the links that limited them
    events : number of instants at which flows began or ended
    wall_seconds : time from parsed arguments to the result, without imports and compilation [s]
    """

    machine: OnMachine
    routing: str
    weights: Weights
    finish_s: list[float]
    makespan_s: float
    seconds_by_part: dict[PathPart, float]
    mean_seconds_by_part: dict[PathPart, float]
    last: list[LateFlow]
    links: list[LinkTraffic]
    events: int
    wall_seconds: float
    peak_memory_bytes: int
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
    local : whether unchanged rates are kept; the result is the same
    command : words of the command line, for provenance

    Raises
    ------
    InputError : an invalid row, machine, flag or file
    """
    begin = time.perf_counter()
    to = destinations or Destinations()
    to.check({"the traffic": traffic})
    rows = read_traffic(traffic)
    machine = machine_for(rows.largest + 1)
    net = network_of(machine)
    check_destinations(rows, net.endpoint_count, net.endpoints[0], traffic)
    ended = _ended(rows, machine, net, weights, local=local)
    if not ended.finite:
        raise InputError(f"{traffic}: the flows are too large: they do not end within a finite number of seconds")
    answer = _answer(ended, rows, machine, net, weights, begin, command)
    write_or_show(answer, to.json, SCHEMA, lambda: _print(answer, rows))
    return answer


@dataclass(frozen=True, slots=True)
class _Ended:
    """The ends of flows on their routes.

    Parameters
    ----------
    first : the first start, from which the ends are counted [s]
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


def _ended(rows: TrafficRows, machine: Machine, net: Network, weights: Weights, *, local: bool) -> _Ended:
    """The ends of the flows of all rows, by simulation."""
    begin = time.perf_counter()
    from quadrille.simulator.engine.flow_simulation import load_kernels, simulate_flows  # with SimPy and more: 0.1 s

    loading = time.perf_counter() - begin + load_kernels(len(rows.sizes))
    paths = routes_of(machine, net).between(rows.sources, rows.destinations)
    first = float(rows.starts.min())
    with np.errstate(over="ignore"):
        ended = simulate_flows(net.bandwidths, _weighted(rows, paths, weights, first), local=local)
    return _Ended(first, ended, paths, loading)


def _answer(
    ended: _Ended,
    rows: TrafficRows,
    machine: Machine,
    net: Network,
    weights: Weights,
    begin: float,
    command: Sequence[str],
) -> FlowsAnswer:
    """The answer that is written; `begin` is the wall-clock time at which the work began."""
    ran = flows_ran(net, rows, ended.paths, ended.flows.finish)
    return FlowsAnswer(
        machine=OnMachine(machine.name, machine.sha256, net.endpoint_count),
        routing=machine.routing,
        weights=weights,
        finish_s=(ended.first + ended.flows.finish).tolist(),
        makespan_s=ended.makespan,
        seconds_by_part=parts_of_last(ran),
        mean_seconds_by_part=parts_of_mean(ran),
        last=late_flows(ran),
        links=_loads(net, ended.flows.carried, ended.flows.busy, ended.makespan),
        events=ended.flows.events,
        wall_seconds=time.perf_counter() - begin - ended.loading,
        peak_memory_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        provenance=provenance(command),
    )


def _weighted(rows: TrafficRows, paths: "Paths", weights: Weights, first: float) -> "FlowSet":
    """The rows as weighted flows; times are counted from the first start."""
    from quadrille.simulator.engine.flow_simulation import FlowSet

    share = np.ones(len(rows.sizes))
    if weights == "latency":
        if len(instant := np.flatnonzero(paths.latency <= 0)):
            row = int(instant[0])
            raise InputError(
                f"weights 'latency': the route from {rows.sources[row]} to {rows.destinations[row]} has no latency; "
                "accepted is none"
            )
        share = 1 / paths.latency
    unlimited = np.full(len(share), np.inf)
    return FlowSet(
        paths.offsets, paths.links, paths.shares, rows.sizes, rows.starts - first, paths.latency, share, unlimited
    )


def _loads(net: Network, carried: Floats, busy: Floats, makespan: float) -> list[LinkTraffic]:
    """Loads of the links that carried bytes, in the order of the topology."""
    used = np.flatnonzero(carried > 0)
    mean_use = carried[used] / (net.bandwidths[used] * makespan)
    columns = (net.link_names(used), carried[used].tolist(), busy[used].tolist(), mean_use.tolist())
    return [LinkTraffic(*row) for row in zip(*columns, strict=True)]


def _print(answer: FlowsAnswer, rows: TrafficRows) -> None:
    """Prints the makespan, the flows that ended last, and the busiest links."""
    slow = [
        (
            str(flow.row),
            f"{flow.source} > {flow.destination}",
            format_bytes(flow.bytes),
            format_seconds(flow.start_s),
            format_seconds(flow.finish_s),
            format_seconds(flow.seconds_by_part["contention"]),
            _held(flow),
        )
        for flow in answer.last
    ]
    busy = sorted(answer.links, key=lambda load: -load.utilisation)[:SHOWN]
    loads = [
        (load.link, format_bytes(load.bytes), format_seconds(load.busy_s), f"{100 * load.utilisation:.1f} %")
        for load in busy
    ]
    print(
        f"{len(rows.sizes):,} flows on {answer.machine.name} ({answer.machine.gpus:,} GPUs, routing {answer.routing}, "
        f"weights {answer.weights}): {format_seconds(answer.makespan_s)}; {answer.events:,} events "
        f"in {format_seconds(answer.wall_seconds)}"
    )
    print_tables(
        table("last to end", ("row", "from > to", "bytes", "start", "end", "contention", "held by"), slow, names=2),
        table("busiest links", ("link", "bytes", "busy", "use of the makespan"), loads),
    )


def _held(flow: LateFlow) -> str:
    """The link of a flow's route with the highest utilisation while the flow ran."""
    return f"{flow.held_by[0].link} ({100 * flow.held_by[0].utilisation:.0f} %)" if flow.held_by else ""
