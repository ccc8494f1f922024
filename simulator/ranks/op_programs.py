"""Programs of ops for the flow engine: the sends, receives and local work of an op on a rank, stage by stage.

A *stage* is a send and a receive at the same time, then local work; a *program* is a list of stages; a *stream* of
the flow engine runs programs (`engine/engine_builder.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from quadrille.algorithms.analysis.coordinate_dependence import Kind
from quadrille.algorithms.analysis.op_plans import CommPlan, OpPlans, PlanStep, step_runs
from quadrille.algorithms.analysis.traffic import calls_of
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.ops import CommunicationOp, Compute, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.timelines.spans import COMPUTE
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.engine.engine_builder import ProgramStage
from quadrille.simulator.machine.library_collectives import IDENTIFIED, LibraryTime, LibraryTimes
from quadrille.simulator.ranks.local_work import NO_NOISE, HostWork, LocalWork, NoiseFactors
from quadrille.simulator.ranks.messages import RankMessages, TaggedStage
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.simulator.ranks.simulated_ranks import SimulatedRanks
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from quadrille.simulator.ranks.host_links import HostLinks
    from quadrille.simulator.ranks.jitter import Jitter
    from quadrille.simulator.ranks.oversubscribed_cores import OversubscribedCores

WAKEUP_CORE_SHARE = 1e-6
"""Share of a core that a rank takes while it polls for messages; the cost of polling is in the cost per byte."""

LIBRARY_CHUNK_BYTES = 60 << 10
"""Chunk size of a library's single message, which is sent as one stream without waiting for its receiver [B]."""


class CommProgram(NamedTuple):
    """The programs of a communication op on a rank.

    Parameters
    ----------
    stages : stages of the rank's own program
    own : the rank's own program
    eager_sends : program of the rank's send queue, None if the op sends nothing eagerly
    extrapolated : whether an eager message is larger than what was measured
    """

    stages: tuple[TaggedStage, ...]
    own: int
    eager_sends: int | None
    extrapolated: bool


@dataclass(frozen=True, slots=True)
class BlockedRank:
    """A rank that waits in a communication op.

    Parameters
    ----------
    step : number of the step, from 1
    awaited : ranks that have not reached the step
    """

    rank: int
    op: CommunicationOp
    step: int
    awaited: list[int]


