"""Carries out the ops of one rank. The plan of an op is made at its first execution and then reused."""

from collections.abc import Callable, Generator

from quadrille.algorithms.collectives.collective_choices import Choices
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
"""A communication op in progress: each yield returns the requests that must complete before the op continues."""

Combine = Callable[[Array, Array, Array], None]
"""Combines the held elements with the received elements and writes the result: (held, received, into)."""

PLANS_KEPT = 4096
"""Most plans that are kept; a longer program makes the plans beyond this count again in every repeat."""

Moment = tuple[int, tuple[int, ...]]
"""An op instance: the identity of the op and its loop indices."""


class Transfers:
    """Carries out the ops of one rank and counts the bytes that the rank sends."""

    def __init__(self, schedule: Schedule, choices: Choices, library: ArrayLibrary, buffers: Buffers) -> None:
        self._library = library
        self._lane = library.lane()  # for groups without a lane of their own: a running GEMM does not delay it
        self._local_planner = LocalPlanner(schedule, library, buffers)
        self._planner = TransferPlanner(schedule, choices, buffers)
        self._work: dict[Moment, Callable[[], None]] = {}
        self._plans: dict[Moment, TransferPlan] = {}
        self.bytes_sent = 0

    def compute(self, op: Compute, place: Coordinates) -> Callable[[], None]:
        """The local work of an op, as a function without arguments."""
        key = (id(op), tuple(place.indices.values()))
        work = self._work.get(key)
        if work is None:
            work = self._local_planner.compute(op, place)
            if len(self._work) < PLANS_KEPT:
                self._work[key] = work
        return work

    def communicate(self, op: CommunicationOp, place: Coordinates, group: Communicator) -> Carrying:
        """The steps of a communication op, including its local copies."""
        key = (id(op), tuple(place.indices.values()))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._planner.communicate(op, place, group)
            if len(self._plans) < PLANS_KEPT:
                self._plans[key] = plan
        return self._carry_out(plan, group)

    def _carry_out(self, plan: TransferPlan, group: Communicator) -> Carrying:
        lane = group.lane or self._lane  # copies and sums stay in order with the group's messages
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
        lane.synchronise()  # an op ends when its result is in place

    def _step_by_step(self, plan: TransferPlan, group: Communicator, combine: Combine) -> Carrying:
        for step in plan.steps:
            requests = [group.receive(room, sender) for room, sender in step.receives]
            for part, to in step.sends:
                requests.append(group.send(part, to))
                self.bytes_sent += part.nbytes
            yield requests
            for held, room, into in step.sums:
                combine(held, room, into)
