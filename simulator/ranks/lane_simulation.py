"""`LaneSimulation`: the exact simulation of all ranks on one clock, from the first op to the last.

A *lane* of a rank is a sequence of ops that run in order, as on a CUDA stream: computation, or communication along
one axis.  SimPy keeps the clock and runs the lanes at the granularity of ops.  The flow engine simulates the
resources that ops share (cores, memory, links); SimPy sees one event of it, its next change.  Each
lane of a rank is a SimPy process, which runs the ops of the rank's program in order (`tasks.py`).
"""

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import simpy

from quadrille.algorithms.analysis.dependencies import Dependencies, Undecided
from quadrille.algorithms.analysis.op_plans import OpPlans
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.schedule.ops import HOST_LANES, Communication, Op, is_host_op, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import DrivenPasses, PassKind, ranks_to_peer
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.timelines.spans import COMPUTE, Span
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.loops.period_detector import PeriodDetector
from quadrille.simulator.loops.skipped_iterations import Iteration
from quadrille.simulator.machine.library_collectives import LibraryTimes
from quadrille.simulator.ranks.local_work import LocalWork
from quadrille.simulator.ranks.op_programs import BlockedRank, OpPrograms
from quadrille.simulator.ranks.simulated_ranks import SimulatedRanks
from quadrille.simulator.ranks.tasks import LOOKAHEAD, LaneTask, Process, ProgramFeed
from quadrille.simulator.ranks.time_breakdown import OpInstance, TimeBreakdown
from quadrille.simulator.symmetry.signatures import LoopPosition
from quadrille.simulator.work_budget import WorkBudget
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from quadrille.simulator.ranks.eager_protocol import SendQueues
    from quadrille.simulator.ranks.jitter import Jitter
    from quadrille.simulator.ranks.oversubscribed_cores import OversubscribedCores
    from quadrille.simulator.ranks.pass_agreement import SimulatedAgreement

OP_WALL_SECONDS = 8e-5
"""Approximate wall time to simulate one op of a rank, on two cores of 2026 [s]."""


@dataclass(frozen=True, slots=True)
class SimulationInputs:
    """A schedule, the machine it runs on, and the ranks to simulate.

    Parameters
    ----------
    choices : implementation and algorithm of each collective
    threads : BLAS threads of each rank, by default its share of the host's cores
    jitter : noise of op instances, None for no noise
    """

    schedule: Schedule
    machine: Machine
    choices: Choices
    ranks: SimulatedRanks
    threads: int | None = None
    jitter: "Jitter | None" = None


