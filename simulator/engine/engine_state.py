"""State of the flow engine, as one array per attribute: flows, wires, program stages and members.

A *flow* is a fixed piece of work (a message of one size on one wire, one kind of local work)
that runs at most once at a time.  A *stage* is what a member does at once: a send, a receive,
then local work; a stage is repeated `count` times.  A *program* is a sequence of stages, and a
*member* runs programs, one after the other.  A *wire* matches the sends of one member with the
receives of another.

The functions of `events.py`, `event_queue.py`, `period_detector.py` and `capacity_changes.py`
are kernels: plain functions over arrays or lists, which Numba can compile (`compiled.py`).  In
kernels `u` is the engine state (what is under way) and `s` the flow state (how flows share
resources, `flow_state.py`); f is a flow, m a member, j a resource, e an entry.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from quadrille.simulator.engine import rates
from quadrille.simulator.engine.builder import EngineBuilder
from quadrille.simulator.engine.flow_state import ACTIVE, NONE, FlowState, as_lists, new_state

Array = Any  # an array, or a list if the kernels run uncompiled

EAGER = -2
"""Receiver of a message that is sent eagerly."""
# Status of a flow: not running, in its latency, working
IDLE, LATENT, MOVING = range(3)
# Which side waits at a wire
NOBODY, SENDER, RECEIVER = range(3)

# Indices of `EngineState.numbers`; index HEAP, the size of the event queue, is in `event_queue.py`
EVENTS, STARTING, ENDED, UNSETTLED, CHANGES, DETECT_PERIODS, LEADER, STEP_TAKEN, SAVE_AT, STEPS, SAVED, JUMPS = range(
    1, 13
)
MARK, SAVED_HEAP, COMPLETED, OVERLAP_SLOWS = range(13, 17)
NUMBERS = 17
# Indices of `EngineState.reals`
CLOCK, SAVED_CLOCK = range(2)
REALS = 2
TIME_COLUMNS = 7
"""Columns of a member's time breakdown in `saved_seconds`."""

FLOW_COLUMNS = (
    "work", "latency", "alone_seconds", "extrapolated", "sender", "receiver", "status", "left", "since", "speed",
    "due", "started_at", "served", "heap", "slot", "changed", "completed", "saved_mark", "saved_status",
    "saved_due", "saved_started_at", "saved_left", "bucket_of_flow",
)  # fmt: skip
WIRE_COLUMNS = ("waiting_side", "waiting_member", "waiting_flow", "eager", "unexpected")
STAGE_COLUMNS = ("count", "send_wire", "send_flow", "receive_wire", "local", "only_if_waited", "only_if_overlapped")
MEMBER_COLUMNS = (
    "program", "stage", "repetition", "pending", "entered_at", "waited", "latency_paid", "computed",
    "was_extrapolated", "waiting", "path_latency", "path_bandwidth", "path_contention", "path_compute",
    "is_throttling", "last_sent", "last_received", "ended", "starting", "saved_stage", "saved_repetition",
    "saved_waiting_for", "saved_entered_at",
)  # fmt: skip
RESOURCE_COLUMNS = ("throttled_by", "users", "busy_since", "busy", "saved_busy")
INTEGERS = {
    "extrapolated", "entry_offsets", "entry_resource", "sender", "receiver", "status", "heap", "slot", "changed",
    "completed", "saved_mark", "saved_status", *WIRE_COLUMNS, "first_stage", *STAGE_COLUMNS, "communicates",
    "throttle", "is_throttling", "compute_member", "last_sent", "last_received", "throttled_by", "program", "stage",
    "repetition", "pending", "waited", "was_extrapolated", "ended", "starting", "saved_stage", "saved_repetition",
    "saved_waiting_for", "users", "bucket_link", "empty_event", "bucket_of_flow", "numbers",
}  # fmt: skip
INITIAL = {"slot": NONE, "stage": NONE, "receiver": NONE, "last_sent": NONE, "last_received": NONE}
"""Initial values of columns that do not begin at zero."""


