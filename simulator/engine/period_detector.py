"""Steps that repeat, passed over at once (kernels, see `state.py`).

A ring of p members takes the same step p - 1 times.  Where what is under way after a
step is what was under way some steps before, the future is the same, too: the same flows
with as much left to do, except for those that *stay* (a product beside the ring), which
have come a little further.  So all goes on like that until a member ends its stage, or
one of those that stay is about to end.  All whole periods before that are passed over:
clocks, loads and stories become what they would have been.

One state is kept at a time, that after the 1st, 2nd, 4th, 8th … step of one member, so a
period is found within about twice the time that it took to set in and to pass once.

Source: Brent, "An improved Monte Carlo factorization algorithm", BIT 20, 1980, section 2.
"""

from math import inf

from quadrille.simulator.engine.engine_state import (
    CLOCK,
    JUMPS,
    LATENT,
    LEADER,
    MARK,
    MOVING,
    NONE,
    RECEIVER,
    SAVE_AT,
    SAVED,
    SAVED_CLOCK,
    SAVED_HEAP,
    SENDER,
    STEPS,
    STOPPED,
    EngineState,
)
from quadrille.simulator.engine.event_queue import HEAP, put

SAME = 1e-12
"""States whose times agree to this part of the time between them are one."""
ROUNDING = 1e-15
TOLD = 7
"""Columns of what is told of a member."""


def lead(u: EngineState, m: int) -> None:
    """Member m is the one whose steps are counted."""
    u.numbers[LEADER] = m
    u.numbers[STEPS], u.numbers[SAVE_AT], u.numbers[SAVED] = 0, 1, 0


def look_back(u: EngineState, until: float) -> None:
    """Jump if the state is the one that was kept; keep it if it is time to.

    Parameters
    ----------
    until : where something unknown happens
    """
    if u.numbers[LEADER] == NONE:
        return
    u.numbers[STEPS] += 1
    if u.numbers[SAVED] != 0 and _repeats(u):
        _jump(u, until)
    if u.numbers[STEPS] >= u.numbers[SAVE_AT]:
        u.numbers[SAVE_AT] = 2 * u.numbers[STEPS]
        _save(u)


def note(u: EngineState, f: int) -> None:
    """A flow has done its work since a state was kept; if there are too many, the state is forgotten."""
    if u.numbers[STOPPED] == len(u.stopped):
        u.numbers[SAVED] = 0
        return
    u.stopped[u.numbers[STOPPED]] = f
    u.numbers[STOPPED] += 1


def _left(u: EngineState, f: int) -> float:
    """What a flow has left to do."""
    left: float = u.left[f]
    return left - u.speed[f] * (u.reals[CLOCK] - u.since[f]) if u.status[f] == MOVING else left


def _busy(u: EngineState, j: int) -> float:
    """Seconds so far in which somebody used a resource."""
    so_far: float = u.busy[j]
    return so_far + (u.reals[CLOCK] - u.opened[j] if u.using[j] > 0 else 0.0)


def _doing(u: EngineState, m: int) -> int:
    """For how many transfers a member waits, and for whose other ends."""
    at = u.stage[m]
    if at == NONE:
        return 0
    doing: int = u.pending[m]
    wire = u.send_wire[at]
    if wire != NONE and u.waits[wire] == SENDER and u.waiting_member[wire] == m:
        doing += 4
    wire = u.receive_wire[at]
    if wire != NONE and u.waits[wire] == RECEIVER and u.waiting_member[wire] == m:
        doing += 8
    return doing


def _save(u: EngineState) -> None:
    u.numbers[SAVED] = 1
    u.numbers[MARK] += 1
    u.numbers[STOPPED] = 0
    u.numbers[SAVED_HEAP] = u.numbers[HEAP]
    now = u.reals[CLOCK]
    u.reals[SAVED_CLOCK] = now
    for place in range(u.numbers[HEAP]):
        f = u.heap[place]
        u.saved_mark[f] = u.numbers[MARK]
        u.saved_status[f], u.saved_begun[f] = u.status[f], u.begun[f]
        u.saved_ahead[f] = u.due[f] - now
        u.saved_left[f] = _left(u, f)
    for j in range(len(u.busy)):
        u.saved_busy[j] = _busy(u, j)
    for m in range(len(u.stage)):
        u.saved_stage[m] = u.stage[m]
        if u.stage[m] == NONE:
            continue
        u.saved_k[m], u.saved_doing[m], u.saved_entered[m] = u.k[m], _doing(u, m), u.entered[m]
        at = TOLD * m
        u.saved_told[at], u.saved_told[at + 1], u.saved_told[at + 2] = u.latency_paid[m], u.computed[m], u.waiting[m]
        u.saved_told[at + 3], u.saved_told[at + 4] = u.path_latency[m], u.path_bandwidth[m]
        u.saved_told[at + 5], u.saved_told[at + 6] = u.path_contention[m], u.path_compute[m]


