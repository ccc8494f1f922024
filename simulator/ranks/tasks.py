"""Tasks: the op instances of one rank, and the queues from which the rank's lanes take them."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import simpy

from quadrille.algorithms.analysis.dependencies import Undecided
from quadrille.algorithms.schedule.ops import Op, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.simulator.loops.skipped_iterations import Iteration
from quadrille.simulator.ranks.time_breakdown import TimeBreakdown

LOOKAHEAD = 64
"""Largest number of tasks queued for a lane, so that memory does not grow with the schedule."""

Process = Generator[simpy.Event, object, None]


@dataclass(eq=False, slots=True)
class LaneTask:
    """One instance of an op on one rank, on its lane (computation, or communication along one axis).

    Parameters
    ----------
    index : index among the instances of the op on the rank
    iteration : iteration of the loop with skipped iterations, None outside such loops
    needs : tasks that must end before
    ready, start, end : when its needs have ended, when it starts, when it ends [s]
    """

    op: Op
    coordinates: Coordinates
    index: int
    iteration: Iteration | None
    needs: list["LaneTask"] = field(default_factory=list)
    ready: float = 0.0
    start: float = 0.0
    end: float = 0.0
    ended: bool = False
    breakdown: TimeBreakdown = field(default_factory=TimeBreakdown)
    _awaited: simpy.Event | None = None

    def wait(self, env: simpy.Environment) -> simpy.Event:
        """An event that succeeds when the task has ended."""
        if self._awaited is None:
            self._awaited = env.event()
        return self._awaited

    def finish(self, now: float) -> None:
        """Record the task's end; tasks that wait for it go on."""
        self.end, self.ended = now, True
        if self._awaited is not None:
            self._awaited.succeed()


class ProgramFeed:
    """Hands the tasks of one rank to its lanes, each in program order.

    The program is walked when a lane's queue is empty; tasks of other lanes are queued.  A lane waits while another
    lane's queue is full, and while it is undecided which task is next.

    Parameters
    ----------
    program : tasks in program order; `Undecided` where the next task depends on which of some tasks ends first
    lanes : names of all lanes
    lane_of : lane of an op
    lookahead : largest number of tasks queued for a lane
    """

    def __init__(
        self,
        env: simpy.Environment,
        program: "Iterator[LaneTask | Undecided[LaneTask]]",
        lanes: Sequence[str],
        lane_of: Callable[[Op], str] = lane,
        lookahead: int = LOOKAHEAD,
    ) -> None:
        self._env, self._lane_of, self._lookahead = env, lane_of, lookahead
        self._program = program
        self._queues: dict[str, deque[LaneTask]] = {name: deque() for name in lanes}
        self._next: LaneTask | None = None  # waits for room in the queue of its lane
        self._waiting: dict[str, simpy.Event] = {}
        self._undecided = False

    def take(self, name: str) -> Generator[simpy.Event, object, LaneTask | None]:
        """The next task of a lane; None at the end of the program."""
        queue = self._queues[name]
        if not queue:
            self._waiting[name] = ready = self._env.event()
            self._fill_queues()
            yield ready
        if not queue:
            return None
        task = queue.popleft()
        if self._waiting and len(queue) == self._lookahead - 1:
            self._fill_queues()
        return task

    def _fill_queues(self) -> None:
        """Walk the program until no lane waits, the next task's lane is full or the next task is undecided; at the end
        of the program, wake all lanes.
        """
        while self._waiting and not self._undecided:
            if self._next is None:
                entry = next(self._program, None)
                if isinstance(entry, Undecided):
                    self._wait_for_any(entry.tokens)
                    continue
                self._next = entry
            if self._next is None:
                for name in list(self._waiting):
                    self._wake(name)
                return
            name = self._lane_of(self._next.op)
            if len(self._queues[name]) >= self._lookahead:
                return
            self._queues[name].append(self._next)
            self._next = None
            self._wake(name)

    def _wait_for_any(self, tasks: Sequence[LaneTask]) -> None:
        """Walk on when one of these tasks has ended, unless one has."""
        if any(task.ended for task in tasks):
            return
        self._undecided = True

        def decide(_: simpy.Event) -> None:
            if self._undecided:
                self._undecided = False
                self._fill_queues()

        for task in tasks:
            callbacks = task.wait(self._env).callbacks
            assert callbacks is not None
            callbacks.append(decide)

    def _wake(self, name: str) -> None:
        """Wake a lane that waits for a task."""
        if name in self._waiting:
            self._waiting.pop(name).succeed()
