"""The event loop of the flow engine: members step through their programs (kernels, see `engine_state.py`).

Theory of operation
-------------------
A member posts the send and the receive of its stage.  When a send and a receive match,
the flow's latency starts; after the latency, the flow shares resources (weighted max-min,
`rates.py`) until its work is done.  When both transfers of a stage have ended, the member
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
from quadrille.simulator.engine.rates import begin, end, settle

# What `advance` returns
QUIET, SOME_ENDED, MORE = range(3)


def advance(u: EngineState, s: Any, now: float, until: float, last: int) -> int:
    """Process events that happen before `until`, at most until event number `last`.

    Returns QUIET if no event is left before `until`, SOME_ENDED if members finished their
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
    for i in range(settle(s, u.changed)):
        part = message_rate_share(u, u.changed[i]) if slowed else 1.0
        set_speed(u, u.changed[i], s.rate[u.changed[i]] * part)
    schedule_empty_events(u, s)


def _begin_sharing(u: EngineState, s: Any, f: int) -> None:
    """A flow starts its work: it now takes its share of its resources."""
    now = u.reals[CLOCK]
    u.status[f] = MOVING
    u.since[f] = now
    u.speed[f] = 0.0
    for e in range(u.entry_offsets[f], u.entry_offsets[f + 1]):
        j = u.entry_resource[e]
        if u.users[j] == 0:
            u.busy_since[j] = now
        u.users[j] += 1
    begin(s, f)
    u.numbers[UNSETTLED] = 1


def _end_sharing(u: EngineState, s: Any, f: int) -> None:
    """A flow has done its work and releases its resources."""
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
    end(s, f)
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


# Members


def _begin_program(u: EngineState, s: Any, m: int) -> None:
    """A member begins its program."""
    u.stage[m] = u.first_stage[u.program[m]]
    u.repetition[m] = 0
    u.latency_paid[m], u.computed[m], u.was_extrapolated[m], u.waiting[m] = 0.0, 0.0, 0, 0.0
    u.path_latency[m], u.path_bandwidth[m], u.path_contention[m], u.path_compute[m] = 0.0, 0.0, 0.0, 0.0
    _discard_saved_state(u)
    if u.throttle[m] != NONE and u.communicates[u.program[m]] != 0:
        u.is_throttling[m] = 1
        change_throttle(u, s, u.throttle[m], 1)
    if u.rate_share_left[m] < 1.0:
        update_message_speeds(u, s, m)
    _begin_stage(u, s, m)


def _discard_saved_state(u: EngineState) -> None:
    """Forget the saved state: an event other than a step breaks any period."""
    u.numbers[LEADER] = NONE


def _end_program(u: EngineState, s: Any, m: int) -> None:
    """A member has reached the end of its program."""
    u.stage[m] = NONE
    u.ended[u.numbers[ENDED]] = m
    u.numbers[ENDED] += 1
    if u.is_throttling[m] != 0:
        u.is_throttling[m] = 0
        change_throttle(u, s, u.throttle[m], -1)
    if u.rate_share_left[m] < 1.0:
        update_message_speeds(u, s, m)
    _discard_saved_state(u)


def _begin_stage(u: EngineState, s: Any, m: int) -> None:
    """A member begins its present stage, and the next one if it has to wait for nothing."""
    while True:
        at = u.stage[m]
        if at == u.first_stage[u.program[m] + 1]:
            _end_program(u, s, m)
            return
        if (u.only_if_waited[at] != 0 and u.waited[m] == 0) or (
            u.only_if_overlapped[at] != 0 and not overlaps_compute(u, m)
        ):
            _increment(u, m)
            continue
        u.entered_at[m] = u.reals[CLOCK]
        u.pending[m] = 0
        if u.numbers[DETECT_PERIODS] != 0 and u.count[at] > 1:
            _count_step(u, m)
        if u.send_wire[at] != NONE:
            _post_send(u, s, m, u.send_wire[at], u.send_flow[at])
        if u.receive_wire[at] != NONE:
            _post_receive(u, s, m, u.receive_wire[at])
        if u.pending[m] > 0:
            return
        if u.only_if_waited[at] == 0:
            u.waited[m] = 0
        if u.local[at] != NONE:
            _start_flow(u, s, u.local[at], m, NONE)
            return
        _increment(u, m)


def _count_step(u: EngineState, m: int) -> None:
    """A member repeats a stage: if it is the counted member, the period detector compares states next."""
    if u.numbers[LEADER] == NONE:
        count_steps_of(u, m)
    if u.numbers[LEADER] == m:
        u.numbers[STEP_TAKEN] = 1


