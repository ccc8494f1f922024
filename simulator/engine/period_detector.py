"""Period detector of the flow engine: finds repeated steps of collectives and skips whole periods (kernels).

Theory of operation
-------------------
A ring of p ranks takes the same step p - 1 times.  If the state after a step equals the
state some steps earlier, the future is the same too: the same flows with as much work left,
except for flows that *persist* over the period (a GEMM beside the ring), which have less
work left.  So the period repeats until a stream ends its stage or a persistent flow is about
to end.  All whole periods before that are skipped: clock, loads and time breakdowns become
what they would have been.

One state is saved at a time: the state after the 1st, 2nd, 4th, 8th … step of one stream.
A period is therefore found within about twice the time until it starts plus one period.

Source: Brent, "An improved Monte Carlo factorization algorithm", BIT 20, 1980, section 2.
"""

from math import inf

from quadrille.simulator.engine.engine_state import (
    CLOCK,
    COMPLETED,
    JUMPS,
    LATENT,
    LEADER,
    MARK,
    MOVING,
    RECEIVER,
    SAVE_AT,
    SAVED,
    SAVED_CLOCK,
    SAVED_HEAP,
    SENDER,
    STEPS,
    TIME_COLUMNS,
    EngineState,
)
from quadrille.simulator.engine.event_queue import HEAP, push
from quadrille.simulator.engine.flow_state import NONE

SAME = 1e-12
"""Two states are equal if their times agree to this fraction of the time between them."""
ROUNDING = 1e-15
"""Relative rounding of the clock."""


def count_steps_of(u: EngineState, q: int) -> None:
    """Make q the *leader*, the stream whose steps are counted."""
    u.numbers[LEADER] = q
    u.numbers[STEPS], u.numbers[SAVE_AT], u.numbers[SAVED] = 0, 1, 0


def detect_period(u: EngineState, until: float) -> None:
    """Skip periods if the state equals the saved state; save the state at steps 1, 2, 4, 8 ….

    Parameters
    ----------
    until : time of the next event outside the engine [s]
    """
    if u.numbers[LEADER] == NONE:
        return
    u.numbers[STEPS] += 1
    if u.numbers[SAVED] != 0 and _is_repetition(u):
        _skip_periods(u, until)
    if u.numbers[STEPS] >= u.numbers[SAVE_AT]:
        u.numbers[SAVE_AT] = 2 * u.numbers[STEPS]
        _save(u)


def note_completion(u: EngineState, f: int) -> None:
    """Record that a flow has done its work since the state was saved; too many records discard the state."""
    if u.numbers[COMPLETED] == len(u.completed):
        u.numbers[SAVED] = 0
        return
    u.completed[u.numbers[COMPLETED]] = f
    u.numbers[COMPLETED] += 1


def _work_left(u: EngineState, f: int) -> float:
    """Work that a flow has left."""
    left: float = u.left[f]
    return left - u.speed[f] * (u.reals[CLOCK] - u.since[f]) if u.status[f] == MOVING else left


def _busy_seconds(u: EngineState, j: int) -> float:
    """Seconds so far in which a resource was used."""
    so_far: float = u.busy[j]
    return so_far + (u.reals[CLOCK] - u.busy_since[j] if u.users[j] > 0 else 0.0)


def _waiting_for(u: EngineState, q: int) -> int:
    """A code for the transfers that a stream waits for.

    It is 4 times their number, plus 1 for an unmatched send, plus 2 for an unmatched receive.
    Of stages that are posted together, a transfer that is matched is among the flows.
    """
    at = u.stage[q]
    if at == NONE:
        return 0
    code: int = 4 * u.pending[q]
    channel = u.send_channel[at]
    if channel != NONE and u.waiting_side[channel] == SENDER and u.waiting_stream[channel] == q:
        code += 1
    channel = u.receive_channel[at]
    if channel != NONE and u.waiting_side[channel] == RECEIVER and u.waiting_stream[channel] == q:
        code += 2
    return code


def _save(u: EngineState) -> None:
    """Save the present state."""
    u.numbers[SAVED] = 1
    u.numbers[MARK] += 1
    u.numbers[COMPLETED] = 0
    u.numbers[SAVED_HEAP] = u.numbers[HEAP]
    now = u.reals[CLOCK]
    u.reals[SAVED_CLOCK] = now
    for place in range(u.numbers[HEAP]):
        f = u.heap[place]
        u.saved_mark[f] = u.numbers[MARK]
        u.saved_status[f], u.saved_started_at[f] = u.status[f], u.started_at[f]
        u.saved_due[f] = u.due[f] - now
        u.saved_left[f] = _work_left(u, f)
    for j in range(len(u.busy)):
        u.saved_busy[j] = _busy_seconds(u, j)
    for q in range(len(u.stage)):
        u.saved_stage[q] = u.stage[q]
        if u.stage[q] == NONE:
            continue
        u.saved_repetition[q], u.saved_waiting_for[q], u.saved_entered_at[q] = (
            u.repetition[q],
            _waiting_for(u, q),
            u.entered_at[q],
        )
        at = TIME_COLUMNS * q
        u.saved_seconds[at], u.saved_seconds[at + 1], u.saved_seconds[at + 2] = (
            u.latency_paid[q],
            u.computed[q],
            u.waiting[q],
        )
        u.saved_seconds[at + 3], u.saved_seconds[at + 4] = u.path_latency[q], u.path_bandwidth[q]
        u.saved_seconds[at + 5], u.saved_seconds[at + 6] = u.path_contention[q], u.path_compute[q]


