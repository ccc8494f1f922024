"""Bundles of flows with equal demands, which speed up max-min rates if thousands of flows share a few trunk links.

A *trunk* is a link of many flows, a *branch* any other link.  Flows with equal trunks, shares and weight form a
*bundle*: a full trunk freezes all flows of the bundle that no branch has frozen before.

    10,000 flows of 1,024 GPUs        2,048 branches of 10 flows
    under 32 leaves                      64 trunks of 31 bundles, 992 bundles of 10 flows

A flow without a trunk is *loose*.  `bundled_filling.py` computes the rates.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quadrille.simulator.engine import rates
from quadrille.simulator.engine.flow_state import Array, Floats, FlowState, Integers

LEAST_MEMBERS = 4
"""Smallest mean number of flows of a bundle."""

# Indices of `Bundles.counts`
USED, ROUND, STEP, LEFT, BUNDLED, NARROW, HEAT, COUNTS = range(8)


REALS = ("shares", "weights", "slot_share", "total", "pull", "current", "level")
"""Columns that hold real numbers."""


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """Sizes from which bundles save time.

    Parameters
    ----------
    least_flows : smallest number of flows for which bundles are formed
    least_users : smallest number of flows of a trunk
    """

    least_flows: int = 2000
    least_users: int = 32


BUNDLE_LIMITS = BundleLimits()


class Bundles(NamedTuple):
    """Bundles of the flows of a state.

    Parameters
    ----------
    bundle : [flows] bundle, -1 for a loose flow
    split : [flows] first of the flow's entries that are on trunks
    offsets, links, shares, weights : entries and weight of each bundle
    starts, slot_bundle, slot_share : bundles of trunk j are starts[j] .. starts[j + 1] - 1
    members : [bundles] number of active flows
    used, used_index : links that active flows use; index of each link among them, -1 if unused
    loose : [links] number of entries of active loose flows
    total : [links] load of a branch's active flows, negative if it must be computed again
    rising, pull, current, level, bottleneck : [bundles] in a filling: flows that no branch has frozen; their load; rate
        of the frozen flows; level of the flows that a trunk froze, negative before that; the trunk
    mark : [flows] the filling in which a branch last froze the flow
    seen : [links] the step of the filling in which the link's key was computed
    hot : [links] the rate update in which the link was last hot, see `bundled_filling.py`
    counts : counters
    """

    bundle: Array
    split: Array
    offsets: Array
    links: Array
    shares: Array
    weights: Array
    starts: Array
    slot_bundle: Array
    slot_share: Array
    members: Array
    used: Array
    used_index: Array
    loose: Array
    total: Array
    rising: Array
    pull: Array
    current: Array
    level: Array
    bottleneck: Array
    mark: Array
    seen: Array
    hot: Array
    counts: Array


def new_bundles(state: FlowState, limits: BundleLimits = BUNDLE_LIMITS) -> Bundles:
    """The bundles of the flows of a state in which no flow is active; `NONE` if bundles do not save time.

    The function reorders the entries of the state.
    """
    flows = len(state.weights)
    if flows < limits.least_flows:
        return NONE
    owner = np.repeat(np.arange(flows), np.diff(state.offsets))
    users = np.bincount(state.links, minlength=len(state.capacities))
    best, least = None, max(limits.least_users, int(users.max()) // 2)
    while True:
        tried = _bundle_of_flows(state, owner, users >= least)
        if tried is None:
            break
        best, least = (tried, users >= least), least // 2
        if least < limits.least_users:
            break
    return NONE if best is None else _new_bundles(state, owner, *best)


def _bundle_of_flows(state: FlowState, owner: Integers, trunk: NDArray[np.bool_]) -> Integers | None:
    """The bundle of each flow for these trunks; None if there are too many bundles to save time."""
    at = trunk[state.links]
    entries, weights = owner[at], state.weights
    counts = np.bincount(entries, minlength=len(weights))
    order = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.full((len(weights), 2 * int(counts.max(initial=0)) + 1), -1.0)
    rows[entries, 2 * order] = state.links[at]
    rows[entries, 2 * order + 1] = state.shares[at]
    rows[:, -1] = weights
    held = np.flatnonzero(counts)
    if not len(held):
        return None
    _, first, which = np.unique(_row_hashes(rows[held]), return_index=True, return_inverse=True)
    same = np.array_equal(rows[held][first][which], rows[held])
    if not same or len(first) * LEAST_MEMBERS > len(held):
        return None
    bundle = np.full(len(weights), -1, np.int64)
    bundle[held] = which
    return bundle


def _row_hashes(rows: Floats) -> Integers:
    """A hash of each row."""
    mixed = np.zeros(len(rows), np.uint64)
    for column in np.ascontiguousarray(rows.T).view(np.uint64):
        mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed.view(np.int64)


def _new_bundles(state: FlowState, owner: Integers, bundle: Integers, trunk: NDArray[np.bool_]) -> Bundles:
    order = np.lexsort([trunk[state.links], owner])
    state.links[:], state.shares[:] = state.links[order], state.shares[order]
    on_trunk = np.bincount(owner, trunk[state.links], minlength=len(bundle)).astype(np.int64)
    held = np.flatnonzero(bundle >= 0)
    _, first = np.unique(bundle[held], return_index=True)
    first = held[first]
    offsets = np.concatenate([[0], np.cumsum(on_trunk[first])])
    split = state.offsets[1:] - on_trunk
    entry = np.repeat(split[first] - offsets[:-1], on_trunk[first]) + np.arange(offsets[-1])
    links, shares = state.links[entry], state.shares[entry]
    by_link = np.argsort(links, kind="stable")
    count, size = len(first), len(state.capacities)
    return Bundles(
        bundle=bundle,
        split=split,
        offsets=offsets,
        links=links,
        shares=shares,
        weights=state.weights[first],
        starts=np.concatenate([[0], np.cumsum(np.bincount(links, minlength=size))]),
        slot_bundle=np.repeat(np.arange(count), on_trunk[first])[by_link],
        slot_share=shares[by_link],
        members=np.zeros(count, np.int64),
        used=np.zeros(size, np.int64),
        used_index=np.full(size, -1, np.int64),
        loose=np.zeros(size, np.int64),
        total=np.zeros(size),
        rising=np.zeros(count, np.int64),
        pull=np.zeros(count),
        current=np.zeros(count),
        level=np.zeros(count),
        bottleneck=np.zeros(count, np.int64),
        mark=np.zeros(len(bundle), np.int64),
        seen=np.zeros(size, np.int64),
        hot=np.zeros(size, np.int64),
        counts=np.zeros(COUNTS, np.int64),
    )


NONE = Bundles(*(np.zeros(0, np.float64 if name in REALS else np.int64) for name in Bundles._fields))
"""Bundles of no flows."""


# Kernels


def has_bundles(b: Bundles) -> bool:
    """Whether flows are bundled."""
    return len(b.bundle) > 0


def add_flow(s: FlowState, b: Bundles, flow: int) -> None:
    """Count a flow that has begun in its bundle and on its links."""
    if b.bundle[flow] >= 0:
        b.members[b.bundle[flow]] += 1
    for e in range(s.offsets[flow], s.offsets[flow + 1]):
        j = s.links[e]
        b.total[j] = -1.0
        if b.bundle[flow] < 0:
            b.loose[j] += 1
        if b.used_index[j] < 0:
            b.used_index[j] = b.counts[USED]
            b.used[b.used_index[j]] = j
            b.counts[USED] += 1


def remove_flow(s: FlowState, b: Bundles, flow: int) -> None:
    """Remove a flow that has ended from the counts of its bundle and its links."""
    if b.bundle[flow] >= 0:
        b.members[b.bundle[flow]] -= 1
    for e in range(s.offsets[flow], s.offsets[flow + 1]):
        j = s.links[e]
        b.total[j] = -1.0
        if b.bundle[flow] < 0:
            b.loose[j] -= 1
        if s.users[j] == 0 and b.used_index[j] >= 0:
            b.counts[USED] -= 1
            last = b.used[b.counts[USED]]
            b.used[b.used_index[j]] = last
            b.used_index[last] = b.used_index[j]
            b.used_index[j] = -1


KERNELS = (*rates.KERNELS, has_bundles, add_flow, remove_flow)
