"""Many independent flows on links of finite capacity, exactly, from change to change.

A flow waits for its latency, then takes bandwidth until its bytes are through.
Rates are weighted max-min (`rates.py`) and change only when a flow begins or
ends, so the simulation goes from one change to the next:

    next change = the earliest of: a latency that is over, an end at the present rates

A flow keeps the bytes left at the instant of its last change of rate, and its end
at that rate; flows whose rate stays cost nothing.  Changes within `TIE` of the
time that the flow ending took (and the rounding of the clock) are one batch, after
which rates are settled once.

The same sets of active flows do not come back here, so there is nothing to remember.
"""

import time
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from quadrille.simulator.engine import bundled_filling, bundles
from quadrille.simulator.engine.bundled_filling import settle_bundled
from quadrille.simulator.engine.bundles import Bundles, enter, helps, leave, new_bundles
from quadrille.simulator.engine.compiled import compiled
from quadrille.simulator.engine.flow_state import (
    ACTIVE,
    FILLED,
    TIE,
    Array,
    Floats,
    FlowState,
    Integers,
    as_lists,
    new_state,
)
from quadrille.simulator.engine.rates import begin, end, settle

COMPILED_FROM = 1000
"""Flows from which on loading Numba pays."""
CLOCK = 1e-15
"""Relative rounding of the clock after a few additions."""


@dataclass(frozen=True, slots=True)
class FlowSet:
    """Flows and the links they take.

    Parameters
    ----------
    offsets, links, shares : the links of flow f, and what a unit of its rate takes of each, are the entries
        offsets[f] .. offsets[f + 1] - 1
    sizes : [bytes]
    starts : when a flow is handed to the network, from 0 [s]
    latencies : from then until it takes bandwidth [s]
    weights : of its share
    caps : largest rate, infinite where there is none [B/s]
    """

    offsets: Integers
    links: Integers
    shares: Floats
    sizes: Floats
    starts: Floats
    latencies: Floats
    weights: Floats
    caps: Floats


@dataclass(frozen=True, slots=True)
class FlowTimes:
    """When every flow ended, and what every link did.

    Parameters
    ----------
    finish : by flow [s]
    carried : by link [bytes]
    busy : by link, time in which any flow uses it [s]
    events : instants at which flows began or ended
    filled : for how many flows rates were found, counted anew each time
    """

    finish: Floats
    carried: Floats
    busy: Floats
    events: int
    filled: int


class Progress(NamedTuple):
    """How far the flows are.

    Parameters
    ----------
    offsets, links : of the flows, all links
    begins : when each takes bandwidth [s]
    order : flows by that instant
    left : bytes at the last change of rate
    since, pace : instant of the last change, rate since then
    due : end at that rate [s]
    finish : end [s], infinite for flows that have not ended
    users, busy : flows on each link; time in which there were any [s], less the instant since when there are
    changed : room for the flows whose rate changed
    """

    offsets: Array
    links: Array
    begins: Array
    order: Array
    left: Array
    since: Array
    pace: Array
    due: Array
    finish: Array
    users: Array
    busy: Array
    changed: Array


def simulate_flows(capacities: Floats, traffic: FlowSet, *, local: bool = True) -> FlowTimes:
    """The ends of all flows on links of these capacities [B/s].

    Two flows of 10 bytes on a link of 10 B/s; the second starts after 0.5 s:

    >>> one, zero = np.ones(2), np.zeros(2)
    >>> both = FlowSet(np.arange(3), np.array([0, 0]), one, 10 * one, np.array([0.0, 0.5]), zero, one, np.inf * one)
    >>> simulate_flows(np.array([10.0]), both).finish
    array([1.5, 2. ])

    Parameters
    ----------
    local : whether rates that need not change are kept; the result is the same

    Raises
    ------
    InputError : a flow that nothing holds back
    """
    state = new_state(
        capacities, traffic.offsets, traffic.links, traffic.shares, traffic.weights, traffic.caps, local=local
    )
    progress = _progress(len(capacities), traffic)
    if len(progress.finish) >= COMPILED_FROM:
        events = compiled(KERNELS, ["_run"])["_run"](state, new_bundles(state) if local else bundles.NONE, progress)
    else:
        state, progress = as_lists(state), Progress(*(column.tolist() for column in progress))
        events = _run(state, bundles.NONE, progress)
    owner = np.repeat(np.arange(len(traffic.sizes)), np.diff(traffic.offsets))
    return FlowTimes(
        finish=np.asarray(progress.finish),
        carried=np.bincount(traffic.links, traffic.shares * traffic.sizes[owner], len(capacities)).astype(np.float64),
        busy=np.asarray(progress.busy),
        events=int(events),
        filled=int(state.counts[FILLED]),
    )


