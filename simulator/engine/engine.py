"""The flow engine: everything that shares something, in one place, on the clock of SimPy.

Theory of operation
-------------------
An *activity* (a transfer, a GEMM, a reduction) is an amount of work that runs at
a rate; it takes `demands[j]` units of resource j per unit of its own work.  The
rates are weighted max-min and change only when an activity starts or ends
(`sharing/rates.py`), so the engine goes from change to change and is exact.

*Members and programs.*  What is done step by step without anybody being asked (the
steps of a collective, each with its transfers and its local work) is a *program* that
a *member* goes through inside the engine (`stepping/`).  SimPy hears of its end only:
it keeps the clock and runs everything at the grain of ops.

*One event.*  SimPy sees a single event of the engine: the next end of a program, or
where SimPy has something to do before, the next change.  An earlier change makes the
pending event stale, and a version number tells.  When programs have ended, the
processes that wait for them run, and only when nothing else happens at this instant (an
event of the lowest priority says so) does the engine go on.

*Kernels.*  It begins in plain Python on lists; a simulation that goes on for long is
left to compiled twins of the same functions on arrays (`sharing/compiled.py`).

A message starts when both its ends are ready (rendezvous), a buffered one when its sender is.
Latency is paid once, before, and holds no resource.

`Environment.run()` without `until` may move the clock on to a stale event after
the last end; run until the event that ends the simulation.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simpy
from simpy.events import NORMAL, EventPriority

from quadrille.simulator.engine import event_queue as heap
from quadrille.simulator.engine import events, rates
from quadrille.simulator.engine import period_detector as repeats
from quadrille.simulator.engine import slowdown as slowing
from quadrille.simulator.engine import token_buckets as buckets
from quadrille.simulator.engine.builder import empty, grown, shared
from quadrille.simulator.engine.compiled import Kernel, as_column_table, compiled
from quadrille.simulator.engine.engine_state import (
    CHANGES,
    CLOCK,
    ENDED,
    EVENTS,
    JUMPS,
    LEADER,
    MOVING,
    NONE,
    STARTING,
    UNSETTLED,
    EngineState,
)
from quadrille.simulator.engine.entries import EngineBuilder
from quadrille.simulator.engine.event_queue import HEAP
from quadrille.simulator.engine.events import MORE, SOME_ENDED
from quadrille.simulator.engine.flow_state import Floats, FlowState

KERNELS = (*rates.KERNELS, *heap.KERNELS, *repeats.KERNELS, *buckets.KERNELS, *slowing.KERNELS, *events.KERNELS)
PLAIN_EVENTS = 20_000
"""Events from which on importing Numba pays."""
LOADED_EVENTS = 1_000
"""The same, where it has been imported already, or will be."""
LATE = EventPriority(2)  # after everything else that happens at an instant


class Alarm(simpy.Event):
    """An event of SimPy that calls `action` after `delay` seconds."""

    def __init__(self, env: simpy.Environment, action: Callable[[], None], priority: EventPriority, delay: float):
        super().__init__(env)
        self._ok = True
        self._value = None
        assert self.callbacks is not None
        self.callbacks.append(lambda _: action())
        env.schedule(self, priority, delay)


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """How often what was done: changes of rates, jumps over steps."""

    changes: int
    jumps: int


@dataclass(frozen=True, slots=True)
class MemberSeconds:
    """What the seconds of a member's program went into; the last five add up to all of them.

    Parameters
    ----------
    latency, compute : as far as they are not transfer
    extrapolated : whether anything was larger than what was measured
    waiting … computing : of the transfer of each stage that ended last, and of local work
    """

    latency: float
    compute: float
    extrapolated: bool
    waiting: float
    path_latency: float
    bandwidth: float
    contention: float
    computing: float


class FlowEngine(EngineBuilder):
    """Resources, and the activities that share them, on the clock of `env`.

    >>> from quadrille.simulator.engine.entries import ProgramStage
    >>> env = simpy.Environment()
    >>> engine = FlowEngine(env)
    >>> link = engine.add_resource(10.0, "leaf:0>spine:0")
    >>> ends = []
    >>> for size in (10.0, 30.0):
    ...     program = engine.program([ProgramStage(local=engine.flow(size, {link: 1.0}, latency=1.0))])
    ...     engine.begin(engine.member(), program, lambda: ends.append(env.now))
    >>> env.run()
    >>> ends
    [3.0, 5.0]
    >>> engine.loads()[link]
    (40.0, 4.0)

    Parameters
    ----------
    local : find new rates only where something changed
    memory : remember a state, and pass over steps that come back to it
    long : it is known that importing Numba will pay
    """

    def __init__(self, env: simpy.Environment, *, local: bool = True, memory: bool = True, long: bool = False) -> None:
        super().__init__()
        self.env = env
        self._local = local
        self._long = long
        self._under: EngineState = empty(memory=memory)
        self._state: FlowState | None = None
        self._twin: Kernel | None = None  # once it goes on for long
        self._tables: tuple[object, object] | None = None
        self._thens: dict[int, Callable[[], object]] = {}  # of members under way
        self._version = 0
        self._look_requested = False
        self._begun: list[tuple[int, int]] = []
        self._set: dict[int, float] = {}  # capacities of paces

    @property
    def tally(self) -> EngineCounts:
        """How often what was done so far."""
        numbers = self._under.numbers
        return EngineCounts(int(numbers[CHANGES]), int(numbers[JUMPS]))

    @property
    def events(self) -> int:
        """Events so far."""
        return int(self._under.numbers[EVENTS])

    # What it has come to

    def loads(self) -> list[tuple[float, float]]:
        """Units served so far, and seconds of use, of every resource."""
        return list(zip(self._served().tolist(), self._used().tolist(), strict=True))

    def _served(self) -> Floats:
        u = self._under
        status, done, work = np.asarray(u.status), np.asarray(u.done), np.asarray(u.work)
        left = np.asarray(u.left) - np.asarray(u.speed) * (float(self.env.now) - np.asarray(u.since))
        served = done + np.where(status == MOVING, work - left, 0.0) if len(done) else done
        units = np.repeat(served, np.diff(np.asarray(u.entries))) * np.asarray(u.entry_share)
        found = np.bincount(np.asarray(u.entry_resource, np.int64), units, minlength=self.resource_count)
        found[self.paces] = 0.0  # they tell how fast, not how much
        return found.astype(np.float64)

    def _used(self) -> Floats:
        u = self._under
        since = np.where(np.asarray(u.using) > 0, float(self.env.now) - np.asarray(u.opened), 0.0)
        found = np.zeros(self.resource_count)
        found[: len(since)] = np.asarray(u.busy) + since
        return found

    def begin(self, member: int, program: int, then: Callable[[], object]) -> None:
        """A member begins a program now; `then` is called when it has ended, and may begin others at that instant."""
        self._thens[member] = then
        self._begun.append((member, program))
        self._request_look()

    def set_throttle(self, pace: int, capacity: float) -> None:
        """A pace that nobody disturbs has another capacity from now on."""
        if self.capacities[pace] != capacity:
            self.capacities[pace] = self.calm[pace] = self._set[pace] = capacity
            self._request_look()

    def told(self, member: int) -> MemberSeconds:
        """What the seconds of a member's last program went into."""
        u = self._under
        return MemberSeconds(
            float(u.latency_paid[member]),
            float(u.computed[member]),
            bool(u.was_extrapolated[member]),
            float(u.waiting[member]),
            float(u.path_latency[member]),
            float(u.path_bandwidth[member]),
            float(u.path_contention[member]),
            float(u.path_compute[member]),
        )

    def standing(self, member: int) -> tuple[int, int, bool, bool]:
        """Stages that a member has behind it, times it has done its own, whether it waits to send, and to receive."""
        u = self._under
        at = int(u.stage[member])
        if at == NONE:
            return 0, 0, False, False
        waits = [
            wire != NONE and int(u.waits[wire]) == side and int(u.waiting_member[wire]) == member
            for side, wire in enumerate((int(u.send_wire[at]), int(u.receive_wire[at])), start=1)
        ]
        return at - int(u.first[u.program[member]]), int(u.k[member]), waits[0], waits[1]

    # From event to event

    def _request_look(self) -> None:
        """Has the engine go on once everything else at this instant has happened."""
        if not self._look_requested:
            self._look_requested = True
            Alarm(self.env, self._requested_look, LATE, 0.0)

    def _requested_look(self) -> None:
        self._look_requested = False
        self._look()

    def _look(self) -> None:
        """Goes on to the next end of a program, or to where SimPy has something to do before; leaves an alarm there."""
        if self.is_more_than(self._under):
            self._grow()
        u = self._under
        for pace, capacity in self._set.items():
            buckets.share_anew(u, self._state, pace, capacity)
            u.numbers[LEADER] = NONE  # what was seen of steps before tells nothing any more
        self._set.clear()
        for place, (member, program) in enumerate(self._begun):
            u.program[member] = program
            u.starting[place] = member
        u.numbers[STARTING] = len(self._begun)
        self._begun.clear()
        outcome = self._go_on()
        if outcome == SOME_ENDED:
            self._alarm(float(self._under.reals[CLOCK]), self._tell)
        elif self._under.numbers[HEAP]:
            self._alarm(float(self._under.due[self._under.heap[0]]), self._look)

    def _go_on(self) -> int:
        now, until = float(self.env.now), float(self.env.peek())
        if self._twin is None:
            assert self._state is not None
            plain = LOADED_EVENTS if self._long or "numba" in sys.modules else PLAIN_EVENTS
            outcome = events.go_on(self._under, self._state, now, until, plain)
            if outcome != MORE:
                return outcome
            self._twin = compiled(KERNELS, ["go_on"])["go_on"]
            self._grow()
        assert self._state is not None
        if self._tables is None:
            self._tables = as_column_table(self._under), as_column_table(self._state)
        assert self._twin is not None
        return int(self._twin(*self._tables, now, until, 1 << 62))

    def _grow(self) -> None:
        """Takes in what has been registered."""
        self._under = grown(self._under, self, arrays=self._twin is not None)
        self._state = shared(self, self._under, self._state, local=self._local, arrays=self._twin is not None)
        self._under.numbers[UNSETTLED] = 1
        self._tables = None

    def _alarm(self, at: float, action: Callable[[], None]) -> None:
        """Leaves one valid alarm."""
        self._version += 1
        version = self._version
        Alarm(self.env, lambda: action() if version == self._version else None, NORMAL, max(0.0, at - self.env.now))

    def _tell(self) -> None:
        """Programs have ended: those who wait for it go on."""
        u = self._under
        ended = sorted(int(member) for member in u.ended[: u.numbers[ENDED]])
        u.numbers[ENDED] = 0
        for member in ended:
            self._thens.pop(member)()
        self._request_look()
