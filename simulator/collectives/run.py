"""`run` simulates the programs of a collective, by a sweep or event by event; `causes_of` splits its time by cause.

Where no flow can slow another, step times are a recurrence that is swept over all
members at once; else members go from event to event, and so they do where their steps
differ.

The causes come from the same programs, simulated without contention and without bytes:

    latency      the end if bytes took no time
    bandwidth    what bytes add, each flow alone on its route
    contention   what sharing of links adds
    waiting      of the mean rank: from its own end to the last rank's

Every step waits for both its ends, and takes no less time when it has bytes and
when its links are shared, so no part is below 0 (but for rounding), and the parts
add up to the end. Waiting for a partner inside the collective belongs to the cause
that held up the partner.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from quadrille.algorithms.formats.record import PathPart
from quadrille.simulator.collectives.event_walk import PLAIN_EVENTS, walk_from_events
from quadrille.simulator.collectives.programs import Floats, Ints, MemberPrograms
from quadrille.simulator.collectives.sweep import sections, sweep
from quadrille.simulator.symmetry.partition import Flows

FITS = 1e-12
"""Part of its capacity by which a link may exceed it through rounding."""

ROOMY = 8
"""Cells of a table of links and members for each entry, up to which the table is faster than sorting."""


@dataclass(frozen=True, slots=True, eq=False)
class RoutedFlows:
    """The flows of programs with their latency [s], cap and best rate [B/s]."""

    flows: Flows
    latency: Floats
    caps: Floats
    alone: Floats


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveRun:
    """Ends of members and busy seconds of links [s], and whether flows could slow each other."""

    method: Literal["sweep", "events"]
    ends: Floats
    busy: Floats
    events: int
    error_seconds: float
    contended: bool


def run(
    programs: MemberPrograms,
    routed: RoutedFlows,
    capacities: Floats,
    *,
    contended: bool | None = None,
    fold_time: bool = True,
    local: bool = True,
    plain_events: int = PLAIN_EVENTS,
) -> CollectiveRun:
    """Simulates the programs of all members, or of one representative of each class.

    Parameters
    ----------
    capacities : capacity of each link [B/s]
    contended : whether flows slow each other; None to find out, False for every flow at its best rate
    fold_time, local : shortcuts that do not change the result
    plain_events : number of events, or of flows, from which compiled kernels are used
    """
    can_contend = contends(routed.flows, routed.alone, capacities) if contended is None else contended
    common_sections = None if can_contend else sections(programs)
    if common_sections is not None:
        swept = sweep(programs, common_sections, routed.latency, routed.alone, fold_time=fold_time)
        moving = np.divide(programs.flow_bytes(), routed.alone)
        busy = np.zeros(len(capacities))
        np.maximum.at(busy, routed.flows.links, moving[routed.flows.entry_flows()])
        return CollectiveRun(
            "sweep", swept.ends, busy, swept.steps * programs.members, swept.error_seconds, can_contend
        )
    walked = walk_from_events(
        programs,
        routed.flows,
        capacities,
        routed.latency,
        routed.caps,
        alone=routed.alone,
        contended=can_contend,
        fold_time=fold_time,
        local=local,
        plain_events=plain_events,
    )
    return CollectiveRun("events", walked.ends, walked.busy, walked.events, walked.error_seconds, can_contend)


def contends(flows: Flows, alone: Floats, capacities: Floats, *, roomy: int = ROOMY) -> bool:
    """Whether flows at their best rates may demand more of a link than it has.

    A member sends on one flow at a time and receives on one, so of all flows of one
    sender (or of one receiver) only the greatest counts.

    Parameters
    ----------
    roomy : cells of a table of links and members for each entry, up to which a table is used, not sorting
    """
    owner = flows.entry_flows()
    demand = flows.shares * alone[owner]
    most = capacities * (1 + FITS)
    tight = np.bincount(flows.links, demand, minlength=len(capacities)) > most
    if not tight.any():
        return False
    for end in (flows.sender, flows.receiver):
        entries = np.flatnonzero(tight[flows.links])
        tight = _load(flows.links[entries], end[owner[entries]], demand[entries], len(capacities), roomy) > most
        if not tight.any():
            return False
    return True


def _load(links: Ints, ends: Ints, demand: Floats, count: int, roomy: int) -> Floats:
    """The demand on each link if of the flows of each member only the greatest counts."""
    members = int(ends.max()) + 1
    if count * members <= roomy * len(links):
        table = np.zeros(count * members)
        np.maximum.at(table, links * members + ends, demand)
        summed: Floats = table.reshape(count, members).sum(axis=1)
        return summed
    pairs, where = np.unique(links * members + ends, return_inverse=True)
    greatest = np.zeros(len(pairs))
    np.maximum.at(greatest, where, demand)
    load: Floats = np.bincount(pairs // members, greatest, minlength=count).astype(np.float64)
    return load


@dataclass(frozen=True, slots=True)
class Causes:
    """Parts of the time of the last rank and of the mean rank by cause [s]; latency is the rest of the whole.

    So what passes before or after may be added to the whole alone.

    >>> Causes.together(2.0, 1.0).of(3.5)["latency"], Causes(2.0, 1.0, 1.5, 0.5, 0.75).mean_of(3.5)["waiting"]
    (0.5, 0.75)
    """

    bandwidth: float
    contention: float
    mean_bandwidth: float
    mean_contention: float
    waiting: float

    @classmethod
    def together(cls, bandwidth: float, contention: float) -> "Causes":
        """The causes if all ranks end at once."""
        return cls(bandwidth, contention, bandwidth, contention, 0.0)

    def of(self, seconds: float) -> dict[PathPart, float]:
        """Parts of the time until the last rank has ended, which add up to it."""
        latency = max(0.0, seconds - self.bandwidth - self.contention)
        return {"latency": latency, "bandwidth": self.bandwidth, "contention": self.contention, "waiting": 0.0}

    def mean_of(self, seconds: float) -> dict[PathPart, float]:
        """Parts of the same time as the mean rank spends it."""
        latency = max(0.0, seconds - self.mean_bandwidth - self.mean_contention - self.waiting)
        return {
            "latency": latency,
            "bandwidth": self.mean_bandwidth,
            "contention": self.mean_contention,
            "waiting": self.waiting,
        }


def causes_of(
    programs: MemberPrograms,
    routed: RoutedFlows,
    capacities: Floats,
    finished: CollectiveRun,
    members: Ints,
    *,
    fold_time: bool = True,
) -> Causes:
    """The causes, found by up to two more runs in which nothing contends.

    Parameters
    ----------
    finished : the run itself
    members : for each member of all groups, its representative
    """
    alone, latent = finished.ends, np.zeros_like(finished.ends)
    if finished.contended:
        alone = np.minimum(finished.ends, run(programs, routed, capacities, contended=False, fold_time=fold_time).ends)
    if routed.latency.any():
        instant = replace(routed, alone=np.full_like(routed.alone, np.inf))
        latent = np.minimum(alone, run(programs, instant, capacities, contended=False, fold_time=fold_time).ends)
    last = [float(ends.max(initial=0.0)) for ends in (latent, alone, finished.ends)]
    mean = [float(ends[members].mean()) if len(members) else 0.0 for ends in (latent, alone, finished.ends)]
    return Causes(
        bandwidth=last[1] - last[0],
        contention=last[2] - last[1],
        mean_bandwidth=mean[1] - mean[0],
        mean_contention=mean[2] - mean[1],
        waiting=max(0.0, last[2] - mean[2]),
    )
