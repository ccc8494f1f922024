"""The event loop of the flow engine: streams step through their programs (kernels, see `engine_state.py`).

Theory of operation
-------------------
A stream posts the send and the receive of its stage.  When a send and a receive match,
the flow's latency starts; after the latency, the flow shares resources (weighted max-min,
`rates.py`) until its work is done.  When both transfers of a stage have ended, the stream
does the stage's local work and goes on to the next stage.

An event is the end of a flow's latency or the end of its work.  All events within `TIE` of
each other form one batch; rates are recomputed once per batch.
"""

from typing import Any

from quadrille.simulator.engine.capacity_changes import (
    change_throttle,
    handle_empty_event,
    message_rate_share,
    overlaps_compute,
    schedule_empty_events,
    set_speed,
    update_buckets,
    update_message_speeds,
)
from quadrille.simulator.engine.engine_state import (
    CHANGES,
    CLOCK,
    DETECT_PERIODS,
    EAGER,
    ENDED,
    EVENTS,
    IDLE,
    LATENT,
    LEADER,
    MOVING,
    NOBODY,
    OVERLAP_SLOWS,
    RECEIVER,
    SAVED,
    SENDER,
    STARTING,
    STEP_TAKEN,
    UNSETTLED,
    EngineState,
)
from quadrille.simulator.engine.event_queue import HEAP, pop, push
from quadrille.simulator.engine.flow_state import NONE, TIE
from quadrille.simulator.engine.period_detector import count_steps_of, detect_period, note_completion
from quadrille.simulator.engine.rates import begin_flow, end_flow, update_rates

# What `advance` returns
QUIET, SOME_ENDED, MORE = range(3)


def advance(u: EngineState, s: Any, now: float, until: float, last: int) -> int:
    """Process events that happen before `until`, up to event number `last`.

    Returns QUIET if no event is left before `until`, SOME_ENDED if streams finished their
    programs (at the time CLOCK), MORE if the limit of events was reached.

    Parameters
    ----------
    now : present time [s]; events due by then are processed even if `until` is earlier
    until : time of the next event outside the engine [s]
    last : number of the last event that may be processed
    """
    u.reals[CLOCK] = max(u.reals[CLOCK], now)
    for i in range(u.numbers[STARTING]):
        _begin_program(u, s, u.starting[i])
    u.numbers[STARTING] = 0
    while True:
        limit = u.reals[CLOCK] * (1 + TIE)
        while u.numbers[HEAP] > 0 and u.due[u.heap[0]] <= limit:
            _handle_event(u, s)
        if u.numbers[ENDED] > 0:
            return SOME_ENDED
        if u.numbers[UNSETTLED] != 0:
            _update_rates(u, s)
        if u.numbers[STEP_TAKEN] != 0:
            u.numbers[STEP_TAKEN] = 0
            detect_period(u, until)
        if u.numbers[HEAP] == 0 or u.due[u.heap[0]] >= until:
            return QUIET
        if u.numbers[EVENTS] >= last:
            return MORE
        u.reals[CLOCK] = max(u.reals[CLOCK], u.due[u.heap[0]])


def _handle_event(u: EngineState, s: Any) -> None:
    """Process the earliest event."""
    f = u.heap[0]
    pop(u)
    u.numbers[EVENTS] += 1
    if handle_empty_event(u, f):
        return
    if u.status[f] == LATENT and u.work[f] > 0:
        _begin_sharing(u, s, f)
        return
    if u.status[f] == MOVING:
        _end_sharing(u, s, f)
    u.status[f] = IDLE
    if u.receiver[f] == NONE:
        _local_work_ended(u, s, u.sender[f], f)
    elif u.receiver[f] == EAGER:
        _deliver_eager(u, s, u.sender[f], f)
    else:
        _transfer_ended(u, s, u.sender[f], f)
        _transfer_ended(u, s, u.receiver[f], f)


def _update_rates(u: EngineState, s: Any) -> None:
    """Recompute the rates, and set the speed of every flow whose rate changed."""
    update_buckets(u, s)
    u.numbers[UNSETTLED] = 0
    u.numbers[CHANGES] += 1
    slowed = u.numbers[OVERLAP_SLOWS] != 0
    for i in range(update_rates(s, u.changed)):
        rate_share = message_rate_share(u, u.changed[i]) if slowed else 1.0
        set_speed(u, u.changed[i], s.rate[u.changed[i]] * rate_share)
    schedule_empty_events(u, s)


def _begin_sharing(u: EngineState, s: Any, f: int) -> None:
    """Begin the work of a flow, which now takes its share of its resources."""
    now = u.reals[CLOCK]
    u.status[f] = MOVING
    u.since[f] = now
    u.speed[f] = 0.0
    for e in range(u.entry_offsets[f], u.entry_offsets[f + 1]):
        j = u.entry_resource[e]
        if u.users[j] == 0:
            u.busy_since[j] = now
        u.users[j] += 1
    begin_flow(s, f)
    u.numbers[UNSETTLED] = 1


