"""Weighted max-min fair rates, updated as flows begin and end (compiled functions over arrays).

    state = new_flow_state(capacities, offsets, links, shares, weights, caps)
    begin_flow(state, flow)               # marks only; a flow may begin again after it ended
    end_flow(state, flow)
    count = update_rates(state, changed)  # new rates; the rate of flows changed[:count] has changed
    state.rate[flow]                      # bytes/s; 0 for a flow that is not active

`state` is a named tuple of arrays.  `begin_flow`, `end_flow` and `update_rates` are *kernels* here: functions over
arrays that run in plain Python and compiled by Numba.  Call them directly, best
on `as_lists(state)`, or their compiled copies `compile_kernels(KERNELS)` on `state` (`kernel_compiler.py`).  Kernels
of other modules may call them: put KERNELS before their own.  `changed` has room for all flows; it
never contains a flow that ended.

Theory of operation
-------------------
Flow f takes shares[e] of link links[e] for each unit of its rate, for its entries
e = offsets[f] .. offsets[f + 1] - 1.  The *level* of a flow is rate / weight.  Rates are max-min if no
link carries more than its capacity and every flow has a *bottleneck*: one of its links that is full,
with no flow of a higher level on it.

*Progressive filling* (`progressive_filling.py`) raises the levels of some flows together until links are full.

*Incremental updates.*  Most flows keep their rates.  Two methods are tried in this order:
1. *Local*: flows that began, and flows whose bottleneck lost a flow, are filled while all others are
   fixed.  If another flow on their links then has no bottleneck, or is above a flow whose bottleneck is
   that link, it joins, and the flows are filled again.  When no flow joins, all flows have bottlenecks,
   so the rates are max-min.  If too many flows join, the method stops.
2. *Above*: filling up to a level does not depend on flows that end above it.  So flows below the lowest
   level of the flows that began or ended keep their rates.

Source: Bertsekas, Gallager, "Data Networks", 2nd ed., 1992, section 6.5.2.
"""

from math import inf

from quadrille.simulator.engine import progressive_filling
from quadrille.simulator.engine.flow_state import (
    ACTIVE,
    BEGUN,
    FILLED,
    FILLS,
    LOCAL,
    LOOSENED,
    PENALTY,
    ROUND,
    STAYED_LOCAL,
    TIE,
    TOUCHED,
    WAIT,
    Array,
    FlowState,
    as_lists,
    new_flow_state,
)
from quadrille.simulator.engine.progressive_filling import FIXED, FROZEN, MARGIN, NEW, RISING, fill

__all__ = [
    "ACTIVE",
    "FILLED",
    "FILLS",
    "KERNELS",
    "STAYED_LOCAL",
    "TIE",
    "FlowState",
    "as_lists",
    "begin_flow",
    "end_flow",
    "new_flow_state",
    "update_rates",
]

SAME = 1e-14
"""Relative difference up to which rates are equal."""


def begin_flow(s: FlowState, flow: int) -> None:
    """Make a flow active; it gets a rate at the next update."""
    s.active_index[flow] = s.counts[ACTIVE]
    s.active[s.counts[ACTIVE]] = flow
    s.counts[ACTIVE] += 1
    if s.phase[flow] != NEW:
        s.phase[flow] = NEW
        s.begun[s.counts[BEGUN]] = flow
        s.counts[BEGUN] += 1
    for e in range(s.offsets[flow], s.offsets[flow + 1]):
        j = s.links[e]
        k = s.starts[j] + s.users[j]
        s.users[j] += 1
        s.slot_flow[k] = flow
        s.slot_share[k] = s.shares[e]
        s.slot_entry[k] = e
        s.slot[e] = k


def end_flow(s: FlowState, flow: int) -> None:
    """Make a flow inactive; other flows get new rates at the next update."""
    s.counts[ACTIVE] -= 1
    last = s.active[s.counts[ACTIVE]]
    s.active[s.active_index[flow]] = last
    s.active_index[last] = s.active_index[flow]
    s.active_index[flow] = -1
    if s.phase[flow] != NEW:
        s.lowest[0] = min(s.lowest[0], s.rate[flow] / s.weights[flow])
    s.rate[flow] = 0.0
    s.current[flow] = 0.0
    s.bottleneck[flow] = -1
    for e in range(s.offsets[flow], s.offsets[flow + 1]):
        j = s.links[e]
        s.users[j] -= 1
        k, last_slot = s.slot[e], s.starts[j] + s.users[j]
        s.slot_flow[k] = s.slot_flow[last_slot]
        s.slot_share[k] = s.slot_share[last_slot]
        s.slot_entry[k] = s.slot_entry[last_slot]
        s.slot[s.slot_entry[k]] = k
        if s.loose[j] == 0:
            s.loose[j] = 1
            s.loosened[s.counts[LOOSENED]] = j
            s.counts[LOOSENED] += 1


def update_rates(s: FlowState, changed: Array) -> int:
    """Update all rates; returns the number of flows whose rate changed, which are in `changed`.

    Parameters
    ----------
    changed : array with room for all flows
    """
    began = choose_begun_flows(s)
    count = fill_locally(s, began)
    if count < 0:
        count = _choose_flows_above(s, began)
        fill(s, count)
    clear_loosened_links(s)
    return apply_new_rates(s, count, changed)


def fill_locally(s: FlowState, began: int) -> int:
    """Fill few flows again, if that suffices; returns their number, else -1.

    Parameters
    ----------
    began : number of flows that began, which are in `chosen`
    """
    if s.counts[LOCAL] == 0:
        return -1
    if s.counts[WAIT] > 0:
        s.counts[WAIT] -= 1
        return -1
    return _fill_affected_flows(s, began)


