"""Members step through their programs, from event to event (kernels, see `state.py`).

A member posts the send and the receive of its stage; when a flow has both ends, its
latency begins, then it shares resources (weighted max-min, `sharing/rates.py`) until
its work is done; when both its transfers have ended, the member does the stage's local
work, and goes on.  An event is the end of a flow's latency, or of its work; all that
happens within `TIE` of an instant is one batch, after which rates are settled once.
"""

from typing import Any

from quadrille.simulator.engine.engine_state import (
    CHANGES,
    CLOCK,
    ENDED,
    EVENTS,
    FOLDS,
    IDLE,
    LATENT,
    LATER,
    LEADER,
    MOVING,
    NOBODY,
    NONE,
    RECEIVER,
    SAVED,
    SENDER,
    SLOWED,
    STARTING,
    STEPPED,
    UNSETTLED,
    EngineState,
)
from quadrille.simulator.engine.event_queue import HEAP, put, take
from quadrille.simulator.engine.max_min import TIE
from quadrille.simulator.engine.period_detector import lead, look_back, note
from quadrille.simulator.engine.rates import begin, end, settle
from quadrille.simulator.engine.slowdown import disturb, is_beside_work, left_to, set_speed, slow_messages
from quadrille.simulator.engine.token_buckets import pour, run_dry, set_taps

# What `go_on` gives back
QUIET, SOME_ENDED, MORE = range(3)


def go_on(u: EngineState, s: Any, now: float, until: float, last: int) -> int:
    """From event to event, while they are before `until`, up to so many of them.

    Gives back whether nothing more happens before that, or members have ended
    (at the instant CLOCK), or there is more to do.

    Parameters
    ----------
    now : what is due by then happens even if `until` is earlier
    """
    u.reals[CLOCK] = max(u.reals[CLOCK], now)
    for i in range(u.numbers[STARTING]):
        _begin(u, s, u.starting[i])
    u.numbers[STARTING] = 0
    while True:
        limit = u.reals[CLOCK] * (1 + TIE)
        while u.numbers[HEAP] > 0 and u.due[u.heap[0]] <= limit:
            _happen(u, s)
        if u.numbers[ENDED] > 0:
            return SOME_ENDED
        if u.numbers[UNSETTLED] != 0:
            _settle(u, s)
        if u.numbers[STEPPED] != 0:
            u.numbers[STEPPED] = 0
            look_back(u, until)
        if u.numbers[HEAP] == 0 or u.due[u.heap[0]] >= until:
            return QUIET
        if u.numbers[EVENTS] >= last:
            return MORE
        u.reals[CLOCK] = max(u.reals[CLOCK], u.due[u.heap[0]])


def _happen(u: EngineState, s: Any) -> None:
    """The next event."""
    f = u.heap[0]
    take(u)
    u.numbers[EVENTS] += 1
    if run_dry(u, f):
        return
    if u.status[f] == LATENT and u.work[f] > 0:
        _move(u, s, f)
        return
    if u.status[f] == MOVING:
        _stop(u, s, f)
    u.status[f] = IDLE
    if u.receiver[f] == NONE:
        _worked(u, s, u.sender[f], f)
    elif u.receiver[f] == LATER:
        _come(u, s, u.sender[f], f)
    else:
        _arrive(u, s, u.sender[f], f)
        _arrive(u, s, u.receiver[f], f)


def _settle(u: EngineState, s: Any) -> None:
    """New rates."""
    pour(u, s)
    u.numbers[UNSETTLED] = 0
    u.numbers[CHANGES] += 1
    slowed = u.numbers[SLOWED] != 0
    for i in range(settle(s, u.changed)):
        part = left_to(u, u.changed[i]) if slowed else 1.0
        set_speed(u, u.changed[i], s.rate[u.changed[i]] * part)
    set_taps(u, s)


def _move(u: EngineState, s: Any, f: int) -> None:
    """A flow begins to take its share."""
    now = u.reals[CLOCK]
    u.status[f] = MOVING
    u.since[f] = now
    u.speed[f] = 0.0
    for e in range(u.entries[f], u.entries[f + 1]):
        j = u.entry_resource[e]
        if u.using[j] == 0:
            u.opened[j] = now
        u.using[j] += 1
    begin(s, f)
    u.numbers[UNSETTLED] = 1


