"""What is under way, as arrays: flows, wires, the stages of programs, and members that step through them.

A *flow* is a piece of work that always takes the same (a message of a size on a
wire, a kind of local work of a lane) and that is under way once at a time.  A
*stage* is what a member does at once: a send, a receive, then local work; it is
repeated `count` times.  A *program* is a row of stages.

The functions of `events.py`, `buckets.py`, `repeats.py` and `slowdown.py` are kernels: plain
functions over arrays or lists that Numba can compile (`sharing/compiled.py`).
"""

from typing import Any, NamedTuple

Array = Any  # an array, or a list where the kernels run uncompiled

NONE, LATER = -1, -2
"""Nothing, or nobody; and the receiver of a message that goes before anybody receives it."""
# What a flow is doing: nothing, latency, work
IDLE, LATENT, MOVING = range(3)
# Who waits at a wire
NOBODY, SENDER, RECEIVER = range(3)

# Places in `EngineState.numbers`; that of the heap's size, HEAP, is in `sharing/heap.py`
EVENTS, STARTING, ENDED, UNSETTLED, CHANGES, FOLDS, LEADER, STEPPED, SAVE_AT, STEPS, SAVED, JUMPS = range(1, 13)
MARK, SAVED_HEAP, STOPPED, SLOWED = range(13, 17)
NUMBERS = 17
# Places in `EngineState.reals`
CLOCK, SAVED_CLOCK = range(2)
REALS = 2


class EngineState(NamedTuple):
    """Everything that is under way, and all that it may do.

    Parameters
    ----------
    work, latency, alone, extrapolated : by flow: units of work, seconds before it, seconds that it takes alone, and
        whether it is larger than what was measured
    entries, entry_resource, entry_share : resources of each flow, and what a unit of its work takes of them
    sender, receiver : members of each flow that is under way; local work has no receiver, a buffered message
        has it LATER
    status, left, since, speed, due, begun : of each flow: units left at `since`, rate, when its next event is, and when
        it began
    done : units of each flow that were served in former instances
    heap, slot : flows by `due`, and where a flow stands there
    waits, waiting_member, waiting_flow : of each wire
    buffered, came : of each wire: whether its messages go before anybody receives them, and how many have come since
    first : stages of each program, first[p] .. first[p + 1] - 1
    count, send_wire, send_flow, receive_wire, local : by stage; NONE where there is none
    if_waited, if_beside : by stage: whether it is left out where its member did not wait for the transfers before it,
        and where the member's worker does nothing
    program, stage, k, pending, entered, waited : of each member: how often it has done its stage, for how many
        transfers it waits, since when, and whether it had to wait for the last ones
    latency_paid, computed, was_extrapolated, waiting, path_latency, path_bandwidth, path_contention, path_compute :
        seconds of each member's present op
    disturbs, disturbing : of each member: the pace (a resource) that is slower while it is in a program with wires,
        NONE where there is none, and whether it is in one
    worker, leaves : of each member: another, the one whose work slows its messages (NONE where nobody's does), and what
        part of their rate messages keep that its own work slows; those with one worker come right after it
    sending, receiving : of each member: the flow that it sent last, and that it got last; NONE before the first
    wired : whether a program has wires
    calm, slow, disturbed : of each pace: its two capacities, and how many disturb it
    using, opened, busy : of each resource: flows that use it, since when, and seconds so far in which some did
    bursty : resources that are links with a token bucket, see `buckets.py`
    bucket, level, poured, flowing, tap : of each of these: bytes that it holds at most, how many it held at `poured`,
        what has gone through the link since [B/s], and the flow whose event is that it is empty
    taps : of each flow: the place in `bursty` of the link whose tap it is; NONE where it is none
    changed, ended, starting : room to work in; members that have ended, those that are to begin
    stopped : flows whose work was done since a state was kept
    saved_… : the state that was kept, to which later ones are compared
    numbers, reals : see EVENTS … and CLOCK …
    """

    work: Array
    latency: Array
    alone: Array
    extrapolated: Array
    entries: Array
    entry_resource: Array
    entry_share: Array
    sender: Array
    receiver: Array
    status: Array
    left: Array
    since: Array
    speed: Array
    due: Array
    begun: Array
    done: Array
    heap: Array
    slot: Array
    waits: Array
    waiting_member: Array
    waiting_flow: Array
    buffered: Array
    came: Array
    first: Array
    count: Array
    send_wire: Array
    send_flow: Array
    receive_wire: Array
    local: Array
    if_waited: Array
    if_beside: Array
    program: Array
    stage: Array
    k: Array
    pending: Array
    entered: Array
    waited: Array
    latency_paid: Array
    computed: Array
    was_extrapolated: Array
    waiting: Array
    path_latency: Array
    path_bandwidth: Array
    path_contention: Array
    path_compute: Array
    disturbs: Array
    disturbing: Array
    worker: Array
    leaves: Array
    sending: Array
    receiving: Array
    wired: Array
    calm: Array
    slow: Array
    disturbed: Array
    using: Array
    opened: Array
    busy: Array
    bursty: Array
    bucket: Array
    level: Array
    poured: Array
    flowing: Array
    tap: Array
    taps: Array
    changed: Array
    ended: Array
    starting: Array
    stopped: Array
    saved_mark: Array
    saved_status: Array
    saved_ahead: Array
    saved_begun: Array
    saved_left: Array
    saved_busy: Array
    saved_stage: Array
    saved_k: Array
    saved_doing: Array
    saved_entered: Array
    saved_told: Array
    numbers: Array
    reals: Array
