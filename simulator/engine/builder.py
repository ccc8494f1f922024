"""Tables that grow: what has been entered becomes columns, and the flows on resources a state of `sharing`."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from quadrille.simulator.engine import rates
from quadrille.simulator.engine.engine_state import FOLDS, LEADER, NONE, NUMBERS, REALS, SLOWED, EngineState
from quadrille.simulator.engine.entries import EngineBuilder
from quadrille.simulator.engine.flow_state import ACTIVE, FlowState, as_lists, new_state
from quadrille.simulator.engine.period_detector import TOLD

OF_FLOWS = (
    "work", "latency", "alone", "extrapolated", "sender", "receiver", "status", "left", "since", "speed", "due",
    "begun", "done", "heap", "slot", "changed", "stopped", "saved_mark", "saved_status", "saved_ahead", "saved_begun",
    "saved_left", "taps",
)  # fmt: skip
OF_WIRES = ("waits", "waiting_member", "waiting_flow", "buffered", "came")
OF_STAGES = ("count", "send_wire", "send_flow", "receive_wire", "local", "if_waited", "if_beside")
OF_MEMBERS = (
    "program", "stage", "k", "pending", "entered", "waited", "latency_paid", "computed", "was_extrapolated", "waiting",
    "path_latency", "path_bandwidth", "path_contention", "path_compute", "disturbing", "sending", "receiving", "ended",
    "starting", "saved_stage", "saved_k", "saved_doing", "saved_entered",
)  # fmt: skip
OF_RESOURCES = ("disturbed", "using", "opened", "busy", "saved_busy")
WHOLE = {
    "extrapolated", "entries", "entry_resource", "sender", "receiver", "status", "heap", "slot", "changed", "stopped",
    "saved_mark", "saved_status", *OF_WIRES, "first", *OF_STAGES, "wired", "disturbs", "disturbing", "worker",
    "sending", "receiving", "disturbed", "program", "stage", "k", "pending", "waited", "was_extrapolated", "ended",
    "starting", "saved_stage", "saved_k", "saved_doing", "using", "bursty", "tap", "taps", "numbers",
}  # fmt: skip
BLANK = {"slot": NONE, "stage": NONE, "receiver": NONE, "sending": NONE, "receiving": NONE}
"""What a column holds where nothing has happened, if that is not zero."""


def empty(*, memory: bool) -> EngineState:
    """The table in which there is nothing yet."""
    under = EngineState(**{name: [] for name in EngineState._fields})
    under.first.append(0)
    under.entries.append(0)
    under.numbers.extend([0] * NUMBERS)
    under.reals.extend([0.0] * REALS)
    under.numbers[FOLDS], under.numbers[LEADER] = int(memory), NONE
    return under


def grown(under: EngineState, registered: EngineBuilder, *, arrays: bool) -> EngineState:
    """The table with everything that has been entered.

    Parameters
    ----------
    arrays : whether the columns become arrays, for compiled kernels
    """
    known = len(under.work)
    new: dict[str, Sequence[Any]] = {}
    flows = list(zip(*registered.flows[known:], strict=True)) or [(), (), (), ()]
    new |= dict(zip(OF_FLOWS, flows, strict=False))
    entries = under.entries[-1]
    new["entry_resource"] = [j for resources in registered.resources[known:] for j in resources]
    new["entry_share"] = [share for shares in registered.shares[known:] for share in shares]
    new["entries"] = [entries := entries + len(resources) for resources in registered.resources[known:]]
    stages = list(zip(*registered.stages[len(under.count) :], strict=True)) or [()] * len(OF_STAGES)
    new |= dict(zip(OF_STAGES, stages, strict=True))
    new["first"] = registered.first[len(under.first) :]
    new["buffered"] = registered.buffered[len(under.buffered) :]
    new["wired"] = registered.wired[len(under.wired) :]
    new["disturbs"] = registered.disturbs[len(under.disturbs) :]
    new["worker"], new["leaves"] = registered.worker[len(under.worker) :], registered.leaves[len(under.leaves) :]
    new["calm"], new["slow"] = registered.calm[len(under.calm) :], registered.capacities[len(under.slow) :]
    links = registered.bursty[len(under.bursty) :]
    new["bursty"], new["tap"] = [one.resource for one in links], [one.tap for one in links]
    new["bucket"] = new["level"] = [one.burst for one in links]
    new["poured"] = new["flowing"] = [0.0] * len(links)
    of_tap = {one.tap: place for place, one in enumerate(registered.bursty)}
    new["taps"] = [of_tap.get(flow, NONE) for flow in range(known, len(registered.flows))]
    sizes = dict.fromkeys(OF_FLOWS, len(registered.flows)) | dict.fromkeys(OF_WIRES, len(registered.buffered))
    sizes |= dict.fromkeys(OF_MEMBERS, len(registered.disturbs)) | dict.fromkeys(
        OF_RESOURCES, len(registered.capacities)
    )
    sizes["saved_told"] = TOLD * len(registered.disturbs)
    columns = {}
    for name in EngineState._fields:
        old = getattr(under, name)
        more = new.get(name, ())
        if name in sizes and name not in new:
            more = [BLANK.get(name, 0 if name in WHOLE else 0.0)] * (sizes[name] - len(old))
        columns[name] = _joined(old, more, whole=name in WHOLE, arrays=arrays)
    if registered.bursty or any(registered.buffered):  # what is in a bucket, or has come, is no part of states compared
        columns["numbers"][FOLDS] = 0
    columns["numbers"][SLOWED] = int(any(worker != NONE for worker in registered.worker))
    return EngineState(**columns)


def _joined(old: Any, more: Sequence[Any], *, whole: bool, arrays: bool) -> Any:
    if not arrays:
        old.extend(more)
        return old
    kind = np.int64 if whole else np.float64
    return np.concatenate([np.asarray(old, kind), np.asarray(more, kind)]) if len(more) else np.asarray(old, kind)


def shared(
    registered: EngineBuilder, under: EngineState, before: FlowState | None, *, local: bool, arrays: bool
) -> FlowState:
    """The state of all flows on their resources; those under way begin anew."""
    state = new_state(
        np.array(registered.capacities or [inf]),
        np.array(under.entries, np.int64),
        np.array(under.entry_resource, np.int64),
        np.array(under.entry_share, np.float64),
        np.array(registered.weights),
        np.array(registered.caps),
        local=local,
        changing=[*registered.paces, *(one.resource for one in registered.bursty)],
    )
    for resource, calm in enumerate(registered.calm):
        if calm != registered.capacities[resource] and not under.disturbed[resource]:
            state.capacities[resource] = calm
    state = state if arrays else as_lists(state)
    if before is not None:
        for place in range(before.counts[ACTIVE]):
            rates.begin(state, int(before.active[place]))
    return state
