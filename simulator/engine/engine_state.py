"""State of the flow engine, one array for each attribute of flows, channels, stages, streams and resources.

A *flow* is a fixed amount of work (a message of one size on one channel, one kind of local work) that runs at most once
at a time.  A *stage* is a send and a receive at the same time, then local work; it is repeated `count` times.  A
*program* is a sequence of stages, and a *stream* runs programs, one after the other.  A *channel* matches the sends of
one stream with the receives of another, in order.

The functions of `event_loop.py`, `event_queue.py`, `period_detector.py` and `capacity_changes.py`
are kernels: plain functions over arrays or lists, which Numba can compile (`kernel_compiler.py`).  In
kernels `u` is the engine state (what is under way) and `s` the flow state (how flows share
resources, `flow_state.py`); f is a flow, q a stream, j a resource, e an entry.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from quadrille.simulator.engine import rates
from quadrille.simulator.engine.engine_builder import EngineBuilder
from quadrille.simulator.engine.flow_state import ACTIVE, NONE, FlowState, as_lists, new_flow_state

Array = Any  # an array, or a list if the kernels run uncompiled

EAGER = -2
"""Receiver of a message that is sent eagerly."""
# Status of a flow: not running, in its latency, working
IDLE, LATENT, MOVING = range(3)
# The side that waits at a channel
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
"""Columns of a stream's time breakdown in `saved_seconds`."""

FLOW_COLUMNS = (
    "work", "latency", "alone_seconds", "extrapolated", "sender", "receiver", "status", "left", "since", "speed",
    "due", "started_at", "served", "heap", "slot", "changed", "completed", "saved_mark", "saved_status",
    "saved_due", "saved_started_at", "saved_left", "bucket_of_flow",
)  # fmt: skip
CHANNEL_COLUMNS = ("waiting_side", "waiting_stream", "waiting_flow", "eager", "unexpected")
STAGE_COLUMNS = (
    "count",
    "send_channel",
    "send_flow",
    "receive_channel",
    "local",
    "only_if_waited",
    "only_if_overlapped",
    "posted",
    "transfers",
)
STREAM_COLUMNS = (
    "program", "stage", "repetition", "pending", "entered_at", "waited", "latency_paid", "computed",
    "was_extrapolated", "waiting", "path_latency", "path_bandwidth", "path_contention", "path_compute",
    "is_throttling", "last_sent", "last_received", "ended", "starting", "saved_stage", "saved_repetition",
    "saved_waiting_for", "saved_entered_at",
)  # fmt: skip
RESOURCE_COLUMNS = ("throttled_by", "users", "busy_since", "busy", "saved_busy")
INTEGERS = {
    "extrapolated", "entry_offsets", "entry_resource", "sender", "receiver", "status", "heap", "slot", "changed",
    "completed", "saved_mark", "saved_status", *CHANNEL_COLUMNS, "first_stage", *STAGE_COLUMNS, "communicates",
    "throttle", "is_throttling", "compute_stream", "last_sent", "last_received", "throttled_by", "program", "stage",
    "repetition", "pending", "waited", "was_extrapolated", "ended", "starting", "saved_stage", "saved_repetition",
    "saved_waiting_for", "users", "bucket_link", "empty_event", "bucket_of_flow", "numbers",
}  # fmt: skip
INITIAL = {"slot": NONE, "stage": NONE, "receiver": NONE, "last_sent": NONE, "last_received": NONE}
"""Initial values of columns that do not begin at zero."""


