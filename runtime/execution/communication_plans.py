"""Plans of communication ops on one rank: a plan is made once and executed in every repeat.

A plan holds views of the rank's buffers: the local copies before and after the messages, and for each step of a
collective the receives, the sends and the reductions. Its execution needs no further layout arithmetic.

`traffic` gives the steps of an op, with element ranges; it returns None in a group of one rank, which sends nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import assert_never

from quadrille.algorithms.analysis.shard_ranges import shared_rectangle
from quadrille.algorithms.analysis.storage import is_gathered_in_place
from quadrille.algorithms.analysis.traffic import Exchange, Traffic, calls_of, traffic, written_coordinates
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Calls,
    Collective,
    Combination,
    CommunicationOp,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
    lane,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule, all_ops, may_overlap
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.carriers.communicators import Communicator, Request, shard_of_member
from quadrille.runtime.carriers.pipelined_steps import ChunkedPlan, PipelineStep, split_into_chunks
from quadrille.runtime.execution.buffers import Buffers, viewed_as

Copy = tuple[Array, Array]
"""Target and source of a copy."""


@dataclass(slots=True)
class CommunicationPlan:
    """The plan of one communication op on one rank.

    Parameters
    ----------
    bind_view : function that makes the result a view of the source; called in every execution, as each loop iteration
        has another source
    copies_before, copies_after : local copies before and after the messages
    steps : send, receive and reduce steps of our own algorithms
    chunks : the same steps in chunks, where the communicator splits messages
    start_library_collective : function that starts the communication library's collective, which replaces the steps
    library_bytes : bytes that the library's collective sends, as predicted [B]
    combination : operation of a reducing step, sum or maximum
    """

    bind_view: Callable[[], None] | None = None
    copies_before: list[Copy] = field(default_factory=list)
    copies_after: list[Copy] = field(default_factory=list)
    steps: list[PipelineStep] = field(default_factory=list)
    chunks: ChunkedPlan | None = None
    start_library_collective: Callable[[], Request] | None = None
    library_bytes: int = 0
    combination: Combination = "sum"


class CommunicationPlanner:
    """The maker of one rank's communication plans.

    Parameters
    ----------
    schedule : schedule whose ops are planned
    choices : which collectives the library runs, and the algorithms of the others
    buffers : blocks of all tensors on the rank
    """

    def __init__(self, schedule: Schedule, choices: Choices, buffers: Buffers) -> None:
        self._schedule = schedule
        self._choices = choices
        self._buffers = buffers
        self._own_steps_may_overlap = any(
            may_overlap(schedule, op) and not choices.by_library(op) for op in all_ops(schedule)
        )

    def _may_block(self, op: Collective, group: Communicator) -> bool:
        """Whether the library's collective may block the rank until it has completed.

        It may not block while chunked steps of other ops may be in progress: those advance only when the rank polls.
        """
        return not op.concurrent and not (group.chunk_bytes and self._own_steps_may_overlap)

    def plan(self, op: CommunicationOp, coordinates: Coordinates, group: Communicator) -> CommunicationPlan:
        """The plan of a communication op at these coordinates, for the communicator of its group and lane."""
        plan = self._unchunked_plan(op, coordinates, group)
        if plan.steps and group.chunk_bytes and not isinstance(op, Barrier):  # a barrier has no bytes to split
            plan.chunks = split_into_chunks(plan.steps, group.chunk_bytes)
        return plan

    def _unchunked_plan(self, op: CommunicationOp, coordinates: Coordinates, group: Communicator) -> CommunicationPlan:  # noqa: C901 - a line a kind
        op_traffic = traffic(op, self._schedule, coordinates, self._choices)
        flat = self._buffers.flat
        match op:
            case AllGather() | ReduceScatter() if op.counts:
                return self._gathered_rows(op, coordinates, group, op_traffic)
            case AllGather():
                return self._all_gather(op, coordinates, group, op_traffic)
            case ReduceScatter():
                return self._reduce_scatter(op, coordinates, group, op_traffic)
            case AllReduce():
                return self._all_reduce(op, coordinates, group, op_traffic)
            case Broadcast():
                return self._broadcast(op, coordinates, group, op_traffic)
            case Reduce():
                return self._reduce(op, coordinates, group, op_traffic)
            case AllToAll() if op.counts:
                return self._routed_rows(op, coordinates, group, op_traffic)
            case AllToAll():
                return self._all_to_all(op, coordinates, group, op_traffic)
            case Barrier():
                return self._barrier(op, group, op_traffic)
            case Send():
                return self._own_steps_plan(CommunicationPlan(), op, op_traffic, flat(op.source, coordinates), None)
            case Receive():
                return self._own_steps_plan(CommunicationPlan(), op, op_traffic, None, flat(op.into, coordinates))
            case Shift():
                return self._shift(op, coordinates, op_traffic)
            case _:
                assert_never(op)

    def _all_gather(
        self, op: AllGather, coordinates: Coordinates, group: Communicator, op_traffic: Traffic | None
    ) -> CommunicationPlan:
        source = self._buffers.flat(op.source, coordinates)
        if op_traffic is None:
            return self._alias_plan(op.source, op.into, coordinates)
        whole = self._buffers.flat(op.into, coordinates)
        own = (whole[op_traffic.edges[group.member] : op_traffic.edges[group.member + 1]], source)
        plan = (
            CommunicationPlan() if is_gathered_in_place(self._schedule, op) else CommunicationPlan(copies_before=[own])
        )
        return self._collective_plan(plan, op, group, op_traffic, whole)

    def _reduce_scatter(
        self, op: ReduceScatter, coordinates: Coordinates, group: Communicator, op_traffic: Traffic | None
    ) -> CommunicationPlan:
        if op_traffic is None:
            return self._alias_plan(op.source, op.into, coordinates)
        whole = self._buffers.flat(op.source, coordinates)
        if self._schedule.tensors[op.into].shard_of != op.source:
            into = self._buffers.flat(op.into, coordinates)
            return self._collective_plan(CommunicationPlan(), op, group, op_traffic, whole, into)
        by_library = self._choices.by_library(op)
        into = (
            group.sum_in_place(whole, op_traffic.edges)
            if by_library
            else shard_of_member(whole, op_traffic.edges, group.member)
        )
        return self._collective_plan(self._view_plan(op.into, coordinates, into), op, group, op_traffic, whole, into)

    def _all_reduce(
        self, op: AllReduce, coordinates: Coordinates, group: Communicator, op_traffic: Traffic | None
    ) -> CommunicationPlan:
        plan, buffers = (
            CommunicationPlan(combination=op.combination),
            [self._buffers.flat(name, coordinates) for name in op.buffers],
        )
        if not op.more or op_traffic is None:
            return self._collective_plan(plan, op, group, op_traffic, buffers[0])
        bucket = viewed_as(self._buffers.scratch.packed[lane(op)], buffers[0].dtype)[: op_traffic.edges[-1]]
        start = 0
        for buffer in buffers:
            piece = bucket[start : start + buffer.size]
            plan.copies_before.append((piece, buffer))
            plan.copies_after.append((buffer, piece))
            start += buffer.size
        return self._collective_plan(plan, op, group, op_traffic, bucket)

    def _alias_plan(self, source: str, into: str, coordinates: Coordinates) -> CommunicationPlan:
        """The plan in a group of one: the result is the source under another name."""
        flat = self._buffers.flat(source, coordinates)
        if self._buffers.is_view(into):
            return self._view_plan(into, coordinates, flat.reshape(self._buffers.block(into, coordinates).shape))
        return CommunicationPlan(copies_before=[(self._buffers.flat(into, coordinates), flat)])

    def _view_plan(self, into: str, coordinates: Coordinates, view: Array) -> CommunicationPlan:
        return CommunicationPlan(bind_view=partial(self._buffers.bind, into, coordinates, view))

    def _broadcast(
        self, op: Broadcast, coordinates: Coordinates, group: Communicator, op_traffic: Traffic | None
    ) -> CommunicationPlan:
        region = self._buffers.block(op.into, coordinates)
        if op_traffic is None and self._buffers.is_view(op.into):
            return self._view_plan(op.into, coordinates, self._buffers.window(op.source, coordinates, region))
        plan = CommunicationPlan()
        if group.member == evaluate(op.root, coordinates):
            window = self._buffers.window(op.source, coordinates, region)
            plan.copies_before.append((self._buffers.matrix(op.into, coordinates), window))
        return self._collective_plan(plan, op, group, op_traffic, self._buffers.flat(op.into, coordinates))

    def _reduce(
        self, op: Reduce, coordinates: Coordinates, group: Communicator, op_traffic: Traffic | None
    ) -> CommunicationPlan:
        plan = CommunicationPlan()
        if group.member == evaluate(op.root, coordinates):
            window = self._buffers.window(op.into, coordinates, self._buffers.block(op.source, coordinates))
            plan.copies_after.append((window, self._buffers.matrix(op.source, coordinates)))
        return self._collective_plan(plan, op, group, op_traffic, self._buffers.flat(op.source, coordinates))

    def _all_to_all(
        self, op: AllToAll, coordinates: Coordinates, group: Communicator, op_traffic: Traffic | None
    ) -> CommunicationPlan:
        if op_traffic is None:
            return CommunicationPlan(
                copies_before=[(self._buffers.flat(op.into, coordinates), self._buffers.flat(op.source, coordinates))]
            )
        scratch, tensors = self._buffers.scratch, self._schedule.tensors
        dtype = self._buffers.flat(op.source, coordinates).dtype
        sent = viewed_as(scratch.packed[lane(op)], dtype)[: op_traffic.edges[-1]]
        received = viewed_as(scratch.unpacked[lane(op)], dtype)[: op_traffic.receive_edges[-1]]
        own_source, own_into = self._buffers.block(op.source, coordinates), self._buffers.block(op.into, coordinates)
        plan = CommunicationPlan()
        for member in range(group.size):
            peer_coordinates = coordinates.at(op.axis, member)
            sent_part = shared_rectangle(own_source, tensors[op.into].block(peer_coordinates))
            piece = sent[op_traffic.edges[member] : op_traffic.edges[member + 1]].reshape(sent_part.shape)
            plan.copies_before.append((piece, self._buffers.window(op.source, coordinates, sent_part)))
            received_part = shared_rectangle(tensors[op.source].block(peer_coordinates), own_into)
            piece = received[op_traffic.receive_edges[member] : op_traffic.receive_edges[member + 1]].reshape(
                received_part.shape
            )
            plan.copies_after.append((self._buffers.window(op.into, coordinates, received_part), piece))
        own = slice(op_traffic.receive_edges[group.member], op_traffic.receive_edges[group.member + 1])
        plan.copies_before.append(
            (received[own], sent[op_traffic.edges[group.member] : op_traffic.edges[group.member + 1]])
        )
        return self._collective_plan(plan, op, group, op_traffic, sent, received)

    def _routed_rows(
        self, op: AllToAll, coordinates: Coordinates, group: Communicator, op_traffic: Traffic | None
    ) -> CommunicationPlan:
        """The plan of rows that travel to the ranks of their experts, or back, in the numbers that routers chose."""
        from quadrille.runtime.execution.routed_rows import RoutedRows  # most schedules have no experts

        assert op_traffic is not None, op
        grid, counts = coordinates.grid, self._buffers.counts(op.counts, coordinates)
        of_same_part = slice(coordinates.along["expert_tensor"], None, grid.expert_tensor)
        rows = RoutedRows(counts[of_same_part], group.member)
        if not op.back:
            self._buffers.set_rows(op.into, coordinates, rows.received)
        source, into = self._buffers.flat(op.source, coordinates), self._buffers.flat(op.into, coordinates)
        (first, last) = self._schedule.tensors[op.source].columns.bounds(coordinates)
        width, name, scratch = last - first, lane(op), self._buffers.scratch
        to_experts, from_members = rows.edges(width)
        edges, receive_edges = (from_members, to_experts) if op.back else (to_experts, from_members)
        plan, sent, received = CommunicationPlan(), source, into
        if rows.sorts and op.back:
            sent = viewed_as(self._buffers.room(scratch.packed, name, edges[-1]), source.dtype)[: edges[-1]]
            plan.copies_before += [(sent[by_member], source[by_expert]) for by_member, by_expert in rows.pairs(width)]
        elif rows.sorts:
            size = receive_edges[-1]
            received = viewed_as(self._buffers.room(scratch.unpacked, name, size), into.dtype)[:size]
            plan.copies_after += [(into[by_expert], received[by_member]) for by_member, by_expert in rows.pairs(width)]
        member = group.member
        own, kept = (slice(ends[member], ends[member + 1]) for ends in (receive_edges, edges))
        plan.copies_before.append((received[own], sent[kept]))
        actual = replace(op_traffic, edges=edges, receive_edges=receive_edges)
        return self._collective_plan(plan, op, group, actual, sent, received)

    def _gathered_rows(
        self, op: AllGather | ReduceScatter, coordinates: Coordinates, group: Communicator, op_traffic: Traffic | None
    ) -> CommunicationPlan:
        """The plan of rows that the ranks that cut the same experts gather from each other, or of their sums."""
        from quadrille.runtime.execution.routed_rows import GatheredRows

        assert op_traffic is not None, op
        rows = GatheredRows(self._buffers.counts(op.counts, coordinates), coordinates)
        written = rows.of_ranks if isinstance(op, AllGather) else rows.of_ranks[group.member : group.member + 1]
        if self._schedule.tensors[op.into].routed:
            self._buffers.set_rows(op.into, coordinates, sum(written))
        source, into = self._buffers.flat(op.source, coordinates), self._buffers.flat(op.into, coordinates)
        (first, last) = self._schedule.tensors[op.source].columns.bounds(coordinates)
        width, name, scratch = last - first, lane(op), self._buffers.scratch
        edges = tuple(accumulate((width * count for count in rows.of_ranks), initial=0))
        own, size = slice(edges[group.member], edges[group.member + 1]), edges[-1]
        actual, plan = replace(op_traffic, edges=edges, receive_edges=edges), CommunicationPlan()
        if isinstance(op, AllGather):
            whole = into
            if rows.sorts:
                whole = viewed_as(self._buffers.room(scratch.unpacked, name, size), into.dtype)[:size]
                plan.copies_after += [(into[by_expert], whole[by_rank]) for by_rank, by_expert in rows.pairs(width)]
            plan.copies_before.append((whole[own], source[: own.stop - own.start]))
            return self._collective_plan(plan, op, group, actual, whole)
        whole = source[:size]
        if rows.sorts:
            whole = viewed_as(self._buffers.room(scratch.packed, name, size), source.dtype)[:size]
            plan.copies_before += [(whole[by_rank], source[by_expert]) for by_rank, by_expert in rows.pairs(width)]
        if name in scratch.reductions:
            self._buffers.room(scratch.reductions, name, max(width * count for count in rows.of_ranks))
        return self._collective_plan(plan, op, group, actual, whole, into[: own.stop - own.start])

    def _barrier(self, op: Barrier, group: Communicator, op_traffic: Traffic | None) -> CommunicationPlan:
        if op_traffic is None:
            return CommunicationPlan()
        if self._choices.by_library(op):
            return CommunicationPlan(
                start_library_collective=partial(group.barrier, blocking=self._may_block(op, group))
            )
        empty = self._buffers.scratch.empty
        return CommunicationPlan(
            steps=[
                PipelineStep(((empty, exchange.receive_from),), ((empty, exchange.send_to),), ())
                for exchange in op_traffic.exchanges()
                if exchange.receive_from is not None and exchange.send_to is not None
            ]
        )

    def _shift(self, op: Shift, coordinates: Coordinates, op_traffic: Traffic | None) -> CommunicationPlan:
        source = self._buffers.flat(op.source, coordinates)
        into = self._buffers.flat(op.into, written_coordinates(op, self._schedule, coordinates))
        if op_traffic is None:
            return CommunicationPlan(copies_before=[(into, source)])
        return self._own_steps_plan(CommunicationPlan(), op, op_traffic, source, into)

    def _collective_plan(
        self,
        plan: CommunicationPlan,
        op: CommunicationOp,
        group: Communicator,
        op_traffic: Traffic | None,
        buffer: Array,
        result: Array | None = None,
    ) -> CommunicationPlan:
        """The plan with a collective on a flat buffer added: our own steps, or the communication library's call.

        Parameters
        ----------
        result : array into which an all-to-all receives, and into which a reduce-scatter writes the rank's sum
        """
        if op_traffic is None:
            return plan
        if self._choices.by_library(op):
            begin = partial(_library_collective, op, buffer, group, op_traffic, result)
            calls = calls_of(op, op_traffic, self._choices) or "vector"
            plan.start_library_collective = partial(begin, blocking=self._may_block(op, group), calls=calls)
            plan.library_bytes = op_traffic.bytes_sent
            return plan
        if isinstance(op, AllToAll):
            return self._own_steps_plan(plan, op, op_traffic, buffer, result)
        return self._own_steps_plan(plan, op, op_traffic, buffer, buffer, result)

    def _own_steps_plan(
        self,
        plan: CommunicationPlan,
        op: CommunicationOp,
        op_traffic: Traffic | None,
        sent: Array | None,
        received: Array | None,
        last_sum: Array | None = None,
    ) -> CommunicationPlan:
        """The plan with our own steps added. The last step of a reduce-scatter writes its sum into `last_sum`."""
        exchanges = list(op_traffic.exchanges()) if op_traffic is not None else []
        for position, exchange in enumerate(exchanges):
            ends_here = last_sum is not None and position == len(exchanges) - 1
            plan.steps.append(self._step(op, exchange, sent, received, last_sum if ends_here else None))
        if op_traffic is not None and op_traffic.lowered.at_once:
            plan.steps = [_merged(plan.steps)]
        return plan

    def _step(
        self,
        op: CommunicationOp,
        exchange: Exchange,
        sent: Array | None,
        received: Array | None,
        into: Array | None,
    ) -> PipelineStep:
        """The arrays of one step: its receives and sends with their peers, and its reductions.

        A step that reduces receives into a scratch array and adds that to the target, or into `into` if it is given.
        """
        receives: list[tuple[Array, int]] = []
        reductions: list[tuple[Array, Array, Array]] = []
        sends: list[tuple[Array, int]] = []
        position = 0
        for start, stop in exchange.receive:
            assert received is not None and exchange.receive_from is not None
            target = received[start:stop]
            receive_buffer = target
            if exchange.reduce:
                scratch = viewed_as(self._buffers.scratch.reductions[lane(op)], target.dtype)
                receive_buffer = scratch[position : position + stop - start]
                reductions.append((target, receive_buffer, target if into is None else into))
                position += stop - start
            receives.append((receive_buffer, exchange.receive_from))
        for start, stop in exchange.send:
            assert sent is not None and exchange.send_to is not None
            sends.append((sent[start:stop], exchange.send_to))
        return PipelineStep(tuple(receives), tuple(sends), tuple(reductions))


def _merged(steps: Sequence[PipelineStep]) -> PipelineStep:
    """One step that posts the receives and sends of all steps at once."""
    return PipelineStep(
        tuple(receive for step in steps for receive in step.receives),
        tuple(send for step in steps for send in step.sends),
        tuple(reduction for step in steps for reduction in step.reductions),
    )


def _library_collective(
    op: CommunicationOp,
    buffer: Array,
    group: Communicator,
    op_traffic: Traffic,
    received: Array | None,
    *,
    blocking: bool,
    calls: Calls,
) -> Request:
    """Start the communication library's collective and return its request."""
    match op:
        case AllGather():
            return group.all_gather(buffer, op_traffic.edges, blocking=blocking, calls=calls)
        case ReduceScatter():
            return group.reduce_scatter(buffer, op_traffic.edges, received, blocking=blocking, calls=calls)
        case AllReduce():
            return group.all_reduce(buffer, op.combination, blocking=blocking)
        case Broadcast():
            return group.broadcast(buffer, op_traffic.root, blocking=blocking)
        case Reduce():
            return group.reduce(buffer, op_traffic.root, blocking=blocking)
        case AllToAll():
            return group.all_to_all(buffer, op_traffic.edges, received, op_traffic.receive_edges, blocking=blocking)
        case Barrier():
            return group.barrier(blocking=blocking)
        case Send() | Receive() | Shift():
            raise AssertionError(f"{op.name} is no collective")
