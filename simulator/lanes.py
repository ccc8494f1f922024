"""The lanes of the ranks on one clock, from the first op to the last.

SimPy keeps the clock and runs the lanes at the grain of ops.  What ops share
(cores, memory, links) lives in the flow engine, which shows SimPy one event,
its next change.  Each lane of a rank is a process, which takes the ops of the
rank's program in order (`feed.py`).
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import simpy

from algorithms.choices import Choices
from algorithms.dependencies import Dependencies
from algorithms.errors import Deadlock
from algorithms.machine import Machine
from algorithms.ops import Communication, CommunicationOp, lane
from algorithms.schedule import Schedule, all_ops
from algorithms.timeline import Span
from simulator.duties import Duties
from simulator.engine import FlowEngine
from simulator.feed import Feed, Process, Task
from simulator.folding.alike_ranks import Population
from simulator.folding.gaps import Gap, Turn, walk_without
from simulator.folding.looks import Loop
from simulator.local_work import LocalWork
from simulator.members import Board, Member, Spent
from simulator.strides import Strides
from simulator.stuck import explained

Instance = tuple[int, str, int]
"""A rank, an op and the how manieth one."""
GARBAGE = 50_000
"""Objects made before Python looks for cycles: nearly all of them stay, and looking took a third of the time."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is simulated, on what.

    Parameters
    ----------
    threads : BLAS threads of each rank, by default its share of the host's cores
    """

    schedule: Schedule
    machine: Machine
    choices: Choices
    ranks: Population
    threads: int | None = None


class Lanes:
    """The lanes of all simulated ranks.

    Parameters
    ----------
    gaps : turns of loops that are passed over
    memory, local : of the engine
    strides : whether steps that repeat are passed over
    """

    def __init__(
        self,
        given: Circumstances,
        gaps: Sequence[Gap],
        *,
        memory: bool = True,
        local: bool = True,
        strides: bool = True,
    ) -> None:
        self._schedule, self._machine, self._ranks = given.schedule, given.machine, given.ranks
        self._gaps = gaps
        self._env = simpy.Environment()
        self.engine = FlowEngine(self._env, memory=memory, local=local)
        wiring = given.ranks.wiring(self.engine)
        self._duties = Duties(given.schedule, given.choices)
        self._local = LocalWork(given.machine, given.schedule.dtype, self._duties, wiring, self.engine, given.threads)
        self._board = Board(wiring)
        self._strides = Strides(self.engine) if strides else None
        self._names = list(dict.fromkeys(["compute", *(lane(op) for op in all_ops(given.schedule))]))
        self._open: dict[tuple[int, str], Task] = {}
        self.spans: list[Span] = []
        self.spent: dict[Instance, Spent] = {}
        self.turns: dict[Instance, Turn] = {}
        self._timekeepers: dict[Loop, int] = {}  # the rank at whose turns of a loop loads are looked at
        self.loads: dict[Turn, tuple[float, list[tuple[float, float]]]] = {}
        self.extrapolated: set[str] = set()

    def run(self) -> None:
        """Every simulated rank to its end.

        Raises
        ------
        Deadlock : ranks that wait on each other, with their ops
        """
        lanes = [one for rank in self._ranks.simulated for one in self._lanes(rank)]
        everyone = self._env.all_of(lanes)
        thresholds = gc.get_threshold()
        gc.set_threshold(GARBAGE, *thresholds[1:])
        try:
            self._env.run(until=everyone)
        except RuntimeError:
            if everyone.triggered:
                raise
            doing = {(rank, name): task.op.name for (rank, name), task in self._open.items()}
            raise Deadlock(explained(doing, self._board.waiting(), self._ranks.stands_for)) from None
        finally:
            gc.set_threshold(*thresholds)

    def _lanes(self, rank: int) -> Iterator[simpy.Process]:
        """The processes of a rank's lanes."""
        feed = Feed(self._env, self._program(rank), self._names)
        for name in self._names:
            yield self._env.process(self._lane(rank, name, feed))

    def _program(self, rank: int) -> Iterator[Task]:
        """The tasks of a rank in program order, each with those that it waits for."""
        place = self._schedule.place(rank)
        dependencies: Dependencies[Task] = Dependencies(self._schedule)
        counts: dict[str, int] = defaultdict(int)
        for op, moment, turn in walk_without(self._schedule.program(place), place, self._gaps):
            task = Task(op, moment, counts[op.name], turn)
            counts[op.name] += 1
            task.needs = dependencies.enter(op, moment, task)
            yield task

    def _lane(self, rank: int, name: str, feed: Feed) -> Process:
        """Take ops in program order; each starts when all it depends on has ended and it has been issued."""
        host = self._machine.host
        issue = host.issue_seconds if host is not None else 0.0
        while (task := (yield from feed.take(name))) is not None:
            self._open[rank, name] = task
            for need in task.needs:
                if not need.ended:
                    yield need.wait(self._env)
            task.ready = max((need.end for need in task.needs), default=0.0)
            task.needs = []
            if issue:
                yield from self._issue(issue)
            task.start = self._env.now
            if isinstance(task.op, Communication):
                yield self._communicate(rank, task, task.op)
            else:
                yield from self._compute(rank, task)
            task.finish(self._env.now)
            del self._open[rank, name]
            self._note(rank, name, task)

    def _issue(self, seconds: float) -> Process:
        if self._strides is not None:
            self._strides.waiting += 1
        yield self._env.timeout(seconds)
        if self._strides is not None:
            self._strides.waiting -= 1

    def _note(self, rank: int, name: str, task: Task) -> None:
        axis = task.op.axis if isinstance(task.op, Communication) else None
        self.spans.append(Span.of(rank, task.op, name, task.index, axis, task.ready, task.start, task.end))
        instance = (rank, task.op.name, task.index)
        self.spent[instance] = task.spent
        if task.spent.extrapolated:
            self.extrapolated.add(task.op.name)
        if task.turn is not None and self._gaps:
            self.turns[instance] = task.turn
            if rank == self._timekeepers.setdefault(task.turn[0], rank):
                self.loads[task.turn] = (task.end, self.engine.loads())

    def _compute(self, rank: int, task: Task) -> Process:
        assert not isinstance(task.op, Communication)
        work = self._local.of_op(rank, task.op, task.place)
        if self._strides is not None:
            self._strides.happened()
        yield self.engine.event_of(work.flow_class, work.seconds)
        if self._strides is not None:
            self._strides.happened()
        task.spent = Spent(compute=work.seconds, extrapolated=work.extrapolated)
        task.spent.on_path("compute", work.seconds)
        task.spent.on_path("contention", self._env.now - task.start - work.seconds)

    def _communicate(self, rank: int, task: Task, op: CommunicationOp) -> simpy.Event:
        """Begin a communication op; the event is its end on this rank."""
        duty = self._duties.communication(op, task.place)
        done = self._env.event()

        def ended(member: Member) -> None:
            task.spent = member.spent
            if self._strides is not None:
                self._strides.leave(member)
            done.succeed()

        member = Member(
            rank,
            op,
            self._ranks.group(rank, op.axis),
            duty,
            engine=self.engine,
            local=self._local,
            board=self._board,
            ended=ended,
        )
        overhead = self._communication_overhead(duty.moved is None)
        if self._strides is not None:
            self._strides.enter(member)
        member.spent.on_path("latency", overhead)
        self._after(overhead, member.begin)
        return done

    def _communication_overhead(self, alone: bool) -> float:
        """Seconds beside the steps of a communication op; measured steps between ranks of a host include theirs."""
        host, device = self._machine.host, self._machine.device
        if host is not None:
            return host.alone_seconds if alone else 0.0
        return 0.0 if alone else device.overhead_seconds

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        if seconds:
            self.engine.start(0.0, {}, cap=1.0, latency=seconds, then=action)
        else:
            action()