class EngineState(NamedTuple):
    """All flows, channels, programs, streams and resources, with their present state.

    Parameters
    ----------
    work, latency, alone_seconds, extrapolated : [flows] units of work, seconds before the work starts, seconds of
        the work with nothing else under way, whether the work is larger than what was measured
    entry_offsets, entry_resource, entry_share : entries of flow f are entry_offsets[f] .. entry_offsets[f + 1] - 1:
        a resource, and units of the resource for each unit of work
    sender, receiver : [flows] streams at both ends; the receiver of local work is NONE, of an eager message EAGER
    status, left, since, speed, due, started_at : [flows] IDLE, LATENT or MOVING; units of work left at time `since`;
        units of work per second; times of the next event and of the start [s]
    served : [flows] units of work done in earlier runs of the flow
    heap, slot : event queue, see `event_queue.py`
    waiting_side, waiting_stream, waiting_flow : [channels] the side that waits (NOBODY, SENDER,
        RECEIVER), its stream, and the flow of a waiting send
    eager, unexpected : [channels] whether messages are sent before their receive is posted; number of messages that
        arrived before their receive was posted
    first_stage : stages of program p are first_stage[p] .. first_stage[p + 1] - 1
    count, send_channel, send_flow, receive_channel, local : [stages] number of repetitions; channels and flows, NONE if
        absent
    only_if_waited, only_if_overlapped : [stages] whether the stage is skipped if the stream did not wait for its last
        transfers, and if the stream's compute stream is idle
    posted, transfers : [stages] whether the stream goes on to the next stage at once; number of transfers that the
        stage waits for, with those posted together
    program, stage, repetition, pending, entered_at, waited : [streams] present program, stage and repetition; number of
        transfers that it waits for; time at which it entered the stage [s]; whether it waited for its last transfers
    latency_paid, computed, was_extrapolated, waiting, path_latency, path_bandwidth, path_contention, path_compute :
        [streams] seconds of the present program by cause, see `StreamSeconds`
    throttle, is_throttling : [streams] the throttle that the stream engages while it communicates, NONE if none;
        whether it engages the throttle now
    compute_stream, rate_share_left : [streams] the stream whose work slows this stream's messages, NONE if none; the
        fraction of their rate that messages keep while this stream computes.  The rank's other streams follow its
        compute stream
    last_sent, last_received : [streams] flows, NONE before the first
    communicates : [programs] whether a stage of the program sends or receives
    full_capacity, reduced_capacity, throttled_by : [resources] capacity of a throttle while nobody engages it and
        while somebody does; number of streams that engage it
    users, busy_since, busy : [resources] number of flows that use it; since when; seconds of use before that
    bucket_link : [buckets] the resource that is a link with a token bucket, see `capacity_changes.py`
    bucket_bytes, bucket_level, level_time, bucket_load, empty_event : [buckets] size [B]; level [B] at time
        `level_time` [s]; load of the link since then [B/s]; the flow whose event is that the bucket is empty
    bucket_of_flow : [flows] the bucket whose empty event the flow is, NONE if it is none
    changed, ended, starting : working space; streams that ended; streams that begin next
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
    waiting_stream: Array
    waiting_flow: Array
    eager: Array
    unexpected: Array
    first_stage: Array
    count: Array
    send_channel: Array
    send_flow: Array
    receive_channel: Array
    local: Array
    only_if_waited: Array
    only_if_overlapped: Array
    posted: Array
    transfers: Array
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
    compute_stream: Array
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
    """The state with the entries that have been added to the engine since `u` was made.

    Parameters
    ----------
    arrays : whether the columns become arrays, for compiled kernels
    """
    new = _new_flows(u, builder) | _new_programs(u, builder) | _new_buckets(u, builder)
    sizes = dict.fromkeys(FLOW_COLUMNS, len(builder.flows)) | dict.fromkeys(CHANNEL_COLUMNS, len(builder.eager))
    sizes |= dict.fromkeys(STREAM_COLUMNS, len(builder.throttle_of_stream))
    sizes |= dict.fromkeys(RESOURCE_COLUMNS, len(builder.capacities))
    sizes["saved_seconds"] = TIME_COLUMNS * len(builder.throttle_of_stream)
    columns = {}
    for name in EngineState._fields:
        old = getattr(u, name)
        more = new.get(name, ())
        if name in sizes and name not in new:
            more = [INITIAL.get(name, 0 if name in INTEGERS else 0.0)] * (sizes[name] - len(old))
        columns[name] = _appended(old, more, integers=name in INTEGERS, arrays=arrays)
    if builder.burst_links or any(builder.eager):  # saved states hold neither bucket levels nor unexpected messages
        columns["numbers"][DETECT_PERIODS] = 0
    columns["numbers"][OVERLAP_SLOWS] = int(any(stream != NONE for stream in builder.compute_streams))
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
    """Columns of the channels, programs and streams that are not in the state yet."""
    rows = list(zip(*builder.stages[len(u.count) :], strict=True)) or [()] * len(STAGE_COLUMNS)
    return {
        **dict(zip(STAGE_COLUMNS, rows, strict=True)),
        "first_stage": builder.first_stages[len(u.first_stage) :],
        "communicates": builder.communicates[len(u.communicates) :],
        "eager": builder.eager[len(u.eager) :],
        "throttle": builder.throttle_of_stream[len(u.throttle) :],
        "compute_stream": builder.compute_streams[len(u.compute_stream) :],
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
    """Whether entries were added to the engine after the state was made."""
    return (
        len(builder.flows) != len(u.work)
        or len(builder.first_stages) != len(u.first_stage)
        or len(builder.throttle_of_stream) != len(u.stage)
        or len(builder.capacities) != len(u.users)
        or len(builder.eager) != len(u.waiting_side)
    )


def extended_flow_state(
    u: EngineState, builder: EngineBuilder, before: FlowState | None, *, local: bool, arrays: bool
) -> FlowState:
    """The flow state of all flows; flows that were active in the flow state before are active again."""
    state = new_flow_state(
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
            rates.begin_flow(state, int(before.active[place]))
    return state