def _stop(u: EngineState, s: Any, f: int) -> None:
    """A flow has done its work."""
    now = u.reals[CLOCK]
    u.done[f] += u.work[f]
    if u.numbers[SAVED] != 0:
        note(u, f)
    u.speed[f] = 0.0
    for e in range(u.entries[f], u.entries[f + 1]):
        j = u.entry_resource[e]
        u.using[j] -= 1
        if u.using[j] == 0:
            u.busy[j] += now - u.opened[j]
    end(s, f)
    u.numbers[UNSETTLED] = 1


def _start(u: EngineState, s: Any, f: int, sender: int, receiver: int) -> None:
    """A flow is under way: first its latency."""
    now = u.reals[CLOCK]
    u.sender[f], u.receiver[f] = sender, receiver
    if receiver >= 0:
        u.sending[sender], u.receiving[receiver] = f, f
    u.begun[f] = now
    u.left[f] = u.work[f]
    if u.latency[f] == 0.0 and u.work[f] > 0:
        _move(u, s, f)
        return
    u.status[f] = LATENT
    put(u, f, now + u.latency[f])


# Members


def _begin(u: EngineState, s: Any, m: int) -> None:
    """A member begins its program."""
    u.stage[m] = u.first[u.program[m]]
    u.k[m] = 0
    u.latency_paid[m], u.computed[m], u.was_extrapolated[m], u.waiting[m] = 0.0, 0.0, 0, 0.0
    u.path_latency[m], u.path_bandwidth[m], u.path_contention[m], u.path_compute[m] = 0.0, 0.0, 0.0, 0.0
    _forget(u)
    if u.disturbs[m] != NONE and u.wired[u.program[m]] != 0:
        u.disturbing[m] = 1
        disturb(u, s, u.disturbs[m], 1)
    if u.leaves[m] < 1.0:
        slow_messages(u, s, m)
    _enter(u, s, m)


def _forget(u: EngineState) -> None:
    """Something other than a step has happened: what was seen before tells nothing any more."""
    u.numbers[LEADER] = NONE


def _leave(u: EngineState, s: Any, m: int) -> None:
    """A member has come to the end of its program."""
    u.stage[m] = NONE
    u.ended[u.numbers[ENDED]] = m
    u.numbers[ENDED] += 1
    if u.disturbing[m] != 0:
        u.disturbing[m] = 0
        disturb(u, s, u.disturbs[m], -1)
    if u.leaves[m] < 1.0:
        slow_messages(u, s, m)
    _forget(u)


def _enter(u: EngineState, s: Any, m: int) -> None:
    """A member begins the stage at which it stands; where all that it waits for has come before, the next one."""
    while True:
        at = u.stage[m]
        if at == u.first[u.program[m] + 1]:
            _leave(u, s, m)
            return
        if (u.if_waited[at] != 0 and u.waited[m] == 0) or (u.if_beside[at] != 0 and not is_beside_work(u, m)):
            _next(u, m)
            continue
        u.entered[m] = u.reals[CLOCK]
        u.pending[m] = 0
        if u.numbers[FOLDS] != 0 and u.count[at] > 1:
            _follow(u, m)
        if u.send_wire[at] != NONE:
            _offer(u, s, m, u.send_wire[at], u.send_flow[at])
        if u.receive_wire[at] != NONE:
            _await(u, s, m, u.receive_wire[at])
        if u.pending[m] > 0:
            return
        if u.if_waited[at] == 0:
            u.waited[m] = 0
        if u.local[at] != NONE:
            _start(u, s, u.local[at], m, NONE)
            return
        _next(u, m)


def _follow(u: EngineState, m: int) -> None:
    """A member has taken one of many steps: if it is the one whose steps are counted, it is time to look back."""
    if u.numbers[LEADER] == NONE:
        lead(u, m)
    if u.numbers[LEADER] == m:
        u.numbers[STEPPED] = 1


def _offer(u: EngineState, s: Any, m: int, wire: int, f: int) -> None:
    """A member has a message for a wire."""
    u.pending[m] += 1
    if u.buffered[wire] != 0:
        _start(u, s, f, m, LATER)
    elif u.waits[wire] == RECEIVER:
        u.waits[wire] = NOBODY
        _meet(u, s, f, m, u.waiting_member[wire])
    else:
        u.waits[wire] = SENDER
        u.waiting_member[wire], u.waiting_flow[wire] = m, f


