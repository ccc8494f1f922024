"""Flows in bundles: where thousands share a few trunks, rates are found in far less time.

A *trunk* is a link of many flows, a *branch* any other.  Flows with the same
trunks, shares and weight are a *bundle*: what holds them at a trunk holds all of
them that are not yet held by a branch of their own.

    10,000 flows of 1,024 GPUs        2,048 branches of 10 flows
    under 32 leaves                      64 trunks of 31 bundles, 992 bundles of 10 flows

A flow without a trunk is *loose*.  `bundled_filling.py` finds the rates.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quadrille.simulator.engine import rates
from quadrille.simulator.engine.flow_state import Array, Floats, FlowState, Integers

LEAST_FLOWS = 2000
"""Flows from which on bundles are looked for."""
LEAST_USERS = 32
"""Flows that a trunk has at least."""
LEAST_MEMBERS = 4
"""Flows that a bundle has at least, on average."""

# Places in `Bundles.counts`
USED, ROUND, STEP, LEFT, BUNDLED, NARROW, HEAT, COUNTS = range(8)


REALS = ("shares", "weights", "slot_share", "total", "pull", "current", "level")


class Bundles(NamedTuple):
    """Bundles of the flows of a state.

    Parameters
    ----------
    bundle : of each flow, -1 for a loose one
    split : where a flow's entries of trunks begin
    offsets, links, shares, weights : entries and weight of a bundle
    starts, slot_bundle, slot_share : the bundles of a trunk, starts[j] .. starts[j + 1] - 1
    members : active flows of a bundle
    used, place : links that active flows use, and where a link stands among them (-1: nowhere)
    loose : entries of active loose flows by link
    total : load of a branch's active flows; negative where it has to be found anew
    rising, pull, current, level, holder : of a bundle in a filling: members held by no branch, their load, the rate of
        those held, the level of those held by a trunk (negative before that), and the trunk
    mark : the filling in which a flow was last held by a branch
    seen : the step of the filling in which a link's key was found
    hot : the settling in which a link was last hot
    counts : numbers that change
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
    place: Array
    loose: Array
    total: Array
    rising: Array
    pull: Array
    current: Array
    level: Array
    holder: Array
    mark: Array
    seen: Array
    hot: Array
    counts: Array


def new_bundles(state: FlowState) -> Bundles:
    """Bundles of the flows of a state in which none is active; where they do not help, bundles of no flows.

    Entries of the state change places.
    """
    flows = len(state.weights)
    if flows < LEAST_FLOWS:
        return NONE
    owner = np.repeat(np.arange(flows), np.diff(state.offsets))
    users = np.bincount(state.links, minlength=len(state.capacities))
    found, least = None, max(LEAST_USERS, int(users.max()) // 2)
    while True:
        tried = _bundled(state, owner, users >= least)
        if tried is None:
            break
        found, least = (tried, users >= least), least // 2
        if least < LEAST_USERS:
            break
    return NONE if found is None else _new_bundles(state, owner, *found)


def _bundled(state: FlowState, owner: Integers, trunk: NDArray[np.bool_]) -> Integers | None:
    """The bundle of each flow for these trunks; None where there are too many bundles to help."""
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
    _, first, which = np.unique(_mixed(rows[held]), return_index=True, return_inverse=True)
    same = np.array_equal(rows[held][first][which], rows[held])
    if not same or len(first) * LEAST_MEMBERS > len(held):
        return None
    bundle = np.full(len(weights), -1, np.int64)
    bundle[held] = which
    return bundle


def _mixed(rows: Floats) -> Integers:
    """A number for each row that hardly any other row has."""
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
        place=np.full(size, -1, np.int64),
        loose=np.zeros(size, np.int64),
        total=np.zeros(size),
        rising=np.zeros(count, np.int64),
        pull=np.zeros(count),
        current=np.zeros(count),
        level=np.zeros(count),
        holder=np.zeros(count, np.int64),
        mark=np.zeros(len(bundle), np.int64),
        seen=np.zeros(size, np.int64),
        hot=np.zeros(size, np.int64),
        counts=np.zeros(COUNTS, np.int64),
    )


NONE = Bundles(*(np.zeros(0, np.float64 if name in REALS else np.int64) for name in Bundles._fields))


# Kernels


def helps(b: Bundles) -> bool:
    """Whether there are bundles."""
    return len(b.bundle) > 0


def enter(s: FlowState, b: Bundles, flow: int) -> None:
    """To be called after `flow` began."""
    if b.bundle[flow] >= 0:
        b.members[b.bundle[flow]] += 1
    for e in range(s.offsets[flow], s.offsets[flow + 1]):
        j = s.links[e]
        b.total[j] = -1.0
        if b.bundle[flow] < 0:
            b.loose[j] += 1
        if b.place[j] < 0:
            b.place[j] = b.counts[USED]
            b.used[b.place[j]] = j
            b.counts[USED] += 1


def leave(s: FlowState, b: Bundles, flow: int) -> None:
    """To be called after `flow` ended."""
    if b.bundle[flow] >= 0:
        b.members[b.bundle[flow]] -= 1
    for e in range(s.offsets[flow], s.offsets[flow + 1]):
        j = s.links[e]
        b.total[j] = -1.0
        if b.bundle[flow] < 0:
            b.loose[j] -= 1
        if s.users[j] == 0 and b.place[j] >= 0:
            b.counts[USED] -= 1
            last = b.used[b.counts[USED]]
            b.used[b.place[j]] = last
            b.place[last] = b.place[j]
            b.place[j] = -1


KERNELS = (*rates.KERNELS, helps, enter, leave)
