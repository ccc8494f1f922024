"""The lanes of the ranks on one clock, from the first op to the last.

SimPy keeps the clock and runs the lanes at the grain of ops.  What ops share
(cores, memory, links) lives in the flow engine, which shows SimPy one event,
its next change.  Each rank has a process that follows its program and hands
ops to its lanes, and one process a lane, which takes them in program order.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import simpy

from algorithms.choices import Choices
from algorithms.copies import copies
from algorithms.dependencies import Dependencies
from algorithms.errors import Deadlock
from algorithms.machine import Machine
from algorithms.ops import Communication, CommunicationOp, Compute, Gemm, HostCopy, Op, Pointwise, lane, reads, writes
from algorithms.parts import Place
from algorithms.schedule import Schedule, all_ops
from algorithms.timeline import Span
from algorithms.traffic import traffic
from algorithms.volumes import gemm_sizes
from simulator.compute import ComputeModel, Estimate
from simulator.engine import FlowEngine
from simulator.folding.alike_ranks import Population
from simulator.folding.turns import Gap, Turn, walk_without
from simulator.members import Board, Member, Spent
from simulator.stuck import explained

LOOKAHEAD = 64
"""Ops handed to a lane before it has taken them: what is kept does not grow with the schedule."""

Process = Generator[simpy.Event, object, None]
Instance = tuple[int, str, int]
"""A rank, an op and the how manieth one."""


@dataclass(eq=False, slots=True)
class Task:
    """One instance of an op on one rank."""

    op: Op
    place: Place
    index: int
    turn: Turn | None
    done: simpy.Event
    needs: list["Task"] = field(default_factory=list)
    ready: float = 0.0
    start: float = 0.0
    end: float = 0.0
    spent: Spent = field(default_factory=Spent)


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
    """

    def __init__(self, given: Circumstances, gaps: Sequence[Gap], *, memory: bool = True, local: bool = True) -> None:
        self._schedule, self._machine, self._choices = given.schedule, given.machine, given.choices
        self._ranks, self._threads = given.ranks, given.threads
        self._gaps = gaps
        self._env = simpy.Environment()
        self.engine = FlowEngine(self._env, memory=memory, local=local)
        self._wiring = given.ranks.wiring(self.engine)
        self._board = Board()
        self._models: dict[tuple[int, int, float], ComputeModel] = {}
        self._open: dict[tuple[int, str], Task] = {}
        self.spans: list[Span] = []
        self.spent: dict[Instance, Spent] = {}
        self.turns: dict[Instance, Turn] = {}
        self.loads: dict[Turn, tuple[float, list[tuple[float, float]]]] = {}
        self.extrapolated: set[str] = set()

    def run(self) -> None:
        """Every simulated rank to its end.

        Raises
        ------
        Deadlock : ranks that wait on each other, with their ops
        """
        ranks = [self._env.process(self._rank(rank)) for rank in self._ranks.simulated]
        everyone = self._env.all_of(ranks)
        try:
            self._env.run(until=everyone)
        except RuntimeError:
            if everyone.triggered:
                raise
            doing = {(rank, name): task.op.name for (rank, name), task in self._open.items()}
            raise Deadlock(explained(doing, self._board.waiting(), self._ranks.stands_for)) from None

    def _model(self, rank: int) -> ComputeModel:
        """The compute model of a rank: ranks with as many neighbours and threads, and of one speed, share one."""
        neighbours = self._wiring.neighbours(rank)
        busy = min(neighbours, self._wiring.cores_of(self._wiring.home(rank)))
        key = (self._threads or self._wiring.threads(rank), busy, self._wiring.speed(rank))
        if key not in self._models:
            threads, busy, speed = key
            self._models[key] = ComputeModel(self._machine, self._schedule.dtype, threads, busy, speed)
        return self._models[key]

    def _rank(self, rank: int) -> Process:
        """Follow the program and hand each op to its lane, then wait for the lanes to end."""
        place = self._schedule.place(rank)
        names = dict.fromkeys(["compute", *(lane(op) for op in all_ops(self._schedule))])
        queues = {name: simpy.Store(self._env, LOOKAHEAD) for name in names}
        lanes = [self._env.process(self._lane(rank, name, queue)) for name, queue in queues.items()]
        program = self._schedule.program(place)
        dependencies: Dependencies[Task] = Dependencies(self._schedule)
        counts: dict[str, int] = defaultdict(int)
        for op, moment, turn in walk_without(program, place, self._gaps):
            task = Task(op, moment, counts[op.name], turn, self._env.event())
            counts[op.name] += 1
            task.needs = dependencies.enter(op, moment, task)
            yield queues[lane(op)].put(task)
        for queue in queues.values():
            yield queue.put(None)
        yield from lanes

    def _lane(self, rank: int, name: str, queue: simpy.Store) -> Process:
        """Take ops in program order; each starts when all it depends on has ended and it has been issued."""
        host = self._machine.host
        issue = host.issue_seconds if host is not None else 0.0
        while True:
            task = yield queue.get()
            if task is None:
                return
            assert isinstance(task, Task)
            self._open[rank, name] = task
            for need in task.needs:
                if not need.done.processed:
                    yield need.done
            task.ready = max((need.end for need in task.needs), default=0.0)
            task.needs = []
            if issue:
                yield self._env.timeout(issue)
            task.start = self._env.now
            yield from self._perform(rank, task)
            task.end = self._env.now
            del self._open[rank, name]
            self._note(rank, name, task)
            task.done.succeed()

    def _note(self, rank: int, name: str, task: Task) -> None:
        axis = task.op.axis if isinstance(task.op, Communication) else None
        self.spans.append(Span.of(rank, task.op, name, task.index, axis, task.ready, task.start, task.end))
        instance = (rank, task.op.name, task.index)
        self.spent[instance] = task.spent
        if task.spent.extrapolated:
            self.extrapolated.add(task.op.name)
        if task.turn is not None and self._gaps:
            self.turns[instance] = task.turn
            if rank == self._ranks.simulated[0]:
                self.loads[task.turn] = (task.end, self.engine.loads())

    def _perform(self, rank: int, task: Task) -> Process:
        if isinstance(task.op, Communication):
            yield self._communicate(rank, task, task.op)
            return
        estimates = list(self._estimates(rank, task.op, task.place))
        seconds = sum(estimate.seconds for estimate in estimates)
        threads = min(self._threads or self._wiring.threads(rank), self._wiring.cores_of(self._wiring.home(rank)))
        touches = float(self._touched(task.op, task.place)) / seconds if seconds else 0.0
        yield self.engine.event(seconds, self._wiring.local(rank, float(threads), touches), cap=1.0)
        task.spent = Spent(compute=seconds, extrapolated=any(estimate.extrapolated for estimate in estimates))
        task.spent.on_path("compute", seconds)
        task.spent.on_path("contention", float(self._env.now) - task.start - seconds)

    def _touched(self, op: Compute, place: Place) -> int:
        """Bytes of memory that local work reads and writes at least."""
        blocks = {name: self._schedule.tensors[name].block(place).elements for name in {*reads(op), *writes(op)}}
        return sum(size * self._schedule.item_bytes(name) for name, size in blocks.items())

    def _estimates(self, rank: int, op: Gemm | Pointwise | HostCopy, place: Place) -> Generator[Estimate, None, None]:
        model = self._model(rank)
        if isinstance(op, Gemm):
            m, k, n = gemm_sizes(op, self._schedule, place)
            yield model.gemm(m, k, n, op.layout)
            if op.accumulate:
                yield model.memory("add", m * n * self._schedule.item_bytes(op.c))
            return
        size = self._schedule.tensors[op.into].block(place).elements * self._schedule.item_bytes(op.into)
        yield model.memory(op.function if isinstance(op, Pointwise) else "copy", size)
        yield Estimate(self._machine.device.overhead_seconds, False)

    def _communicate(self, rank: int, task: Task, op: CommunicationOp) -> simpy.Event:
        """Begin a communication op; the event is its end on this rank."""
        moved = traffic(op, self._schedule, task.place, self._choices)
        done = self._env.event()

        def ended(member: Member) -> None:
            task.spent = member.spent
            done.succeed()

        member = Member(
            rank,
            op,
            self._ranks.group(rank, op.axis),
            moved,
            copies(op, self._schedule, task.place, moved),
            engine=self.engine,
            wiring=self._wiring,
            compute=self._model(rank),
            board=self._board,
            ended=ended,
        )
        overhead = self._communication_overhead(moved is None)
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
