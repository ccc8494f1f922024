"""Simulation of independent flows on links of finite capacity: exact end times, from one change of rates to the next.

A flow waits for its latency, then uses bandwidth until all its bytes are transferred.  Rates are weighted max-min
(`rates.py`) and change only when a flow begins or ends, so the simulation goes from one change to the next:

    next change = the earliest of: the end of a latency, an end at the present rates

A flow stores the bytes left at its last change of rate and its end at that rate; flows whose rate
stays cost nothing.  Changes within `TIE` of the duration of the flow that ends (plus the rounding of
the clock) form one batch, after which rates are updated once.  Sets of active flows do not repeat
here, so no periods are looked for.
"""

import time
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from quadrille.simulator.engine import bundled_filling, bundles
from quadrille.simulator.engine.bundled_filling import update_bundled_rates
from quadrille.simulator.engine.bundles import (
    BUNDLE_LIMITS,
    BundleLimits,
    Bundles,
    add_flow,
    has_bundles,
    new_bundles,
    remove_flow,
)
from quadrille.simulator.engine.flow_state import (
    ACTIVE,
    FILLED,
    TIE,
    Array,
    Floats,
    FlowState,
    Integers,
    as_lists,
    new_flow_state,
)
from quadrille.simulator.engine.kernel_compiler import compile_kernels
from quadrille.simulator.engine.rates import begin_flow, end_flow, update_rates

COMPILED_FROM = 1000
"""Number of flows from which loading Numba saves time."""
CLOCK = 1e-15
"""Relative rounding of the clock after a few additions."""


@dataclass(frozen=True, slots=True)
class FlowSet:
    """Flows, with the links that they use; all arrays but the entries have an element for each flow.

    Parameters
    ----------
    offsets, links, shares : entries of flow f are offsets[f] .. offsets[f + 1] - 1: a link, and its units for each unit
        of the flow's rate
    sizes : [flows] [B]
    starts : start times, from 0 [s]
    latencies : from the start until the flow uses bandwidth [s]
    weights : weights of the max-min shares, above 0
    caps : largest rates, infinite if unlimited [B/s]
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
    """The end time of every flow, and the use of every link.

    Parameters
    ----------
    finish : [flows] end [s]
    carried : [links] bytes carried [B]
    busy : [links] time in which any flow uses the link [s]
    events : number of instants at which flows began or ended
    filled : number of computed rates, with repetitions
    """

    finish: Floats
    carried: Floats
    busy: Floats
    events: int
    filled: int


class Progress(NamedTuple):
    """The progress of all flows between two changes, as columns for the kernels.

    Parameters
    ----------
    offsets, links : entries of the flows, with all links
    begins : [flows] time at which the flow uses bandwidth [s]
    order : flows by that time
    left : [flows] bytes left at the last change of rate
    since, pace : [flows] time of the last change; rate since then
    due : [flows] end at that rate [s]
    finish : [flows] end, infinite for flows that have not ended [s]
    users, busy : [links] number of flows; time in use, minus the time since which it is in use [s]
    changed : working space for flows whose rate changed
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


def simulate_flows(
    capacities: Floats,
    traffic: FlowSet,
    *,
    local: bool = True,
    compiled_from: int = COMPILED_FROM,
    bundle_limits: BundleLimits = BUNDLE_LIMITS,
) -> FlowTimes:
    """The end times of all flows on links.

    Two flows of 10 bytes on a link of 10 B/s; the second starts after 0.5 s:

    >>> ones, zeros = np.ones(2), np.zeros(2)
    >>> flows = FlowSet(
    ...     np.arange(3), np.array([0, 0]), ones, 10 * ones, np.array([0.0, 0.5]), zeros, ones, np.inf * ones
    ... )
    >>> simulate_flows(np.array([10.0]), flows).finish
    array([1.5, 2. ])

    Parameters
    ----------
    capacities : [links] [B/s]
    local : whether unchanged rates are kept; the result does not depend on it
    compiled_from : number of flows from which compiled kernels are used
    bundle_limits : sizes from which flows with equal demands are bundled

    Raises
    ------
    InputError : a flow that nothing limits
    """
    state = new_flow_state(
        capacities, traffic.offsets, traffic.links, traffic.shares, traffic.weights, traffic.caps, local=local
    )
    progress = _progress(len(capacities), traffic)
    if len(progress.finish) >= compiled_from:
        events = compile_kernels(KERNELS, ["_run"])["_run"](
            state, new_bundles(state, bundle_limits) if local else bundles.NONE, progress
        )
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
    """Load the compiled kernels if this number of flows needs them; returns the wall time of loading [s]."""
    began = time.perf_counter()
    if flows >= COMPILED_FROM:
        ones, zeros = np.ones(1), np.zeros(1)
        traffic = FlowSet(np.array([0, 1]), np.array([0]), ones, ones, zeros, zeros, ones, ones)
        state = new_flow_state(ones, traffic.offsets, traffic.links, ones, ones, ones)
        compile_kernels(KERNELS, ["_run"])["_run"](state, bundles.NONE, _progress(1, traffic))
    return time.perf_counter() - began


def _progress(links: int, traffic: FlowSet) -> Progress:
    """The progress of all flows at the start; flows without bytes end with their latency."""
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
        count = update_bundled_rates(state, b, p.changed) if has_bundles(b) else update_rates(state, p.changed)
        for i in range(count):
            _change_pace(state, p, p.changed[i], now)
    return events


def _next(state: FlowState, p: Progress, begun: int) -> tuple[float, float]:
    """Time of the next change, and end of its batch [s]."""
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
    """End the flows that are due."""
    due, active = p.due, state.active
    count = 0
    for i in range(state.counts[ACTIVE]):
        if due[active[i]] <= limit:
            p.changed[count] = active[i]
            count += 1
    for i in range(count):
        flow = p.changed[i]
        end_flow(state, flow)
        if has_bundles(b):
            remove_flow(state, b, flow)
        p.finish[flow] = p.due[flow]
        for e in range(p.offsets[flow], p.offsets[flow + 1]):
            link = p.links[e]
            p.users[link] -= 1
            if p.users[link] == 0:
                p.busy[link] += now


def _begin_due(state: FlowState, b: Bundles, p: Progress, begun: int, limit: float) -> int:
    """Begin the flows that are due; returns the number of flows that have begun."""
    while begun < len(p.order) and p.begins[p.order[begun]] <= limit:
        flow = p.order[begun]
        begun += 1
        begin_flow(state, flow)
        if has_bundles(b):
            add_flow(state, b, flow)
        p.since[flow] = p.begins[flow]
        for e in range(p.offsets[flow], p.offsets[flow + 1]):
            link = p.links[e]
            if p.users[link] == 0:
                p.busy[link] -= p.begins[flow]
            p.users[link] += 1
    return begun


def _change_pace(state: FlowState, p: Progress, flow: int, now: float) -> None:
    """Serve a flow up to now, and compute its end at its new rate."""
    p.left[flow] = max(0.0, p.left[flow] - p.pace[flow] * (now - p.since[flow]))
    p.since[flow] = now
    p.pace[flow] = state.rate[flow]
    p.due[flow] = now + p.left[flow] / p.pace[flow]


KERNELS = (*bundled_filling.KERNELS, _change_pace, _begin_due, _end_due, _next, _run)