def _end_sharing(u: EngineState, s: Any, f: int) -> None:
    """End the work of a flow, which releases its resources."""
    now = u.reals[CLOCK]
    u.served[f] += u.work[f]
    if u.numbers[SAVED] != 0:
        note_completion(u, f)
    u.speed[f] = 0.0
    for e in range(u.entry_offsets[f], u.entry_offsets[f + 1]):
        j = u.entry_resource[e]
        u.users[j] -= 1
        if u.users[j] == 0:
            u.busy[j] += now - u.busy_since[j]
    end_flow(s, f)
    u.numbers[UNSETTLED] = 1


def _start_flow(u: EngineState, s: Any, f: int, sender: int, receiver: int) -> None:
    """Start a flow: first its latency, then its work."""
    now = u.reals[CLOCK]
    u.sender[f], u.receiver[f] = sender, receiver
    if receiver >= 0:
        u.last_sent[sender], u.last_received[receiver] = f, f
    u.started_at[f] = now
    u.left[f] = u.work[f]
    if u.latency[f] == 0.0 and u.work[f] > 0:
        _begin_sharing(u, s, f)
        return
    u.status[f] = LATENT
    push(u, f, now + u.latency[f])


# Streams


def _begin_program(u: EngineState, s: Any, q: int) -> None:
    """Begin the program of a stream."""
    u.stage[q] = u.first_stage[u.program[q]]
    u.repetition[q] = 0
    u.latency_paid[q], u.computed[q], u.was_extrapolated[q], u.waiting[q] = 0.0, 0.0, 0, 0.0
    u.path_latency[q], u.path_bandwidth[q], u.path_contention[q], u.path_compute[q] = 0.0, 0.0, 0.0, 0.0
    _discard_saved_state(u)
    if u.throttle[q] != NONE and u.communicates[u.program[q]] != 0:
        u.is_throttling[q] = 1
        change_throttle(u, s, u.throttle[q], 1)
    if u.rate_share_left[q] < 1.0:
        update_message_speeds(u, s, q)
    _begin_stage(u, s, q)


def _discard_saved_state(u: EngineState) -> None:
    """Forget the saved state, because an event other than a step breaks any period."""
    u.numbers[LEADER] = NONE


def _end_program(u: EngineState, s: Any, q: int) -> None:
    """End the program of a stream."""
    u.stage[q] = NONE
    u.ended[u.numbers[ENDED]] = q
    u.numbers[ENDED] += 1
    if u.is_throttling[q] != 0:
        u.is_throttling[q] = 0
        change_throttle(u, s, u.throttle[q], -1)
    if u.rate_share_left[q] < 1.0:
        update_message_speeds(u, s, q)
    _discard_saved_state(u)


def _begin_stage(u: EngineState, s: Any, q: int) -> None:
    """Begin the present stage of a stream, and the next stages as long as the stream has to wait for nothing."""
    while True:
        at = u.stage[q]
        if at == u.first_stage[u.program[q] + 1]:
            _end_program(u, s, q)
            return
        if (u.only_if_waited[at] != 0 and u.waited[q] == 0) or (
            u.only_if_overlapped[at] != 0 and not overlaps_compute(u, q)
        ):
            _increment(u, q)
            continue
        _post_transfers(u, s, q, at)
        if u.posted[at] != 0:
            _increment(u, q)
            continue
        if u.pending[q] > 0:
            return
        if u.only_if_waited[at] == 0:
            u.waited[q] = 0
        if u.local[at] != NONE:
            _start_flow(u, s, u.local[at], q, NONE)
            return
        _increment(u, q)


def _post_transfers(u: EngineState, s: Any, q: int, at: int) -> None:
    """Post the send and the receive of a stage, beside those of the stages that were posted before it."""
    u.entered_at[q] = u.reals[CLOCK]
    if at == u.first_stage[u.program[q]] or u.posted[at - 1] == 0:
        u.pending[q] = 0
    if u.numbers[DETECT_PERIODS] != 0 and u.count[at] > 1:
        _count_step(u, q)
    if u.send_channel[at] != NONE:
        _post_send(u, s, q, u.send_channel[at], u.send_flow[at])
    if u.receive_channel[at] != NONE:
        _post_receive(u, s, q, u.receive_channel[at])


def _count_step(u: EngineState, q: int) -> None:
    """Note a step of a stream; after a step of the leader, the period detector compares states."""
    if u.numbers[LEADER] == NONE:
        count_steps_of(u, q)
    if u.numbers[LEADER] == q:
        u.numbers[STEP_TAKEN] = 1


