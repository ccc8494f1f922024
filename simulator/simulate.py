"""The virtual-time interpreter: one schedule, predicted on a machine.

SimPy keeps the clock and runs the lanes at the grain of ops.  What ops share
(cores, memory, links) lives in the flow engine, which shows SimPy one event,
its next change.  Each rank has a process that follows its program and hands
ops to its lanes, and one process a lane, which takes them in program order.
"""

from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from math import sqrt

import simpy

from algorithms.choices import Choices
from algorithms.copies import copies
from algorithms.dependencies import Dependencies
from algorithms.errors import Deadlock
from algorithms.machine import Machine
from algorithms.ops import Communication, CommunicationOp, Compute, Gemm, HostCopy, Op, Pointwise, lane, reads, writes
from algorithms.parts import Place
from algorithms.schedule import Schedule, all_ops, walk
from algorithms.timeline import Span, Timeline
from algorithms.traffic import traffic
from algorithms.volumes import gemm_sizes
from simulator.compute import ComputeModel, Estimate
from simulator.engine import FlowEngine
from simulator.members import Board, Member
from simulator.wiring import Wiring

LOOKAHEAD = 64
"""Ops handed to a lane before it has taken them: what is kept does not grow with the schedule."""

Parts = dict[str, float]
Process = Generator[simpy.Event, object, None]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a schedule will take on a machine.

    Parameters
    ----------
    timeline : every op of every rank
    parts : seconds of each op by cause (compute, transfer, latency, waiting), means over ranks
    extrapolated : names of the ops whose time lies outside what was measured on the machine
    relative_uncertainty : half the width of a 90 % interval around the makespan, over the makespan
    """

    timeline: Timeline
    parts: dict[str, Parts]
    extrapolated: frozenset[str]
    relative_uncertainty: float


@dataclass(eq=False, slots=True)
class Task:
    """One instance of an op on one rank."""

    op: Op
    place: Place
    index: int
    done: simpy.Event
    needs: list["Task"] = field(default_factory=list)
    ready: float = 0.0
    start: float = 0.0
    end: float = 0.0


def simulate(
    schedule: Schedule,
    machine: Machine,
    *,
    choices: Choices | None = None,
    threads: int | None = None,
) -> Prediction:
    """Predict the schedule on a machine.

    Parameters
    ----------
    choices : who carries out the collectives; the library's are predicted as named algorithms
    threads : BLAS threads of each rank, by default its share of the host's cores

    Raises
    ------
    InputError : more ranks than GPUs, an unknown topology
    Deadlock : ranks that wait on each other, with their ops
    """
    return Simulation(schedule, machine, choices or Choices(), threads).run()


class Simulation:
    """All ranks of one schedule on the clock of one SimPy environment."""

    def __init__(self, schedule: Schedule, machine: Machine, choices: Choices, threads: int | None) -> None:
        self._schedule = schedule
        self._machine = machine
        self._choices = choices
        self._env = simpy.Environment()
        self._engine = FlowEngine(self._env)
        self._wiring = Wiring(machine, schedule.grid.size, self._engine)
        self._board = Board()
        self._models: dict[tuple[int, int], ComputeModel] = {}
        self._threads = threads
        self._spans: list[Span] = []
        self._parts: dict[str, Parts] = defaultdict(lambda: defaultdict(float))
        self._extrapolated: set[str] = set()
        self._open: dict[tuple[int, str], Task] = {}

    def run(self) -> Prediction:
        """Run every rank to its end."""
        ranks = [self._env.process(self._rank(rank)) for rank in range(self._schedule.grid.size)]
        everyone = self._env.all_of(ranks)
        try:
            self._env.run(until=everyone)
        except RuntimeError:
            if everyone.triggered:
                raise
            raise Deadlock(self._stuck()) from None
        timeline = Timeline.of_spans(self._spans, "predicted", self._schedule.grid, name=self._schedule.name)
        return Prediction(
            timeline, self._mean_parts(timeline), frozenset(self._extrapolated), self._uncertainty(timeline)
        )

    def _stuck(self) -> str:
        who = ", ".join(f"rank {rank} in {task.op.name!r}" for (rank, _), task in sorted(self._open.items()))
        return f"deadlock: {who}; each waits for another"

    def model(self, rank: int) -> ComputeModel:
        """The compute model of a rank: ranks with as many neighbours and threads share one."""
        neighbours = self._wiring.neighbours(rank)
        busy = min(neighbours, self._wiring.cores_of(self._wiring.home(rank)))
        threads = self._threads or self._wiring.threads(rank)
        if (threads, busy) not in self._models:
            self._models[threads, busy] = ComputeModel(self._machine, self._schedule.dtype, threads, busy)
        return self._models[threads, busy]

    def _rank(self, rank: int) -> Process:
        """Follow the program and hand each op to its lane, then wait for the lanes to end."""
        place = self._schedule.place(rank)
        names = dict.fromkeys(["compute", *(lane(op) for op in all_ops(self._schedule))])
        queues = {name: simpy.Store(self._env, LOOKAHEAD) for name in names}
        lanes = [self._env.process(self._lane(rank, name, queue)) for name, queue in queues.items()]
        program = self._schedule.program(place)
        dependencies: Dependencies[Task] = Dependencies(self._schedule)
        counts: dict[str, int] = defaultdict(int)
        for op, moment in walk(program, place):
            task = Task(op, moment, counts[op.name], self._env.event())
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
        self._spans.append(Span.of(rank, task.op, name, task.index, axis, task.ready, task.start, task.end))

    def _perform(self, rank: int, task: Task) -> Process:
        if isinstance(task.op, Communication):
            yield self._communicate(rank, task.op, task.place)
            return
        estimates = list(self._estimates(rank, task.op, task.place))
        if any(estimate.extrapolated for estimate in estimates):
            self._extrapolated.add(task.op.name)
        seconds = sum(estimate.seconds for estimate in estimates)
        threads = min(self._threads or self._wiring.threads(rank), self._wiring.cores_of(self._wiring.home(rank)))
        touches = self._touched(task.op, task.place) / seconds if seconds else 0.0
        yield self._engine.event(seconds, self._wiring.local(rank, float(threads), touches), cap=1.0)

    def _touched(self, op: Compute, place: Place) -> int:
        """Bytes of memory that local work reads and writes at least."""
        blocks = {name: self._schedule.tensors[name].block(place).elements for name in {*reads(op), *writes(op)}}
        return sum(size * self._schedule.item_bytes(name) for name, size in blocks.items())

    def _estimates(self, rank: int, op: Gemm | Pointwise | HostCopy, place: Place) -> Generator[Estimate, None, None]:
        model = self.model(rank)
        if isinstance(op, Gemm):
            m, k, n = gemm_sizes(op, self._schedule, place)
            yield model.gemm(m, k, n, op.layout)
            if op.accumulate:
                yield model.memory("add", m * n * self._schedule.item_bytes(op.c))
            return
        size = self._schedule.tensors[op.into].block(place).elements * self._schedule.item_bytes(op.into)
        yield model.memory(op.function if isinstance(op, Pointwise) else "copy", size)
        yield Estimate(self._machine.device.overhead_seconds, False)

    def _communicate(self, rank: int, op: CommunicationOp, place: Place) -> simpy.Event:
        """Begin a communication op; the event is its end on this rank."""
        moved = traffic(op, self._schedule, place, self._choices)
        done = self._env.event()

        def ended(member: Member) -> None:
            parts = self._parts[op.name]
            parts["latency"] += member.spent.latency
            parts["compute"] += member.spent.compute
            if member.spent.extrapolated:
                self._extrapolated.add(op.name)
            done.succeed()

        begin = Member(
            rank,
            lane(op),
            self._schedule.grid.group(rank, op.axis),
            moved,
            copies(op, self._schedule, place, moved),
            engine=self._engine,
            wiring=self._wiring,
            compute=self.model(rank),
            board=self._board,
            ended=ended,
        ).begin
        self._after(self._communication_overhead(moved is None), begin)
        return done

    def _communication_overhead(self, alone: bool) -> float:
        """Seconds beside the steps of a communication op; measured steps between ranks of a host include theirs."""
        host, device = self._machine.host, self._machine.device
        if host is not None:
            return host.alone_seconds if alone else 0.0
        return 0.0 if alone else device.overhead_seconds

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        if seconds:
            self._engine.start(0.0, {}, cap=1.0, latency=seconds, then=action)
        else:
            action()

    def _mean_parts(self, timeline: Timeline) -> dict[str, Parts]:
        """Seconds of each op by cause, means over ranks; transfer is what the other causes leave."""
        found: dict[str, Parts] = {}
        for name, times in timeline.op_times().items():
            own = self._parts.get(name, {})
            latency = min(times.seconds, own.get("latency", 0.0) / timeline.ranks)
            compute = min(times.seconds - latency, own.get("compute", 0.0) / timeline.ranks)
            if times.lane == "compute":
                latency, compute = 0.0, times.seconds
            found[name] = {
                "compute": compute,
                "transfer": times.seconds - latency - compute,
                "latency": latency,
                "waiting": times.waiting_seconds,
            }
        return found

    def _uncertainty(self, timeline: Timeline) -> float:
        """90 % of a normal error made of the fit's residuals and the noise beside calibration."""
        fit, reference = self._machine.fit, self._machine.reference
        residual = max(fit.residuals.values(), default=0.0) if fit is not None else 0.0
        noise = reference.gemm_spread if reference is not None else 0.0
        return 1.645 * sqrt((1.48 * residual) ** 2 + (noise / 1.645) ** 2)
