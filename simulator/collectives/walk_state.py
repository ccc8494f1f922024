"""The state of members that walk their programs, and skipping of whole periods (kernels).

Kernels are plain functions over arrays or lists that Numba can compile (see
`engine/compiled.py`); `event_kernels.py` has the others.

Skipping of periods
-------------------
The position of each member in its run, what every flow is doing and the time until
its next event make up the state; how many steps of its run a member has done does
not matter until the run ends. If a state recurs, so does all that followed: whole
periods are skipped, as many as fit before the first member ends its run, and the rest
is simulated. One state is kept at a time, that of the 1st, 2nd, 4th, 8th … step in a
run of one member, so a period is found within about twice the time that it took to
set in and to pass once.

`engine/period_detector.py` does the same for the flow engine. The two share the method
but not the computation: there the state is that of whatever is in the event queue,
flows that continue across periods (a product beside the ring) limit the skip, and
loads and breakdowns of members are extrapolated; here the state is that of every
flow and member, and steps of members are what is extrapolated.

Source: Brent, "An improved Monte Carlo factorization algorithm", BIT 20, 1980,
section 2 (cycles found by keeping one state at powers of two).
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
    """Programs, the positions of members and flows in them, and links.

    Parameters
    ----------
    offsets … empty : programs, by member and run
    sent … element_bytes : sizes of pieces by run, where they are not even
    sender, receiver, latency, alone : by flow; `alone` is its best rate [B/s]
    entry_offsets, entry_links : links of each flow
    run, phase, k, pending : of each member: its run, which of two alternating runs, the step in it, and the number of
        transfers for which it waits
    ends : when a member ended
    status, left, since, speed, due : of each flow: bytes left at `since`, rate, and time of its next event
    heap, slot : flows by `due`, and the index of a flow there
    using, opened, busy : of each link: flows that move over it, since when it is used, seconds of use before that
    changed, batch : buffers
    saved_… : the state to which later states are compared
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
    phase: Array
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
    saved_phase: Array
    saved_k: Array
    saved_pending: Array
    saved_status: Array
    saved_ahead: Array
    saved_busy: Array
    numbers: Array
    reals: Array


SAME = 1e-12  # states whose times agree to this part of the time between them are one


def check_period(w: WalkState) -> None:
    """Skips periods if the kept state recurs; keeps the state after the 1st, 2nd, 4th, 8th … step of a run."""
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
    """Keeps the state."""
    w.numbers[SAVED] = 1
    w.reals[SAVED_CLOCK] = w.reals[CLOCK]
    for i in range(len(w.run)):
        w.saved_run[i], w.saved_phase[i], w.saved_k[i], w.saved_pending[i] = w.run[i], w.phase[i], w.k[i], w.pending[i]
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
    """Whether the state is the kept one, but for the number of steps that members have done in their runs.

    Rates follow from which flows move, so a flow has as many bytes left when it has
    as many seconds left.
    """
    now = w.reals[CLOCK]
    tolerance = SAME * (now - w.reals[SAVED_CLOCK]) + ROUNDING * now
    deviation = 0.0
    for i in range(len(w.run)):
        if w.pending[i] != w.saved_pending[i] or w.run[i] != w.saved_run[i] or w.phase[i] != w.saved_phase[i]:
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
    """Skips as many periods as fit before any member comes to the end of its run."""
    periods = -1
    for i in range(len(w.run)):
        steps = w.k[i] - w.saved_k[i]
        if w.run[i] < w.offsets[i + 1] and steps > 0:
            fit = (w.count[w.run[i]] - 1 - w.k[i]) // steps
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
    """Restarts the clock at 0, so that it keeps its precision."""
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
