"""The flow engine: flows that share resources, simulated from event to event on SimPy's clock.

Theory of operation
-------------------
A *flow* (a message, a GEMM, a reduction) is an amount of work that runs at a rate; each unit
of its work takes `demands[j]` units of resource j.  Rates are weighted max-min and change only
when a flow starts or ends (`rates.py`), so the engine goes from change to change and is exact.

*Members and programs.*  A sequence of steps without decisions (the steps of a collective, each
with transfers and local work) is a *program*, which a *member* runs inside the engine
(`events.py`).  SimPy keeps the clock and hears of the end of a program only; above the engine
everything happens at the granularity of ops.

*One event.*  SimPy holds one event of the engine: the next end of a program or, if SimPy has
another event before, the next change.  An earlier change makes the pending event stale, which
a version number tells.  When programs have ended, the processes that wait for them run first;
an event of the lowest priority lets the engine go on after everything else at that instant.

*Kernels.*  The engine starts in plain Python on lists.  A long simulation switches to compiled
copies of the same functions on arrays (`compiled.py`).

A message starts when both ends are ready (rendezvous), an eager message when its sender is.
A latency is paid once, before the work, and holds no resource.

`Environment.run()` without `until` may move the clock to a stale event after the last end; run
until the event that ends the simulation.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simpy
from simpy.events import NORMAL, EventPriority

from quadrille.simulator.engine import capacity_changes, event_queue, events, period_detector, rates
from quadrille.simulator.engine.builder import EngineBuilder
from quadrille.simulator.engine.compiled import Kernel, as_column_table, compiled
from quadrille.simulator.engine.engine_state import (
    CHANGES,
    CLOCK,
    ENDED,
    EVENTS,
    JUMPS,
    LEADER,
    MOVING,
    STARTING,
    UNSETTLED,
    EngineState,
    empty_state,
    extended_state,
    is_outdated,
    new_flow_state,
)
from quadrille.simulator.engine.event_queue import HEAP
from quadrille.simulator.engine.events import MORE, SOME_ENDED
from quadrille.simulator.engine.flow_state import NONE, Floats, FlowState

KERNELS = (
    *rates.KERNELS,
    *event_queue.KERNELS,
    *period_detector.KERNELS,
    *capacity_changes.KERNELS,
    *events.KERNELS,
)
PLAIN_EVENTS = 20_000
"""Number of events from which importing Numba pays."""
LOADED_EVENTS = 1_000
"""The same, if Numba is imported already or will be imported in any case."""
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
    """Counts of what the engine did.

    Parameters
    ----------
    changes : updates of rates
    jumps : times that periods were skipped
    """

    changes: int
    jumps: int


@dataclass(frozen=True, slots=True)
class MemberSeconds:
    """Time breakdown of a member's last program [s]; the last five fields add up to the whole time.

    Parameters
    ----------
    latency, compute : latencies and local work of all steps, except where transfers overlap them
    extrapolated : whether a flow was larger than the measured flows
    waiting : time in which the last transfer of each stage waited for its peer
    path_latency : latency of the last transfer of each stage
    bandwidth : time that the last transfer of each stage takes without contention
    contention : time that sharing adds to the last transfer of each stage
    computing : local work
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
    """Resources and the flows that share them, on the clock of `env`.

    >>> from quadrille.simulator.engine.builder import ProgramStage
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
    local : whether rates are recomputed only where something changed
    memory : whether repeated steps are detected and skipped
    long : whether the simulation is known to be long enough for compiled kernels
    """

    def __init__(self, env: simpy.Environment, *, local: bool = True, memory: bool = True, long: bool = False) -> None:
        super().__init__()
        self.env = env
        self._local = local
        self._long = long
        self._state: EngineState = empty_state(detect_periods=memory)
        self._flow_state: FlowState | None = None
        self._compiled: Kernel | None = None  # `advance`, once the simulation is long
        self._tables: tuple[object, object] | None = None
        self._callbacks: dict[int, Callable[[], object]] = {}  # by member in a program
        self._version = 0
        self._step_requested = False
        self._begun: list[tuple[int, int]] = []
        self._new_capacities: dict[int, float] = {}  # of throttles

    @property
    def counts(self) -> EngineCounts:
        """Counts of what the engine did so far."""
        numbers = self._state.numbers
        return EngineCounts(int(numbers[CHANGES]), int(numbers[JUMPS]))

    @property
    def events(self) -> int:
        """Number of events so far."""
        return int(self._state.numbers[EVENTS])

    # Results

    def loads(self) -> list[tuple[float, float]]:
        """Units served so far, and seconds of use, of every resource."""
        return list(zip(self._served().tolist(), self._used().tolist(), strict=True))

    def _served(self) -> Floats:
        u = self._state
        status, served, work = np.asarray(u.status), np.asarray(u.served), np.asarray(u.work)
        left = np.asarray(u.left) - np.asarray(u.speed) * (float(self.env.now) - np.asarray(u.since))
        served = served + np.where(status == MOVING, work - left, 0.0) if len(served) else served
        units = np.repeat(served, np.diff(np.asarray(u.entry_offsets))) * np.asarray(u.entry_share)
        loads = np.bincount(np.asarray(u.entry_resource, np.int64), units, minlength=self.resource_count)
        loads[self.throttles] = 0.0  # a throttle limits a speed; its units mean nothing
        return loads.astype(np.float64)

    def _used(self) -> Floats:
        u = self._state
        since = np.where(np.asarray(u.users) > 0, float(self.env.now) - np.asarray(u.busy_since), 0.0)
        seconds = np.zeros(self.resource_count)
        seconds[: len(since)] = np.asarray(u.busy) + since
        return seconds

    def member_seconds(self, member: int) -> MemberSeconds:
        """Time breakdown of a member's last program."""
        u = self._state
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

    def member_progress(self, member: int) -> tuple[int, int, bool, bool]:
        """Stages that a member has finished, repetitions of its stage, whether it waits to send, and to receive."""
        u = self._state
        at = int(u.stage[member])
        if at == NONE:
            return 0, 0, False, False
        waits = [
            wire != NONE and int(u.waiting_side[wire]) == side and int(u.waiting_member[wire]) == member
            for side, wire in enumerate((int(u.send_wire[at]), int(u.receive_wire[at])), start=1)
        ]
        return at - int(u.first_stage[u.program[member]]), int(u.repetition[member]), waits[0], waits[1]

    # Control

    def begin(self, member: int, program: int, then: Callable[[], object]) -> None:
        """Begin a member's program now; `then` is called at its end, and may begin other programs at that instant."""
        self._callbacks[member] = then
        self._begun.append((member, program))
        self._request_step()

    def set_throttle(self, throttle: int, capacity: float) -> None:
        """Give a throttle that no member engages another capacity from now on."""
        if self.capacities[throttle] != capacity:
            self.capacities[throttle] = self.full_capacities[throttle] = self._new_capacities[throttle] = capacity
            self._request_step()

    # From event to event

    def _request_step(self) -> None:
        """Let the engine go on once everything else at this instant has happened."""
        if not self._step_requested:
            self._step_requested = True
            Alarm(self.env, self._requested_step, LATE, 0.0)

    def _requested_step(self) -> None:
        self._step_requested = False
        self._step()

    def _step(self) -> None:
        """Go on to the next end of a program, or to SimPy's next event, and leave an alarm there."""
        if is_outdated(self._state, self):
            self._extend()
        u = self._state
        for throttle, capacity in self._new_capacities.items():
            capacity_changes.set_capacity(u, self._flow_state, throttle, capacity)
            u.numbers[LEADER] = NONE  # another capacity ends any period
        self._new_capacities.clear()
        for place, (member, program) in enumerate(self._begun):
            u.program[member] = program
            u.starting[place] = member
        u.numbers[STARTING] = len(self._begun)
        self._begun.clear()
        outcome = self._advance()
        if outcome == SOME_ENDED:
            self._alarm(float(self._state.reals[CLOCK]), self._call_back)
        elif self._state.numbers[HEAP]:
            self._alarm(float(self._state.due[self._state.heap[0]]), self._step)

    def _advance(self) -> int:
        """Run the event loop; switch to compiled kernels once the simulation is long."""
        now, until = float(self.env.now), float(self.env.peek())
        if self._compiled is None:
            assert self._flow_state is not None
            plain = LOADED_EVENTS if self._long or "numba" in sys.modules else PLAIN_EVENTS
            outcome = events.advance(self._state, self._flow_state, now, until, plain)
            if outcome != MORE:
                return outcome
            self._compiled = compiled(KERNELS, ["advance"])["advance"]
            self._extend()
        assert self._flow_state is not None
        if self._tables is None:
            self._tables = as_column_table(self._state), as_column_table(self._flow_state)
        assert self._compiled is not None
        return int(self._compiled(*self._tables, now, until, 1 << 62))

    def _extend(self) -> None:
        """Add new entries to the state."""
        arrays = self._compiled is not None
        self._state = extended_state(self._state, self, arrays=arrays)
        self._flow_state = new_flow_state(self._state, self, self._flow_state, local=self._local, arrays=arrays)
        self._state.numbers[UNSETTLED] = 1
        self._tables = None

    def _alarm(self, at: float, action: Callable[[], None]) -> None:
        """Leave one valid alarm."""
        self._version += 1
        version = self._version
        Alarm(self.env, lambda: action() if version == self._version else None, NORMAL, max(0.0, at - self.env.now))

    def _call_back(self) -> None:
        """Programs have ended: the processes that wait for them go on."""
        u = self._state
        ended = sorted(int(member) for member in u.ended[: u.numbers[ENDED]])
        u.numbers[ENDED] = 0
        for member in ended:
            self._callbacks.pop(member)()
        self._request_step()
