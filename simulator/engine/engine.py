"""The flow engine: flows that share resources, simulated from event to event on SimPy's clock.

Theory of operation
-------------------
A *flow* (a message, a GEMM, a reduction) is an amount of work that runs at a rate; each unit
of its work takes `demands[j]` units of resource j.  Rates are weighted max-min and change only
when a flow starts or ends (`rates.py`), so the engine goes from change to change and is exact.

*Streams and programs.*  A sequence of steps without decisions (the steps of a collective, each
with transfers and local work) is a *program*, which a *stream* runs inside the engine
(`event_loop.py`); `engine_builder.py` defines these words.  SimPy keeps the clock and sees only the
end of a program; above the engine everything happens at the granularity of ops.

*One event.*  SimPy holds one event for the engine: the next end of a program or, if SimPy has
another event before, the next change.  An earlier change makes the pending event stale, which
a version number shows.  When programs have ended, the processes that wait for them run first;
an event of the lowest priority lets the engine go on after everything else at that instant.

*Kernels.*  The engine starts in plain Python on lists.  A long simulation switches to compiled
copies of the same functions on arrays (`kernel_compiler.py`).

A message starts when both ends are ready (rendezvous), an eager message when its sender is.
A latency is paid once, before the work, and holds no resource.

`Environment.run()` without `until` may move the clock to a stale event after the last end; run
until the event that ends the simulation.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import simpy
from simpy.events import NORMAL, EventPriority

from quadrille.simulator.engine import capacity_changes, event_loop, event_queue, period_detector, rates
from quadrille.simulator.engine.engine_builder import EngineBuilder
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
    extended_flow_state,
    extended_state,
    is_outdated,
)
from quadrille.simulator.engine.event_loop import MORE, SOME_ENDED
from quadrille.simulator.engine.event_queue import HEAP
from quadrille.simulator.engine.flow_state import NONE, Floats, FlowState, as_arrays
from quadrille.simulator.engine.kernel_compiler import Kernel, as_column_table, compile_kernels
from quadrille.simulator.work_budget import WorkBudget

KERNELS = (
    *rates.KERNELS,
    *event_queue.KERNELS,
    *period_detector.KERNELS,
    *capacity_changes.KERNELS,
    *event_loop.KERNELS,
)
PLAIN_EVENTS = 20_000
"""Number of events from which importing Numba saves time."""
LOADED_EVENTS = 1_000
"""Number of events from which compiled kernels save time if Numba is imported in any case."""
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
    """Numbers of rate updates and of skips over repeated periods.

    Parameters
    ----------
    changes : updates of rates
    jumps : times that periods were skipped
    """

    changes: int
    jumps: int


@dataclass(frozen=True, slots=True)
class StreamSeconds:
    """Time breakdown of a stream's last program [s]; the last five fields add up to the whole time.

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


class AwaitedTransfers(NamedTuple):
    """A stage in which a stream waits for a partner.

    Parameters
    ----------
    stage : number of the stage in its program, from 0
    repetition : number of finished repetitions of the stage
    to_send, to_receive : whether the stream waits to send, and whether it waits to receive
    """

    stage: int
    repetition: int
    to_send: bool
    to_receive: bool


EVENT_WALL_SECONDS = 2.5e-6
"""Approximate wall time to simulate one event, on two cores of 2026 [s]."""
CHARGED_EVENTS = 1 << 14
"""Number of events between two charges to the budget, at most."""


