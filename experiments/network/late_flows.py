"""The time of flows by cause, and the links that limited the flows that ended last.

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

from quadrille.algorithms.formats.record import PathPart
from quadrille.experiments.network.traffic_file import TrafficRows
from quadrille.topologies.network import Network
from quadrille.topologies.routes.paths import Paths

Floats = NDArray[np.float64]
SHOWN = 8
HOLDERS = 3


class Holder(msgspec.Struct, frozen=True):
    """A link of a flow's route, and its utilisation while the flow ran."""

    link: str
    utilisation: float


class LateFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that ended late.

    Parameters
    ----------
    row : row of the file, from 1
    seconds_by_part : latency, bandwidth and contention, from its start to its end [s]
    held_by : links of its route with the highest utilisation while it ran
    """

    row: int
    source: int
    destination: int
    bytes: float
    start_s: float
    finish_s: float
    seconds_by_part: dict[PathPart, float]
    held_by: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedFlows:
    """All flows and their simulated times, counted from the first start.

    Parameters
    ----------
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
        makespan, ran = float(self.finish.max()), self.finish - self.starts
        contention = np.maximum(0.0, self.finish - self.begins - self.alone)
        latency = np.maximum(0.0, ran - self.alone - contention)
        return {
            "waiting": np.maximum(0.0, makespan - ran),
            "latency": latency,
            "bandwidth": self.alone,
            "contention": contention,
        }


def flows_ran(net: Network, rows: TrafficRows, paths: Paths, finish: Floats) -> SimulatedFlows:
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


def parts_of_last(ran: SimulatedFlows) -> dict[PathPart, float]:
    """The makespan by cause, for the flow that ended last [s]."""
    last = int(ran.finish.argmax())
    return {part: float(seconds[last]) for part, seconds in ran.parts.items()}


def parts_of_mean(ran: SimulatedFlows) -> dict[PathPart, float]:
    """The makespan by cause, for the mean flow [s]; waiting is the time before its start and after its end."""
    return {part: float(seconds.mean()) for part, seconds in ran.parts.items()}


def late_flows(ran: SimulatedFlows) -> list[LateFlow]:
    """The flows that ended last, the last flow first."""
    first = float(ran.rows.starts.min())
    parts = ran.parts
    return [
        LateFlow(
            row=row + 1,
            source=int(ran.rows.sources[row]),
            destination=int(ran.rows.destinations[row]),
            bytes=float(ran.rows.sizes[row]),
            start_s=float(ran.rows.starts[row]),
            finish_s=first + float(ran.finish[row]),
            seconds_by_part={part: float(parts[part][row]) for part in ("latency", "bandwidth", "contention")},
            held_by=_holders(ran, row),
        )
        for row in np.argsort(-ran.finish, kind="stable")[:SHOWN].tolist()
    ]


def _holders(ran: SimulatedFlows, row: int) -> tuple[Holder, ...]:
    """The links of a flow's route with the highest utilisation between its first and its last byte."""
    first, last, links = float(ran.begins[row]), float(ran.finish[row]), ran.paths.links
    if last <= first:
        return ()
    route = links[ran.paths.offsets[row] : ran.paths.offsets[row + 1]]
    wanted = np.zeros(ran.net.link_count, dtype=bool)
    wanted[route] = True
    entries = np.flatnonzero(wanted[links])
    flows = ran.owner[entries]
    took = ran.finish[flows] - ran.begins[flows]
    together = np.maximum(0.0, np.minimum(ran.finish[flows], last) - np.maximum(ran.begins[flows], first))
    share = np.divide(together, took, out=np.zeros(len(flows)), where=took > 0)
    moved = share * ran.paths.shares[entries] * ran.rows.sizes[flows]
    carried = np.bincount(links[entries], moved, ran.net.link_count)
    use = carried[route] / (ran.net.bandwidths[route] * (last - first))
    most = np.argsort(-use, kind="stable")[:HOLDERS]
    return tuple(Holder(ran.net.link(int(route[i])).name, float(use[i])) for i in most)
