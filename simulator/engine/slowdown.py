"""Computing and communication on one GPU slow each other (kernels, see `state.py`).

Work is slower while its rank communicates: it takes of a *pace*, a resource whose
capacity sinks while members that disturb it are in programs with wires.  Rates are found
anew.

A message is slower while one of its ends computes: it goes at a part of its rate.  Rates
stay what they are, so what it leaves of its links is left free.
"""

from typing import Any

from quadrille.simulator.engine.engine_state import CLOCK, MOVING, NONE, EngineState
from quadrille.simulator.engine.event_queue import put
from quadrille.simulator.engine.token_buckets import share_anew


def set_speed(u: EngineState, f: int, speed: float) -> None:
    now = u.reals[CLOCK]
    u.left[f] -= u.speed[f] * (now - u.since[f])
    u.since[f] = now
    u.speed[f] = speed
    put(u, f, now + max(0.0, u.left[f]) / speed)


def disturb(u: EngineState, s: Any, pace: int, more: int) -> None:
    """One more or less who disturbs a pace; what goes at that pace is shared anew."""
    before = u.disturbed[pace]
    u.disturbed[pace] += more
    if before > 0 and before + more > 0:
        return
    share_anew(u, s, pace, u.slow[pace] if more > 0 else u.calm[pace])


def left_to(u: EngineState, f: int) -> float:
    """The part of its rate that a flow keeps: less than all of a message one of whose ends is at work beside it.

    A buffered message keeps all.
    """
    if u.receiver[f] < 0:
        return 1.0
    sender, receiver = u.worker[u.sender[f]], u.worker[u.receiver[f]]
    part: float = 1.0
    if sender != NONE and u.stage[sender] != NONE:
        part = u.leaves[sender]
    if receiver != NONE and u.stage[receiver] != NONE:
        part = min(part, u.leaves[receiver])
    return part


def is_beside_work(u: EngineState, m: int) -> bool:
    """Whether the worker of a member is at work."""
    worker = u.worker[m]
    return bool(worker != NONE and u.stage[worker] != NONE)


def slow_messages(u: EngineState, s: Any, worker: int) -> None:
    """A member has begun or ended its work: messages of those beside it go at another speed, with the same rates."""
    m = worker + 1
    while m < len(u.stage) and u.worker[m] == worker:
        for i in range(2):
            f = u.receiving[m] if i == 1 else u.sending[m]
            if f != NONE and u.status[f] == MOVING and s.rate[f] > 0.0:  # else it is set when rates are settled
                set_speed(u, f, s.rate[f] * left_to(u, f))
        m += 1


KERNELS = (set_speed, disturb, left_to, is_beside_work, slow_messages)
"""After those of `sharing/heap.py` and `buckets.py`."""
