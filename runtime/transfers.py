"""What each op does to a rank's arrays: local work, our own steps of a collective, or the library's."""

from collections.abc import Generator
from typing import assert_never

from algorithms.choices import Choices
from algorithms.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    CommunicationOp,
    Gemm,
    HostCopy,
    Pointwise,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
    lane,
)
from algorithms.parts import Place, number
from algorithms.schedule import Schedule
from algorithms.traffic import Exchange, Traffic, later, overlap, traffic
from runtime.arrays import Library
from runtime.buffers import Buffers
from runtime.communicators import Array, Communicator, Request

Steps = Generator[list[Request], None, None]
"""A communication op on its way: each yield gives the requests that must end before it goes on."""


class Transfers:
    """The ops of one rank, and a count of the bytes that they put on the wire."""

    def __init__(self, schedule: Schedule, choices: Choices, library: Library, buffers: Buffers) -> None:
        self._schedule = schedule
        self._choices = choices
        self._library = library
        self._beside = library.beside()  # a GEMM under way does not hold up the lanes
        self._buffers = buffers
        self.bytes_sent = 0

    def compute(self, op: Gemm | Pointwise | HostCopy, place: Place) -> None:
        """Local work."""
        match op:
            case Gemm():
                self._gemm(op, place)
            case Pointwise():
                self._pointwise(op, place)
            case HostCopy():
                self._library.copy(self._buffers.flat(op.into, place), self._buffers.flat(op.source, place))
            case _:
                assert_never(op)

    def _gemm(self, op: Gemm, place: Place) -> None:
        a, b = self._buffers.matrix(op.a, place), self._buffers.matrix(op.b, place)
        left = a.T if op.layout == "TN" else a
        right = b.T if op.layout == "NT" else b
        c = self._buffers.matrix(op.c, place)
        if not op.accumulate:
            self._library.matmul(left, right, c)
            return
        product = self._buffers.scratch.product[: c.size].reshape(c.shape)
        self._library.matmul(left, right, product)
        self._library.add(c, product, c)

    def _pointwise(self, op: Pointwise, place: Place) -> None:
        into = self._buffers.flat(op.into, place)
        match op.function:
            case "zero":
                self._library.zero(into)
            case "copy":
                self._library.copy(into, self._buffers.flat(op.sources[0], place))
            case "add":
                one, other = (self._buffers.flat(source, place) for source in op.sources)
                self._library.add(one, other, into)
            case _:
                assert_never(op.function)

    def communicate(  # noqa: C901 - one line for each kind of op
        self, op: CommunicationOp, place: Place, communicator: Communicator
    ) -> Steps:
        """The op's steps; nothing goes over a wire where the group has one member."""
        moved = traffic(op, self._schedule, place, self._choices)
        buffers = self._buffers
        match op:
            case AllGather():
                yield from self._all_gather(op, place, communicator, moved)
            case ReduceScatter():
                yield from self._reduce_scatter(op, place, communicator, moved)
            case AllReduce():
                yield from self._carry(op, buffers.flat(op.buffer, place), communicator, moved)
            case Broadcast():
                yield from self._broadcast(op, place, communicator, moved)
            case Reduce():
                yield from self._reduce(op, place, communicator, moved)
            case AllToAll():
                yield from self._all_to_all(op, place, communicator, moved)
            case Barrier():
                yield from self._barrier(op, communicator, moved)
            case Send():
                yield from self._own(op, moved, communicator, buffers.flat(op.source, place), None)
            case Receive():
                yield from self._own(op, moved, communicator, None, buffers.flat(op.into, place))
            case Shift():
                yield from self._shift(op, place, communicator, moved)
        self._beside.synchronise()  # the op has ended when its data are there

    def _all_gather(self, op: AllGather, place: Place, group: Communicator, moved: Traffic | None) -> Steps:
        source = self._buffers.flat(op.source, place)
        if moved is None:
            self._rename(op.source, op.into, place)
            return
        whole = self._buffers.flat(op.into, place)
        start, stop = moved.edges[group.member], moved.edges[group.member + 1]
        self._beside.copy(whole[start:stop], source)
        yield from self._carry(op, whole, group, moved)

    def _reduce_scatter(self, op: ReduceScatter, place: Place, group: Communicator, moved: Traffic | None) -> Steps:
        if moved is None:
            self._rename(op.source, op.into, place)
            return
        whole, into = self._buffers.flat(op.source, place), self._buffers.flat(op.into, place)
        yield from self._carry(op, whole, group, moved, into)

    def _rename(self, source: str, into: str, place: Place) -> None:
        """In a group of one the result is the source under another name."""
        shape = self._buffers.block(into, place).shape
        flat = self._buffers.flat(source, place)
        if self._buffers.is_view(into):
            self._buffers.bind(into, flat.reshape(shape))
        else:
            self._beside.copy(self._buffers.flat(into, place), flat)

    def _broadcast(self, op: Broadcast, place: Place, group: Communicator, moved: Traffic | None) -> Steps:
        window_of = self._buffers.block(op.into, place)
        if moved is None and self._buffers.is_view(op.into):
            self._buffers.bind(op.into, self._buffers.window(op.source, place, window_of))
            return
        if group.member == number(op.root, place):
            window = self._buffers.window(op.source, place, window_of)
            self._beside.copy(self._buffers.matrix(op.into, place), window)
        yield from self._carry(op, self._buffers.flat(op.into, place), group, moved)

    def _reduce(self, op: Reduce, place: Place, group: Communicator, moved: Traffic | None) -> Steps:
        yield from self._carry(op, self._buffers.flat(op.source, place), group, moved)
        if group.member == number(op.root, place):
            window = self._buffers.window(op.into, place, self._buffers.block(op.source, place))
            self._beside.copy(window, self._buffers.matrix(op.source, place))

    def _all_to_all(self, op: AllToAll, place: Place, group: Communicator, moved: Traffic | None) -> Steps:
        if moved is None:
            self._beside.copy(self._buffers.flat(op.into, place), self._buffers.flat(op.source, place))
            return
        scratch = self._buffers.scratch
        sent, received = (
            scratch.packed[lane(op)][: moved.edges[-1]],
            scratch.unpacked[lane(op)][: moved.receive_edges[-1]],
        )
        here_source, here_into = self._buffers.block(op.source, place), self._buffers.block(op.into, place)
        tensors = self._schedule.tensors
        for member in range(group.size):
            shared = overlap(here_source, tensors[op.into].block(place.at(op.axis, member)))
            piece = sent[moved.edges[member] : moved.edges[member + 1]].reshape(shared.shape)
            self._beside.copy(piece, self._buffers.window(op.source, place, shared))
        own = slice(moved.receive_edges[group.member], moved.receive_edges[group.member + 1])
        self._beside.copy(received[own], sent[moved.edges[group.member] : moved.edges[group.member + 1]])
        yield from self._carry(op, sent, group, moved, received)
        for member in range(group.size):
            shared = overlap(tensors[op.source].block(place.at(op.axis, member)), here_into)
            piece = received[moved.receive_edges[member] : moved.receive_edges[member + 1]].reshape(shared.shape)
            self._beside.copy(self._buffers.window(op.into, place, shared), piece)

    def _barrier(self, op: Barrier, group: Communicator, moved: Traffic | None) -> Steps:
        if moved is None:
            return
        if self._choices.carriage == "library":
            yield [group.barrier(blocking=not op.concurrent)]
            return
        nothing = self._buffers.scratch.nothing
        for exchange in moved.exchanges():
            assert exchange.receive_from is not None and exchange.send_to is not None
            yield [group.receive(nothing, exchange.receive_from), group.send(nothing, exchange.send_to)]

    def _shift(self, op: Shift, place: Place, group: Communicator, moved: Traffic | None) -> Steps:
        source = self._buffers.flat(op.source, place)
        then = later(op, self._schedule, place)
        into = self._buffers.flat(op.into, then)
        if moved is None:
            self._beside.copy(into, source)
            return
        yield from self._own(op, moved, group, source, into)

    def _carry(
        self,
        op: CommunicationOp,
        buffer: Array,
        group: Communicator,
        moved: Traffic | None,
        result: Array | None = None,
    ) -> Steps:
        """The collective on a flat buffer, by our own steps or by the library's.

        `result` is where an all-to-all receives, and where a reduce-scatter leaves the member's sum.
        """
        if moved is None:
            return
        if self._choices.carriage == "library":
            self._beside.synchronise()
            self.bytes_sent += moved.bytes_sent
            yield [_library_collective(op, buffer, group, moved, result)]
        elif isinstance(op, AllToAll):
            yield from self._own(op, moved, group, buffer, result)
        else:
            yield from self._own(op, moved, group, buffer, buffer, result)

    def _own(
        self,
        op: CommunicationOp,
        moved: Traffic | None,
        group: Communicator,
        sent: Array | None,
        received: Array | None,
        last_sum: Array | None = None,
    ) -> Steps:
        """Our own steps; the last of a reduce-scatter adds into `last_sum`."""
        if moved is None:
            return
        self._beside.synchronise()
        steps = list(moved.exchanges())
        for number_of_step, exchange in enumerate(steps):
            rooms = self._rooms(op, exchange, received)
            requests = [
                group.receive(room, exchange.receive_from) for room in rooms if exchange.receive_from is not None
            ]
            for start, stop in exchange.send:
                assert sent is not None and exchange.send_to is not None
                requests.append(group.send(sent[start:stop], exchange.send_to))
                self.bytes_sent += (stop - start) * moved.item_bytes
            yield requests
            if exchange.reduce and received is not None:
                ends_here = last_sum is not None and number_of_step == len(steps) - 1
                self._add(exchange, rooms, received, last_sum if ends_here else None)

    def _add(self, exchange: Exchange, rooms: list[Array], received: Array, into: Array | None) -> None:
        for room, (start, stop) in zip(rooms, exchange.receive, strict=True):
            held = received[start:stop]
            self._beside.add(held, room, held if into is None else into)
        self._beside.synchronise()

    def _rooms(self, op: CommunicationOp, exchange: Exchange, received: Array | None) -> list[Array]:
        """Where what a step receives goes: in place, or beside it to be added."""
        if received is None:
            return []
        if not exchange.reduce:
            return [received[start:stop] for start, stop in exchange.receive]
        room = self._buffers.scratch.reductions[lane(op)]
        rooms, position = [], 0
        for start, stop in exchange.receive:
            rooms.append(room[position : position + stop - start])
            position += stop - start
        return rooms


def _library_collective(
    op: CommunicationOp, buffer: Array, group: Communicator, moved: Traffic, received: Array | None
) -> Request:
    blocking = not op.concurrent
    match op:
        case AllGather():
            return group.all_gather(buffer, moved.edges, blocking=blocking)
        case ReduceScatter():
            return group.reduce_scatter(buffer, moved.edges, received, blocking=blocking)
        case AllReduce():
            return group.all_reduce(buffer, blocking=blocking)
        case Broadcast() | Reduce():
            root = moved.root
            act = group.broadcast if isinstance(op, Broadcast) else group.reduce
            return act(buffer, root, blocking=blocking)
        case AllToAll():
            return group.all_to_all(buffer, moved.edges, received, moved.receive_edges, blocking=blocking)
        case Barrier():
            return group.barrier(blocking=blocking)
        case Send() | Receive() | Shift():
            raise AssertionError(f"{op.name} is no collective")
