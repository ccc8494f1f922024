"""Folding over time: a state that comes back, and the jump over all that repeats (kernels, see `walk.py`).

Where each member stands in its run, what every flow is doing and how long until
its next event make up the state; how many steps of its run a member has behind
it does not matter until the run ends.  When a state comes back, so does all that
followed: whole periods are jumped over, as many as fit before the first member
ends its run, and the rest is simulated.  One state is kept at a time, that of the
1st, 2nd, 4th, 8th … step in a run of one member, so a period is found within about
twice the time that it took to set in and to pass once.

Source: Brent, "An improved Monte Carlo factorization algorithm", BIT 20, 1980,
section 2 (cycles found by keeping one state at powers of two).
"""

from quadrille.simulator.collectives.walk import (
    CLOCK,
    DEVIATION,
    EPOCH,
    ERROR,
    JUMPS,
    LATENT,
    ROUNDING,
    SAVE_AT,
    SAVED,
    SAVED_CLOCK,
    STEPS,
    WATCHED,
    WATCHED_RUN,
    Walk,
)

SAME = 1e-12  # states whose times agree to this part of the time between them are one


def look_back(w: Walk) -> None:
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


def _save(w: Walk) -> None:
    w.numbers[SAVED] = 1
    w.reals[SAVED_CLOCK] = w.reals[CLOCK]
    for i in range(len(w.run)):
        w.saved_run[i], w.saved_turn[i], w.saved_k[i], w.saved_pending[i] = w.run[i], w.turn[i], w.k[i], w.pending[i]
    for f in range(len(w.status)):
        w.saved_status[f] = w.status[f]
        w.saved_ahead[f] = w.due[f] - w.reals[CLOCK]
    for link in range(len(w.busy)):
        w.saved_busy[link] = _busy(w, link)


def _busy(w: Walk, link: int) -> float:
    """Seconds so far in which something moved over a link."""
    so_far: float = w.busy[link]
    return so_far + (w.reals[CLOCK] - w.opened[link] if w.using[link] > 0 else 0.0)


def _repeats(w: Walk) -> bool:
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


def _jump(w: Walk) -> None:
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


def rebase(w: Walk) -> None:
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


KERNELS = (_busy, _jump, _repeats, _save, look_back, rebase)