class EngineState(NamedTuple):
    """All flows, wires, programs, members and resources, with their present state.

    Parameters
    ----------
    work, latency, alone_seconds, extrapolated : [flows] units of work, seconds before the work starts, seconds of
        the work with nothing else under way, whether the work is larger than what was measured
    entry_offsets, entry_resource, entry_share : entries of flow f are entry_offsets[f] .. entry_offsets[f + 1] - 1:
        a resource, and units of the resource for each unit of work
    sender, receiver : [flows] members at both ends; the receiver of local work is NONE, of an eager message EAGER
    status, left, since, speed, due, started_at : [flows] IDLE, LATENT or MOVING; units of work left at time `since`;
        units of work per second; times of the next event and of the start [s]
    served : [flows] units of work done in earlier runs of the flow
    heap, slot : event queue, see `event_queue.py`
    waiting_side, waiting_member, waiting_flow : [wires] the side that waits (NOBODY, SENDER, RECEIVER), and who
    eager, unexpected : [wires] whether messages are sent before their receive is posted; number of messages that
        arrived before their receive was posted
    first_stage : stages of program p are first_stage[p] .. first_stage[p + 1] - 1
    count, send_wire, send_flow, receive_wire, local : [stages] number of repetitions; wires and flows, NONE if absent
    only_if_waited, only_if_overlapped : [stages] whether the stage is skipped if the member did not wait for its last
        transfers, and if the member's compute member is idle
    program, stage, repetition, pending, entered_at, waited : [members] where the member is; number of transfers it
        waits for; when it entered the stage [s]; whether it waited for its last transfers
    latency_paid, computed, was_extrapolated, waiting, path_latency, path_bandwidth, path_contention, path_compute :
        [members] seconds of the present program by cause, see `MemberSeconds`
    throttle, is_throttling : [members] the throttle that the member engages while it communicates, NONE if none;
        whether it does now
    compute_member, rate_share_left : [members] the member whose work slows this member's messages, NONE if none; the
        fraction of their rate that messages keep while this member computes.  Members beside a compute member follow it
    last_sent, last_received : [members] flows, NONE before the first
    communicates : [programs] whether a stage of the program sends or receives
    full_capacity, reduced_capacity, throttled_by : [resources] capacity of a throttle while nobody engages it and
        while somebody does; number of members that engage it
    users, busy_since, busy : [resources] number of flows that use it; since when; seconds of use before that
    bucket_link : [buckets] the resource that is a link with a token bucket, see `capacity_changes.py`
    bucket_bytes, bucket_level, level_time, bucket_load, empty_event : [buckets] size [B]; level [B] at time
        `level_time` [s]; load of the link since then [B/s]; the flow whose event is that the bucket is empty
    bucket_of_flow : [flows] the bucket whose empty event the flow is, NONE if it is none
    changed, ended, starting : working space; members that ended; members that begin next
    completed : flows that did their work since the state was saved
    saved_mark … saved_seconds : the saved state of the period detector
    numbers, reals : counters and clocks, at the indices EVENTS … and CLOCK …
    """

    work: Array
    latency: Array
    alone_seconds: Array
    extrapolated: Array
    entry_offsets: Array
    entry_resource: Array
    entry_share: Array
    sender: Array
    receiver: Array
    status: Array
    left: Array
    since: Array
    speed: Array
    due: Array
    started_at: Array
    served: Array
    heap: Array
    slot: Array
    waiting_side: Array
    waiting_member: Array
    waiting_flow: Array
    eager: Array
    unexpected: Array
    first_stage: Array
    count: Array
    send_wire: Array
    send_flow: Array
    receive_wire: Array
    local: Array
    only_if_waited: Array
    only_if_overlapped: Array
    program: Array
    stage: Array
    repetition: Array
    pending: Array
    entered_at: Array
    waited: Array
    latency_paid: Array
    computed: Array
    was_extrapolated: Array
    waiting: Array
    path_latency: Array
    path_bandwidth: Array
    path_contention: Array
    path_compute: Array
    throttle: Array
    is_throttling: Array
    compute_member: Array
    rate_share_left: Array
    last_sent: Array
    last_received: Array
    communicates: Array
    full_capacity: Array
    reduced_capacity: Array
    throttled_by: Array
    users: Array
    busy_since: Array
    busy: Array
    bucket_link: Array
    bucket_bytes: Array
    bucket_level: Array
    level_time: Array
    bucket_load: Array
    empty_event: Array
    bucket_of_flow: Array
    changed: Array
    ended: Array
    starting: Array
    completed: Array
    saved_mark: Array
    saved_status: Array
    saved_due: Array
    saved_started_at: Array
    saved_left: Array
    saved_busy: Array
    saved_stage: Array
    saved_repetition: Array
    saved_waiting_for: Array
    saved_entered_at: Array
    saved_seconds: Array
    numbers: Array
    reals: Array


def empty_state(*, detect_periods: bool) -> EngineState:
    """The state of an engine with nothing in it."""
    u = EngineState(**{name: [] for name in EngineState._fields})
    u.first_stage.append(0)
    u.entry_offsets.append(0)
    u.numbers.extend([0] * NUMBERS)
    u.reals.extend([0.0] * REALS)
    u.numbers[DETECT_PERIODS], u.numbers[LEADER] = int(detect_periods), NONE
    return u


