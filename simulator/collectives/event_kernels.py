"""Event loop of a collective's simulation: members step through their programs (kernels, see `walk_state.py`).

An event is the end of a transfer's latency, or of its bytes.
"""

from math import inf
from typing import Any

from quadrille.algorithms.collectives.run_length_programs import NOBODY
from quadrille.simulator.collectives.walk_state import (
    ALIVE,
    BEGUN,
    CLOCK,
    EPOCH,
    EVEN,
    EVENTS,
    FOLDS,
    IDLE,
    LATENT,
    MOVING,
    RECEIVER_WAITS,
    ROUNDING,
    SENDER_WAITS,
    SHARED,
    SPAN,
    STEPPED,
    TIE,
    WATCHED,
    WalkState,
    check_period,
    rebase,
)
from quadrille.simulator.engine.event_queue import HEAP, pop, push
from quadrille.simulator.engine.rates import begin_flow, end_flow, update_rates

# Return values of `walk`
DONE, MORE, STUCK, PAUSE = range(4)


def walk(w: WalkState, s: Any, last: int) -> int:
    """Processes events up to event number `last`.

    Returns DONE if all members have ended, MORE if the limit was reached, STUCK in a deadlock, PAUSE if `pause` is due.
    """
    if w.numbers[BEGUN] == 0:
        w.numbers[BEGUN] = 1
        for i in range(len(w.run)):
            _enter(w, i)
    while w.numbers[ALIVE] > 0:
        if w.numbers[HEAP] == 0:
            return STUCK
        if w.numbers[STEPPED] != 0 or w.reals[CLOCK] > w.reals[SPAN]:
            return PAUSE
        if w.numbers[EVENTS] >= last:
            return MORE
        _happen(w, s)
    return DONE


def pause(w: WalkState) -> None:
    """Checks for a period and restarts the clock; a separate kernel, so that it is compiled only if needed."""
    if w.numbers[STEPPED] != 0:
        w.numbers[STEPPED] = 0
        check_period(w)
    if w.reals[CLOCK] > w.reals[SPAN]:
        rebase(w)


def _happen(w: WalkState, s: Any) -> None:
    """Executes all events that are due within `TIE`, then computes the new rates."""
    now = w.due[w.heap[0]]
    w.reals[CLOCK] = now
    limit = now + w.reals[TIE] + ROUNDING * now
    count = 0
    while w.numbers[HEAP] > 0 and w.due[w.heap[0]] <= limit:
        w.batch[count] = w.heap[0]
        count += 1
        pop(w)
    w.numbers[EVENTS] += count
    unsettled = 0
    for i in range(count):
        f = w.batch[i]
        if w.status[f] != MOVING and w.left[f] > 0 and w.alone[f] < inf:
            unsettled += _move(w, s, f)
            continue
        if w.status[f] == MOVING:
            unsettled += _stop(w, s, f)
        w.status[f] = IDLE
        _arrive(w, w.sender[f])
        _arrive(w, w.receiver[f])
    if unsettled > 0:
        for i in range(update_rates(s, w.changed)):
            _set_speed(w, w.changed[i], s.rate[w.changed[i]])


def _move(w: WalkState, s: Any, f: int) -> int:
    """Lets flow f take bandwidth; returns 1 if rates must be updated."""
    w.status[f] = MOVING
    w.since[f] = w.reals[CLOCK]
    w.speed[f] = 0.0
    for e in range(w.entry_offsets[f], w.entry_offsets[f + 1]):
        link = w.entry_links[e]
        if w.using[link] == 0:
            w.opened[link] = w.reals[CLOCK]
        w.using[link] += 1
    if w.numbers[SHARED] != 0:
        begin_flow(s, f)
        return 1
    _set_speed(w, f, w.alone[f])
    return 0


def _stop(w: WalkState, s: Any, f: int) -> int:
    """Ends flow f, whose bytes are transferred; returns 1 if rates must be updated."""
    for e in range(w.entry_offsets[f], w.entry_offsets[f + 1]):
        link = w.entry_links[e]
        w.using[link] -= 1
        if w.using[link] == 0:
            w.busy[link] += w.reals[CLOCK] - w.opened[link]
    if w.numbers[SHARED] != 0:
        end_flow(s, f)
        return 1
    return 0


def _set_speed(w: WalkState, f: int, speed: float) -> None:
    """Sets the rate of flow f, and the time of its end."""
    now = w.reals[CLOCK]
    w.left[f] -= w.speed[f] * (now - w.since[f])
    w.since[f] = now
    w.speed[f] = speed
    push(w, f, now + max(0.0, w.left[f]) / speed)


def _enter(w: WalkState, i: int) -> None:
    """Begins the present step of member i, or the next step in which it sends or receives."""
    while w.run[i] < w.offsets[i + 1]:
        run = w.run[i] + w.phase[i]
        send, receive = w.send[run], w.receive[run]
        size = w.sent_bytes[run]
        if w.numbers[EVEN] == 0:
            size = w.element_bytes[run] * _elements(w, run, w.k[i], w.first_sent[run], w.sent[run])
            if size == 0.0 and w.empty[run] == 0:
                send = NOBODY
            if w.empty[run] == 0 and _elements(w, run, w.k[i], w.first_received[run], w.received[run]) == 0:
                receive = NOBODY
        if send >= 0 or receive >= 0:
            _post(w, i, send, receive, size)
            return
        _advance(w, i)
    w.ends[i] = w.reals[EPOCH] + w.reals[CLOCK]
    w.numbers[ALIVE] -= 1


def _post(w: WalkState, i: int, send: int, receive: int, size: float) -> None:
    """Posts the transfers of a step of member i; each starts if its other end is ready."""
    w.pending[i] = 0
    if i == w.numbers[WATCHED] and w.numbers[FOLDS] != 0:
        w.numbers[STEPPED] = 1
    if send >= 0:
        w.left[send] = size
    for side in range(SENDER_WAITS, RECEIVER_WAITS + 1):
        f = send if side == SENDER_WAITS else receive
        if f < 0:
            continue
        w.pending[i] += 1
        if w.status[f] == IDLE:
            w.status[f] = side
        else:
            w.status[f] = LATENT
            push(w, f, w.reals[CLOCK] + w.latency[f])


def _elements(w: WalkState, run: int, k: int, first: int, count: int) -> int:
    """Elements of the pieces that a run moves in its k-th step."""
    origin, pieces, longer = w.origin[run], w.pieces[run], w.longer[run]
    piece = origin + (first - origin + k * w.stride[run]) % w.around[run]
    elements: int = count * w.elements[run]
    for j in range(count):
        if (piece + j * w.spacing[run]) % pieces < longer:
            elements += 1
    return elements


def _arrive(w: WalkState, i: int) -> None:
    """Ends a transfer of member i."""
    w.pending[i] -= 1
    if w.pending[i] == 0:
        _advance(w, i)
        _enter(w, i)


def _advance(w: WalkState, i: int) -> None:
    """Advances member i to its next step."""
    run = w.run[i]
    if w.cycle[run] == 2 and w.phase[i] == 0:
        w.phase[i] = 1
        return
    w.phase[i] = 0
    w.k[i] += 1
    if w.k[i] == w.count[run]:
        w.run[i] = run + w.cycle[run]
        w.k[i] = 0


KERNELS = (_advance, _post, _elements, _enter, _arrive, _set_speed, _stop, _move, _happen, walk, pause)
