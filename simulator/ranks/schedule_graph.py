"""`message_graph`: a schedule on a machine as a message graph, whose ranks do what the simulator's would do.

The tasks are read from the programs that the simulator would run (`op_programs.py`): one calculation for each local op,
copy, addition and overhead, and one send and one receive for each step of a collective.  Every rank and every iteration
is written out.  Messages are rendezvous, and no op slows another.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import simpy

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.analysis.op_plans import OpPlans
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.message_graph import (
    GraphTask,
    MessageGraph,
    check_count,
    with_received_bytes,
    without_repeats,
)
from quadrille.algorithms.schedule.ops import (
    HOST_LANES,
    Collective,
    CollectiveKind,
    Communication,
    Compute,
    Op,
    collective_kind,
    is_host_op,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import DrivenPasses, walk_around_passes
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.timelines.spans import COMPUTE
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.engine.engine_builder import ProgramStage
from quadrille.simulator.machine.library_collectives import LibraryTimes
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.ranks.lane_simulation import simulated_lane
from quadrille.simulator.ranks.local_work import LocalWork
from quadrille.simulator.ranks.messages import TaggedStage
from quadrille.simulator.ranks.op_programs import OpPrograms
from quadrille.simulator.ranks.simulated_ranks import choose_ranks
from quadrille.topologies.machines.machine import Machine

SOURCE = "the schedule"


def message_graph(
    schedule: Schedule,
    machine: Machine,
    choices: Choices,
    placement: RankPlacement,
    threads: int | None = None,
    *,
    whole: Collection[CollectiveKind] = (),
) -> MessageGraph:
    """The tasks of all ranks of a schedule on a machine.

    Parameters
    ----------
    machine : machine without eager messages
    choices : which implementation runs each collective; collectives of NCCL are written as rings
    placement : GPU or host of each rank
    threads : BLAS threads of each rank, by default its share of the host's cores
    whole : kinds of collectives that stay one task, without the additions within them

    Raises
    ------
    InputError : a pipeline whose order messages decide, or too many tasks
    """
    return _GraphWriter(schedule, machine, choices, placement, threads, whole).graph()


@dataclass(slots=True)
class _OpContext:
    """What the tasks of an op have in common.

    Parameters
    ----------
    local : calculation of the op, without seconds and needs
    group, tag : ranks and tag of its messages
    collective : the op as one task; None if its steps are written
    is_written : whether that task has been written
    """

    local: GraphTask
    group: Sequence[int] = ()
    tag: int = 0
    collective: GraphTask | None = None
    is_written: bool = False


class _GraphWriter:
    """Walks the program of each rank, and writes the stages of its ops as tasks."""

    def __init__(
        self,
        schedule: Schedule,
        machine: Machine,
        choices: Choices,
        placement: RankPlacement,
        threads: int | None,
        whole: Collection[CollectiveKind],
    ) -> None:
        self._whole = whole
        assert not machine.emulated.eager, "messages are rendezvous"
        self._schedule, self._machine = schedule, machine
        self._ranks = choose_ranks(schedule, choices, placement, fold=False, iterations=False)
        self._engine = FlowEngine(simpy.Environment())
        demands = self._ranks.demands(self._engine)
        self._op_plans = OpPlans(schedule, choices)
        self._programs = OpPrograms(
            machine,
            self._ranks,
            demands,
            self._op_plans,
            LocalWork(machine, schedule.dtype, self._op_plans, demands, threads),
            self._engine,
            choices,
            LibraryTimes(machine, schedule.grid, placement),
        )
        lanes = dict.fromkeys([COMPUTE, *(simulated_lane(op, machine) for op in all_ops(schedule))])
        self._stream_of = {lane: number for number, lane in enumerate(lanes)}
        self._tags: dict[str, int] = {}
        self._count = 0

    def graph(self) -> MessageGraph:
        """The tasks of all ranks."""
        return with_received_bytes(MessageGraph(tuple(self._tasks(rank) for rank in range(self._schedule.grid.size))))

    def _tasks(self, rank: int) -> list[GraphTask]:
        """The tasks of a rank."""
        tasks: list[GraphTask] = []
        start = self._schedule.coordinates(rank)
        dependencies: Dependencies[list[int]] = Dependencies(self._schedule)
        last: dict[str, list[int]] = {}
        counts: dict[str, int] = {}
        for op, coordinates in walk_around_passes(self._schedule.program(start), start):
            if isinstance(op, DrivenPasses):
                raise InputError(
                    "pipeline-schedule message-driven: messages decide the order of its passes, which a graph lacks; "
                    "accepted are the other schedules"
                )
            ends: list[int] = []
            lane = simulated_lane(op, self._machine)
            needs = [
                *last.get(lane, ()),
                *(end for token in dependencies.enter(op, coordinates, ends) for end in token),
            ]
            ends += self._write(tasks, rank, op, coordinates, counts.get(op.name, 0), without_repeats(needs))
            counts[op.name] = counts.get(op.name, 0) + 1
            last[lane] = ends
        self._count += len(tasks)
        check_count(self._count, SOURCE)
        return tasks

    def _write(
        self, tasks: list[GraphTask], rank: int, op: Op, coordinates: Coordinates, index: int, needs: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Writes the tasks of an op; returns the tasks with which the op ends."""
        context = self._context(rank, op, coordinates)
        if self._machine.host is not None and self._machine.host.issue_seconds:
            tasks.append(context.local._replace(amount=self._machine.host.issue_seconds, needs=needs))
            needs = (len(tasks) - 1,)
        posted: list[int] = []
        for tagged in self._stages(rank, op, coordinates, index):
            if context.collective is not None and (tagged.step is not None or tagged.stage.send is not None):
                if not context.is_written:
                    context.is_written = True
                    tasks.append(context.collective._replace(needs=needs))
                    needs = (len(tasks) - 1,)
                continue
            for _ in range(tagged.stage.count):
                posted += self._transfers(tasks, tagged, context, needs)
                if tagged.stage.posted:
                    continue
                needs, posted = tuple(posted) or needs, []
                if tagged.stage.local is not None:
                    tasks.append(context.local._replace(amount=self._seconds(tagged.stage.local), needs=needs))
                    needs = (len(tasks) - 1,)
            check_count(self._count + len(tasks), SOURCE)
        return needs

    def _context(self, rank: int, op: Op, coordinates: Coordinates) -> "_OpContext":
        """What the tasks of an op have in common."""
        stream = self._stream_of[simulated_lane(op, self._machine)]
        local = GraphTask("calculate", 0.0, stream=stream, name=op.name)
        if not isinstance(op, Communication):
            flops, touched = self._amounts(op, coordinates)
            return _OpContext(local._replace(flops=flops, touched=touched))
        group, plan = self._ranks.group(rank, op.axis), self._op_plans.communication(op, coordinates)
        tag = self._tags.setdefault(plan.channel_name, len(self._tags))
        collective = None
        if isinstance(op, Collective) and plan.traffic is not None and collective_kind(op) in self._whole:
            size = float(plan.traffic.edges[-1] * plan.traffic.item_bytes)
            collective = local._replace(
                kind="collective", amount=size, collective=collective_kind(op), group=tuple(group)
            )
        return _OpContext(local, group, tag, collective)

    def _amounts(self, op: Compute, coordinates: Coordinates) -> tuple[float, float]:
        """Arithmetic operations of a local op, and bytes that it touches."""
        sizes = self._op_plans.local(op, coordinates)
        if sizes.product is not None:
            return 2.0 * prod(sizes.product), float(sizes.touched)
        if sizes.work is not None:
            return float(sizes.work.flops + sizes.work.product_flops), float(sizes.work.touched)
        return 0.0, float(sizes.touched)

    def _transfers(
        self, tasks: list[GraphTask], tagged: TaggedStage, context: "_OpContext", needs: tuple[int, ...]
    ) -> list[int]:
        """Writes the send and the receive of a stage; returns their indices."""
        first, step, local = len(tasks), tagged.step, context.local
        if step is None:  # a library's collective of known seconds is a message of a rank to itself
            if tagged.stage.send is not None:
                tasks.append(local._replace(amount=self._seconds(tagged.stage.send[1]), needs=needs))
            return list(range(first, len(tasks)))
        message = local._replace(needs=needs, tag=context.tag)
        if step.send_to is not None:
            tasks.append(message._replace(kind="send", amount=step.sent, peer=context.group[step.send_to]))
        if step.receive_from is not None:
            tasks.append(message._replace(kind="receive", peer=context.group[step.receive_from]))
        return list(range(first, len(tasks)))

    def _stages(self, rank: int, op: Op, coordinates: Coordinates, index: int) -> Sequence[TaggedStage]:
        """The stages of an op, as the simulator would run them."""
        if isinstance(op, Communication):
            return self._programs.communication(rank, op, coordinates, index).stages
        if is_host_op(op) and simulated_lane(op, self._machine) in HOST_LANES:
            return self._local_stages(self._programs.host_op(rank, op, coordinates))
        return self._local_stages(self._programs.compute(rank, op, coordinates, index))

    def _local_stages(self, program: int) -> list[TaggedStage]:
        """The stages of a program of local work."""
        first, end = self._engine.first_stages[program : program + 2]
        return [TaggedStage(ProgramStage(stage[0], local=stage[4])) for stage in self._engine.stages[first:end]]

    def _seconds(self, flow: int) -> float:
        """Seconds of local work with nothing else under way [s]."""
        work, latency, _, _ = self._engine.flows[flow]
        return latency + work / self._engine.caps[flow]