class FlowEngine(EngineBuilder):
    """A simulation of flows that share resources, on the clock of `env`.

    >>> from quadrille.simulator.engine.engine_builder import ProgramStage
    >>> env = simpy.Environment()
    >>> engine = FlowEngine(env)
    >>> link = engine.add_resource(10.0, "leaf:0>spine:0")
    >>> ends = []
    >>> for size in (10.0, 30.0):
    ...     program = engine.add_program([ProgramStage(local=engine.add_flow(size, {link: 1.0}, latency=1.0))])
    ...     engine.begin(engine.add_stream(), program, lambda: ends.append(env.now))
    >>> env.run()
    >>> ends
    [3.0, 5.0]
    >>> engine.loads()[link]
    (40.0, 4.0)

    Parameters
    ----------
    local : whether rates are recomputed only where something changed
    memory : whether repeated periods are detected and skipped
    long : whether the simulation is known to be long enough for compiled kernels
    plain_events : number of events after which compiled kernels are used; by default the number that saves time
    budget : the wall time that the simulation may take; by default no limit
    """

    def __init__(
        self,
        env: simpy.Environment,
        *,
        local: bool = True,
        memory: bool = True,
        long: bool = False,
        plain_events: int | None = None,
        budget: WorkBudget | None = None,
    ) -> None:
        super().__init__()
        self.env = env
        self._local = local
        self._long, self._plain_events = long, plain_events
        self._budget, self._charged_events = budget or WorkBudget(), 0
        self._state: EngineState = empty_state(detect_periods=memory)
        self._flow_state: FlowState | None = None
        self._compiled: Kernel | None = None  # `advance`, once the simulation is long
        self._tables: tuple[object, object] | None = None
        self._callbacks: dict[int, Callable[[], object]] = {}  # by stream in a program
        self._version = 0
        self._step_requested = False
        self._begun: list[tuple[int, int]] = []
        self._new_capacities: dict[int, float] = {}  # of throttles

    @property
    def counts(self) -> EngineCounts:
        """Numbers of rate updates and of skips so far."""
        numbers = self._state.numbers
        return EngineCounts(int(numbers[CHANGES]), int(numbers[JUMPS]))

    @property
    def events(self) -> int:
        """Number of events so far."""
        return int(self._state.numbers[EVENTS])

    # Results

    def loads(self) -> list[tuple[float, float]]:
        """The units served so far and the seconds of use of every resource, by number."""
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

    def stream_seconds(self, stream: int) -> StreamSeconds:
        """Time breakdown of a stream's last program."""
        u = self._state
        return StreamSeconds(
            float(u.latency_paid[stream]),
            float(u.computed[stream]),
            bool(u.was_extrapolated[stream]),
            float(u.waiting[stream]),
            float(u.path_latency[stream]),
            float(u.path_bandwidth[stream]),
            float(u.path_contention[stream]),
            float(u.path_compute[stream]),
        )

    def awaited_transfers(self, stream: int) -> list[AwaitedTransfers]:
        """The stages in which a stream waits for a partner: its present one, and those posted together with it."""
        u = self._state
        at = int(u.stage[stream])
        if at == NONE:
            return []
        first = int(u.first_stage[u.program[stream]])
        begin = at
        while begin > first and u.posted[begin - 1]:
            begin -= 1
        awaited = [
            AwaitedTransfers(number - first, int(u.repetition[stream]), *self._waits(stream, number))
            for number in range(begin, at + 1)
        ]
        return [transfers for transfers in awaited if transfers.to_send or transfers.to_receive]

    def _waits(self, stream: int, stage: int) -> tuple[bool, bool]:
        """Whether a stream waits to send, and whether it waits to receive, in a stage that it has posted."""
        u = self._state
        to_send, to_receive = (
            channel != NONE and int(u.waiting_side[channel]) == side and int(u.waiting_stream[channel]) == stream
            for side, channel in enumerate((int(u.send_channel[stage]), int(u.receive_channel[stage])), start=1)
        )
        return to_send, to_receive

    # Control

    def begin(self, stream: int, program: int, then: Callable[[], object]) -> None:
        """Begin a program on a stream now.

        Parameters
        ----------
        stream, program : numbers from `add_stream` and `add_program`
        then : called at the end of the program; it may begin other programs at that instant
        """
        self._callbacks[stream] = then
        self._begun.append((stream, program))
        self._request_step()

    def set_throttle(self, throttle: int, capacity: float) -> None:
        """Give a throttle that no stream engages another capacity from now on."""
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
        for position, (stream, program) in enumerate(self._begun):
            u.program[stream] = program
            u.starting[position] = stream
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
        assert self._flow_state is not None
        if self._compiled is None:
            outcome = event_loop.advance(self._state, self._flow_state, now, until, self._last_plain_event())
            self._charge()
            if outcome != MORE:
                return outcome
            self._compiled = compile_kernels(KERNELS, ["advance"])["advance"]
            self._state = extended_state(self._state, self, arrays=True)
            self._flow_state = as_arrays(self._flow_state)
        if self._tables is None:
            self._tables = as_column_table(self._state), as_column_table(self._flow_state)
        assert self._compiled is not None
        outcome = MORE
        while outcome == MORE:
            outcome = int(self._compiled(*self._tables, now, until, self.events + CHARGED_EVENTS))
            self._charge()
        return outcome

    def _charge(self) -> None:
        """Charge the events since the last charge to the budget."""
        self._budget.charge((self.events - self._charged_events) * EVENT_WALL_SECONDS)
        self._charged_events = self.events

    def _last_plain_event(self) -> int:
        """Number of events after which compiled kernels are used."""
        if self._plain_events is not None:
            return self._plain_events
        return LOADED_EVENTS if self._long or "numba" in sys.modules else PLAIN_EVENTS

    def _extend(self) -> None:
        """Add new entries to the state."""
        arrays = self._compiled is not None
        self._state = extended_state(self._state, self, arrays=arrays)
        self._flow_state = extended_flow_state(self._state, self, self._flow_state, local=self._local, arrays=arrays)
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
        ended = sorted(int(stream) for stream in u.ended[: u.numbers[ENDED]])
        u.numbers[ENDED] = 0
        for stream in ended:
            self._callbacks.pop(stream)()
        self._request_step()