def extended_state(u: EngineState, builder: EngineBuilder, *, arrays: bool) -> EngineState:
    """The state with everything that has been added to the engine since.

    Parameters
    ----------
    arrays : whether the columns become arrays, for compiled kernels
    """
    new = _new_flows(u, builder) | _new_programs(u, builder) | _new_buckets(u, builder)
    sizes = dict.fromkeys(FLOW_COLUMNS, len(builder.flows)) | dict.fromkeys(WIRE_COLUMNS, len(builder.eager))
    sizes |= dict.fromkeys(MEMBER_COLUMNS, len(builder.throttle_of_member))
    sizes |= dict.fromkeys(RESOURCE_COLUMNS, len(builder.capacities))
    sizes["saved_seconds"] = TIME_COLUMNS * len(builder.throttle_of_member)
    columns = {}
    for name in EngineState._fields:
        old = getattr(u, name)
        more = new.get(name, ())
        if name in sizes and name not in new:
            more = [INITIAL.get(name, 0 if name in INTEGERS else 0.0)] * (sizes[name] - len(old))
        columns[name] = _appended(old, more, integers=name in INTEGERS, arrays=arrays)
    if builder.burst_links or any(builder.eager):  # saved states hold neither bucket levels nor unexpected messages
        columns["numbers"][DETECT_PERIODS] = 0
    columns["numbers"][OVERLAP_SLOWS] = int(any(member != NONE for member in builder.compute_members))
    return EngineState(**columns)


def _new_flows(u: EngineState, builder: EngineBuilder) -> dict[str, Sequence[Any]]:
    """Columns of the flows and resources that are not in the state yet."""
    before, offset = len(u.work), u.entry_offsets[-1]
    rows = list(zip(*builder.flows[before:], strict=True)) or [(), (), (), ()]
    resources = builder.flow_resources[before:]
    return {
        **dict(zip(FLOW_COLUMNS, rows, strict=False)),
        "entry_resource": [resource for row in resources for resource in row],
        "entry_share": [share for row in builder.flow_shares[before:] for share in row],
        "entry_offsets": [offset := offset + len(row) for row in resources],
        "full_capacity": builder.full_capacities[len(u.full_capacity) :],
        "reduced_capacity": builder.capacities[len(u.reduced_capacity) :],
    }


def _new_programs(u: EngineState, builder: EngineBuilder) -> dict[str, Sequence[Any]]:
    """Columns of the wires, programs and members that are not in the state yet."""
    rows = list(zip(*builder.stages[len(u.count) :], strict=True)) or [()] * len(STAGE_COLUMNS)
    return {
        **dict(zip(STAGE_COLUMNS, rows, strict=True)),
        "first_stage": builder.first_stages[len(u.first_stage) :],
        "communicates": builder.communicates[len(u.communicates) :],
        "eager": builder.eager[len(u.eager) :],
        "throttle": builder.throttle_of_member[len(u.throttle) :],
        "compute_member": builder.compute_members[len(u.compute_member) :],
        "rate_share_left": builder.rate_shares_left[len(u.rate_share_left) :],
    }


def _new_buckets(u: EngineState, builder: EngineBuilder) -> dict[str, Sequence[Any]]:
    """Columns of the token buckets that are not in the state yet."""
    links = builder.burst_links[len(u.bucket_link) :]
    bucket_of_flow = {link.empty_event: place for place, link in enumerate(builder.burst_links)}
    return {
        "bucket_link": [link.resource for link in links],
        "empty_event": [link.empty_event for link in links],
        "bucket_bytes": [link.burst for link in links],
        "bucket_level": [link.burst for link in links],
        "level_time": [0.0] * len(links),
        "bucket_load": [0.0] * len(links),
        "bucket_of_flow": [bucket_of_flow.get(flow, NONE) for flow in range(len(u.work), len(builder.flows))],
    }


def _appended(old: Any, more: Sequence[Any], *, integers: bool, arrays: bool) -> Any:
    if not arrays:
        old.extend(more)
        return old
    kind = np.int64 if integers else np.float64
    return np.concatenate([np.asarray(old, kind), np.asarray(more, kind)]) if len(more) else np.asarray(old, kind)


def is_outdated(u: EngineState, builder: EngineBuilder) -> bool:
    """Whether something was added to the engine after the state was made."""
    return (
        len(builder.flows) != len(u.work)
        or len(builder.first_stages) != len(u.first_stage)
        or len(builder.throttle_of_member) != len(u.stage)
        or len(builder.capacities) != len(u.users)
        or len(builder.eager) != len(u.waiting_side)
    )


def new_flow_state(
    u: EngineState, builder: EngineBuilder, before: FlowState | None, *, local: bool, arrays: bool
) -> FlowState:
    """The flow state of all flows; flows that were active in the flow state before are active again."""
    state = new_state(
        np.array(builder.capacities or [inf]),
        np.array(u.entry_offsets, np.int64),
        np.array(u.entry_resource, np.int64),
        np.array(u.entry_share, np.float64),
        np.array(builder.weights),
        np.array(builder.caps),
        local=local,
        changing=[*builder.throttles, *(link.resource for link in builder.burst_links)],
    )
    for resource, full in enumerate(builder.full_capacities):
        if full != builder.capacities[resource] and not u.throttled_by[resource]:
            state.capacities[resource] = full
    state = state if arrays else as_lists(state)
    if before is not None:
        for place in range(before.counts[ACTIVE]):
            rates.begin(state, int(before.active[place]))
    return state
