"""Event-driven simulation of a collective: members run their step programs while flows share links.

A *member* is one rank in one group of a collective. It posts the send and the receive of its step; when a flow has both
ends, its latency begins, then it shares bandwidth (weighted max-min, `engine/rates.py`) until its bytes are moved; when
both its transfers have ended, the member advances to its next step. Ends within 1e-12 of the shortest transfer are one
batch, after which rates are settled once.

A *walk* is one simulation of all members from start to end. It begins in plain Python on lists; a walk that is large
or long is continued by the same functions, compiled, on arrays.

Irregular contention is chaotic: for several rings placed at random on an irregular
network, a change of all sizes by one part in 10^15 changed the end by one part in
100. In such cases another order of rounding, and so any shortcut, may change the end
as much. Symmetric programs and programs that become periodic are not sensitive.
"""

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from quadrille.algorithms.errors import Deadlock
from quadrille.simulator.collectives import event_kernels, walk_state
from quadrille.simulator.collectives.piece_sizes import PieceSizes
from quadrille.simulator.collectives.programs import Floats, Ints, MemberPrograms
from quadrille.simulator.collectives.walk_state import IDLE, SENDER_WAITS, Array, WalkState
from quadrille.simulator.engine import event_queue as heap
from quadrille.simulator.engine import rates
from quadrille.simulator.engine.kernel_compiler import Kernel, compile_kernels
from quadrille.simulator.engine.rates import FlowState, as_lists, new_flow_state
from quadrille.simulator.symmetry.partition import Flows

Columns = TypeVar("Columns", WalkState, FlowState)

PROGRAM_COLUMNS = ("offsets", "count", "cycle", "send", "receive", "sent_bytes", "empty", "sender", "receiver")

KERNELS = (*rates.KERNELS, *heap.KERNELS, *walk_state.KERNELS, *event_kernels.KERNELS)

PLAIN_EVENTS = 10_000
"""Number of events, or of flows, from which loading Numba saves time."""

REBASE_AFTER = 4096
"""Number of durations of the longest transfer after which the clock is restarted at 0."""

NAMED = 4
"""Number of members that the message of a deadlock names."""


@dataclass(frozen=True, slots=True, eq=False)
class WalkResult:
    """The end times of all members, and the use of links.

    Parameters
    ----------
    ends : end of each member [s] [members]
    busy : time in which each link is in use [s] [links]
    events : number of simulated ends of latencies and transfers
    error_seconds : difference of states that were taken as equal, times the number of skipped periods [s]
    """

    ends: Floats
    busy: Floats
    events: int
    error_seconds: float


def walk_from_events(
    programs: MemberPrograms,
    flows: Flows,
    capacities: Floats,
    latency: Floats,
    caps: Floats,
    *,
    alone: Floats,
    contended: bool = True,
    fold_time: bool = True,
    local: bool = True,
    plain_events: int = PLAIN_EVENTS,
) -> WalkResult:
    """Simulates the programs of all members until the last member has ended.

    Parameters
    ----------
    programs : the steps of every member
    flows : flows of the programs, with the links that they cross
    capacities : capacity of each link [B/s]
    latency, caps : latency and highest rate of each flow [s, B/s] [flows]
    alone : rate of each flow without contention [B/s] [flows]
    contended : whether flows can slow each other; if not, each has its best rate
    fold_time : skip repeated periods of programs that become periodic
    local : after a change, recompute only the rates of flows that it can affect
    plain_events : number of events, or of flows, from which compiled kernels are used

    Raises
    ------
    Deadlock : members wait for each other
    """
    start = _start_state(programs, flows, len(capacities), latency, alone, contended=contended, fold_time=fold_time)
    if contended:
        caps_of_rates = np.where(np.isinf(alone), 1.0, caps)  # flows over no link share nothing
        state = new_flow_state(
            capacities, flows.offsets, flows.links, flows.shares, np.ones(flows.count), caps_of_rates, local=local
        )
    else:
        unit = np.ones(1)
        state = new_flow_state(unit, np.array([0, 1]), np.zeros(1, np.int64), unit, unit, unit)
    outcome = event_kernels.MORE
    if flows.count < plain_events:
        lists, shared = _as_lists(start), as_lists(state)
        outcome = _continue_walk(event_kernels.walk, event_kernels.pause, lists, shared, plain_events)
        start, state = _as_arrays(lists, start), _as_arrays(shared, state)
    if outcome == event_kernels.MORE:
        compiled_kernels = compile_kernels(KERNELS, ["walk", "pause"])
        outcome = _continue_walk(compiled_kernels["walk"], compiled_kernels["pause"], start, state, 1 << 62)
    if outcome != event_kernels.DONE:
        raise Deadlock(_deadlock_text(start, programs))
    return WalkResult(
        start.ends, start.busy, int(start.numbers[walk_state.EVENTS]), float(start.reals[walk_state.ERROR])
    )


def _continue_walk(walk_on: Kernel, pause: Kernel, start: WalkState, state: FlowState, last: int) -> int:
    """Continues the walk until all members have ended or there are more than `last` events."""
    while (outcome := int(walk_on(start, state, last))) == event_kernels.PAUSE:
        pause(start)
    return outcome