def _repeats(u: EngineState) -> bool:
    """Whether all are where they were, but for the number of steps behind them and flows that stay."""
    now = u.reals[CLOCK]
    seconds = now - u.reals[SAVED_CLOCK]
    slack = SAME * seconds + ROUNDING * now
    if u.numbers[HEAP] != u.numbers[SAVED_HEAP]:
        return False
    for place in range(u.numbers[HEAP]):
        f = u.heap[place]
        if u.saved_mark[f] != u.numbers[MARK] or u.status[f] != u.saved_status[f]:
            return False
        if u.begun[f] == u.saved_begun[f]:
            continue
        if abs(u.begun[f] - u.saved_begun[f] - seconds) > slack or abs(u.due[f] - now - u.saved_ahead[f]) > slack:
            return False
    for m in range(len(u.stage)):
        if u.stage[m] != u.saved_stage[m]:
            return False
        if u.stage[m] == NONE:
            continue
        since = seconds if u.k[m] != u.saved_k[m] else 0.0
        if _doing(u, m) != u.saved_doing[m] or abs(u.entered[m] - u.saved_entered[m] - since) > slack:
            return False
    return bool(now > u.reals[SAVED_CLOCK])


def _periods(u: EngineState, until: float) -> int:
    """How many periods may be passed over."""
    now = u.reals[CLOCK]
    seconds = now - u.reals[SAVED_CLOCK]
    most = (until - now) / seconds - 1 if until < inf else inf
    for m in range(len(u.stage)):
        if u.stage[m] != NONE and u.k[m] > u.saved_k[m]:
            most = min(most, (u.count[u.stage[m]] - 1 - u.k[m]) // (u.k[m] - u.saved_k[m]))
    for place in range(u.numbers[HEAP]):
        f = u.heap[place]
        if u.begun[f] != u.saved_begun[f]:
            continue
        if u.status[f] == LATENT:
            most = min(most, (u.due[f] - now) / seconds - 1)
        else:
            left = _left(u, f)
            if u.saved_left[f] > left:
                most = min(most, left / (u.saved_left[f] - left) - 1)
    return int(most) if 1 <= most < inf else 0


def _jump(u: EngineState, until: float) -> None:
    """As many periods as may be."""
    times = _periods(u, until)
    if times < 1:
        return
    now = u.reals[CLOCK]
    shift = times * (now - u.reals[SAVED_CLOCK])
    for j in range(len(u.busy)):
        u.busy[j] += times * (_busy(u, j) - u.saved_busy[j])
        u.opened[j] += shift
    for i in range(u.numbers[STOPPED]):
        u.done[u.stopped[i]] += times * u.work[u.stopped[i]]
    _shift_flows(u, times, shift)
    for m in range(len(u.stage)):
        if u.stage[m] != NONE:
            if u.k[m] > u.saved_k[m]:
                u.k[m] += times * (u.k[m] - u.saved_k[m])
                u.entered[m] += shift
            _tell_again(u, m, times)
    u.numbers[JUMPS] += 1
    u.numbers[STEPS], u.numbers[SAVE_AT], u.numbers[SAVED] = 0, 1, 0


def _shift_flows(u: EngineState, times: int, shift: float) -> None:
    """The clock goes on; flows that repeat do so later, those that stay have less left to do."""
    now, staying = u.reals[CLOCK], 0
    for place in range(u.numbers[HEAP]):
        f = u.heap[place]
        u.due[f] += shift
        if u.begun[f] != u.saved_begun[f]:
            u.begun[f] += shift
            u.since[f] += shift
            continue
        u.changed[staying] = f
        staying += 1
        if u.status[f] == MOVING:
            left = _left(u, f)
            u.left[f] = left - times * (u.saved_left[f] - left)
        u.since[f] = now + shift
    u.reals[CLOCK] = now + shift
    for i in range(staying):
        f = u.changed[i]
        if u.status[f] == MOVING:
            put(u, f, u.reals[CLOCK] + max(0.0, u.left[f]) / u.speed[f])
        else:
            put(u, f, u.due[f] - shift)


def _tell_again(u: EngineState, m: int, times: int) -> None:
    """What is told of a member grows by so many periods' part."""
    at = TOLD * m
    u.latency_paid[m] += times * (u.latency_paid[m] - u.saved_told[at])
    u.computed[m] += times * (u.computed[m] - u.saved_told[at + 1])
    u.waiting[m] += times * (u.waiting[m] - u.saved_told[at + 2])
    u.path_latency[m] += times * (u.path_latency[m] - u.saved_told[at + 3])
    u.path_bandwidth[m] += times * (u.path_bandwidth[m] - u.saved_told[at + 4])
    u.path_contention[m] += times * (u.path_contention[m] - u.saved_told[at + 5])
    u.path_compute[m] += times * (u.path_compute[m] - u.saved_told[at + 6])


KERNELS = (lead, note, _left, _busy, _doing, _save, _repeats, _periods, _tell_again, _shift_flows, _jump, look_back)
