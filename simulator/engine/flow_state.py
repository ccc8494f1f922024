"""State of max-min rate computations as arrays: links, the flows on them, the active flows, and working space.

Rate caps are links of their own.  Links that cannot become full, even if all their flows ran at the rates that
their other links allow, limit no flow and are left out, as are links of infinite capacity.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Array = Any  # an array, or a list if the kernels run uncompiled

NONE = -1
"""Stands for no flow, link, channel, stage or stream."""
TIE = 1e-12
"""Rates, levels and times that agree to this fraction are equal, so that symmetric flows get equal rates."""

# Indices of `FlowState.counts`
ACTIVE, BEGUN, LOOSENED, ROUND, TOUCHED, WAIT, PENALTY, FILLED, FILLS, STAYED_LOCAL, LOCAL, DONE, COUNTS = range(13)


class FlowState(NamedTuple):
    """Flows, links, active flows and working space.

    Parameters
    ----------
    capacities : [links] [B/s]
    offsets, links, shares : entries of the flows, without links that limit no flow
    weights, rate : [flows] weight; present rate [B/s]
    bottleneck : [flows] the full link that limits the flow (see `rates.py`), -1 if none
    active_index, active : index of a flow in the list of active flows, -1 if it is not active; the list
    starts, users : [links] first slot of the link's active flows, and their number
    slot_flow, slot_share, slot_entry : flow, share and entry of each slot
    slot : [entries] slot of the entry
    begun, loosened, loose : flows that began, and links that lost a flow, since the last update of rates
    counts : counters, at the indices ACTIVE …
    lowest : one number, the lowest level of a flow that ended since the last update of rates
    chosen, phase, current, pull, new_bottleneck, stamp, touched, room, load, measured, rising, key_accuracy, key, heap,
        heap_key, tight : working space of a filling, see `progressive_filling.py`
    """

    capacities: Array
    offsets: Array
    links: Array
    shares: Array
    weights: Array
    rate: Array
    bottleneck: Array
    active_index: Array
    active: Array
    starts: Array
    users: Array
    slot_flow: Array
    slot_share: Array
    slot_entry: Array
    slot: Array
    begun: Array
    loosened: Array
    loose: Array
    counts: Array
    lowest: Array
    chosen: Array
    phase: Array
    current: Array
    pull: Array
    new_bottleneck: Array
    stamp: Array
    touched: Array
    room: Array
    load: Array
    measured: Array
    rising: Array
    key_accuracy: Array
    key: Array
    heap: Array
    heap_key: Array
    tight: Array


def new_flow_state(
    capacities: Floats,
    offsets: Integers,
    links: Integers,
    shares: Floats,
    weights: Floats,
    caps: Floats,
    *,
    local: bool = True,
    changing: Sequence[int] = (),
) -> FlowState:
    """A state in which no flow is active, without the links that cannot limit a flow.

    >>> state = new_flow_state(np.array([10.0]), np.array([0, 1, 2]), np.array([0, 0]), np.ones(2), np.ones(2),
    ...     np.array([2.0, np.inf]))
    >>> state.rate
    array([0., 0.])

    Parameters
    ----------
    capacities : [links] above 0, infinite if unlimited [B/s]
    offsets, links, shares : entries of flow f are offsets[f] .. offsets[f + 1] - 1: a link, and its units for each unit
        of the flow's rate
    weights : [flows] above 0
    caps : [flows] largest rate, above 0, infinite if unlimited [B/s]
    local : whether flows may keep their rates when others begin or end
    changing : links whose capacity may change later; they are always included

    Raises
    ------
    InputError : a flow that nothing limits
    """
    flows = len(offsets) - 1
    owner = np.repeat(np.arange(flows), np.diff(offsets))
    owner, links, shares, capacities = _add_cap_links(owner, np.asarray(links, np.int64), shares, capacities, caps)
    needed = _limiting_entries(owner, links, shares, capacities, flows, np.asarray(changing, np.int64))
    owner, links, shares = owner[needed], links[needed], shares[needed]
    entries = np.bincount(owner, minlength=flows)
    if len(free := np.flatnonzero(entries == 0)):
        raise InputError(f"flow {free[0]} has neither a finite cap nor a link of finite bandwidth to hold it back")
    return _indexed_flow_state(
        capacities, np.concatenate([[0], np.cumsum(entries)]), links, shares, weights, local=local
    )


def _add_cap_links(
    owner: Integers, links: Integers, shares: Floats, capacities: Floats, caps: Floats
) -> tuple[Integers, Integers, Floats, Floats]:
    """Entries and capacities with one more link for each flow that has a finite cap."""
    capped = np.flatnonzero(np.isfinite(caps))
    if not len(capped):
        return owner, links, np.asarray(shares, np.float64), np.asarray(capacities, np.float64)
    owner = np.concatenate([owner, capped])
    links = np.concatenate([links, len(capacities) + np.arange(len(capped))])
    shares = np.concatenate([shares, np.ones(len(capped))])
    order = np.argsort(owner, kind="stable")
    return owner[order], links[order], shares[order], np.concatenate([capacities, caps[capped]])


def _limiting_entries(
    owner: Integers, links: Integers, shares: Floats, capacities: Floats, flows: int, changing: Integers
) -> NDArray[np.bool_]:
    """Whether each entry is on a link that can become full.

    The bound of a flow is the rate that its tightest link allows it alone.  A link that is no flow's tightest and
    has room for the bounds of all its flows cannot become full before its flows are limited elsewhere.  Links whose
    capacity may change give no bounds, and are kept.
    """
    finite, capacities = np.isfinite(capacities), capacities.copy()
    capacities[changing] = inf
    alone = np.divide(capacities[links], shares, out=np.full(len(links), inf), where=shares > 0)
    bound = np.full(flows, inf)
    np.minimum.at(bound, owner, alone)
    at_bound = np.flatnonzero(alone == bound[owner])
    _, first = np.unique(owner[at_bound], return_index=True)
    most = np.where(np.isfinite(alone), shares * bound[owner], 0.0)
    needed = np.bincount(links, most, minlength=len(capacities)) > capacities
    needed[links[at_bound[first]]] = True
    needed[changing] = True
    needed &= finite
    return needed[links] & (shares > 0)


def _indexed_flow_state(
    capacities: Floats, offsets: Integers, links: Integers, shares: Floats, weights: Floats, *, local: bool
) -> FlowState:
    on_link = np.bincount(links, minlength=len(capacities))
    state = blank_flow_state(len(capacities), len(weights), len(links))
    state.capacities[:] = capacities
    state.offsets[:] = offsets
    state.links[:], state.shares[:] = links, shares
    state.weights[:] = weights
    state.starts[1:] = np.cumsum(on_link)[:-1]
    state.counts[LOCAL] = local
    return state


def blank_flow_state(links: int, flows: int, entries: int) -> FlowState:
    """An empty state with room for these numbers of links, flows and entries."""

    def integers(size: int, value: int = 0) -> Integers:
        return np.full(size, value, np.int64)

    return FlowState(
        capacities=np.zeros(links),
        offsets=integers(flows + 1),
        links=integers(entries),
        shares=np.zeros(entries),
        weights=np.zeros(flows),
        rate=np.zeros(flows),
        bottleneck=integers(flows, -1),
        active_index=integers(flows, -1),
        active=integers(flows),
        starts=integers(links),
        users=integers(links),
        slot_flow=integers(entries),
        slot_share=np.zeros(entries),
        slot_entry=integers(entries),
        slot=integers(entries),
        begun=integers(flows),
        loosened=integers(links),
        loose=np.zeros(links, np.int8),
        counts=integers(COUNTS),
        lowest=np.full(1, inf),
        chosen=integers(flows),
        phase=np.zeros(flows, np.int8),
        current=np.zeros(flows),
        pull=np.zeros(flows),
        new_bottleneck=integers(flows),
        stamp=integers(links),
        touched=integers(links),
        room=np.zeros(links),
        load=np.zeros(links),
        measured=np.zeros(links),
        rising=integers(links),
        key_accuracy=np.zeros(links, np.int8),
        key=np.zeros(links),
        heap=integers(links),
        heap_key=np.zeros(links),
        tight=integers(links),
    )


def as_lists(state: FlowState) -> FlowState:
    """A copy of the state with lists, on which uncompiled kernels are about three times as fast."""
    return FlowState(*(array.tolist() for array in state))


def as_arrays(state: FlowState) -> FlowState:
    """A copy of a state of lists with arrays, for compiled kernels."""
    blank = blank_flow_state(0, 0, 0)
    return FlowState(*(np.array(column, array.dtype) for column, array in zip(state, blank, strict=True)))