def clear_loosened_links(s: FlowState) -> None:
    """Forget the links that lost flows, once all rates are computed."""
    for i in range(s.counts[LOOSENED]):
        s.loose[s.loosened[i]] = 0
    s.counts[LOOSENED] = 0
    s.lowest[0] = inf


def choose_begun_flows(s: FlowState) -> int:
    """Choose the flows that began since the last update, now in `chosen`; returns their number."""
    count = 0
    for i in range(s.counts[BEGUN]):
        flow = s.begun[i]
        s.phase[flow] = FIXED
        if s.active_index[flow] >= 0:
            s.chosen[count] = flow
            count += 1
    s.counts[BEGUN] = 0
    return count


def apply_new_rates(s: FlowState, count: int, changed: Array) -> int:
    """Apply the new rates of the chosen flows; returns the number of changed rates, whose flows are in `changed`."""
    count_changed = 0
    for i in range(count):
        f = s.chosen[i]
        s.phase[f] = FIXED
        s.bottleneck[f] = s.new_bottleneck[f]
        if abs(s.current[f] - s.rate[f]) > SAME * s.rate[f]:
            s.rate[f] = s.current[f]
            changed[count_changed] = f
            count_changed += 1
        else:
            s.current[f] = s.rate[f]
    return count_changed


# Choice of the flows to fill again


def _fill_affected_flows(s: FlowState, began: int) -> int:
    """Fill flows again until all flows have bottlenecks; returns their number, -1 if there are too many."""
    limit = max(16, s.counts[ACTIVE] // 64)
    if began > limit:
        return -1
    count = began
    for i in range(count):
        s.phase[s.chosen[i]] = RISING
    for i in range(s.counts[LOOSENED]):
        count = _choose_flows_of_bottleneck(s, s.loosened[i], count, limit)
    while count <= limit:
        fill(s, count)
        filled = count
        for i in range(s.counts[TOUCHED]):
            count = _add_affected_flows(s, s.touched[i], count, limit)
        if count == filled:
            s.counts[PENALTY] = 0
            s.counts[STAYED_LOCAL] += 1
            return count
    for i in range(count):
        f = s.chosen[i]
        s.phase[f] = FIXED
        s.current[f] = s.rate[f]
        s.pull[f] = 0.0
    s.counts[PENALTY] = min(64, 2 * s.counts[PENALTY] + 1)
    s.counts[WAIT] = s.counts[PENALTY]
    return -1


def _choose_flows_of_bottleneck(s: FlowState, link: int, count: int, limit: int) -> int:
    """Choose the flows whose bottleneck is `link`, until more than `limit` flows are chosen; returns their number."""
    for k in range(s.starts[link], s.starts[link] + s.users[link]):
        f = s.slot_flow[k]
        if s.bottleneck[f] == link and s.phase[f] == FIXED and count <= limit:
            s.phase[f] = RISING
            s.chosen[count] = f
            count += 1
    return count


def _add_affected_flows(s: FlowState, link: int, count: int, limit: int) -> int:
    """Choose the flows that cannot keep their rates because of `link`; returns the number of chosen flows."""
    if count > limit:
        return count
    first, last = s.starts[link], s.starts[link] + s.users[link]
    used, top, frozen_level = 0.0, 0.0, inf
    for k in range(first, last):
        f = s.slot_flow[k]
        used += s.slot_share[k] * s.current[f]
        level = s.current[f] / s.weights[f]
        top = max(top, level)
        if s.phase[f] == FROZEN and s.new_bottleneck[f] == link:
            frozen_level = min(frozen_level, level)
    full = used >= s.capacities[link] * (1 - TIE)
    for k in range(first, last):
        f = s.slot_flow[k]
        if s.phase[f] != FIXED or count > limit:
            continue
        level = s.rate[f] / s.weights[f]
        if level > frozen_level * (1 + TIE) or (s.bottleneck[f] == link and (not full or level < top * (1 - TIE))):
            s.phase[f] = RISING
            s.chosen[count] = f
            count += 1
    return count


def _choose_flows_above(s: FlowState, began: int) -> int:
    """Choose the flows at or above the lowest level that changed; returns their number."""
    low = 0.0
    if s.counts[LOCAL] != 0 and 2 * began < s.counts[ACTIVE]:
        low = s.lowest[0]
        s.counts[ROUND] += 1
        for i in range(began):
            f = s.chosen[i]
            for e in range(s.offsets[f], s.offsets[f + 1]):
                j = s.links[e]
                if s.stamp[j] != s.counts[ROUND]:
                    s.stamp[j] = s.counts[ROUND]
                    low = min(low, _least_level(s, j))
        low *= 1 - MARGIN
    count = 0
    for i in range(s.counts[ACTIVE]):
        f = s.active[i]
        if s.rate[f] >= low * s.weights[f] or s.bottleneck[f] < 0:
            s.chosen[count] = f
            count += 1
    return count


def _least_level(s: FlowState, link: int) -> float:
    """Level at which a link becomes full if its flows have no other bottleneck."""
    load = 0.0
    for k in range(s.starts[link], s.starts[link] + s.users[link]):
        load += s.slot_share[k] * s.weights[s.slot_flow[k]]
    level: float = s.capacities[link] / load
    return level


KERNELS = (
    *progressive_filling.KERNELS,
    _least_level,
    _choose_flows_above,
    _add_affected_flows,
    _choose_flows_of_bottleneck,
    _fill_affected_flows,
    fill_locally,
    clear_loosened_links,
    apply_new_rates,
    choose_begun_flows,
    update_rates,
    end_flow,
    begin_flow,
)