class OpPrograms:
    """Builds the engine's programs of the ops of simulated ranks, each at its first use.

    Steps of a collective in which a rank neither sends nor receives are left out.

    Parameters
    ----------
    choices, library : which implementation runs each collective; measured seconds of the library's collectives
    cores : balances ranks that cannot be pinned to cores evenly
    jitter : noise of op instances, None for no noise
    """

    def __init__(
        self,
        machine: Machine,
        ranks: SimulatedRanks,
        demands: ResourceDemands,
        op_plans: OpPlans,
        local: LocalWork,
        engine: FlowEngine,
        choices: Choices,
        library: LibraryTimes,
        cores: "OversubscribedCores | None" = None,
        jitter: "Jitter | None" = None,
    ) -> None:
        self._machine, self._ranks, self._demands = machine, ranks, demands
        self._op_plans, self._local, self._engine = op_plans, local, engine
        self._messages = RankMessages(machine, demands, engine)
        self._choices, self._library, self._cores, self._jitter = choices, library, cores, jitter
        self.labels: dict[str, str] = {}
        self.wakeup_delay = machine.emulated.wakeup_delay_seconds
        self._comm_programs: dict[tuple[int, int, Kind, bool, int | None], CommProgram] = {}
        self._compute_programs: dict[tuple[int, int, Kind, int | None], int] = {}
        self._programs: dict[tuple[ProgramStage, ...], int] = {}
        self._work_flows: dict[tuple[int, str, HostWork], int] = {}
        self._delays: dict[tuple[int, str, float], int] = {}
        self._throttles: dict[int, int] = {}

    def compute(self, rank: int, op: Compute, coordinates: Coordinates, index: int) -> int:
        """Program of an op of the compute lane; `index` counts the instances of the op on the rank."""
        quantile = self._quantile(rank, op.name, index)
        key = rank, id(op), self._op_plans.kind(op, coordinates), quantile
        if key not in self._compute_programs:
            work = self._local.of_op(rank, op, coordinates)
            for drawn in self._quantiles_ahead(rank, op.name, index):
                flow = self._work(rank, COMPUTE, work.times(self._noise(drawn).local))
                self._compute_programs[(*key[:-1], drawn)] = self._program([ProgramStage(local=flow)])
        return self._compute_programs[key]

    def host_op(self, rank: int, op: Compute, coordinates: Coordinates) -> int:
        """Program of a host copy, or of work of the host, on its lane."""
        key = rank, id(op), self._op_plans.kind(op, coordinates), None
        if key not in self._compute_programs:
            flow = self._host_links.flow(rank, op, self._op_plans.local(op, coordinates))
            self._compute_programs[key] = self._program([ProgramStage(local=flow)])
        return self._compute_programs[key]

    @cached_property
    def _host_links(self) -> "HostLinks":
        from quadrille.simulator.ranks.host_links import HostLinks

        folded = self._ranks.classes is not None
        return HostLinks(self._machine.host_link, self._ranks.placement, self._engine, folded=folded)

    def communication(self, rank: int, op: CommunicationOp, coordinates: Coordinates, index: int) -> CommProgram:
        """Programs of a communication op; `index` counts the instances of the op on the rank."""
        first = op.name == self._first_by_library and not any(coordinates.indices.values())
        quantile = self._quantile(rank, op.name, index)
        key = rank, id(op), self._op_plans.kind(op, coordinates), first, quantile
        if key not in self._comm_programs:
            comm_plan = self._op_plans.communication(op, coordinates)
            for drawn in self._quantiles_ahead(rank, op.name, index):
                program = self._comm_program(rank, op, comm_plan, first=first, noise=self._noise(drawn))
                self._comm_programs[(*key[:-1], drawn)] = program
        return self._comm_programs[key]

    def _quantile(self, rank: int, op: str, index: int) -> int | None:
        """The number of the quantile of the noise that an op instance draws; None without noise."""
        return None if self._jitter is None else self._jitter.quantile(rank, op, index)

    def _quantiles_ahead(self, rank: int, op: str, index: int) -> "set[int] | set[None]":
        """The quantiles of an op instance and of some later instances, whose programs are made together."""
        return {None} if self._jitter is None else self._jitter.quantiles_ahead(rank, op, index)

    def _noise(self, quantile: int | None) -> NoiseFactors:
        """The factors of the noise of a quantile."""
        return NO_NOISE if self._jitter is None or quantile is None else self._jitter.factors(quantile)

    def blocked_rank(
        self, rank: int, op: CommunicationOp, coordinates: Coordinates, index: int, stream: int
    ) -> BlockedRank | None:
        """The ranks that a rank waits for within an op; None if it waits for its own work.

        Parameters
        ----------
        index : index among the instances of the op on the rank
        stream : stream of the engine that runs the op
        """
        transfers = self._engine.awaited_transfers(stream)
        if not transfers:
            return None
        stages, group = self.communication(rank, op, coordinates, index).stages, self._ranks.group(rank, op.axis)
        peers: dict[int, None] = {}
        for stage, _, to_send, to_receive in transfers:
            step = stages[stage].step
            assert step is not None, "local work waits for nobody"
            ends = ((step.send_to, to_send), (step.receive_from, to_receive))
            peers |= {peer: None for peer, waits in ends if peer is not None and waits}
        first = transfers[0]
        return BlockedRank(rank, op, stages[first.stage].number + first.repetition, [group[peer] for peer in peers])

    @cached_property
    def _first_by_library(self) -> str | None:
        """Name of the first collective that the library runs; only its first iteration counts as the first call."""
        schedule = self._ranks.schedule
        collectives = (
            op for op in all_ops(schedule) if self._choices.by_library(op) and schedule.grid.length(op.axis) > 1
        )
        return next((op.name for op in collectives), None)

    def throttle(self, rank: int) -> int | None:
        """Throttle of a rank's computing while it communicates; None if communication does not slow it."""
        slowdown = self._machine.device.overlap_slowdown
        if slowdown == 1.0:
            return None
        if rank not in self._throttles:
            self._throttles[rank] = self._engine.add_throttle(slowdown, f"throttle of rank {rank}")
        return self._throttles[rank]

    # Stages and flows

    def _program(self, stages: list[ProgramStage]) -> int:
        key = tuple(stages)
        if key not in self._programs:
            self._programs[key] = self._engine.add_program(stages)
        return self._programs[key]

    def _comm_program(
        self, rank: int, op: CommunicationOp, comm_plan: CommPlan, *, first: bool, noise: NoiseFactors
    ) -> CommProgram:
        """Programs of a communication op, from the op's plan."""
        by_library, name = self._library_time(rank, op, comm_plan, first=first), lane(op)
        if by_library is not None:  # its seconds include local copies
            return self._comm_program_of(list(self._library_stages(rank, op, comm_plan, by_library, noise)))
        before: list[TaggedStage] = []
        if self._overhead(comm_plan):
            before.append(TaggedStage(ProgramStage(local=self._delay(rank, name, self._overhead(comm_plan)))))
        if comm_plan.copied.before:
            copied = self._bytes(rank, name, "copy", noise, comm_plan.copied.before)
            before.append(TaggedStage(ProgramStage(local=copied)))
        after = (
            [TaggedStage(ProgramStage(local=self._bytes(rank, name, "copy", noise, comm_plan.copied.after)))]
            if comm_plan.copied.after
            else []
        )
        is_own = not self._choices.by_library(op)
        chunk_bytes = self._messages.chunk_bytes if is_own else LIBRARY_CHUNK_BYTES
        if not self._messages.eager or not chunk_bytes:
            steps = list(self._step_stages(rank, op, comm_plan, noise))
            return self._comm_program_of([*before, *steps, *after])
        from quadrille.simulator.ranks.eager_protocol import EagerOp

        eager_op = EagerOp(
            self._messages,
            rank,
            name,
            self._ranks.group(rank, op.axis),
            comm_plan,
            partial(self._delay, rank, name),
            partial(self._bytes, rank, name, "add", noise),
            chunk_bytes,
            waits_for_delivery=is_own,
            core_wait=self._core_wait(rank, name),
            noise=noise.transfer,
        )
        own, eager_sends = [*before, *eager_op.rank_stages(), *after], list(eager_op.send_stages())
        return self._comm_program_of(own, eager_sends, extrapolated=eager_op.extrapolated())

    def _comm_program_of(
        self, own: Sequence[TaggedStage], eager_sends: Sequence[ProgramStage] = (), *, extrapolated: bool = False
    ) -> CommProgram:
        program = self._program([tagged.stage for tagged in own])
        return CommProgram(tuple(own), program, self._program(list(eager_sends)) if eager_sends else None, extrapolated)

    def _step_stages(
        self, rank: int, op: CommunicationOp, comm_plan: CommPlan, noise: NoiseFactors
    ) -> Iterator[TaggedStage]:
        """The stages of all steps: one after another, or posted at once."""
        rows = list(step_runs(comm_plan))
        at_once = comm_plan.traffic is not None and comm_plan.traffic.lowered.at_once
        group = self._ranks.group(rank, op.axis)
        copying = 0.0
        if at_once:
            lane_name = comm_plan.channel_name
            sends = [(group[row.step.send_to], row.step) for row in rows if row.step.send_to is not None]
            copying = sum(self._messages.copying_seconds(lane_name, rank, receiver, step) for receiver, step in sends)
        for number, row in enumerate(rows, 1):
            stage = self._step(rank, op, comm_plan, row.step, row.times, copying, noise)
            posted = at_once and number < len(rows)
            yield TaggedStage(replace(stage, posted=posted) if posted else stage, row.step, row.number)

    def _step(
        self,
        rank: int,
        op: CommunicationOp,
        comm_plan: CommPlan,
        step: PlanStep,
        times: int,
        copying: float,
        noise: NoiseFactors,
    ) -> ProgramStage:
        """The stage of a step, repeated `times` times, in which the rank waits for both transfers.

        Parameters
        ----------
        copying : seconds of all messages that the rank sends within its host at once; 0 for a single message [s]
        """
        group = self._ranks.group(rank, op.axis)
        send = receive = added = None
        if step.send_to is not None:
            receiver = group[step.send_to]
            send = self._messages.message(
                comm_plan.channel_name, rank, receiver, step, copying=copying, noise=noise.transfer
            )
        if step.receive_from is not None:
            receive = self._messages.engine_channel(comm_plan.channel_name, group[step.receive_from], rank)
        if step.added:
            added = self._bytes(rank, lane(op), "add", noise, step.added)
        return ProgramStage(times, send, receive, added)

    def _library_time(self, rank: int, op: CommunicationOp, comm_plan: CommPlan, *, first: bool) -> LibraryTime | None:
        """Measured seconds of a library's collective on a rank; None if our own algorithm runs it, or if unknown."""
        if not self._choices.by_library(op) or comm_plan.traffic is None:
            return None
        word = self._choices.of(op.name)
        if self._library.is_one_message(op):
            self.labels[op.name] = f"{word} {IDENTIFIED}"
            return None
        member = self._ranks.grid.coordinate(rank, op.axis)
        library_time = self._library.seconds(
            op, comm_plan.traffic, calls_of(op, comm_plan.traffic, self._choices), member, first=first
        )
        if library_time is not None:
            self.labels[op.name] = f"{word} {library_time.label}"
        return library_time

    def _library_stages(
        self, rank: int, op: CommunicationOp, comm_plan: CommPlan, time: LibraryTime, noise: NoiseFactors
    ) -> Iterator[TaggedStage]:
        """Stages of a library's collective: members wait for each other in steps of no time, then for its seconds."""
        group = self._ranks.group(rank, op.axis)
        for step, times, number in step_runs(comm_plan):
            sender, receiver = (None if peer is None else group[peer] for peer in (step.receive_from, step.send_to))
            stage = ProgramStage(
                times,
                None if receiver is None else self._messages.rendezvous(comm_plan.channel_name, rank, receiver),
                None if sender is None else self._messages.rendezvous(comm_plan.channel_name, sender, rank)[0],
            )
            yield TaggedStage(stage, step, number)
        seconds, latency = time.seconds * noise.transfer, time.latency * noise.transfer
        sent = self._messages.self_message(rank, lane(op), seconds, latency, extrapolated=time.extrapolated)
        yield TaggedStage(ProgramStage(send=sent, receive=sent[0]))

    def _overhead(self, comm_plan: CommPlan) -> float:
        """Seconds of a communication op besides its steps; measured steps between ranks of a host include them."""
        host, device = self._machine.host, self._machine.device
        alone = comm_plan.traffic is None
        if host is not None:
            return host.single_rank_op_seconds if alone else 0.0
        return 0.0 if alone else device.overhead_seconds

    def _bytes(self, rank: int, name: str, operation: str, noise: NoiseFactors, size: int) -> int:
        """Flow of memory-bound local work within an op."""
        return self._work(rank, name, self._local.of_bytes(rank, operation, size).times(noise.local))

    def _work(self, rank: int, name: str, work: HostWork) -> int:
        key = rank, name, work
        if key not in self._work_flows:
            demands = self._demands.local(rank, work.threads, work.bytes_per_second)
            throttle = self.throttle(rank) if name == COMPUTE else None
            if throttle is not None:
                demands = demands | {throttle: 1.0}
            if self._cores is not None and name == COMPUTE:
                demands = demands | {self._cores.throttle(rank): 1.0}
            seconds, extrapolated = work.seconds, work.extrapolated
            self._work_flows[key] = self._engine.add_flow(
                seconds, demands, cap=1.0, alone=seconds, extrapolated=extrapolated
            )
        return self._work_flows[key]

    def _core_wait(self, rank: int, name: str) -> int | None:
        """Flow of the wait for a core before a computing rank notices a message; None if it notices at once.

        The wait was measured with one computing rank on every host; it is shorter in proportion if fewer compute.
        """
        if not self.wakeup_delay:
            return None
        cores = self._demands.cores_of(self._demands.endpoint(rank))
        seconds = self.wakeup_delay * min(1.0, cores / self._demands.endpoint_count)
        return self._work(rank, name, HostWork(seconds, False, WAKEUP_CORE_SHARE, 0.0))

    def _delay(self, rank: int, name: str, seconds: float) -> int:
        key = rank, name, seconds
        if key not in self._delays:
            self._delays[key] = self._engine.add_flow(0.0, {}, cap=1.0, latency=seconds)
        return self._delays[key]
