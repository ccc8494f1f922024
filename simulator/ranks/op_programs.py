"""What an op does on a rank, as a program of the engine: messages on wires, and local work."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from quadrille.algorithms.analysis.coordinate_dependence import Kind
from quadrille.algorithms.analysis.op_plans import CommPlan, OpPlans, PlanStep, step_runs
from quadrille.algorithms.analysis.traffic import calls_of
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.schedule.ops import CommunicationOp, Compute, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.timelines.spans import COMPUTE
from quadrille.simulator.engine.builder import ProgramStage
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.library_collectives import IDENTIFIED, LibraryTime, LibraryTimes
from quadrille.simulator.ranks.eager_op import EagerOp, TaggedStage
from quadrille.simulator.ranks.local_work import HostWork, LocalWork
from quadrille.simulator.ranks.messages import RankMessages
from quadrille.simulator.ranks.oversubscribed_cores import OversubscribedCores
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.simulator.ranks.simulated_ranks import SimulatedRanks
from quadrille.topologies.machines.machine import Machine

LOOK = 1e-6
"""Of a core: what a rank asks for that looks after messages.  What it takes is in what a byte takes."""

LIBRARY_CHUNK_BYTES = 60 << 10
"""Of a library's single message, which no greeting holds up: it goes as a stream, of which so much may be passed on."""


class CommProgram(NamedTuple):
    """The program of a communication op on its rank, and that of the messages that it posts, if it does.

    `extrapolated` says that one of these is larger than what was measured.
    """

    marked: tuple[TaggedStage, ...]
    own: int
    posted: int | None
    extrapolated: bool


@dataclass(frozen=True, slots=True)
class BlockedRank:
    """A rank that waits in a communication op.

    Parameters
    ----------
    step : in which one, from 1
    awaited : ranks that have not come to it
    """

    rank: int
    op: CommunicationOp
    step: int
    awaited: list[int]