def _post_send(u: EngineState, s: Any, m: int, wire: int, f: int) -> None:
    """A member posts a send on a wire; an eager message starts at once."""
    u.pending[m] += 1
    if u.eager[wire] != 0:
        _start_flow(u, s, f, m, EAGER)
    elif u.waiting_side[wire] == RECEIVER:
        u.waiting_side[wire] = NOBODY
        _match(u, s, f, m, u.waiting_member[wire])
    else:
        u.waiting_side[wire] = SENDER
        u.waiting_member[wire], u.waiting_flow[wire] = m, f


def _post_receive(u: EngineState, s: Any, m: int, wire: int) -> None:
    """A member posts a receive on a wire; an eager message may have arrived before."""
    if u.unexpected[wire] > 0:
        u.unexpected[wire] -= 1
        return
    u.pending[m] += 1
    if u.waiting_side[wire] == SENDER:
        u.waiting_side[wire] = NOBODY
        _match(u, s, u.waiting_flow[wire], u.waiting_member[wire], m)
    else:
        u.waiting_side[wire] = RECEIVER
        u.waiting_member[wire] = m


def _increment(u: EngineState, m: int) -> None:
    """Move a member to its next stage, or to the next repetition of its stage."""
    u.repetition[m] += 1
    if u.repetition[m] == u.count[u.stage[m]]:
        u.stage[m] += 1
        u.repetition[m] = 0


def _match(u: EngineState, s: Any, f: int, sender: int, receiver: int) -> None:
    """A send and a receive have met; a stage that does both pays the latency of both at once, so each counts half."""
    for i in range(2):
        m = receiver if i == 1 else sender
        at = u.stage[m]
        both = u.send_wire[at] != NONE and u.receive_wire[at] != NONE
        u.latency_paid[m] += u.latency[f] / (2 if both else 1)
        u.was_extrapolated[m] = max(u.was_extrapolated[m], u.extrapolated[f])
    _start_flow(u, s, f, sender, receiver)


def _deliver_eager(u: EngineState, s: Any, m: int, f: int) -> None:
    """An eager message has arrived: a waiting receiver gets it, else it is kept; its sender goes on."""
    wire = u.send_wire[u.stage[m]]
    if u.waiting_side[wire] == RECEIVER:
        u.waiting_side[wire] = NOBODY
        receiver = u.waiting_member[wire]
        if u.started_at[f] >= u.entered_at[receiver]:
            u.latency_paid[receiver] += u.latency[f]
        _transfer_ended(u, s, receiver, f)
    else:
        u.unexpected[wire] += 1
    _transfer_ended(u, s, m, f)


def _transfer_ended(u: EngineState, s: Any, m: int, f: int) -> None:
    """A transfer of a member's stage has ended; only the time since the member entered the stage counts."""
    u.pending[m] -= 1
    if u.pending[m] > 0:
        return
    early = u.started_at[f] < u.entered_at[m]
    began = u.entered_at[m] if early else u.started_at[f]
    took = u.reals[CLOCK] - began
    u.waited[m] = int(u.reals[CLOCK] > u.entered_at[m])
    latency: float = 0.0 if early else u.latency[f]
    alone_seconds: float = min(u.alone_seconds[f], took) if early else u.alone_seconds[f]
    u.waiting[m] += began - u.entered_at[m]
    u.path_latency[m] += latency
    u.path_bandwidth[m] += alone_seconds
    u.path_contention[m] += took - latency - alone_seconds
    local = u.local[u.stage[m]]
    if local == NONE:
        _go_to_next_stage(u, s, m)
    else:
        _start_flow(u, s, local, m, NONE)


def _local_work_ended(u: EngineState, s: Any, m: int, f: int) -> None:
    """A member has done the local work of its stage."""
    took = u.reals[CLOCK] - u.started_at[f]
    if u.only_if_waited[u.stage[m]] != 0:
        u.latency_paid[m] += u.latency[f]
    u.computed[m] += u.alone_seconds[f]
    u.was_extrapolated[m] = max(u.was_extrapolated[m], u.extrapolated[f])
    u.path_latency[m] += u.latency[f]
    u.path_compute[m] += u.alone_seconds[f]
    u.path_contention[m] += took - u.latency[f] - u.alone_seconds[f]
    _go_to_next_stage(u, s, m)


def _go_to_next_stage(u: EngineState, s: Any, m: int) -> None:
    """A member goes on to its next stage, or repeats its stage."""
    _increment(u, m)
    _begin_stage(u, s, m)


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
