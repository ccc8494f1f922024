"""The executor of single ops on one rank: local work as a function, communication as a sequence of steps.

The plan of an op (`compute_plans.py`, `communication_plans.py`) is made at its first execution and then reused.
"""

from collections.abc import Callable, Generator

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllToAll,
    CommunicationOp,
    Compute,
    Gemm,
    HostCopy,
    ReduceScatter,
    reads,
    writes,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.runtime.arrays.array_library import Array, ArrayLibrary
from quadrille.runtime.carriers.communicators import Communicator, Request
from quadrille.runtime.carriers.pipelined_steps import PipelinedTransfer
from quadrille.runtime.execution.buffers import Buffers
from quadrille.runtime.execution.communication_plans import CommunicationPlan, CommunicationPlanner
from quadrille.runtime.execution.compute_plans import ComputePlanner

OpSteps = Generator[list[Request], None, None]
"""A communication op in progress: each yield returns the requests that must complete before the op continues."""

Combine = Callable[[Array, Array, Array], None]
"""The sum or maximum of two arrays, written into a third: (left, right, out)."""

MAX_CACHED_PLANS = 4096
"""The most plans that a rank caches; a longer program makes the plans beyond this count again in every repeat."""

OpInstance = tuple[int, tuple[int, ...]]
"""An op instance: the identity of the op and its loop indices."""


class OpExecutor:
    """The executor of the ops of one rank, which also counts the bytes that the rank sends.

    Parameters
    ----------
    schedule : schedule whose ops are executed
    choices : algorithms of the collectives
    library : array library of the rank
    buffers : blocks of all tensors on the rank
    """

    def __init__(self, schedule: Schedule, choices: Choices, library: ArrayLibrary, buffers: Buffers) -> None:
        self._default_stream = library.lane()  # for host arrays, whose communicators have no stream
        self._compute_planner = ComputePlanner(schedule, library, buffers)
        self._communication_planner = CommunicationPlanner(schedule, choices, buffers)
        self._schedule, self._buffers = schedule, buffers
        self._routed: dict[int, bool] = {}
        self._work: dict[OpInstance, Callable[[], None]] = {}
        self._plans: dict[OpInstance, CommunicationPlan] = {}
        self.bytes_sent = 0

    def local_work(self, op: Compute, coordinates: Coordinates) -> Callable[[], None]:
        """The local work of a compute op at these coordinates, as a function without arguments."""
        if self._is_routed(op):
            self._buffers.copy_rows(op, coordinates)
            return self._compute_planner.plan(op, coordinates)
        key = (id(op), tuple(coordinates.indices.values()))
        work = self._work.get(key)
        if work is None:
            work = self._compute_planner.plan(op, coordinates)
            if len(self._work) < MAX_CACHED_PLANS:
                self._work[key] = work
        return work

    def _is_routed(self, op: Compute | CommunicationOp) -> bool:
        """Whether the sizes of an op depend on the choices of routers, so that every execution plans it anew."""
        if id(op) not in self._routed:
            names = (*reads(op), *writes(op))
            by_counts = isinstance(op, Gemm | AllToAll | AllGather | ReduceScatter) and bool(op.counts)
            self._routed[id(op)] = by_counts or any(self._schedule.tensors[name].routed for name in names)
        return self._routed[id(op)]

    def communication_steps(self, op: CommunicationOp, coordinates: Coordinates, group: Communicator) -> OpSteps:
        """The steps of a communication op at these coordinates, including its local copies."""
        if self._is_routed(op):
            return self._run_plan(self._communication_planner.plan(op, coordinates, group), group)
        key = (id(op), tuple(coordinates.indices.values()))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._communication_planner.plan(op, coordinates, group)
            if len(self._plans) < MAX_CACHED_PLANS:
                self._plans[key] = plan
        return self._run_plan(plan, group)

    def host_copy_steps(self, op: HostCopy, coordinates: Coordinates, stream: ArrayLibrary) -> OpSteps:
        """The steps of a host copy on a stream of its direction: it is submitted, and then it ends."""
        self._compute_planner.submit_host_copy(op, coordinates, stream)
        marker = stream.mark()
        yield [] if marker is None else [marker]

    def _run_plan(self, plan: CommunicationPlan, group: Communicator) -> OpSteps:
        stream = group.lane or self._default_stream  # copies and sums stay in order with the group's messages
        if plan.bind_view is not None:
            plan.bind_view()
        for into, source in plan.copies_before:
            stream.copy(into, source)
        if plan.start_library_collective is not None:
            self.bytes_sent += plan.library_bytes
            yield [plan.start_library_collective()]
        combine = stream.add if plan.combination == "sum" else stream.maximum
        if plan.chunks is not None:
            self.bytes_sent += sum(message.buffer.nbytes for message in plan.chunks.sends)
            yield [PipelinedTransfer(plan.chunks, group, combine)]
        else:
            yield from self._whole_steps(plan, group, combine)
        for into, source in plan.copies_after:
            stream.copy(into, source)
        stream.synchronise()  # an op ends when its result is in the destination array

    def _whole_steps(self, plan: CommunicationPlan, group: Communicator, combine: Combine) -> OpSteps:
        for step in plan.steps:
            requests = [group.receive(buffer, sender) for buffer, sender in step.receives]
            for buffer, receiver in step.sends:
                requests.append(group.send(buffer, receiver))
                self.bytes_sent += buffer.nbytes
            yield requests
            for left, right, out in step.reductions:
                combine(left, right, out)
