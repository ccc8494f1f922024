"""The ops of one rank on their way to its lanes, and what is known of each."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import simpy

from quadrille.algorithms.schedule.ops import Op, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.simulator.loops.skipped_iterations import Iteration
from quadrille.simulator.ranks.time_breakdown import TimeBreakdown

LOOKAHEAD = 64
"""Ops that a lane may be behind another: what is kept does not grow with the schedule."""

Process = Generator[simpy.Event, object, None]


@dataclass(eq=False, slots=True)
class LaneTask:
    """One instance of an op on one rank."""

    op: Op
    place: Coordinates
    index: int
    turn: Iteration | None
    needs: list["LaneTask"] = field(default_factory=list)
    ready: float = 0.0
    start: float = 0.0
    end: float = 0.0
    ended: bool = False
    spent: TimeBreakdown = field(default_factory=TimeBreakdown)
    _awaited: simpy.Event | None = None

    def wait(self, env: simpy.Environment) -> simpy.Event:
        """An event that succeeds when the task has ended."""
        if self._awaited is None:
            self._awaited = env.event()
        return self._awaited

    def finish(self, now: float) -> None:
        """It has ended; whoever waits for it goes on."""
        self.end, self.ended = now, True
        if self._awaited is not None:
            self._awaited.succeed()


class ProgramFeed:
    """Hands the tasks of one rank to its lanes, each in program order.

    The program is walked when a lane has nothing left; what it finds for other
    lanes is put by for them.  A lane starves while another is too far behind.

    Parameters
    ----------
    program : tasks in program order
    lanes : names of all lanes
    """

    def __init__(self, env: simpy.Environment, program: Iterator[LaneTask], lanes: Sequence[str]) -> None:
        self._env = env
        self._program = program
        self._queues: dict[str, deque[LaneTask]] = {name: deque() for name in lanes}
        self._next: LaneTask | None = None  # found, but its lane is full
        self._starving: dict[str, simpy.Event] = {}

    def take(self, name: str) -> Generator[simpy.Event, object, LaneTask | None]:
        """The next task of a lane; None at the end of the program."""
        queue = self._queues[name]
        if not queue:
            self._starving[name] = fed = self._env.event()
            self._walk()
            yield fed
        if not queue:
            return None
        task = queue.popleft()
        if self._starving and len(queue) == LOOKAHEAD - 1:
            self._walk()
        return task

    def _walk(self) -> None:
        """Put tasks by until no lane starves, or the next one's lane is full; at the end none starves any longer."""
        while self._starving:
            self._next = self._next or next(self._program, None)
            if self._next is None:
                for name in list(self._starving):
                    self._feed(name)
                return
            name = lane(self._next.op)
            if len(self._queues[name]) >= LOOKAHEAD:
                return
            self._queues[name].append(self._next)
            self._next = None
            self._feed(name)

    def _feed(self, name: str) -> None:
        if name in self._starving:
            self._starving.pop(name).succeed()