def _await(u: EngineState, s: Any, m: int, wire: int) -> None:
    """A member wants a message from a wire; it may have come before."""
    if u.came[wire] > 0:
        u.came[wire] -= 1
        return
    u.pending[m] += 1
    if u.waits[wire] == SENDER:
        u.waits[wire] = NOBODY
        _meet(u, s, u.waiting_flow[wire], u.waiting_member[wire], m)
    else:
        u.waits[wire] = RECEIVER
        u.waiting_member[wire] = m


def _next(u: EngineState, m: int) -> None:
    """A member stands at its next stage, or at the next turn of this one."""
    u.k[m] += 1
    if u.k[m] == u.count[u.stage[m]]:
        u.stage[m] += 1
        u.k[m] = 0


def _meet(u: EngineState, s: Any, f: int, sender: int, receiver: int) -> None:
    """Both ends of a transfer are there; a step's two transfers run at once: its latency counts once."""
    for i in range(2):
        m = receiver if i == 1 else sender
        at = u.stage[m]
        both = u.send_wire[at] != NONE and u.receive_wire[at] != NONE
        u.latency_paid[m] += u.latency[f] / (2 if both else 1)
        u.was_extrapolated[m] = max(u.was_extrapolated[m], u.extrapolated[f])
    _start(u, s, f, sender, receiver)


def _come(u: EngineState, s: Any, m: int, f: int) -> None:
    """A message has come that nobody had to wait for: whoever does has it, else it is kept; its sender goes on."""
    wire = u.send_wire[u.stage[m]]
    if u.waits[wire] == RECEIVER:
        u.waits[wire] = NOBODY
        receiver = u.waiting_member[wire]
        if u.begun[f] >= u.entered[receiver]:
            u.latency_paid[receiver] += u.latency[f]
        _arrive(u, s, receiver, f)
    else:
        u.came[wire] += 1
    _arrive(u, s, m, f)


def _arrive(u: EngineState, s: Any, m: int, f: int) -> None:
    """One of the transfers of a member's stage has ended; what of it went before the stage is not told."""
    u.pending[m] -= 1
    if u.pending[m] > 0:
        return
    early = u.begun[f] < u.entered[m]
    began = u.entered[m] if early else u.begun[f]
    took = u.reals[CLOCK] - began
    u.waited[m] = int(u.reals[CLOCK] > u.entered[m])
    latency: float = 0.0 if early else u.latency[f]
    alone: float = min(u.alone[f], took) if early else u.alone[f]
    u.waiting[m] += began - u.entered[m]
    u.path_latency[m] += latency
    u.path_bandwidth[m] += alone
    u.path_contention[m] += took - latency - alone
    local = u.local[u.stage[m]]
    if local == NONE:
        _advance(u, s, m)
    else:
        _start(u, s, local, m, NONE)


def _worked(u: EngineState, s: Any, m: int, f: int) -> None:
    """Local work has ended."""
    took = u.reals[CLOCK] - u.begun[f]
    if u.if_waited[u.stage[m]] != 0:
        u.latency_paid[m] += u.latency[f]
    u.computed[m] += u.alone[f]
    u.was_extrapolated[m] = max(u.was_extrapolated[m], u.extrapolated[f])
    u.path_latency[m] += u.latency[f]
    u.path_compute[m] += u.alone[f]
    u.path_contention[m] += took - u.latency[f] - u.alone[f]
    _advance(u, s, m)


def _advance(u: EngineState, s: Any, m: int) -> None:
    """A member goes on to its next stage, or repeats this one."""
    _next(u, m)
    _enter(u, s, m)


KERNELS = (
    _forget,
    _settle,
    _move,
    _stop,
    _start,
    _meet,
    _leave,
    _follow,
    _offer,
    _await,
    _next,
    _enter,
    _begin,
    _advance,
    _arrive,
    _come,
    _worked,
    _happen,
    go_on,
)
"""After those of `sharing/rates.py`, `sharing/heap.py`, `repeats.py`, `buckets.py` and `slowdown.py`."""
