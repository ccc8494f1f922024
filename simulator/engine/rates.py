"""Weighted max-min rates of flows that begin and end (kernels over arrays).

    state = new_state(capacities, offsets, links, shares, weights, caps)
    begin(state, flow)                  # marks only; a flow may begin again after it ended
    end(state, flow)
    count = settle(state, changed)      # new rates; the rate of flows changed[:count] has changed
    state.rate[flow]                    # bytes/s; 0 for a flow that is not active

`state` is a named tuple of arrays.  `begin`, `end` and `settle` are kernels: call them directly, best
on `as_lists(state)`, or their compiled copies `compiled(KERNELS)` on `state` (`compiled.py`).  Kernels
of other modules may call them: put KERNELS before their own.  `changed` has room for all flows; it
never contains a flow that ended.

Theory of operation
-------------------
Flow f takes shares[e] of link links[e] for each unit of its rate, for its entries
e = offsets[f] .. offsets[f + 1] - 1.  The *level* of a flow is rate / weight.  Rates are max-min if no
link carries more than its capacity and every flow is *held*: one of its links is full, and no flow on
that link has a higher level.

*Filling* (`filling.py`) raises the levels of some flows together until links are full.

*Which flows are filled again.*  Some flows may keep their rates.  Two ways are tried in this order:
1. *Local*: flows that began, and flows held by a link that lost a flow, are filled while all others are
   fixed.  If another flow on their links is then no longer held, or is above a flow held there, it
   joins, and the flows are filled again.  When none joins, all flows are held, so the rates are
   max-min.  If too many join, this way is given up.
2. *Above*: filling up to a level does not depend on flows that end above it.  So flows below the lowest
   level of the flows that began or ended keep their rates.

Source: Bertsekas, Gallager, "Data Networks", 2nd ed., 1992, section 6.5.2.
"""

from math import inf

from quadrille.simulator.engine import filling
from quadrille.simulator.engine.filling import FIXED, HELD, MARGIN, NEW, RISING, fill
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
    new_state,
)

__all__ = [
    "ACTIVE",
    "FILLED",
    "FILLS",
    "KERNELS",
    "STAYED_LOCAL",
    "TIE",
    "FlowState",
    "as_lists",
    "begin",
    "end",
    "new_state",
    "settle",
]

SAME = 1e-14
"""Relative difference up to which rates are equal."""


def begin(s: FlowState, flow: int) -> None:
    """Flow `flow` is active from now on."""
    s.place[flow] = s.counts[ACTIVE]
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


def end(s: FlowState, flow: int) -> None:
    """Flow `flow` is no longer active."""
    s.counts[ACTIVE] -= 1
    last = s.active[s.counts[ACTIVE]]
    s.active[s.place[flow]] = last
    s.place[last] = s.place[flow]
    s.place[flow] = -1
    if s.phase[flow] != NEW:
        s.lowest[0] = min(s.lowest[0], s.rate[flow] / s.weights[flow])
    s.rate[flow] = 0.0
    s.current[flow] = 0.0
    s.holder[flow] = -1
    for e in range(s.offsets[flow], s.offsets[flow + 1]):
        j = s.links[e]
        s.users[j] -= 1
        k, moved = s.slot[e], s.starts[j] + s.users[j]
        s.slot_flow[k] = s.slot_flow[moved]
        s.slot_share[k] = s.slot_share[moved]
        s.slot_entry[k] = s.slot_entry[moved]
        s.slot[s.slot_entry[k]] = k
        if s.loose[j] == 0:
            s.loose[j] = 1
            s.loosened[s.counts[LOOSENED]] = j
            s.counts[LOOSENED] += 1


def settle(s: FlowState, changed: Array) -> int:
    """Update all rates; returns the number of flows whose rate changed, which are in `changed`."""
    began = take_begun(s)
    count = settled_locally(s, began)
    if count < 0:
        count = _chosen_above(s, began)
        fill(s, count)
    forget_loosened(s)
    return take_over(s, count, changed)


def settled_locally(s: FlowState, began: int) -> int:
    """Number of flows that were filled again, if filling few flows sufficed; else -1."""
    if s.counts[LOCAL] == 0:
        return -1
    if s.counts[WAIT] > 0:
        s.counts[WAIT] -= 1
        return -1
    return _filled_locally(s, began)


