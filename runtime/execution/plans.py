"""Plans of communication ops on one rank, made once and carried out in every repeat.

A plan holds views of the rank's buffers: the local copies before and after, and for each step of a collective the
receives, the sends and the reductions. Carrying it out needs no further layout arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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
from quadrille.runtime.carriers.communicators import Communicator, Request
from quadrille.runtime.carriers.pipelined_steps import ChunkedPlan, PipelineStep, split_into_chunks
from quadrille.runtime.execution.buffers import Buffers, of_dtype

Copy = tuple[Array, Array]
"""Target and source of a copy."""


@dataclass(slots=True)
class TransferPlan:
    """The plan of one communication op on one rank.

    Parameters
    ----------
    rename : makes the result a view of the source; called in every execution, as each loop iteration has another source
    before, after : local copies
    steps : send, receive and reduce steps of our own algorithms
    chunks : the same steps in chunks, where the communicator splits messages
    library : starts the library's collective instead of the steps
    library_bytes : bytes that the library's collective sends, as predicted
    combination : how a reducing step combines two elements
    """

    rename: Callable[[], None] | None = None
    before: list[Copy] = field(default_factory=list)
    after: list[Copy] = field(default_factory=list)
    steps: list[PipelineStep] = field(default_factory=list)
    chunks: ChunkedPlan | None = None
    library: Callable[[], Request] | None = None
    library_bytes: int = 0
    combination: Combination = "sum"


class TransferPlanner:
    """Makes the transfer plans of one rank."""

    def __init__(self, schedule: Schedule, choices: Choices, buffers: Buffers) -> None:
        self._schedule = schedule
        self._choices = choices
        self._buffers = buffers
        self._own_steps_beside = any(
            may_overlap(schedule, op) and not choices.by_library(op) for op in all_ops(schedule)
        )

    def _blocks(self, op: Collective, group: Communicator) -> bool:
        """Whether the library's collective may block the rank until it has completed.

        It may not where chunked steps of other ops may be in progress: those advance only when the rank polls them.
        """
        return not op.concurrent and not (group.chunk_bytes and self._own_steps_beside)

    def communicate(self, op: CommunicationOp, place: Coordinates, group: Communicator) -> TransferPlan:
        """The plan of a communication op. In a group of one member it sends nothing."""
        plan = self._whole_steps(op, place, group)
        if plan.steps and group.chunk_bytes and not isinstance(op, Barrier):
            plan.chunks = split_into_chunks(
                plan.steps, group.chunk_bytes
            )  # chunks wait for bytes, of which a barrier has none
        return plan

    def _whole_steps(self, op: CommunicationOp, place: Coordinates, group: Communicator) -> TransferPlan:  # noqa: C901 - a line a kind
        moved = traffic(op, self._schedule, place, self._choices)
        flat = self._buffers.flat
        match op:
            case AllGather():
                return self._all_gather(op, place, group, moved)
            case ReduceScatter():
                return self._reduce_scatter(op, place, group, moved)
            case AllReduce():
                return self._all_reduce(op, place, group, moved)
            case Broadcast():
                return self._broadcast(op, place, group, moved)
            case Reduce():
                return self._reduce(op, place, group, moved)
            case AllToAll():
                return self._all_to_all(op, place, group, moved)
            case Barrier():
                return self._barrier(op, group, moved)
            case Send():
                return self._steps(TransferPlan(), op, moved, flat(op.source, place), None)
            case Receive():
                return self._steps(TransferPlan(), op, moved, None, flat(op.into, place))
            case Shift():
                return self._shift(op, place, moved)
            case _:
                assert_never(op)

    def _all_gather(
        self, op: AllGather, place: Coordinates, group: Communicator, moved: Traffic | None
    ) -> TransferPlan:
        source = self._buffers.flat(op.source, place)
        if moved is None:
            return self._renamed(op.source, op.into, place)
        whole = self._buffers.flat(op.into, place)
        own = (whole[moved.edges[group.member] : moved.edges[group.member + 1]], source)
        plan = TransferPlan() if is_gathered_in_place(self._schedule, op) else TransferPlan(before=[own])
        return self._carried(plan, op, group, moved, whole)

    def _reduce_scatter(
        self, op: ReduceScatter, place: Coordinates, group: Communicator, moved: Traffic | None
    ) -> TransferPlan:
        if moved is None:
            return self._renamed(op.source, op.into, place)
        whole, into = self._buffers.flat(op.source, place), self._buffers.flat(op.into, place)
        return self._carried(TransferPlan(), op, group, moved, whole, into)

    def _all_reduce(
        self, op: AllReduce, place: Coordinates, group: Communicator, moved: Traffic | None
    ) -> TransferPlan:
        plan, buffers = (
            TransferPlan(combination=op.combination),
            [self._buffers.flat(name, place) for name in op.buffers],
        )
        if not op.more or moved is None:
            return self._carried(plan, op, group, moved, buffers[0])
        bucket = of_dtype(self._buffers.scratch.packed[lane(op)], buffers[0].dtype)[: moved.edges[-1]]
        start = 0
        for buffer in buffers:
            piece = bucket[start : start + buffer.size]
            plan.before.append((piece, buffer))
            plan.after.append((buffer, piece))
            start += buffer.size
        return self._carried(plan, op, group, moved, bucket)

    def _renamed(self, source: str, into: str, place: Coordinates) -> TransferPlan:
        """The plan in a group of one: the result is the source under another name."""
        flat = self._buffers.flat(source, place)
        if self._buffers.is_view(into):
            return self._as_view(into, place, flat.reshape(self._buffers.block(into, place).shape))
        return TransferPlan(before=[(self._buffers.flat(into, place), flat)])

    def _as_view(self, into: str, place: Coordinates, view: Array) -> TransferPlan:
        return TransferPlan(rename=partial(self._buffers.bind, into, place, view))

    def _broadcast(self, op: Broadcast, place: Coordinates, group: Communicator, moved: Traffic | None) -> TransferPlan:
        region = self._buffers.block(op.into, place)
        if moved is None and self._buffers.is_view(op.into):
            return self._as_view(op.into, place, self._buffers.window(op.source, place, region))
        plan = TransferPlan()
        if group.member == evaluate(op.root, place):
            window = self._buffers.window(op.source, place, region)
            plan.before.append((self._buffers.matrix(op.into, place), window))
        return self._carried(plan, op, group, moved, self._buffers.flat(op.into, place))

    def _reduce(self, op: Reduce, place: Coordinates, group: Communicator, moved: Traffic | None) -> TransferPlan:
        plan = TransferPlan()
        if group.member == evaluate(op.root, place):
            window = self._buffers.window(op.into, place, self._buffers.block(op.source, place))
            plan.after.append((window, self._buffers.matrix(op.source, place)))
        return self._carried(plan, op, group, moved, self._buffers.flat(op.source, place))

    def _all_to_all(self, op: AllToAll, place: Coordinates, group: Communicator, moved: Traffic | None) -> TransferPlan:
        if moved is None:
            return TransferPlan(before=[(self._buffers.flat(op.into, place), self._buffers.flat(op.source, place))])
        scratch, tensors = self._buffers.scratch, self._schedule.tensors
        dtype = self._buffers.flat(op.source, place).dtype
        sent = of_dtype(scratch.packed[lane(op)], dtype)[: moved.edges[-1]]
        received = of_dtype(scratch.unpacked[lane(op)], dtype)[: moved.receive_edges[-1]]
        here_source, here_into = self._buffers.block(op.source, place), self._buffers.block(op.into, place)
        plan = TransferPlan()
        for member in range(group.size):
            there = place.at(op.axis, member)
            out = shared_rectangle(here_source, tensors[op.into].block(there))
            piece = sent[moved.edges[member] : moved.edges[member + 1]].reshape(out.shape)
            plan.before.append((piece, self._buffers.window(op.source, place, out)))
            back = shared_rectangle(tensors[op.source].block(there), here_into)
            piece = received[moved.receive_edges[member] : moved.receive_edges[member + 1]].reshape(back.shape)
            plan.after.append((self._buffers.window(op.into, place, back), piece))
        own = slice(moved.receive_edges[group.member], moved.receive_edges[group.member + 1])
        plan.before.append((received[own], sent[moved.edges[group.member] : moved.edges[group.member + 1]]))
        return self._carried(plan, op, group, moved, sent, received)

    def _barrier(self, op: Barrier, group: Communicator, moved: Traffic | None) -> TransferPlan:
        if moved is None:
            return TransferPlan()
        if self._choices.by_library(op):
            return TransferPlan(library=partial(group.barrier, blocking=self._blocks(op, group)))
        nothing = self._buffers.scratch.nothing
        return TransferPlan(
            steps=[
                PipelineStep(((nothing, exchange.receive_from),), ((nothing, exchange.send_to),), ())
                for exchange in moved.exchanges()
                if exchange.receive_from is not None and exchange.send_to is not None
            ]
        )

    def _shift(self, op: Shift, place: Coordinates, moved: Traffic | None) -> TransferPlan:
        source = self._buffers.flat(op.source, place)
        into = self._buffers.flat(op.into, written_coordinates(op, self._schedule, place))
        if moved is None:
            return TransferPlan(before=[(into, source)])
        return self._steps(TransferPlan(), op, moved, source, into)

    def _carried(
        self,
        plan: TransferPlan,
        op: CommunicationOp,
        group: Communicator,
        moved: Traffic | None,
        buffer: Array,
        result: Array | None = None,
    ) -> TransferPlan:
        """The plan with a collective on a flat buffer, by our own steps or by the library.

        Parameters
        ----------
        result : array in which an all-to-all receives, and in which a reduce-scatter leaves the member's sum
        """
        if moved is None:
            return plan
        if self._choices.by_library(op):
            begin = partial(_library_collective, op, buffer, group, moved, result)
            calls = calls_of(op, moved, self._choices) or "vector"
            plan.library = partial(begin, blocking=self._blocks(op, group), calls=calls)
            plan.library_bytes = moved.bytes_sent
            return plan
        if isinstance(op, AllToAll):
            return self._steps(plan, op, moved, buffer, result)
        return self._steps(plan, op, moved, buffer, buffer, result)

    def _steps(
        self,
        plan: TransferPlan,
        op: CommunicationOp,
        moved: Traffic | None,
        sent: Array | None,
        received: Array | None,
        last_sum: Array | None = None,
    ) -> TransferPlan:
        """The plan with our own steps. The last step of a reduce-scatter writes its sum into `last_sum`."""
        exchanges = list(moved.exchanges()) if moved is not None else []
        for position, exchange in enumerate(exchanges):
            ends_here = last_sum is not None and position == len(exchanges) - 1
            plan.steps.append(self._step(op, exchange, sent, received, last_sum if ends_here else None))
        return plan

    def _step(
        self,
        op: CommunicationOp,
        exchange: Exchange,
        sent: Array | None,
        received: Array | None,
        into: Array | None,
    ) -> PipelineStep:
        receives: list[tuple[Array, int]] = []
        sums: list[tuple[Array, Array, Array]] = []
        sends: list[tuple[Array, int]] = []
        position = 0
        for start, stop in exchange.receive:
            assert received is not None and exchange.receive_from is not None
            held = received[start:stop]
            room = held
            if exchange.reduce:
                whole = of_dtype(self._buffers.scratch.reductions[lane(op)], held.dtype)
                room = whole[position : position + stop - start]
                sums.append((held, room, held if into is None else into))
                position += stop - start
            receives.append((room, exchange.receive_from))
        for start, stop in exchange.send:
            assert sent is not None and exchange.send_to is not None
            sends.append((sent[start:stop], exchange.send_to))
        return PipelineStep(tuple(receives), tuple(sends), tuple(sums))


def _library_collective(
    op: CommunicationOp,
    buffer: Array,
    group: Communicator,
    moved: Traffic,
    received: Array | None,
    *,
    blocking: bool,
    calls: Calls,
) -> Request:
    match op:
        case AllGather():
            return group.all_gather(buffer, moved.edges, blocking=blocking, calls=calls)
        case ReduceScatter():
            return group.reduce_scatter(buffer, moved.edges, received, blocking=blocking, calls=calls)
        case AllReduce():
            return group.all_reduce(buffer, op.combination, blocking=blocking)
        case Broadcast():
            return group.broadcast(buffer, moved.root, blocking=blocking)
        case Reduce():
            return group.reduce(buffer, moved.root, blocking=blocking)
        case AllToAll():
            return group.all_to_all(buffer, moved.edges, received, moved.receive_edges, blocking=blocking)
        case Barrier():
            return group.barrier(blocking=blocking)
        case Send() | Receive() | Shift():
            raise AssertionError(f"{op.name} is no collective")
