"""The flows that ended last: their time by cause, and the links that limited them.

    start    latency    bytes over the narrowest link    sharing
    ├────────┼──────────┼────────────────────────────────┼───────┤ finish
     waiting  latency    bandwidth                        contention

A link limits a flow if it is full while the flow runs.  The utilisation of the link
during that time is estimated from all flows that crossed it then, each at its mean rate.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.field_units import Bytes, Seconds, Share
from quadrille.algorithms.formats.record import PathPart
from quadrille.experiments.network.traffic_file import TrafficRows
from quadrille.topologies.network import Network
from quadrille.topologies.routes.paths import Paths

Floats = NDArray[np.float64]
MOST_LATE_FLOWS = 8
MOST_LIMITING_LINKS = 3


class LimitingLink(msgspec.Struct, frozen=True):
    """A link of a flow's route, and its utilisation while the flow ran."""

    link: str
    utilisation: Share


class LateFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that ended late.

    Parameters
    ----------
    row : row of the file, from 1
    seconds_by_part : latency, bandwidth and contention, from its start to its end [s]
    held_by : links that limited the flow: those of its route with the highest utilisation while it ran
    """

    row: int
    source: int
    destination: int
    bytes: Bytes
    start_s: Seconds
    finish_s: Seconds
    seconds_by_part: dict[PathPart, Seconds]
    held_by: tuple[LimitingLink, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedFlows:
    """All flows and their simulated times, counted from the first start.

    Parameters
    ----------
    net, rows, paths : network, rows of the traffic file, and path of each flow
    owner : flow of each entry of the paths
    starts, begins, finish : time at which each flow is handed to the network, uses bandwidth, and ends [s] [flows]
    alone : time of each flow's bytes over the narrowest link of its route without contention [s] [flows]
    """

    net: Network
    rows: TrafficRows
    paths: Paths
    owner: NDArray[np.int64]
    starts: Floats
    begins: Floats
    alone: Floats
    finish: Floats

    @property
    def parts(self) -> dict[PathPart, Floats]:
        """Time of each flow by cause [s]; the sum of the causes is the makespan."""
        makespan, flow_seconds = float(self.finish.max()), self.finish - self.starts
        contention = np.maximum(0.0, self.finish - self.begins - self.alone)
        latency = np.maximum(0.0, flow_seconds - self.alone - contention)
        return {
            "waiting": np.maximum(0.0, makespan - flow_seconds),
            "latency": latency,
            "bandwidth": self.alone,
            "contention": contention,
        }


def simulated_flows(net: Network, rows: TrafficRows, paths: Paths, finish: Floats) -> SimulatedFlows:
    """The simulated flows, with the times that follow from their routes.

    Parameters
    ----------
    finish : end of each flow, counted from the first start [s]
    """
    owner = np.repeat(np.arange(len(rows.sizes)), np.diff(paths.offsets))
    slowest = np.zeros(len(rows.sizes))
    np.maximum.at(slowest, owner, paths.shares / net.bandwidths[paths.links])
    starts = rows.starts - rows.starts.min()
    return SimulatedFlows(net, rows, paths, owner, starts, starts + paths.latency, rows.sizes * slowest, finish)


def seconds_by_cause_of_last(simulated: SimulatedFlows) -> dict[PathPart, float]:
    """The makespan by cause, for the flow that ended last [s]."""
    last = int(simulated.finish.argmax())
    return {part: float(seconds[last]) for part, seconds in simulated.parts.items()}


def mean_seconds_by_cause(simulated: SimulatedFlows) -> dict[PathPart, float]:
    """The makespan by cause, for the mean flow [s]; waiting is the time before its start and after its end."""
    return {part: float(seconds.mean()) for part, seconds in simulated.parts.items()}


def late_flows(simulated: SimulatedFlows) -> list[LateFlow]:
    """The flows that ended last, the last flow first."""
    first = float(simulated.rows.starts.min())
    parts = simulated.parts
    return [
        LateFlow(
            row=row + 1,
            source=int(simulated.rows.sources[row]),
            destination=int(simulated.rows.destinations[row]),
            bytes=float(simulated.rows.sizes[row]),
            start_s=float(simulated.rows.starts[row]),
            finish_s=first + float(simulated.finish[row]),
            seconds_by_part={part: float(parts[part][row]) for part in ("latency", "bandwidth", "contention")},
            held_by=_limiting_links(simulated, row),
        )
        for row in np.argsort(-simulated.finish, kind="stable")[:MOST_LATE_FLOWS].tolist()
    ]


def _limiting_links(simulated: SimulatedFlows, row: int) -> tuple[LimitingLink, ...]:
    """The links of a flow's route with the highest utilisation between its first and its last byte."""
    first, last, links = float(simulated.begins[row]), float(simulated.finish[row]), simulated.paths.links
    if last <= first:
        return ()
    route = links[simulated.paths.offsets[row] : simulated.paths.offsets[row + 1]]
    on_route = np.zeros(simulated.net.link_count, dtype=bool)
    on_route[route] = True
    entries = np.flatnonzero(on_route[links])
    flows = simulated.owner[entries]
    transfer_seconds = simulated.finish[flows] - simulated.begins[flows]
    shared_seconds = np.maximum(
        0.0, np.minimum(simulated.finish[flows], last) - np.maximum(simulated.begins[flows], first)
    )
    share = np.divide(shared_seconds, transfer_seconds, out=np.zeros(len(flows)), where=transfer_seconds > 0)
    shared_bytes = share * simulated.paths.shares[entries] * simulated.rows.sizes[flows]
    carried = np.bincount(links[entries], shared_bytes, simulated.net.link_count)
    use = carried[route] / (simulated.net.bandwidths[route] * (last - first))
    highest = np.argsort(-use, kind="stable")[:MOST_LIMITING_LINKS]
    return tuple(LimitingLink(simulated.net.link(int(route[i])).name, float(use[i])) for i in highest)
