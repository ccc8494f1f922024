"""The ops of one rank, carried out: plans are made when an op first comes, and kept."""

from collections.abc import Callable, Generator

from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.schedule.ops import CommunicationOp, Compute
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.runtime.arrays.array_library import Array, ArrayLibrary
from quadrille.runtime.carriers.communicators import Communicator, Request
from quadrille.runtime.carriers.pipelined_steps import PipelinedTransfer
from quadrille.runtime.execution.buffers import Buffers
from quadrille.runtime.execution.local_plans import LocalPlanner
from quadrille.runtime.execution.plans import TransferPlan, TransferPlanner

Carrying = Generator[list[Request], None, None]
"""A communication op on its way: each yield gives the requests that must end before it goes on."""

Combine = Callable[[Array, Array, Array], None]
"""What a reducing step does with what is held, what came, and into where."""

PLANS_KEPT = 4096
"""Moments whose plans are kept; a longer program makes those beyond anew each time."""

Moment = tuple[int, tuple[int, ...]]
"""An op, by identity, and its loop indices."""


class Transfers:
    """The ops of one rank, and a count of the bytes that they put on the wire."""

    def __init__(self, schedule: Schedule, choices: Choices, library: ArrayLibrary, buffers: Buffers) -> None:
        self._library = library
        self._lane = library.lane()  # of groups that have none of their own; a GEMM under way does not hold it up
        self._local_planner = LocalPlanner(schedule, library, buffers)
        self._planner = TransferPlanner(schedule, choices, buffers)
        self._work: dict[Moment, Callable[[], None]] = {}
        self._plans: dict[Moment, TransferPlan] = {}
        self.bytes_sent = 0

    def compute(self, op: Compute, place: Coordinates) -> Callable[[], None]:
        """Local work, ready to be done."""
        key = (id(op), tuple(place.indices.values()))
        work = self._work.get(key)
        if work is None:
            work = self._local_planner.compute(op, place)
            if len(self._work) < PLANS_KEPT:
                self._work[key] = work
        return work

    def communicate(self, op: CommunicationOp, place: Coordinates, group: Communicator) -> Carrying:
        """The op's steps, local copies included."""
        key = (id(op), tuple(place.indices.values()))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._planner.communicate(op, place, group)
            if len(self._plans) < PLANS_KEPT:
                self._plans[key] = plan
        return self._carry_out(plan, group)

    def _carry_out(self, plan: TransferPlan, group: Communicator) -> Carrying:
        lane = group.lane or self._lane  # what the group carries is in order with its own lane
        if plan.rename is not None:
            plan.rename()
        for into, source in plan.before:
            lane.copy(into, source)
        if plan.library is not None:
            self.bytes_sent += plan.library_bytes
            yield [plan.library()]
        combine = lane.add if plan.combination == "sum" else lane.maximum
        if plan.chunks is not None:
            self.bytes_sent += sum(message.buffer.nbytes for message in plan.chunks.sends)
            yield [PipelinedTransfer(plan.chunks, group, combine)]
        else:
            yield from self._step_by_step(plan, group, combine)
        for into, source in plan.after:
            lane.copy(into, source)
        lane.synchronise()  # the op has ended when its data are there

    def _step_by_step(self, plan: TransferPlan, group: Communicator, combine: Combine) -> Carrying:
        for step in plan.steps:
            requests = [group.receive(room, sender) for room, sender in step.receives]
            for part, to in step.sends:
                requests.append(group.send(part, to))
                self.bytes_sent += part.nbytes
            yield requests
            for held, room, into in step.sums:
                combine(held, room, into)
