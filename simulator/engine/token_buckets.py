"""Links whose rate a token bucket keeps (kernels, see `state.py`).

A bucket holds at most b bytes and fills at the link's rate r; what crosses the link takes
from it.  While there is anything in it the link holds nobody back, then it carries r:

    dL/dt = r - load,  0 <= L <= b;  the link's capacity is LINE while L > 0, else r

So a link that was idle for b / r lets its first b bytes through at once, whoever sends
them, and flows that begin together share them.  Levels are brought up to date whenever
rates change, and an event of the link's own *tap* comes when its bucket is empty; a tap
that is no longer due changes nothing.

Source: token bucket filter, tc-tbf(8); Turner, "New directions in communications", IEEE
Communications Magazine 24(10), 1986.
"""

from typing import Any

from quadrille.simulator.engine.engine_state import CLOCK, NONE, UNSETTLED, EngineState
from quadrille.simulator.engine.event_queue import put
from quadrille.simulator.engine.rates import begin, end

LINE = 1e15
"""Capacity of a link with something in its bucket [B/s]: what sends is slower."""
EMPTY = 1e-6
"""A bucket with this part of its bytes is empty."""


def share_anew(u: EngineState, s: Any, resource: int, capacity: float) -> None:
    """A resource has another capacity; who uses it is given a rate anew."""
    s.capacities[resource] = capacity
    count = s.users[resource]
    for i in range(count):
        u.changed[i] = s.slot_flow[s.starts[resource] + i]
    for i in range(count):
        end(s, u.changed[i])
        begin(s, u.changed[i])
        u.numbers[UNSETTLED] = 1


def pour(u: EngineState, s: Any) -> None:
    """Buckets as they are now, before rates are found."""
    now = u.reals[CLOCK]
    for i in range(len(u.bursty)):
        j = u.bursty[i]
        rate, most = u.slow[j], u.bucket[i]
        u.level[i] = min(most, max(0.0, u.level[i] + (rate - u.flowing[i]) * (now - u.poured[i])))
        u.poured[i] = now
        capacity = LINE if u.level[i] > EMPTY * most else rate
        if s.capacities[j] != capacity:
            share_anew(u, s, j, capacity)


def set_taps(u: EngineState, s: Any) -> None:
    """What flows through each link at the new rates, and when its bucket will be empty."""
    for i in range(len(u.bursty)):
        j = u.bursty[i]
        load = 0.0
        for k in range(s.starts[j], s.starts[j] + s.users[j]):
            load += s.slot_share[k] * u.speed[s.slot_flow[k]]
        u.flowing[i] = load
        rate = u.slow[j]
        if s.capacities[j] > rate and load > rate:
            put(u, u.tap[i], u.reals[CLOCK] + u.level[i] / (load - rate))


def run_dry(u: EngineState, f: int) -> bool:
    """Whether a flow is a tap; its link is then looked at again, with nothing in its bucket if it is time."""
    i = u.taps[f]
    if i == NONE:
        return False
    rate = u.slow[u.bursty[i]]
    left = u.level[i] + (rate - u.flowing[i]) * (u.reals[CLOCK] - u.poured[i])
    if left <= EMPTY * u.bucket[i]:
        u.level[i], u.poured[i] = 0.0, u.reals[CLOCK]
    u.numbers[UNSETTLED] = 1
    return True


KERNELS = (share_anew, pour, set_taps, run_dry)
"""After those of `sharing/rates.py` and `sharing/heap.py`."""