def forget_loosened(s: FlowState) -> None:
    """All ended flows are accounted for."""
    for i in range(s.counts[LOOSENED]):
        s.loose[s.loosened[i]] = 0
    s.counts[LOOSENED] = 0
    s.lowest[0] = inf


def take_begun(s: FlowState) -> int:
    """Move the flows that began to `chosen`; returns their number."""
    count = 0
    for i in range(s.counts[BEGUN]):
        flow = s.begun[i]
        s.phase[flow] = FIXED
        if s.place[flow] >= 0:
            s.chosen[count] = flow
            count += 1
    s.counts[BEGUN] = 0
    return count


def take_over(s: FlowState, count: int, changed: Array) -> int:
    """Take the new rates of the chosen flows; returns the number that changed, which are in `changed`."""
    different = 0
    for i in range(count):
        f = s.chosen[i]
        s.phase[f] = FIXED
        s.holder[f] = s.fresh_holder[f]
        if abs(s.current[f] - s.rate[f]) > SAME * s.rate[f]:
            s.rate[f] = s.current[f]
            changed[different] = f
            different += 1
        else:
            s.current[f] = s.rate[f]
    return different


# Which flows are filled again


def _filled_locally(s: FlowState, began: int) -> int:
    """Number of flows that were filled again until all are held; -1 if there are too many."""
    limit = max(16, s.counts[ACTIVE] // 64)
    if began > limit:
        return -1
    count = began
    for i in range(count):
        s.phase[s.chosen[i]] = RISING
    for i in range(s.counts[LOOSENED]):
        count = _choose_held_by(s, s.loosened[i], count, limit)
    while count <= limit:
        fill(s, count)
        filled = count
        for i in range(s.counts[TOUCHED]):
            count = _joined(s, s.touched[i], count, limit)
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


def _choose_held_by(s: FlowState, link: int, count: int, limit: int) -> int:
    """Add the flows that `link` holds to the chosen flows, until there are more than `limit`; returns their number."""
    for k in range(s.starts[link], s.starts[link] + s.users[link]):
        f = s.slot_flow[k]
        if s.holder[f] == link and s.phase[f] == FIXED and count <= limit:
            s.phase[f] = RISING
            s.chosen[count] = f
            count += 1
    return count


def _joined(s: FlowState, link: int, count: int, limit: int) -> int:
    """Add the flows that cannot keep their rates because of `link` to the chosen flows; returns their number."""
    if count > limit:
        return count
    first, last = s.starts[link], s.starts[link] + s.users[link]
    used, top, held_at = 0.0, 0.0, inf
    for k in range(first, last):
        f = s.slot_flow[k]
        used += s.slot_share[k] * s.current[f]
        level = s.current[f] / s.weights[f]
        top = max(top, level)
        if s.phase[f] == HELD and s.fresh_holder[f] == link:
            held_at = min(held_at, level)
    full = used >= s.capacities[link] * (1 - TIE)
    for k in range(first, last):
        f = s.slot_flow[k]
        if s.phase[f] != FIXED or count > limit:
            continue
        level = s.rate[f] / s.weights[f]
        if level > held_at * (1 + TIE) or (s.holder[f] == link and (not full or level < top * (1 - TIE))):
            s.phase[f] = RISING
            s.chosen[count] = f
            count += 1
    return count


def _chosen_above(s: FlowState, began: int) -> int:
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
        if s.rate[f] >= low * s.weights[f] or s.holder[f] < 0:
            s.chosen[count] = f
            count += 1
    return count


def _least_level(s: FlowState, link: int) -> float:
    """Level at which a link would become full if nothing else held its flows."""
    load = 0.0
    for k in range(s.starts[link], s.starts[link] + s.users[link]):
        load += s.slot_share[k] * s.weights[s.slot_flow[k]]
    level: float = s.capacities[link] / load
    return level


KERNELS = (
    *filling.KERNELS,
    _least_level,
    _chosen_above,
    _joined,
    _choose_held_by,
    _filled_locally,
    settled_locally,
    forget_loosened,
    take_over,
    take_begun,
    settle,
    end,
    begin,
)
