"""The lanes of the ranks on one clock, from the first op to the last.

SimPy keeps the clock and runs the lanes at the grain of ops.  What ops share
(cores, memory, links) lives in the flow engine, which shows SimPy one event,
its next change.  Each lane of a rank is a process, which takes the ops of the
rank's program in order (`tasks.py`).
"""

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

import simpy

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.analysis.op_plans import OpPlans
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.schedule.ops import Communication, lane
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.timelines.spans import COMPUTE, Span
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.loops.period_detector import BudgetExceeded, PeriodDetector
from quadrille.simulator.loops.skipped_iterations import Iteration
from quadrille.simulator.machine.library_collectives import LibraryTimes
from quadrille.simulator.ranks.deadlocks import explained
from quadrille.simulator.ranks.local_work import LocalWork
from quadrille.simulator.ranks.op_programs import BlockedRank, OpPrograms
from quadrille.simulator.ranks.oversubscribed_cores import OversubscribedCores
from quadrille.simulator.ranks.send_queues import SendQueues
from quadrille.simulator.ranks.simulated_ranks import SimulatedRanks
from quadrille.simulator.ranks.tasks import LaneTask, Process, ProgramFeed
from quadrille.simulator.ranks.time_breakdown import TimeBreakdown
from quadrille.simulator.symmetry.signatures import LoopPosition
from quadrille.topologies.machines.machine import Machine

OpInstance = tuple[int, str, int]
"""A rank, an op and the how manieth one."""


OP_WALL_SECONDS = 8e-5
EVENT_WALL_SECONDS = 2.5e-6
"""What an op of a rank and an event within it cost to simulate, about, on two cores of 2026."""
TOO_LONG = "it takes longer to simulate than was expected"


@dataclass(frozen=True, slots=True)
class SimulationInputs:
    """What is simulated, on what.

    Parameters
    ----------
    threads : BLAS threads of each rank, by default its share of the host's cores
    """

    schedule: Schedule
    machine: Machine
    choices: Choices
    ranks: SimulatedRanks
    threads: int | None = None