def load_kernels(flows: int) -> float:
    """Seconds that loading the compiled kernels takes, where so many flows need them; they are kept."""
    began = time.perf_counter()
    if flows >= COMPILED_FROM:
        one, none = np.ones(1), np.zeros(1)
        traffic = FlowSet(np.array([0, 1]), np.array([0]), one, one, none, none, one, one)
        state = new_state(one, traffic.offsets, traffic.links, one, one, one)
        compiled(KERNELS, ["_run"])["_run"](state, bundles.NONE, _progress(1, traffic))
    return time.perf_counter() - began


def _progress(links: int, traffic: FlowSet) -> Progress:
    """All flows before anything has moved; those without bytes end with their latency."""
    flows = len(traffic.sizes)
    begins = traffic.starts + traffic.latencies
    order = np.flatnonzero(traffic.sizes > 0)
    return Progress(
        offsets=np.ascontiguousarray(traffic.offsets, np.int64),
        links=np.ascontiguousarray(traffic.links, np.int64),
        begins=begins,
        order=order[np.argsort(begins[order], kind="stable")],
        left=np.array(traffic.sizes, np.float64),
        since=np.zeros(flows),
        pace=np.zeros(flows),
        due=np.full(flows, inf),
        finish=np.where(traffic.sizes > 0, inf, begins),
        users=np.zeros(links, np.int64),
        busy=np.zeros(links),
        changed=np.zeros(flows, np.int64),
    )


# Kernels


def _run(state: FlowState, b: Bundles, p: Progress) -> int:
    """Number of events until all flows have ended."""
    begun, events = 0, 0
    while begun < len(p.order) or state.counts[ACTIVE] > 0:
        now, limit = _next(state, p, begun)
        events += 1
        _end_due(state, b, p, now, limit)
        begun = _begin_due(state, b, p, begun, limit)
        count = settle_bundled(state, b, p.changed) if helps(b) else settle(state, p.changed)
        for i in range(count):
            _change_pace(state, p, p.changed[i], now)
    return events


def _next(state: FlowState, p: Progress, begun: int) -> tuple[float, float]:
    """The next instant at which something changes, and the end of its batch [s]."""
    active, due = state.active, p.due
    now, soonest = inf, -1
    for i in range(state.counts[ACTIVE]):
        if due[active[i]] < now:
            now = due[active[i]]
            soonest = active[i]
    tie = TIE * (now - p.begins[soonest]) if soonest >= 0 else 0.0
    if begun < len(p.order) and p.begins[p.order[begun]] < now:
        now = p.begins[p.order[begun]]
    return now, now + tie + CLOCK * now


def _end_due(state: FlowState, b: Bundles, p: Progress, now: float, limit: float) -> None:
    """Ends the flows that are due."""
    due, active = p.due, state.active
    count = 0
    for i in range(state.counts[ACTIVE]):
        if due[active[i]] <= limit:
            p.changed[count] = active[i]
            count += 1
    for i in range(count):
        flow = p.changed[i]
        end(state, flow)
        if helps(b):
            leave(state, b, flow)
        p.finish[flow] = p.due[flow]
        for e in range(p.offsets[flow], p.offsets[flow + 1]):
            link = p.links[e]
            p.users[link] -= 1
            if p.users[link] == 0:
                p.busy[link] += now


def _begin_due(state: FlowState, b: Bundles, p: Progress, begun: int, limit: float) -> int:
    """The number of flows that have begun after those that are due did."""
    while begun < len(p.order) and p.begins[p.order[begun]] <= limit:
        flow = p.order[begun]
        begun += 1
        begin(state, flow)
        if helps(b):
            enter(state, b, flow)
        p.since[flow] = p.begins[flow]
        for e in range(p.offsets[flow], p.offsets[flow + 1]):
            link = p.links[e]
            if p.users[link] == 0:
                p.busy[link] -= p.begins[flow]
            p.users[link] += 1
    return begun


def _change_pace(state: FlowState, p: Progress, flow: int, now: float) -> None:
    """Serves a flow up to now, and finds its end at its new rate."""
    p.left[flow] = max(0.0, p.left[flow] - p.pace[flow] * (now - p.since[flow]))
    p.since[flow] = now
    p.pace[flow] = state.rate[flow]
    p.due[flow] = now + p.left[flow] / p.pace[flow]


KERNELS = (*bundled_filling.KERNELS, _change_pace, _begin_due, _end_due, _next, _run)