def _is_repetition(u: EngineState) -> bool:
    """Whether the state equals the saved state, except for step counts and persistent flows."""
    now = u.reals[CLOCK]
    seconds = now - u.reals[SAVED_CLOCK]
    slack = SAME * seconds + ROUNDING * now
    if u.numbers[HEAP] != u.numbers[SAVED_HEAP]:
        return False
    for place in range(u.numbers[HEAP]):
        f = u.heap[place]
        if u.saved_mark[f] != u.numbers[MARK] or u.status[f] != u.saved_status[f]:
            return False
        if u.started_at[f] == u.saved_started_at[f]:
            continue
        if (
            abs(u.started_at[f] - u.saved_started_at[f] - seconds) > slack
            or abs(u.due[f] - now - u.saved_due[f]) > slack
        ):
            return False
    for q in range(len(u.stage)):
        if u.stage[q] != u.saved_stage[q]:
            return False
        if u.stage[q] == NONE:
            continue
        since = seconds if u.repetition[q] != u.saved_repetition[q] else 0.0
        if _waiting_for(u, q) != u.saved_waiting_for[q] or abs(u.entered_at[q] - u.saved_entered_at[q] - since) > slack:
            return False
    return bool(now > u.reals[SAVED_CLOCK])


def _whole_periods(u: EngineState, until: float) -> int:
    """Number of periods that can be skipped before a stream ends its stage or a persistent flow ends."""
    now = u.reals[CLOCK]
    seconds = now - u.reals[SAVED_CLOCK]
    most = (until - now) / seconds - 1 if until < inf else inf
    for q in range(len(u.stage)):
        if u.stage[q] != NONE and u.repetition[q] > u.saved_repetition[q]:
            most = min(most, (u.count[u.stage[q]] - 1 - u.repetition[q]) // (u.repetition[q] - u.saved_repetition[q]))
    for place in range(u.numbers[HEAP]):
        f = u.heap[place]
        if u.started_at[f] != u.saved_started_at[f]:
            continue
        if u.status[f] == LATENT:
            most = min(most, (u.due[f] - now) / seconds - 1)
        else:
            left = _work_left(u, f)
            if u.saved_left[f] > left:
                most = min(most, left / (u.saved_left[f] - left) - 1)
    return int(most) if 1 <= most < inf else 0


def _skip_periods(u: EngineState, until: float) -> None:
    """Skip as many whole periods as possible."""
    times = _whole_periods(u, until)
    if times < 1:
        return
    now = u.reals[CLOCK]
    shift = times * (now - u.reals[SAVED_CLOCK])
    for j in range(len(u.busy)):
        u.busy[j] += times * (_busy_seconds(u, j) - u.saved_busy[j])
        u.busy_since[j] += shift
    for i in range(u.numbers[COMPLETED]):
        u.served[u.completed[i]] += times * u.work[u.completed[i]]
    _shift_flows(u, times, shift)
    for q in range(len(u.stage)):
        if u.stage[q] != NONE:
            if u.repetition[q] > u.saved_repetition[q]:
                u.repetition[q] += times * (u.repetition[q] - u.saved_repetition[q])
                u.entered_at[q] += shift
            _extend_seconds(u, q, times)
    u.numbers[JUMPS] += 1
    u.numbers[STEPS], u.numbers[SAVE_AT], u.numbers[SAVED] = 0, 1, 0


def _shift_flows(u: EngineState, times: int, shift: float) -> None:
    """Advance the clock: flows that repeat happen later, persistent flows have less work left."""
    now, persistent = u.reals[CLOCK], 0
    for place in range(u.numbers[HEAP]):
        f = u.heap[place]
        u.due[f] += shift
        if u.started_at[f] != u.saved_started_at[f]:
            u.started_at[f] += shift
            u.since[f] += shift
            continue
        u.changed[persistent] = f
        persistent += 1
        if u.status[f] == MOVING:
            left = _work_left(u, f)
            u.left[f] = left - times * (u.saved_left[f] - left)
        u.since[f] = now + shift
    u.reals[CLOCK] = now + shift
    for i in range(persistent):
        f = u.changed[i]
        if u.status[f] == MOVING:
            push(u, f, u.reals[CLOCK] + max(0.0, u.left[f]) / u.speed[f])
        else:
            push(u, f, u.due[f] - shift)


def _extend_seconds(u: EngineState, q: int, times: int) -> None:
    """Add the skipped periods to a stream's time breakdown."""
    at = TIME_COLUMNS * q
    u.latency_paid[q] += times * (u.latency_paid[q] - u.saved_seconds[at])
    u.computed[q] += times * (u.computed[q] - u.saved_seconds[at + 1])
    u.waiting[q] += times * (u.waiting[q] - u.saved_seconds[at + 2])
    u.path_latency[q] += times * (u.path_latency[q] - u.saved_seconds[at + 3])
    u.path_bandwidth[q] += times * (u.path_bandwidth[q] - u.saved_seconds[at + 4])
    u.path_contention[q] += times * (u.path_contention[q] - u.saved_seconds[at + 5])
    u.path_compute[q] += times * (u.path_compute[q] - u.saved_seconds[at + 6])


KERNELS = (
    count_steps_of,
    note_completion,
    _work_left,
    _busy_seconds,
    _waiting_for,
    _save,
    _is_repetition,
    _whole_periods,
    _extend_seconds,
    _shift_flows,
    _skip_periods,
    detect_period,
)
