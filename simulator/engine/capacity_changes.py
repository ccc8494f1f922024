"""Capacities that change while flows run: overlap slowdown and token buckets (kernels, see `engine_state.py`).

Theory of operation
-------------------
*Throttle.*  A rank computes more slowly while it communicates.  Local work takes units of a
throttle, a resource whose capacity is smaller while streams that engage it communicate.

*Message speed.*  A message is slower while one of its ends computes: it runs at a fraction of
its rate.  Rates stay as they are, so the bandwidth that the message leaves stays unused.

*Token bucket.*  A bucket of a link holds at most b bytes and fills at the link's rate r; bytes
that cross the link empty it.  While the bucket holds bytes, the link limits no flow:

    dL/dt = r - load,  0 <= L <= b;  the link's capacity is LINE_RATE while L > 0, else r

So a link that was idle for b / r carries its next b bytes at once, and flows that begin
together share them.  Bucket levels are updated whenever rates change.  A dummy flow of each
link has an event when the bucket runs empty; an outdated event changes nothing.

Source: token bucket filter, tc-tbf(8); Turner, "New directions in communications", IEEE
Communications Magazine 24(10), 1986.
"""

from typing import Any

from quadrille.simulator.engine.engine_state import CLOCK, MOVING, UNSETTLED, EngineState
from quadrille.simulator.engine.event_queue import push
from quadrille.simulator.engine.flow_state import NONE
from quadrille.simulator.engine.rates import begin_flow, end_flow

LINE_RATE = 1e15
"""Capacity of a link whose bucket holds bytes [B/s]: senders are slower."""
EMPTY = 1e-6
"""A bucket with less than this fraction of its size is empty."""


def set_speed(u: EngineState, f: int, speed: float) -> None:
    """Change the speed of a flow from now on [units of work/s]."""
    now = u.reals[CLOCK]
    u.left[f] -= u.speed[f] * (now - u.since[f])
    u.since[f] = now
    u.speed[f] = speed
    push(u, f, now + max(0.0, u.left[f]) / speed)


def set_capacity(u: EngineState, s: Any, resource: int, capacity: float) -> None:
    """Change the capacity of a resource from now on; its flows get new rates."""
    s.capacities[resource] = capacity
    count = s.users[resource]
    for i in range(count):
        u.changed[i] = s.slot_flow[s.starts[resource] + i]
    for i in range(count):
        end_flow(s, u.changed[i])
        begin_flow(s, u.changed[i])
        u.numbers[UNSETTLED] = 1


# Overlap slowdown


def change_throttle(u: EngineState, s: Any, throttle: int, more: int) -> None:
    """Count one stream more (1) or less (-1) that engages a throttle, and set the capacity of the throttle."""
    before = u.throttled_by[throttle]
    u.throttled_by[throttle] += more
    if before > 0 and before + more > 0:
        return
    set_capacity(u, s, throttle, u.reduced_capacity[throttle] if more > 0 else u.full_capacity[throttle])


def message_rate_share(u: EngineState, f: int) -> float:
    """Fraction of its rate at which a flow runs: less than 1 for a message if one of its ends computes.

    Eager messages and local work run at their full rate.
    """
    if u.receiver[f] < 0:
        return 1.0
    sender, receiver = u.compute_stream[u.sender[f]], u.compute_stream[u.receiver[f]]
    share: float = 1.0
    if sender != NONE and u.stage[sender] != NONE:
        share = u.rate_share_left[sender]
    if receiver != NONE and u.stage[receiver] != NONE:
        share = min(share, u.rate_share_left[receiver])
    return share


def overlaps_compute(u: EngineState, q: int) -> bool:
    """Whether the compute stream of a stream's rank runs a program."""
    compute_stream = u.compute_stream[q]
    return bool(compute_stream != NONE and u.stage[compute_stream] != NONE)


def update_message_speeds(u: EngineState, s: Any, compute_stream: int) -> None:
    """Set the speed of the messages of a rank whose computation has begun or ended; rates stay unchanged."""
    q = compute_stream + 1
    while q < len(u.stage) and u.compute_stream[q] == compute_stream:
        for i in range(2):
            f = u.last_received[q] if i == 1 else u.last_sent[q]
            if f != NONE and u.status[f] == MOVING and s.rate[f] > 0.0:  # else the next rate update sets it
                set_speed(u, f, s.rate[f] * message_rate_share(u, f))
        q += 1


# Token buckets


def update_buckets(u: EngineState, s: Any) -> None:
    """Bring the bucket levels and link capacities up to date, before rates are computed."""
    now = u.reals[CLOCK]
    for i in range(len(u.bucket_link)):
        j = u.bucket_link[i]
        rate, most = u.reduced_capacity[j], u.bucket_bytes[i]
        u.bucket_level[i] = min(most, max(0.0, u.bucket_level[i] + (rate - u.bucket_load[i]) * (now - u.level_time[i])))
        u.level_time[i] = now
        capacity = LINE_RATE if u.bucket_level[i] > EMPTY * most else rate
        if s.capacities[j] != capacity:
            set_capacity(u, s, j, capacity)


def schedule_empty_events(u: EngineState, s: Any) -> None:
    """Compute each link's load at the new rates, and when its bucket runs empty."""
    for i in range(len(u.bucket_link)):
        j = u.bucket_link[i]
        load = 0.0
        for k in range(s.starts[j], s.starts[j] + s.users[j]):
            load += s.slot_share[k] * u.speed[s.slot_flow[k]]
        u.bucket_load[i] = load
        rate = u.reduced_capacity[j]
        if s.capacities[j] > rate and load > rate:
            push(u, u.empty_event[i], u.reals[CLOCK] + u.bucket_level[i] / (load - rate))


def handle_empty_event(u: EngineState, f: int) -> bool:
    """Whether a flow's event means that a bucket may be empty; if so, its link is updated."""
    i = u.bucket_of_flow[f]
    if i == NONE:
        return False
    rate = u.reduced_capacity[u.bucket_link[i]]
    left = u.bucket_level[i] + (rate - u.bucket_load[i]) * (u.reals[CLOCK] - u.level_time[i])
    if left <= EMPTY * u.bucket_bytes[i]:
        u.bucket_level[i], u.level_time[i] = 0.0, u.reals[CLOCK]
    u.numbers[UNSETTLED] = 1
    return True


KERNELS = (
    set_capacity,
    update_buckets,
    schedule_empty_events,
    handle_empty_event,
    set_speed,
    change_throttle,
    message_rate_share,
    overlaps_compute,
    update_message_speeds,
)
"""To be compiled after the kernels of `rates` and `event_queue`."""
