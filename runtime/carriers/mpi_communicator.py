"""One group of ranks over MPI, for host arrays. Device arrays come through `staging`.

One MPI call moves at most `max_message_bytes`, since MPI libraries with 32-bit counts (the Open MPI wheel among them)
refuse more. A longer message is sent in parts. A longer library collective becomes broadcasts or reductions of slices.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from quadrille.algorithms.schedule.ops import Calls, Combination
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.carriers.communicators import Edges, Request
from quadrille.runtime.carriers.pipelined_steps import MAX_OUTSTANDING

MAX_MESSAGE_BYTES = 1 << 30
DATA, READY = 0, 1
"""Message tags."""
NOTHING = np.empty(0, "u1")


class MpiRequests:
    """MPI requests in progress."""

    __slots__ = ("requests",)

    def __init__(self, requests: list[MPI.Request]) -> None:
        self.requests = requests

    def done(self) -> bool:
        if not self._ended():
            return False
        self.requests = []
        return True

    def _ended(self) -> bool:
        """Whether all have completed. A single request uses Test, since Open MPI then checks again after progress."""
        if len(self.requests) == 1:
            return bool(self.requests[0].Test())
        return not self.requests or bool(MPI.Request.Testall(self.requests))


class MpiCommunicator:
    """One group of ranks on one lane."""

    max_outstanding = MAX_OUTSTANDING
    begins_in_order, lane = False, None

    def __init__(
        self, communicator: MPI.Intracomm, max_message_bytes: int = MAX_MESSAGE_BYTES, chunk_bytes: int = 0
    ) -> None:
        self._communicator = communicator
        self._most_bytes = max_message_bytes
        self.chunk_bytes = chunk_bytes
        self.member: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()

    def send(self, buffer: Array, to: int, *, synchronous: bool = False) -> Request:
        begin = self._communicator.Issend if synchronous else self._communicator.Isend
        return MpiRequests([begin([part, MPI.BYTE], to, DATA) for part in self._messages(buffer)])

    def receive(self, buffer: Array, sender: int) -> Request:
        return MpiRequests(
            [self._communicator.Irecv([part, MPI.BYTE], sender, DATA) for part in self._messages(buffer)]
        )

    def signal_ready(self, peer: int) -> Request:
        return MpiRequests([self._communicator.Isend([NOTHING, MPI.BYTE], peer, READY)])

    def await_ready(self, peer: int) -> Request:
        return MpiRequests([self._communicator.Irecv([NOTHING, MPI.BYTE], peer, READY)])

    def _messages(self, buffer: Array) -> list[Array]:
        """The buffer as bytes, in parts that MPI can count; an empty buffer is one empty message."""
        raw = buffer.view("u1")
        return [raw[i : i + self._most_bytes] for i in range(0, max(1, raw.size), self._most_bytes)]

    def _slices(self, buffer: Array) -> Iterator[Array]:
        """The buffer in slices whose elements MPI can count."""
        step = max(1, self._most_bytes // buffer.itemsize)
        return (buffer[i : i + step] for i in range(0, buffer.size, step))

    def _is_long(self, buffer: Array) -> bool:
        return bool(buffer.nbytes > self._most_bytes)

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        if self._is_long(whole):
            roots = [(whole[edges[i] : edges[i + 1]], i) for i in range(self.size)]
            return MpiRequests(
                [self._communicator.Ibcast(part, i) for piece, i in roots for part in self._slices(piece)]
            )
        group = self._communicator
        if calls == "regular":
            return self._begin(blocking, group.Allgather, group.Iallgather, (MPI.IN_PLACE, whole))
        into = [whole, (_counts(edges), edges[:-1])]
        return self._begin(blocking, group.Allgatherv, group.Iallgatherv, (MPI.IN_PLACE, into))

    def reduce_scatter(
        self, whole: Array, edges: Edges, piece: Array, *, blocking: bool, calls: Calls = "vector"
    ) -> Request:
        if self._is_long(whole):
            return self._reduce_scatter_in_slices(whole, edges, piece)
        group = self._communicator
        if calls == "regular":
            return self._begin(blocking, group.Reduce_scatter_block, group.Ireduce_scatter_block, (whole, piece))
        return self._begin(blocking, group.Reduce_scatter, group.Ireduce_scatter, (whole, piece, _counts(edges)))

    def _reduce_scatter_in_slices(self, source: Array, edges: Edges, into: Array) -> Request:
        requests: list[MPI.Request] = []
        for root in range(self.size):
            parts = self._slices(source[edges[root] : edges[root + 1]])
            rooms = self._slices(into) if root == self.member else iter(())
            requests += [self._communicator.Ireduce(part, next(rooms, None), root=root) for part in parts]
        return MpiRequests(requests)

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request:
        operation = MPI.MAX if combination == "max" else MPI.SUM
        if self._is_long(buffer):
            parts = self._slices(buffer)
            return MpiRequests([self._communicator.Iallreduce(MPI.IN_PLACE, part, operation) for part in parts])
        arguments = (MPI.IN_PLACE, buffer, operation)
        return self._begin(blocking, self._communicator.Allreduce, self._communicator.Iallreduce, arguments)

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        if self._is_long(buffer):
            return MpiRequests([self._communicator.Ibcast(part, root) for part in self._slices(buffer)])
        return self._begin(blocking, self._communicator.Bcast, self._communicator.Ibcast, (buffer, root))

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        parts = list(self._slices(buffer)) if self._is_long(buffer) else [buffer]
        if len(parts) > 1 or not blocking:
            return MpiRequests([self._communicator.Ireduce(*self._at_root(part, root), root=root) for part in parts])
        self._communicator.Reduce(*self._at_root(buffer, root), root=root)
        return MpiRequests([])

    def _at_root(self, part: Array, root: int) -> tuple[Any, Any]:
        return (MPI.IN_PLACE, part) if self.member == root else (part, None)

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request:
        sending, receiving = self._short(sent, sent_edges), self._short(received, received_edges)
        messages = self._long_pieces(sent, sent_edges, received, received_edges)
        arguments = ([sent, (sending, sent_edges[:-1])], [received, (receiving, received_edges[:-1])])
        if not blocking:
            return MpiRequests([self._communicator.Ialltoallv(*arguments), *messages])
        self._communicator.Alltoallv(*arguments)
        return MpiRequests(messages)

    def _short(self, buffer: Array, edges: Edges) -> tuple[int, ...]:
        """The elements of each shard that goes by the collective; 0 for a long shard.

        Only the two ends of a shard know that it is long, so every member calls the collective.
        """
        longest = self._most_bytes // self.size
        return tuple(count if count * buffer.itemsize <= longest else 0 for count in _counts(edges))

    def _long_pieces(self, source: Array, sent: Edges, into: Array, received: Edges) -> list[MPI.Request]:
        """The receives and sends of the shards that the collective leaves out."""
        requests: list[MPI.Request] = []
        for peer, short in enumerate(self._short(into, received)):
            room = into[received[peer] : received[peer + 1]]
            if short < room.size:
                requests += [self._communicator.Irecv([part, MPI.BYTE], peer, DATA) for part in self._messages(room)]
        for peer, short in enumerate(self._short(source, sent)):
            piece = source[sent[peer] : sent[peer + 1]]
            if short < piece.size:
                requests += [self._communicator.Isend([part, MPI.BYTE], peer, DATA) for part in self._messages(piece)]
        return requests

    def barrier(self, *, blocking: bool) -> Request:
        return self._begin(blocking, self._communicator.Barrier, self._communicator.Ibarrier, ())

    def _begin(
        self,
        blocking: bool,
        now: Callable[..., None],
        soon: Callable[..., MPI.Request],
        arguments: tuple[Any, ...],
    ) -> Request:
        """The collective as a blocking or a non-blocking call: MPI libraries tune the two separately."""
        if not blocking:
            return MpiRequests([soon(*arguments)])
        now(*arguments)
        return MpiRequests([])


def _counts(edges: Edges) -> tuple[int, ...]:
    return tuple(edges[i + 1] - edges[i] for i in range(len(edges) - 1))
