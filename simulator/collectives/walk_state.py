"""The state of members that walk their programs.

The functions here and in `recurrence.py` and `events.py` are kernels: plain
functions over arrays or lists that Numba can compile (see `compiled.py`).
"""

from typing import Any, NamedTuple

Array = Any  # an array, or a list where the kernels run uncompiled

# What a flow is doing: nothing, one end waits for the other, latency, bytes
IDLE, SENDER_WAITS, RECEIVER_WAITS, LATENT, MOVING = range(5)

# Places in `WalkState.numbers`; that of the heap's size, HEAP, is in `sharing/heap.py`
ALIVE, EVENTS, SHARED, EVEN, FOLDS, WATCHED, WATCHED_RUN, STEPPED, STEPS, SAVE_AT, SAVED, JUMPS, BEGUN = range(1, 14)

NUMBERS = 14

# Places in `WalkState.reals`
CLOCK, EPOCH, TIE, SPAN, SAVED_CLOCK, DEVIATION, ERROR = range(7)

REALS = 7

ROUNDING = 1e-15  # a few units in the last place


class WalkState(NamedTuple):
    """Programs, where members and flows are in them, and links.

    Parameters
    ----------
    offsets … empty : programs, by member and run
    sent … element_bytes : sizes of pieces by run, where they are not even
    sender, receiver, latency, alone : by flow; `alone` is its best rate [B/s]
    entry_offsets, entry_links : links of each flow
    run, turn, k, pending : of each member: its run, which of two that take turns, the step in it, and for how many
        transfers it waits
    ends : when a member ended
    status, left, since, speed, due : of each flow: bytes left at `since`, rate, and when its next event is
    heap, slot : flows by `due`, and where a flow stands there
    using, opened, busy : of each link: flows that move over it, since when some do, seconds so far in which some did
    changed, batch : room to work in
    saved_… : the state to which later ones are compared
    numbers, reals : see HEAP … and CLOCK …; the time is EPOCH + CLOCK
    """

    offsets: Array
    count: Array
    cycle: Array
    send: Array
    receive: Array
    sent_bytes: Array
    empty: Array
    sent: Array
    received: Array
    first_sent: Array
    first_received: Array
    stride: Array
    spacing: Array
    origin: Array
    around: Array
    pieces: Array
    elements: Array
    longer: Array
    element_bytes: Array
    sender: Array
    receiver: Array
    latency: Array
    alone: Array
    entry_offsets: Array
    entry_links: Array
    run: Array
    turn: Array
    k: Array
    pending: Array
    ends: Array
    status: Array
    left: Array
    since: Array
    speed: Array
    due: Array
    heap: Array
    slot: Array
    using: Array
    opened: Array
    busy: Array
    changed: Array
    batch: Array
    saved_run: Array
    saved_turn: Array
    saved_k: Array
    saved_pending: Array
    saved_status: Array
    saved_ahead: Array
    saved_busy: Array
    numbers: Array
    reals: Array


SAME = 1e-12  # states whose times agree to this part of the time between them are one


def check_period(w: WalkState) -> None:
    """Jump if the state is one seen before; keep it if it is time to (the 1st, 2nd, 4th, 8th … step of a run)."""
    run = w.run[w.numbers[WATCHED]]
    if run != w.numbers[WATCHED_RUN]:
        w.numbers[WATCHED_RUN] = run
        w.numbers[STEPS], w.numbers[SAVE_AT], w.numbers[SAVED] = 0, 1, 0
    w.numbers[STEPS] += 1
    if w.numbers[SAVED] != 0 and _repeats(w):
        _jump(w)
    if w.numbers[STEPS] >= w.numbers[SAVE_AT]:
        w.numbers[SAVE_AT] = 2 * w.numbers[STEPS]
        _save(w)


def _save(w: WalkState) -> None:
    w.numbers[SAVED] = 1
    w.reals[SAVED_CLOCK] = w.reals[CLOCK]
    for i in range(len(w.run)):
        w.saved_run[i], w.saved_turn[i], w.saved_k[i], w.saved_pending[i] = w.run[i], w.turn[i], w.k[i], w.pending[i]
    for f in range(len(w.status)):
        w.saved_status[f] = w.status[f]
        w.saved_ahead[f] = w.due[f] - w.reals[CLOCK]
    for link in range(len(w.busy)):
        w.saved_busy[link] = _busy(w, link)


def _busy(w: WalkState, link: int) -> float:
    """Seconds so far in which something moved over a link."""
    so_far: float = w.busy[link]
    return so_far + (w.reals[CLOCK] - w.opened[link] if w.using[link] > 0 else 0.0)


def _repeats(w: WalkState) -> bool:
    """Whether all are where they were when the state was saved, but for the number of steps they are in their runs.

    Rates follow from which flows move, so what moves has as many bytes left
    when it has as many seconds left.
    """
    now = w.reals[CLOCK]
    tolerance = SAME * (now - w.reals[SAVED_CLOCK]) + ROUNDING * now
    deviation = 0.0
    for i in range(len(w.run)):
        if w.pending[i] != w.saved_pending[i] or w.run[i] != w.saved_run[i] or w.turn[i] != w.saved_turn[i]:
            return False
    for f in range(len(w.status)):
        if w.status[f] != w.saved_status[f]:
            return False
        if w.status[f] >= LATENT:
            deviation = max(deviation, abs(w.due[f] - now - w.saved_ahead[f]))
            if deviation > tolerance:
                return False
    w.reals[DEVIATION] = deviation
    return True


def _jump(w: WalkState) -> None:
    """As many periods as fit before any member comes to the end of its run."""
    periods = -1
    for i in range(len(w.run)):
        moved = w.k[i] - w.saved_k[i]
        if w.run[i] < w.offsets[i + 1] and moved > 0:
            fit = (w.count[w.run[i]] - 1 - w.k[i]) // moved
            periods = fit if periods < 0 else min(periods, fit)
    if periods <= 0:
        return
    for i in range(len(w.run)):
        if w.run[i] < w.offsets[i + 1]:
            w.k[i] += periods * (w.k[i] - w.saved_k[i])
    for link in range(len(w.busy)):
        w.busy[link] += periods * (_busy(w, link) - w.saved_busy[link])
    w.reals[EPOCH] += periods * (w.reals[CLOCK] - w.reals[SAVED_CLOCK])
    w.reals[ERROR] += periods * w.reals[DEVIATION]
    w.numbers[JUMPS] += 1
    w.numbers[STEPS], w.numbers[SAVE_AT], w.numbers[SAVED] = 0, 1, 0


def rebase(w: WalkState) -> None:
    """Count the time from now, so that it keeps its precision."""
    now = w.reals[CLOCK]
    w.reals[EPOCH] += now
    w.reals[CLOCK] = 0.0
    w.reals[SAVED_CLOCK] -= now
    for f in range(len(w.due)):
        w.due[f] -= now
        w.since[f] -= now
    for link in range(len(w.opened)):
        w.opened[link] -= now


KERNELS = (_busy, _jump, _repeats, _save, check_period, rebase)