class OpPrograms:
    """The programs of the simulated ranks, each made when it is first needed.

    A step of a collective that sends nothing and receives nothing is left out.

    Parameters
    ----------
    choices, library : who carries out the collectives, and what those of the library were measured to take; `labels`
        say of which ops that was known
    balancing : of ranks that cannot be dealt out to cores evenly
    late_seconds : how much later a rank hears of messages that were buffered, where a rank of each host computes
    """

    def __init__(
        self,
        machine: Machine,
        ranks: SimulatedRanks,
        wiring: ResourceDemands,
        op_plans: OpPlans,
        local: LocalWork,
        engine: FlowEngine,
        choices: Choices,
        library: LibraryTimes,
        balancing: OversubscribedCores | None = None,
    ) -> None:
        self._machine, self._ranks, self._wiring = machine, ranks, wiring
        self._duties, self._local, self._engine = op_plans, local, engine
        self._messages = RankMessages(machine, wiring, engine)
        self._choices, self._library, self._balancing = choices, library, balancing
        self.labels: dict[str, str] = {}
        self.late_seconds = machine.network.late_seconds if machine.network is not None else 0.0
        self._of_communication: dict[tuple[int, int, Kind, bool], CommProgram] = {}
        self._of_compute: dict[tuple[int, int, Kind], int] = {}
        self._known: dict[tuple[ProgramStage, ...], int] = {}
        self._works: dict[tuple[int, str, HostWork], int] = {}
        self._delays: dict[tuple[int, str, float], int] = {}
        self._paces: dict[int, int] = {}

    def compute(self, rank: int, op: Compute, place: Coordinates) -> int:
        """The program of an op of the compute lane."""
        key = rank, id(op), self._duties.kind(op, place)
        if key not in self._of_compute:
            work = self._local.of_op(rank, op, place)
            self._of_compute[key] = self._program([ProgramStage(local=self._work(rank, COMPUTE, work))])
        return self._of_compute[key]

    def communication(self, rank: int, op: CommunicationOp, place: Coordinates) -> CommProgram:
        """The programs of a communication op."""
        first = op.name == self._first_by_library and not any(place.indices.values())
        key = rank, id(op), self._duties.kind(op, place), first
        if key not in self._of_communication:
            comm_plan = self._duties.communication(op, place)
            self._of_communication[key] = self._course(rank, op, comm_plan, first=first)
        return self._of_communication[key]

    def waiting(self, rank: int, op: CommunicationOp, place: Coordinates, member: int) -> BlockedRank | None:
        """What a member of the engine waits for within an op; None where that is its own work."""
        stages, done, to_send, to_receive = self._engine.member_progress(member)
        if not (to_send or to_receive):
            return None
        _, step, number = self.communication(rank, op, place).marked[stages]
        assert step is not None, "local work waits for nobody"
        group = self._ranks.group(rank, op.axis)
        ends = {step.send_to: to_send, step.receive_from: to_receive}
        awaited = [group[peer] for peer, waits in ends.items() if peer is not None and waits]
        return BlockedRank(rank, op, number + done, awaited)

    @cached_property
    def _first_by_library(self) -> str | None:
        """The collective with which the library begins, in the first turn of every loop; of several roles one's."""
        schedule = self._ranks.schedule
        found = (op for op in all_ops(schedule) if self._choices.by_library(op) and schedule.grid.length(op.axis) > 1)
        return next((op.name for op in found), None)

    def pace(self, rank: int) -> int | None:
        """How fast a rank computes, slower while it communicates; None where that makes no difference."""
        slowdown = self._machine.device.overlap_slowdown
        if slowdown == 1.0:
            return None
        if rank not in self._paces:
            self._paces[rank] = self._engine.add_throttle(slowdown, f"pace of rank {rank}")
        return self._paces[rank]

    # What they are made of

    def _program(self, stages: list[ProgramStage]) -> int:
        key = tuple(stages)
        if key not in self._known:
            self._known[key] = self._engine.program(stages)
        return self._known[key]

    def _course(self, rank: int, op: CommunicationOp, comm_plan: CommPlan, *, first: bool) -> CommProgram:
        """What a rank goes through in a communication op, and what is posted for it."""
        by_library, name = self._library_time(rank, op, comm_plan, first=first), lane(op)
        if by_library is not None:  # local copies are in it
            return self._made(list(self._as_library(rank, op, comm_plan, by_library)))
        before: list[TaggedStage] = []
        if self._overhead(comm_plan):
            before.append(TaggedStage(ProgramStage(local=self._delay(rank, name, self._overhead(comm_plan)))))
        if comm_plan.copied.before:
            before.append(TaggedStage(ProgramStage(local=self._bytes(rank, name, "copy", comm_plan.copied.before))))
        after = (
            [TaggedStage(ProgramStage(local=self._bytes(rank, name, "copy", comm_plan.copied.after)))]
            if comm_plan.copied.after
            else []
        )
        is_own = not self._choices.by_library(op)
        chunk_bytes = self._messages.chunk_bytes if is_own else LIBRARY_CHUNK_BYTES
        if not self._messages.buffered or not chunk_bytes:
            steps = [
                TaggedStage(self._step(rank, op, comm_plan, row.step, row.times), row.step, row.number)
                for row in step_runs(comm_plan)
            ]
            return self._made([*before, *steps, *after])
        buffered = EagerOp(
            self._messages,
            rank,
            name,
            self._ranks.group(rank, op.axis),
            comm_plan,
            partial(self._delay, rank, name),
            partial(self._bytes, rank, name, "add"),
            chunk_bytes,
            waits=is_own,
            turn=self._turn(rank, name),
        )
        own, posted = [*before, *buffered.own(), *after], list(buffered.posted())
        return self._made(own, posted, extrapolated=buffered.extrapolated())

    def _made(
        self, own: Sequence[TaggedStage], posted: Sequence[ProgramStage] = (), *, extrapolated: bool = False
    ) -> CommProgram:
        program = self._program([one.stage for one in own])
        return CommProgram(tuple(own), program, self._program(list(posted)) if posted else None, extrapolated)

    def _step(self, rank: int, op: CommunicationOp, comm_plan: CommPlan, step: PlanStep, times: int) -> ProgramStage:
        """A step, so many times, in which a rank waits for both its ends."""
        group = self._ranks.group(rank, op.axis)
        send = receive = added = None
        if step.send_to is not None:
            send = self._messages.sent(comm_plan.wires, rank, group[step.send_to], step)
        if step.receive_from is not None:
            receive = self._messages.wire(comm_plan.wires, group[step.receive_from], rank)
        if step.added:
            added = self._bytes(rank, lane(op), "add", step.added)
        return ProgramStage(times, send, receive, added)

    def _library_time(self, rank: int, op: CommunicationOp, comm_plan: CommPlan, *, first: bool) -> LibraryTime | None:
        """What a collective of the library takes a rank; None where it is another's, or not known."""
        if not self._choices.by_library(op) or comm_plan.moved is None:
            return None
        word = self._choices.of(op.name)
        if self._library.is_one_message(op):
            self.labels[op.name] = f"{word} {IDENTIFIED}"
            return None
        member = self._ranks.grid.coordinate(rank, op.axis)
        found = self._library.seconds(
            op, comm_plan.moved, calls_of(op, comm_plan.moved, self._choices), member, first=first
        )
        if found is not None:
            self.labels[op.name] = f"{word} {found.told}"
        return found

    def _as_library(
        self, rank: int, op: CommunicationOp, comm_plan: CommPlan, time: LibraryTime
    ) -> Iterator[TaggedStage]:
        """Members wait for each other by the steps that stand for the library's, which take no time here."""
        group = self._ranks.group(rank, op.axis)
        for step, times, number in step_runs(comm_plan):
            sender, receiver = (None if peer is None else group[peer] for peer in (step.receive_from, step.send_to))
            stage = ProgramStage(
                times,
                None if receiver is None else self._messages.meeting(comm_plan.wires, rank, receiver),
                None if sender is None else self._messages.meeting(comm_plan.wires, sender, rank)[0],
            )
            yield TaggedStage(stage, step, number)
        sent = self._messages.to_itself(rank, lane(op), time.seconds, extrapolated=time.extrapolated)
        yield TaggedStage(ProgramStage(send=sent, receive=sent[0]))

    def _overhead(self, comm_plan: CommPlan) -> float:
        """Seconds beside the steps of a communication op; measured steps between ranks of a host include theirs."""
        host, device = self._machine.host, self._machine.device
        alone = comm_plan.moved is None
        if host is not None:
            return host.alone_seconds if alone else 0.0
        return 0.0 if alone else device.overhead_seconds

    def _bytes(self, rank: int, name: str, operation: str, size: int) -> int:
        """Local work bound by memory, within an op."""
        return self._work(rank, name, self._local.of_bytes(rank, operation, size))

    def _work(self, rank: int, name: str, work: HostWork) -> int:
        key = rank, name, work
        if key not in self._works:
            demands = self._wiring.local(rank, work.threads, work.bytes_per_second)
            pace = self.pace(rank) if name == COMPUTE else None
            if pace is not None:
                demands = demands | {pace: 1.0}
            if self._balancing is not None and name == COMPUTE:
                demands = demands | {self._balancing.pace(rank): 1.0}
            seconds, extrapolated = work.seconds, work.extrapolated
            self._works[key] = self._engine.flow(seconds, demands, cap=1.0, alone=seconds, extrapolated=extrapolated)
        return self._works[key]

    def _turn(self, rank: int, name: str) -> int | None:
        """A turn on the cores that a rank waits for beside its products; None where it hears at once.

        It was measured with a rank at work on every host.  It takes as much less as fewer are at work.
        """
        if not self.late_seconds:
            return None
        cores = self._wiring.cores_of(self._wiring.home(rank))
        seconds = self.late_seconds * min(1.0, cores / self._wiring.places)
        return self._work(rank, name, HostWork(seconds, False, LOOK, 0.0))

    def _delay(self, rank: int, name: str, seconds: float) -> int:
        key = rank, name, seconds
        if key not in self._delays:
            self._delays[key] = self._engine.flow(0.0, {}, cap=1.0, latency=seconds)
        return self._delays[key]
