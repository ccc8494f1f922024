"""What the time of flows is made of, and which links held those that ended last.

    start    latency    bytes over the narrowest link    sharing
    ├────────┼──────────┼────────────────────────────────┼───────┤ finish
     waiting  latency    bandwidth                        contention

A link holds a flow where it is full while the flow runs; how full it was is
told from all that ran over it at that time, each at its mean rate.
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
    """A link of a flow's route, and how much of it was used while the flow ran."""

    link: str
    utilisation: float


class LateFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow that ended late; `row` counts the rows of the file from 1.

    Parameters
    ----------
    seconds_by_part : latency, bandwidth and contention, from its start to its end
    held_by : links of its route, those used most while it ran
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
    """All flows and how they went; times from the first start on [s].

    Parameters
    ----------
    owner : the flow of each entry of the paths
    starts, begins, finish : of each flow, when it is handed to the network, takes bandwidth, and has ended
    alone : how long its bytes take over the narrowest link of its route where nothing else runs
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
        """Seconds of each flow by part; they add up to the makespan."""
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
    """The flows with what follows from their routes.

    Parameters
    ----------
    finish : from the first start on [s]
    """
    owner = np.repeat(np.arange(len(rows.sizes)), np.diff(paths.offsets))
    slowest = np.zeros(len(rows.sizes))
    np.maximum.at(slowest, owner, paths.shares / net.bandwidths[paths.links])
    starts = rows.starts - rows.starts.min()
    return SimulatedFlows(net, rows, paths, owner, starts, starts + paths.latency, rows.sizes * slowest, finish)


def parts_of_last(ran: SimulatedFlows) -> dict[PathPart, float]:
    """The makespan by part, as the flow that ended last spent it."""
    last = int(ran.finish.argmax())
    return {part: float(seconds[last]) for part, seconds in ran.parts.items()}


def parts_of_mean(ran: SimulatedFlows) -> dict[PathPart, float]:
    """The makespan by part, as the mean flow spent it: what it waits is before its start and after its end."""
    return {part: float(seconds.mean()) for part, seconds in ran.parts.items()}


def late_flows(ran: SimulatedFlows) -> list[LateFlow]:
    """The flows that ended last, the last one first."""
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
    """The links of a flow's route that were used most between its first byte and its last."""
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