def _post_send(u: EngineState, s: Any, q: int, channel: int, f: int) -> None:
    """Post a send of a stream on a channel; an eager message starts at once."""
    u.pending[q] += 1
    if u.eager[channel] != 0:
        _start_flow(u, s, f, q, EAGER)
    elif u.waiting_side[channel] == RECEIVER:
        u.waiting_side[channel] = NOBODY
        _match(u, s, f, q, u.waiting_stream[channel])
    else:
        u.waiting_side[channel] = SENDER
        u.waiting_stream[channel], u.waiting_flow[channel] = q, f


def _post_receive(u: EngineState, s: Any, q: int, channel: int) -> None:
    """Post a receive of a stream on a channel; an eager message may have arrived before."""
    if u.unexpected[channel] > 0:
        u.unexpected[channel] -= 1
        return
    u.pending[q] += 1
    if u.waiting_side[channel] == SENDER:
        u.waiting_side[channel] = NOBODY
        _match(u, s, u.waiting_flow[channel], u.waiting_stream[channel], q)
    else:
        u.waiting_side[channel] = RECEIVER
        u.waiting_stream[channel] = q


def _increment(u: EngineState, q: int) -> None:
    """Move a stream to its next stage, or to the next repetition of its stage."""
    u.repetition[q] += 1
    if u.repetition[q] == u.count[u.stage[q]]:
        u.stage[q] += 1
        u.repetition[q] = 0


def _match(u: EngineState, s: Any, f: int, sender: int, receiver: int) -> None:
    """Start the flow of a matched send and receive.

    A stage that sends and receives pays both latencies at once, so each latency counts half; in general, each of the
    transfers that are posted together counts its part.
    """
    for i in range(2):
        q = receiver if i == 1 else sender
        u.latency_paid[q] += u.latency[f] / u.transfers[u.stage[q]]
        u.was_extrapolated[q] = max(u.was_extrapolated[q], u.extrapolated[f])
    _start_flow(u, s, f, sender, receiver)


def _deliver_eager(u: EngineState, s: Any, q: int, f: int) -> None:
    """Deliver an eager message to a waiting receiver, or count it as unexpected; its sender goes on."""
    channel = u.send_channel[u.stage[q]]
    if u.waiting_side[channel] == RECEIVER:
        u.waiting_side[channel] = NOBODY
        receiver = u.waiting_stream[channel]
        if u.started_at[f] >= u.entered_at[receiver]:
            u.latency_paid[receiver] += u.latency[f]
        _transfer_ended(u, s, receiver, f)
    else:
        u.unexpected[channel] += 1
    _transfer_ended(u, s, q, f)


def _transfer_ended(u: EngineState, s: Any, q: int, f: int) -> None:
    """End a transfer of a stream's stage; only the time since the stream entered the stage counts."""
    u.pending[q] -= 1
    if u.pending[q] > 0:
        return
    early = u.started_at[f] < u.entered_at[q]
    began = u.entered_at[q] if early else u.started_at[f]
    took = u.reals[CLOCK] - began
    u.waited[q] = int(u.reals[CLOCK] > u.entered_at[q])
    latency: float = 0.0 if early else u.latency[f]
    alone_seconds: float = min(u.alone_seconds[f], took) if early else u.alone_seconds[f]
    u.waiting[q] += began - u.entered_at[q]
    u.path_latency[q] += latency
    u.path_bandwidth[q] += alone_seconds
    u.path_contention[q] += took - latency - alone_seconds
    local = u.local[u.stage[q]]
    if local == NONE:
        _go_to_next_stage(u, s, q)
    else:
        _start_flow(u, s, local, q, NONE)


def _local_work_ended(u: EngineState, s: Any, q: int, f: int) -> None:
    """End the local work of a stream's stage."""
    took = u.reals[CLOCK] - u.started_at[f]
    u.latency_paid[q] += u.latency[f]
    u.computed[q] += u.alone_seconds[f]
    u.was_extrapolated[q] = max(u.was_extrapolated[q], u.extrapolated[f])
    u.path_latency[q] += u.latency[f]
    u.path_compute[q] += u.alone_seconds[f]
    u.path_contention[q] += took - u.latency[f] - u.alone_seconds[f]
    _go_to_next_stage(u, s, q)


def _go_to_next_stage(u: EngineState, s: Any, q: int) -> None:
    """Go on to the next stage of a stream, or repeat the stage."""
    _increment(u, q)
    _begin_stage(u, s, q)


KERNELS = (
    _discard_saved_state,
    _update_rates,
    _begin_sharing,
    _end_sharing,
    _start_flow,
    _match,
    _end_program,
    _count_step,
    _post_send,
    _post_receive,
    _post_transfers,
    _increment,
    _begin_stage,
    _begin_program,
    _go_to_next_stage,
    _transfer_ended,
    _deliver_eager,
    _local_work_ended,
    _handle_event,
    advance,
)
"""To be compiled after the kernels of `rates`, `event_queue`, `period_detector` and `capacity_changes`."""
