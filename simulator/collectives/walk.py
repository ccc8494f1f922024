"""The state of members that walk their programs.

The functions here and in `recurrence.py` and `events.py` are kernels: plain
functions over arrays or lists that Numba can compile (see `compiled.py`).
"""

from typing import Any, NamedTuple

Array = Any  # an array, or a list where the kernels run uncompiled

# What a flow is doing: nothing, one end waits for the other, latency, bytes
IDLE, SENDER_WAITS, RECEIVER_WAITS, LATENT, MOVING = range(5)

# Places in `Walk.numbers`; that of the heap's size, HEAP, is in `sharing/heap.py`
ALIVE, EVENTS, SHARED, EVEN, FOLDS, WATCHED, WATCHED_RUN, STEPPED, STEPS, SAVE_AT, SAVED, JUMPS, BEGUN = range(1, 14)
NUMBERS = 14
# Places in `Walk.reals`
CLOCK, EPOCH, TIE, SPAN, SAVED_CLOCK, DEVIATION, ERROR = range(7)
REALS = 7

ROUNDING = 1e-15  # a few units in the last place


class Walk(NamedTuple):
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
