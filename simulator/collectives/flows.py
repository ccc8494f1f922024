"""The flows of a collective's programs, whether they may hold each other back, and the shortest way to their ends.

Where no flow can hold back another, step times are a recurrence swept over all
members at once; else members go from event to event, and so they do where their
steps differ.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from quadrille.simulator.collectives.programs import Floats, Ints, Programs
from quadrille.simulator.collectives.steps import walk_programs
from quadrille.simulator.collectives.sweep import sections, sweep
from quadrille.simulator.symmetry.partition import Flows

FITS = 1e-12
"""Part of its capacity by which a link may seem overloaded and is not."""
ROOMY = 8
"""Cells of a table of links and members, for each entry, that are worth not sorting the entries."""


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """The flows of programs with what holds each: latency [s], cap, and best rate [B/s]."""

    flows: Flows
    latency: Floats
    caps: Floats
    alone: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """Ends of members and busy seconds of links [s], and whether flows could hold each other back."""

    method: Literal["sweep", "events"]
    ends: Floats
    busy: Floats
    events: int
    error_seconds: float
    contended: bool


def run(
    programs: Programs,
    moves: Moves,
    capacities: Floats,
    *,
    contended: bool | None = None,
    fold_time: bool = True,
    local: bool = True,
) -> Ran:
    """The simulation proper, of all members or of one representative each.

    Parameters
    ----------
    contended : whether flows hold each other back; None to find out, False for every flow at its best rate
    fold_time, local : switches that do not change the result
    """
    held = contends(moves.flows, moves.alone, capacities) if contended is None else contended
    parts = None if held else sections(programs)
    if parts is not None:
        swept = sweep(programs, parts, moves.latency, moves.alone, fold_time=fold_time)
        moving = np.divide(programs.flow_bytes(), moves.alone)
        busy = np.zeros(len(capacities))
        np.maximum.at(busy, moves.flows.links, moving[moves.flows.entry_flows()])
        return Ran("sweep", swept.ends, busy, swept.steps * programs.members, swept.error_seconds, held)
    walked = walk_programs(
        programs,
        moves.flows,
        capacities,
        moves.latency,
        moves.caps,
        alone=moves.alone,
        contended=held,
        fold_time=fold_time,
        local=local,
    )
    return Ran("events", walked.ends, walked.busy, walked.events, walked.error_seconds, held)


def contends(flows: Flows, alone: Floats, capacities: Floats) -> bool:
    """Whether flows at their best rates may ask more of a link than it has.

    A member sends on one flow at a time and receives on one, so of all the
    flows of one sender (or of one receiver) only the greatest counts.
    """
    owner = flows.entry_flows()
    asked = flows.shares * alone[owner]
    most = capacities * (1 + FITS)
    tight = np.bincount(flows.links, asked, minlength=len(capacities)) > most
    if not tight.any():
        return False
    for end in (flows.sender, flows.receiver):
        entries = np.flatnonzero(tight[flows.links])
        tight = _load(flows.links[entries], end[owner[entries]], asked[entries], len(capacities)) > most
        if not tight.any():
            return False
    return True


def _load(links: Ints, ends: Ints, asked: Floats, count: int) -> Floats:
    """What is asked of each link where of the flows of each member only the greatest counts."""
    members = int(ends.max()) + 1
    if count * members <= ROOMY * len(links):
        table = np.zeros(count * members)
        np.maximum.at(table, links * members + ends, asked)
        summed: Floats = table.reshape(count, members).sum(axis=1)
        return summed
    pairs, where = np.unique(links * members + ends, return_inverse=True)
    greatest = np.zeros(len(pairs))
    np.maximum.at(greatest, where, asked)
    load: Floats = np.bincount(pairs // members, greatest, minlength=count).astype(np.float64)
    return load
