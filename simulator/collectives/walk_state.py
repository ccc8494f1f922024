"""`WalkState`: the state of a collective's event-driven simulation, and the skipping of repeated periods (kernels).

Kernels are plain functions over arrays or lists that Numba can compile (see
`engine/kernel_compiler.py`); `event_kernels.py` has the others.

Skipping of periods
-------------------
The state consists of the position of each member in its run, the status of each flow
and the time until its next event; the number of steps that a member has done does not
matter until its run ends. If a state recurs, the events between repeat: as many whole
periods are skipped as fit before the first member ends its run, and the rest is
simulated. One state is saved at a time, after the 1st, 2nd, 4th, 8th … step in a run
of one member. So a period is detected within about twice the time until it has begun
and passed once.

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

# Status of a flow: not used, one end waits for the other, latency, transfer
IDLE, SENDER_WAITS, RECEIVER_WAITS, LATENT, MOVING = range(5)

# Indices of `WalkState.numbers`; index 0, the size of the heap, is HEAP of `engine/event_queue.py`
ALIVE, EVENTS, SHARED, EVEN, FOLDS, WATCHED, WATCHED_RUN, STEPPED, STEPS, SAVE_AT, SAVED, JUMPS, BEGUN = range(1, 14)

NUMBERS = 14

# Indices of `WalkState.reals`
CLOCK, EPOCH, TIE, SPAN, SAVED_CLOCK, DEVIATION, ERROR = range(7)

REALS = 7

ROUNDING = 1e-15  # a few units in the last place


class WalkState(NamedTuple):
    """The programs of members, the progress of members and flows, and the use of links.

    Parameters
    ----------
    offsets … empty : programs, by member and run
    sent … element_bytes : sizes of pieces by run, if pieces are uneven
    sender, receiver, latency, alone : ends, latency [s] and rate without contention [B/s] of each flow [flows]
    entry_offsets, entry_links : links of each flow
    run, phase, k : run of each member, which of two alternating runs, and step in the run [members]
    pending : number of transfers for which each member waits [members]
    ends : time at which each member ended [s] [members]
    status : IDLE … MOVING [flows]
    left, since, speed : bytes left at time `since`, and rate from then on [B, s, B/s] [flows]
    due : time of each flow's next event [s] [flows]
    heap, slot : flows in a heap by `due`, and index of each flow in it
    using, opened, busy : number of flows that move over each link, time since which it is in use, and seconds of use
        before that time [links]
    changed, batch : working space
    saved_… : saved state, to which later states are compared
    numbers, reals : counters and times, see ALIVE … and CLOCK …; the simulated time is EPOCH + CLOCK
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


SAME = 1e-12  # two states are equal if their times differ by less than this share of the time between them


def check_period(w: WalkState) -> None:
    """Skips periods if the saved state recurs; saves the state after the 1st, 2nd, 4th, 8th … step of a run."""
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
    """Saves the state."""
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
    """Time in which a link was in use so far [s]."""
    so_far: float = w.busy[link]
    return so_far + (w.reals[CLOCK] - w.opened[link] if w.using[link] > 0 else 0.0)


def _repeats(w: WalkState) -> bool:
    """Whether the state equals the saved state, except for the number of steps that members have done in their runs.

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
    """Skips as many periods as fit before the first member ends its run."""
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
    """Restarts the clock at 0, to keep its precision."""
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