class LaneSimulation:
    """The lanes of all simulated ranks.

    Parameters
    ----------
    watch : decides which turns of loops are passed over
    local, memory, long : of the engine
    most_wall_seconds : after which the simulation is given up, see `wall_seconds`
    """

    def __init__(
        self,
        given: SimulationInputs,
        watch: PeriodDetector,
        *,
        local: bool = True,
        memory: bool = True,
        long: bool = False,
        most_wall_seconds: float = inf,
    ) -> None:
        self._most_wall_seconds = most_wall_seconds
        self._schedule, self._machine, self._ranks = given.schedule, given.machine, given.ranks
        self._watch = watch
        self._env = simpy.Environment()
        self.engine = FlowEngine(self._env, local=local, memory=memory, long=long)
        wiring = given.ranks.wiring(self.engine)
        op_plans = OpPlans(given.schedule, given.choices)
        local_work = LocalWork(given.machine, given.schedule.dtype, op_plans, wiring, given.threads)
        placement = given.ranks.placement
        self._balancing = OversubscribedCores(self._env, self.engine, placement) if placement.uneven else None
        self._programs = OpPrograms(
            given.machine,
            given.ranks,
            wiring,
            op_plans,
            local_work,
            self.engine,
            given.choices,
            LibraryTimes(given.machine, given.schedule.grid, given.ranks.placement),
            self._balancing,
        )
        self._postmen = SendQueues(self.engine)
        self._members: dict[tuple[int, str], int] = {}
        self._names = list(dict.fromkeys([COMPUTE, *(lane(op) for op in all_ops(given.schedule))]))
        self._open: dict[tuple[int, str], LaneTask] = {}
        self.spans: list[Span] = []
        self.spent: dict[OpInstance, TimeBreakdown] = {}
        self.turns: dict[OpInstance, Iteration] = {}
        self._timekeepers: dict[LoopPosition, int] = {}  # the rank at whose turns of a loop loads are looked at
        self.loads: dict[Iteration, tuple[float, list[tuple[float, float]]]] = {}
        self.extrapolated: set[str] = set()

    @property
    def labels(self) -> Mapping[str, str]:
        """By what collectives of the library went, where that is known."""
        return self._programs.labels

    @property
    def wall_seconds(self) -> float:
        """What the simulation has taken so far, about, as the numbers of ops and events tell: the same everywhere."""
        return len(self.spans) * OP_WALL_SECONDS + self.engine.events * EVENT_WALL_SECONDS

    def run(self) -> None:
        """Every simulated rank to its end.

        Raises
        ------
        Deadlock : ranks that wait on each other, with their ops
        BudgetExceeded : it takes too long
        """
        lanes = [one for rank in self._ranks.simulated for one in self._lanes(rank)]
        everyone = self._env.all_of(lanes)
        try:
            self._env.run(until=everyone)
        except RuntimeError:
            if everyone.triggered:
                raise
            doing = {(rank, name): task.op.name for (rank, name), task in self._open.items()}
            raise Deadlock(explained(doing, self._waiting(), self._ranks.stands_for)) from None

    def _lanes(self, rank: int) -> Iterator[simpy.Process]:
        """The processes of a rank's lanes."""
        feed = ProgramFeed(self._env, self._program(rank), self._names)
        slows = self._machine.device.communication_slowdown
        beside = slows > 1.0 or self._programs.late_seconds > 0.0
        computing = self.engine.member(message_slowdown=slows)
        for name in self._names:
            self._members[rank, name] = (
                computing
                if name == COMPUTE
                else self.engine.member(self._programs.pace(rank), compute_member=computing if beside else None)
            )
            yield self._env.process(self._lane(rank, name, feed))

    def _program(self, rank: int) -> Iterator[LaneTask]:
        """The tasks of a rank in program order, each with those that it waits for."""
        place = self._schedule.coordinates(rank)
        dependencies: Dependencies[LaneTask] = Dependencies(self._schedule)
        counts: dict[str, int] = defaultdict(int)
        for op, moment, turn in self._watch.walk(self._schedule.program(place), place):
            task = LaneTask(op, moment, counts[op.name], turn)
            counts[op.name] += 1
            task.needs = dependencies.enter(op, moment, task)
            yield task

    def _lane(self, rank: int, name: str, feed: ProgramFeed) -> Process:
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
                yield self._env.timeout(issue)
            task.start = self._env.now
            self._watch.began(task.turn)
            task.spent = yield from self._carried_out(rank, name, task)
            task.finish(self._env.now)
            del self._open[rank, name]
            self._note(rank, name, task)

    def _note(self, rank: int, name: str, task: LaneTask) -> None:
        axis = task.op.axis if isinstance(task.op, Communication) else None
        if self.wall_seconds > self._most_wall_seconds:
            raise BudgetExceeded(TOO_LONG)
        self.spans.append(Span.of(rank, task.op, name, task.index, axis, task.ready, task.start, task.end))
        instance = (rank, task.op.name, task.index)
        self.spent[instance] = task.spent
        if task.spent.extrapolated:
            self.extrapolated.add(task.op.name)
        self._watch.ended(task.turn, (*instance, task.ready, task.start, task.end))
        if task.turn is not None:
            self.turns[instance] = task.turn
            if task.turn not in self.loads and rank == self._timekeepers.setdefault(task.turn[0], rank):
                self.loads[task.turn] = (task.end, self.engine.loads())

    def _carried_out(self, rank: int, name: str, task: LaneTask) -> Generator[simpy.Event, None, TimeBreakdown]:
        """An op from its begin to its end on this rank; what that went into."""
        op, place = task.op, task.place
        if not isinstance(op, Communication):
            return (yield from self._computed(rank, name, self._programs.compute(rank, op, place)))
        course = self._programs.communication(rank, op, place)
        if course.posted is not None:
            self._postmen.post(rank, name, course.posted)
        spent = yield from self._gone_through(rank, name, course.own)
        return replace(spent, extrapolated=True) if course.extrapolated else spent

    def _computed(self, rank: int, name: str, program: int) -> Generator[simpy.Event, None, TimeBreakdown]:
        """An op of the compute lane."""
        if self._balancing is not None:
            self._balancing.begin(rank)
        spent = yield from self._gone_through(rank, name, program)
        if self._balancing is not None:
            self._balancing.end(rank)
        return spent

    def _gone_through(self, rank: int, name: str, program: int) -> Generator[simpy.Event, None, TimeBreakdown]:
        """A program of a lane."""
        done, member = self._env.event(), self._members[rank, name]
        self.engine.begin(member, program, done.succeed)
        yield done
        return TimeBreakdown.of(self.engine.member_seconds(member))

    def _waiting(self) -> list[BlockedRank]:
        """Ranks in communication ops that wait for another."""
        found = []
        for (rank, name), task in sorted(self._open.items(), key=lambda entry: entry[0]):
            if isinstance(task.op, Communication):
                found.append(self._programs.waiting(rank, task.op, task.place, self._members[rank, name]))
        return [one for one in found if one is not None]
