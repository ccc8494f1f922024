"""`OpTasks`: the tasks of a message graph that an op of a rank becomes.

The tasks follow from the programs that the simulator would run (`op_programs.py`): one calculation for each local op,
copy, addition and overhead, and one send and one receive for each step of a collective.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import simpy

from quadrille.algorithms.analysis.coordinate_dependence import Kind
from quadrille.algorithms.analysis.op_plans import CommPlan, OpPlans, PlanStep
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.formats.message_graph import GraphTask, check_count
from quadrille.algorithms.schedule.ops import (
    HOST_LANES,
    Collective,
    CollectiveKind,
    Communication,
    CommunicationOp,
    Compute,
    Op,
    collective_kind,
    is_host_op,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.timelines.spans import COMPUTE
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.library_collectives import LibraryTimes
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.ranks.lane_simulation import simulated_lane
from quadrille.simulator.ranks.local_work import LocalWork
from quadrille.simulator.ranks.op_programs import OpPrograms
from quadrille.simulator.ranks.simulated_ranks import choose_ranks
from quadrille.topologies.machines.machine import Machine

SOURCE = "the schedule"


@dataclass(frozen=True, slots=True)
class WrittenOp:
    """The tasks of an op, whose needs count from the first of them; a task without needs waits for what the op does.

    Parameters
    ----------
    ends : tasks with which the op ends
    """

    tasks: tuple[GraphTask, ...]
    ends: tuple[int, ...]

    def after(self, needs: tuple[int, ...], first: int) -> Iterator[GraphTask]:
        """Yields the tasks as those from `first` on, after the tasks `needs`."""
        for task in self.tasks:
            inner = tuple([first + need for need in task.needs])
            yield GraphTask(task.kind, task.amount, inner or needs, *task[3:])


class _Writer:
    """The tasks of an op while its stages are written; `needs` are the latest tasks, for which the next ones wait."""

    def __init__(self) -> None:
        self.tasks: list[GraphTask] = []
        self.needs: tuple[int, ...] = ()

    def add(self, *tasks: GraphTask) -> list[int]:
        """Writes tasks after the latest ones; returns their indices."""
        first = len(self.tasks)
        self.tasks += [task._replace(needs=self.needs) for task in tasks]
        check_count(len(self.tasks), SOURCE)
        return list(range(first, len(self.tasks)))

    def then(self, *tasks: GraphTask) -> None:
        """Writes tasks, for which the next ones wait."""
        self.needs = tuple(self.add(*tasks)) or self.needs


class OpTasks:
    """Writes the ops of one rank after the other; an op of the same kind is written once a rank.

    Parameters
    ----------
    whole : kinds of collectives that stay one task, without the additions within them
    """

    def __init__(
        self,
        schedule: Schedule,
        machine: Machine,
        choices: Choices,
        placement: RankPlacement,
        threads: int | None,
        whole: Collection[CollectiveKind],
    ) -> None:
        assert not machine.emulated.eager, "messages are rendezvous"
        self._machine, self._whole = machine, whole
        self._ranks = choose_ranks(schedule, choices, placement, fold=False, iterations=False)
        self._engine = FlowEngine(simpy.Environment())
        self._demands = demands = self._ranks.demands(self._engine)
        self._op_plans = OpPlans(schedule, choices)
        self._local = LocalWork(machine, schedule.dtype, self._op_plans, demands, threads)
        self._programs = OpPrograms(
            machine,
            self._ranks,
            demands,
            self._op_plans,
            self._local,
            self._engine,
            choices,
            LibraryTimes(machine, schedule.grid, placement),
        )
        lanes = dict.fromkeys([COMPUTE, *(simulated_lane(op, machine) for op in all_ops(schedule))])
        self._stream_of = {lane: number for number, lane in enumerate(lanes)}
        self._tags: dict[str, int] = {}
        self._rank = 0
        self._written: dict[tuple[int, Kind, bool], tuple[Op, Coordinates, WrittenOp]] = {}

    def begin(self, rank: int) -> None:
        """The ops that follow are those of a rank."""
        self._rank = rank
        self._written.clear()

    def of(self, op: Op, coordinates: Coordinates) -> WrittenOp:
        """The tasks of an op of the rank."""
        key = id(op), self._op_plans.kind(op, coordinates), any(coordinates.indices.values())
        if key not in self._written:
            self._written[key] = op, coordinates, self._write(op, coordinates)
        return self._written[key][2]

    def communications(self) -> list[tuple[Op, Coordinates, WrittenOp]]:
        """The communication ops of the rank, one of each kind, in the order in which they were written first."""
        return [entry for entry in self._written.values() if isinstance(entry[0], Communication)]

    def device(self, rank: int) -> tuple[int, int]:
        """A key that is equal for ranks whose equal local ops take equal times."""
        return id(self._local.model(rank)), self._demands.cores_of(self._demands.endpoint(rank))

    def _write(self, op: Op, coordinates: Coordinates) -> WrittenOp:
        writer = _Writer()
        stream = self._stream_of[simulated_lane(op, self._machine)]
        local = GraphTask("calculate", 0.0, stream=stream, name=op.name)
        if self._machine.host is not None and self._machine.host.issue_seconds:
            writer.then(local._replace(amount=self._machine.host.issue_seconds))
        if isinstance(op, Communication):
            self._write_communication(writer, op, coordinates, local)
        else:
            flops, touched = self._amounts(op, coordinates)
            for flow in self._local_flows(op, coordinates):
                writer.then(local._replace(amount=self._seconds(flow), flops=flops, touched=touched))
        return WrittenOp(tuple(writer.tasks), writer.needs)

    def _write_communication(
        self, writer: _Writer, op: CommunicationOp, coordinates: Coordinates, local: GraphTask
    ) -> None:
        """Writes the stages of a communication op; those of one that stays whole are one task."""
        plan, group = self._op_plans.communication(op, coordinates), self._ranks.group(self._rank, op.axis)
        message = local._replace(tag=self._tags.setdefault(plan.channel_name, len(self._tags)))
        received = _received_bytes(plan)
        whole, is_written = self._whole_task(op, plan, group, local), False
        posted: list[int] = []
        for tagged in self._programs.communication(self._rank, op, coordinates, 0).stages:
            stage, step = tagged.stage, tagged.step
            if whole is not None and (step is not None or stage.send is not None):
                if not is_written:
                    writer.then(whole)
                is_written = True
                continue
            for number in range(tagged.number - 1, tagged.number - 1 + stage.count):
                if step is not None:
                    posted += writer.add(*_transfers(message, step, received[number], group))
                elif stage.send is not None:  # a library's collective of known seconds: a message of a rank to itself
                    posted += writer.add(local._replace(amount=self._seconds(stage.send[1])))
                if stage.posted:
                    continue
                writer.needs, posted = tuple(posted) or writer.needs, []
                if stage.local is not None:
                    writer.then(local._replace(amount=self._seconds(stage.local)))

    def _whole_task(
        self, op: CommunicationOp, plan: CommPlan, group: Sequence[int], local: GraphTask
    ) -> GraphTask | None:
        """A collective as one task; None if its steps are written."""
        if not isinstance(op, Collective) or plan.traffic is None or collective_kind(op) not in self._whole:
            return None
        size = float(plan.traffic.edges[-1] * plan.traffic.item_bytes)
        return local._replace(kind="collective", amount=size, collective=collective_kind(op), group=tuple(group))

    def _amounts(self, op: Compute, coordinates: Coordinates) -> tuple[float, float]:
        """Arithmetic operations of a local op, and bytes that it touches."""
        sizes = self._op_plans.local(op, coordinates)
        if sizes.product is not None:
            return 2.0 * prod(sizes.product), float(sizes.touched)
        if sizes.work is not None:
            return float(sizes.work.flops + sizes.work.product_flops), float(sizes.work.touched)
        return 0.0, float(sizes.touched)

    def _local_flows(self, op: Compute, coordinates: Coordinates) -> list[int]:
        """The flows of a local op, as the simulator would run them."""
        if is_host_op(op) and simulated_lane(op, self._machine) in HOST_LANES:
            program = self._programs.host_op(self._rank, op, coordinates)
        else:
            program = self._programs.compute(self._rank, op, coordinates, 0)
        first, end = self._engine.first_stages[program : program + 2]
        return [stage[4] for stage in self._engine.stages[first:end]]

    def _seconds(self, flow: int) -> float:
        """Seconds of local work with nothing else under way [s]."""
        work, latency, _, _ = self._engine.flows[flow]
        return latency + work / self._engine.caps[flow]


def _received_bytes(plan: CommPlan) -> list[float]:
    """Bytes that the rank receives in each step of a communication op."""
    if plan.traffic is None:
        return []
    return [float(exchange.received * plan.traffic.item_bytes) for exchange in plan.traffic.exchanges()]


def _transfers(message: GraphTask, step: PlanStep, received: float, group: Sequence[int]) -> Iterator[GraphTask]:
    """Yields the send and the receive of a step."""
    if step.send_to is not None:
        yield message._replace(kind="send", amount=step.sent, peer=group[step.send_to])
    if step.receive_from is not None:
        yield message._replace(kind="receive", amount=received, peer=group[step.receive_from])