class LaneSimulation:
    """Simulates the lanes of all simulated ranks; `spans` and `breakdowns` hold the results.

    Parameters
    ----------
    detector : decides which loop iterations are skipped
    local, memory, long, plain_events : options of the engine, see `FlowEngine`
    budget : the wall time that the simulation may take; by default no limit
    lookahead : largest number of tasks queued for a lane
    """

    def __init__(
        self,
        inputs: SimulationInputs,
        detector: PeriodDetector,
        *,
        local: bool = True,
        memory: bool = True,
        long: bool = False,
        plain_events: int | None = None,
        budget: WorkBudget | None = None,
        lookahead: int = LOOKAHEAD,
    ) -> None:
        self._budget, self._lookahead = budget or WorkBudget(), lookahead
        self._schedule, self._machine, self._ranks = inputs.schedule, inputs.machine, inputs.ranks
        self._detector = detector
        self._env = simpy.Environment()
        self.engine = FlowEngine(
            self._env, local=local, memory=memory, long=long, plain_events=plain_events, budget=self._budget
        )
        demands = inputs.ranks.demands(self.engine)
        op_plans = OpPlans(inputs.schedule, inputs.choices)
        local_work = LocalWork(inputs.machine, inputs.schedule.dtype, op_plans, demands, inputs.threads)
        placement = inputs.ranks.placement
        self._cores = self._oversubscribed_cores() if placement.oversubscribed else None
        self._programs = OpPrograms(
            inputs.machine,
            inputs.ranks,
            demands,
            op_plans,
            local_work,
            self.engine,
            inputs.choices,
            LibraryTimes(inputs.machine, inputs.schedule.grid, inputs.ranks.placement),
            self._cores,
            inputs.jitter,
        )
        self._send_queues: SendQueues | None = None  # made for the first eager send
        self._streams: dict[tuple[int, str], int] = {}
        self._lane_of = partial(simulated_lane, machine=inputs.machine)
        self._names = list(dict.fromkeys([COMPUTE, *map(self._lane_of, all_ops(inputs.schedule))]))
        self._open: dict[tuple[int, str], LaneTask] = {}
        self._decisions: dict[int, list[PassKind]] = defaultdict(list)  # by the rank that decided
        self._agreements: dict[int, SimulatedAgreement] = {}  # by rank
        self.spans: list[Span] = []
        self.breakdowns: dict[OpInstance, TimeBreakdown] = {}
        self.iterations: dict[OpInstance, Iteration] = {}
        self._snapshot_ranks: dict[LoopPosition, int] = {}  # by loop
        self.load_snapshots: dict[Iteration, tuple[float, list[tuple[float, float]]]] = {}
        self.extrapolated: set[str] = set()

    @property
    def labels(self) -> Mapping[str, str]:
        """Algorithm of each collective that the MPI or NCCL library executes, by op, if it is known."""
        return self._programs.labels

    def run(self) -> None:
        """Simulate every rank to its end.

        Raises
        ------
        Deadlock : ranks that wait on each other, with their ops
        BudgetExceeded : the simulation takes too long
        """
        lanes = [process for rank in self._ranks.simulated for process in self._lanes(rank)]
        everyone = self._env.all_of(lanes)
        try:
            self._env.run(until=everyone)
        except RuntimeError:
            from quadrille.simulator.ranks.deadlocks import deadlock_message

            if everyone.triggered:
                raise
            doing = {(rank, name): task.op.name for (rank, name), task in self._open.items()}
            raise Deadlock(deadlock_message(doing, self._blocked_ranks(), self._ranks.stands_for)) from None

    def _lanes(self, rank: int) -> Iterator[simpy.Process]:
        """SimPy processes of a rank's lanes."""
        feed = ProgramFeed(self._env, self._program(rank), self._names, self._lane_of, self._lookahead)
        slows = self._machine.device.communication_slowdown
        overlaps = slows > 1.0 or self._programs.wakeup_delay > 0.0
        computing = self.engine.add_stream(message_slowdown=slows)
        for name in self._names:
            if name == COMPUTE:
                stream = computing
            elif name in HOST_LANES:
                stream = self.engine.add_stream()
            else:
                stream = self.engine.add_stream(
                    self._programs.throttle(rank), compute_stream=computing if overlaps else None
                )
            self._streams[rank, name] = stream
            yield self._env.process(self._lane(rank, name, feed))

    def _program(self, rank: int) -> "Iterator[LaneTask | Undecided[LaneTask]]":
        """Tasks of a rank in program order, each with the tasks that it depends on."""
        rank_coordinates = self._schedule.coordinates(rank)
        dependencies: Dependencies[LaneTask] = Dependencies(self._schedule)
        counts: dict[str, int] = defaultdict(int)

        def enter(op: Op, coordinates: Coordinates, iteration: Iteration | None = None) -> LaneTask:
            task = LaneTask(op, coordinates, counts[op.name], iteration)
            counts[op.name] += 1
            task.needs = dependencies.enter(op, coordinates, task)
            return task

        for op, coordinates, iteration in self._detector.walk(
            self._schedule.program(rank_coordinates), rank_coordinates
        ):
            if isinstance(op, DrivenPasses):
                from quadrille.algorithms.analysis.driven_passes import MessageDrivenStage

                yield from MessageDrivenStage(op, coordinates, enter, _end_of, self._agreement(rank)).walk()
            else:
                yield enter(op, coordinates, iteration)

    def _agreement(self, rank: int) -> "SimulatedAgreement":
        """What a rank learns about the next pass; one for all steps."""
        from quadrille.simulator.ranks.pass_agreement import SimulatedAgreement

        return self._agreements.setdefault(rank, SimulatedAgreement(self._decisions, self._ranks, rank))

    def _lane(self, rank: int, name: str, feed: ProgramFeed) -> Process:
        """Run tasks in program order; a task starts when its needs have ended and it has been issued."""
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
                yield self._env.timeout(issue)
            task.start = self._env.now
            self._detector.op_began(task.iteration)
            task.breakdown = yield from self._run_op(rank, name, task)
            task.finish(self._env.now)
            del self._open[rank, name]
            self._record(rank, name, task)

    def _record(self, rank: int, name: str, task: LaneTask) -> None:
        """Record the span, the time breakdown and the iteration of a finished task."""
        axis = task.op.axis if isinstance(task.op, Communication) else None
        self._budget.charge(OP_WALL_SECONDS)
        times = task.ready, task.start, task.end
        self.spans.append(
            Span.of(rank, task.op, name, task.index, axis, *times, ranks_to_peer(task.op, task.coordinates))
        )
        instance = (rank, task.op.name, task.index)
        self.breakdowns[instance] = task.breakdown
        if task.breakdown.extrapolated:
            self.extrapolated.add(task.op.name)
        self._detector.op_ended(task.iteration, (*instance, task.ready, task.start, task.end))
        if task.iteration is not None:
            self.iterations[instance] = task.iteration
            snapshot_rank = self._snapshot_ranks.setdefault(task.iteration[0], rank)
            if task.iteration not in self.load_snapshots and rank == snapshot_rank:
                self.load_snapshots[task.iteration] = (task.end, self.engine.loads())

    def _run_op(self, rank: int, name: str, task: LaneTask) -> Generator[simpy.Event, None, TimeBreakdown]:
        """Run an op on a rank; returns its time breakdown."""
        op, coordinates, index = task.op, task.coordinates, task.index
        if is_host_op(op) and name in HOST_LANES:
            return (yield from self._run_host_op(rank, name, self._programs.host_op(rank, op, coordinates)))
        if not isinstance(op, Communication):
            return (yield from self._run_compute(rank, name, self._programs.compute(rank, op, coordinates, index)))
        programs = self._programs.communication(rank, op, coordinates, index)
        if programs.eager_sends is not None:
            self._post(rank, name, programs.eager_sends)
        breakdown = yield from self._run_program(rank, name, programs.own)
        return replace(breakdown, extrapolated=True) if programs.extrapolated else breakdown

    def _run_compute(self, rank: int, name: str, program: int) -> Generator[simpy.Event, None, TimeBreakdown]:
        """Run an op of the compute lane."""
        if self._cores is not None:
            self._cores.begin(rank)
        breakdown = yield from self._run_program(rank, name, program)
        if self._cores is not None:
            self._cores.end(rank)
        return breakdown

    def _run_host_op(self, rank: int, name: str, program: int) -> Generator[simpy.Event, None, TimeBreakdown]:
        """Run a host copy or work of the host; what it takes beyond its latency is a transfer."""
        breakdown = yield from self._run_program(rank, name, program)
        path = dict(breakdown.path)
        moving = path.pop("compute", 0.0)
        return replace(breakdown, compute=0.0, path=path | {"bandwidth": path.get("bandwidth", 0.0) + moving})

    def _run_program(self, rank: int, name: str, program: int) -> Generator[simpy.Event, None, TimeBreakdown]:
        """Run a program of the engine on a lane."""
        done, stream = self._env.event(), self._streams[rank, name]
        self.engine.begin(stream, program, done.succeed)
        yield done
        return TimeBreakdown.of(self.engine.stream_seconds(stream))

    def _post(self, rank: int, name: str, program: int) -> None:
        """Queue a program of eager sends."""
        from quadrille.simulator.ranks.eager_protocol import SendQueues

        self._send_queues = self._send_queues or SendQueues(self.engine)
        self._send_queues.post(rank, name, program)

    def _oversubscribed_cores(self) -> "OversubscribedCores":
        from quadrille.simulator.ranks.oversubscribed_cores import OversubscribedCores

        return OversubscribedCores(self._env, self.engine, self._ranks.placement)

    def _blocked_ranks(self) -> list[BlockedRank]:
        """Ranks in communication ops that wait for another rank."""
        blocked = []
        for (rank, name), task in sorted(self._open.items(), key=lambda entry: entry[0]):
            if isinstance(task.op, Communication):
                stream = self._streams[rank, name]
                blocked.append(self._programs.blocked_rank(rank, task.op, task.coordinates, task.index, stream))
        return [rank for rank in blocked if rank is not None]


def simulated_lane(op: Op, machine: Machine) -> str:
    """The lane of an op on a machine: host ops of a machine without host links are local work."""
    return COMPUTE if machine.host_link is None and is_host_op(op) else lane(op)


def _end_of(task: LaneTask) -> float | None:
    """Time at which a task ended; None if it has not ended [s]."""
    return task.end if task.ended else None