def _start_state(
    programs: MemberPrograms,
    flows: Flows,
    links: int,
    latency: Floats,
    alone: Floats,
    *,
    contended: bool,
    fold_time: bool,
) -> WalkState:
    """The state at the start, as arrays."""
    members, count = programs.members, programs.flows
    columns = {name: getattr(programs, name) for name in PROGRAM_COLUMNS}
    sizes = _piece_columns(programs.pieces)
    saved = {f"saved_{name}": _integers(members) for name in ("run", "phase", "k", "pending")}
    return WalkState(
        **columns,
        **sizes,
        latency=latency,
        alone=alone,
        entry_offsets=flows.offsets,
        entry_links=flows.links,
        run=programs.offsets[:-1].copy(),
        phase=_integers(members),
        k=_integers(members),
        pending=_integers(members),
        ends=np.zeros(members),
        status=_integers(count),
        left=np.zeros(count),
        since=np.zeros(count),
        speed=np.zeros(count),
        due=np.zeros(count),
        heap=_integers(count),
        slot=_integers(count, -1),
        using=_integers(links),
        opened=np.zeros(links),
        busy=np.zeros(links),
        changed=_integers(count),
        batch=_integers(count),
        **saved,
        saved_status=_integers(count),
        saved_ahead=np.zeros(count),
        saved_busy=np.zeros(links),
        numbers=_numbers(programs, contended=contended, fold_time=fold_time),
        reals=_reals(programs, latency, alone),
    )


def _integers(size: int, value: int = 0) -> Ints:
    """An array of integers."""
    return np.full(size, value, np.int64)


def _numbers(programs: MemberPrograms, *, contended: bool, fold_time: bool) -> Ints:
    """Options and counters at the start."""
    steps = np.bincount(programs.run_members(), programs.count, minlength=programs.members)
    numbers = _integers(walk_state.NUMBERS)
    numbers[walk_state.ALIVE] = programs.members
    numbers[walk_state.SHARED] = contended
    numbers[walk_state.EVEN] = programs.pieces is None
    numbers[walk_state.FOLDS] = fold_time and programs.pieces is None
    numbers[walk_state.WATCHED] = int(np.argmax(steps)) if programs.members else -1
    numbers[walk_state.WATCHED_RUN] = -1
    return numbers


def _reals(programs: MemberPrograms, latency: Floats, alone: Floats) -> Floats:
    """Times at the start: the tolerance within which events are simultaneous, and the restart time of the clock [s]."""
    used = programs.send >= 0
    longest = _longest(programs)
    transfers = latency[programs.send[used]] + longest[used] / alone[programs.send[used]]
    reals = np.zeros(walk_state.REALS)
    reals[walk_state.TIE] = rates.TIE * transfers[transfers > 0].min(initial=np.inf) if len(transfers) else 0.0
    reals[walk_state.SPAN] = REBASE_AFTER * transfers.max(initial=0.0)
    if not np.isfinite(reals[walk_state.TIE]):
        reals[walk_state.TIE] = 0.0
    return reals


def _longest(programs: MemberPrograms) -> Floats:
    """Largest number of bytes that a step of each run sends [runs]."""
    pieces = programs.pieces
    return programs.sent_bytes if pieces is None else pieces.sent * (pieces.elements + 1) * pieces.element_bytes


def _piece_columns(pieces: PieceSizes | None) -> dict[str, Array]:
    """Sizes by run; unused if pieces are even."""
    if pieces is not None:
        return {column.name: getattr(pieces, column.name) for column in fields(PieceSizes)}
    return {column.name: np.zeros(1, float if column.name == "element_bytes" else int) for column in fields(PieceSizes)}


def _as_lists(w: WalkState) -> WalkState:
    """The state as lists."""
    return WalkState(*(array.tolist() for array in w))


def _as_arrays(lists: Columns, arrays: Columns) -> Columns:
    """Lists as arrays of the given types."""
    return type(lists)(*(np.asarray(column, array.dtype) for column, array in zip(lists, arrays, strict=True)))


def _deadlock_text(w: WalkState, programs: MemberPrograms) -> str:
    """The message of a deadlock: the waiting members, and the peers that they wait for."""
    waiting = [i for i in range(programs.members) if w.run[i] < programs.offsets[i + 1]]
    waits = []
    for i in waiting[:NAMED]:
        run = int(w.run[i] + w.phase[i])
        for flow, side in ((int(programs.send[run]), "send to"), (int(programs.receive[run]), "receive from")):
            if flow < 0 or w.status[flow] == IDLE:
                continue
            sends = side == "send to"
            if (w.status[flow] == SENDER_WAITS) == sends:
                peer = programs.rank[(programs.receiver if sends else programs.sender)[flow]]
                waits.append(f"rank {programs.rank[i]} in step {_step(w, programs, i)} to {side} rank {peer}")
    more = f", and {len(waiting) - NAMED} more ranks" if len(waiting) > NAMED else ""
    return f"deadlock: waiting for ever are {'; '.join(waits)}{more}"


def _step(w: WalkState, programs: MemberPrograms, i: int) -> int:
    """The number of the step, from 0, at which a member stands."""
    first, run = int(programs.offsets[i]), int(w.run[i])
    return int(programs.count[first:run].sum() + w.k[i] * programs.cycle[run] + w.phase[i])
