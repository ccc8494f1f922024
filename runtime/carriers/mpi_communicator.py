"""The MPI communicator of a group of ranks, for host arrays. Device arrays go through `staging.py`.

One MPI call moves at most `max_message_bytes`, since MPI libraries with 32-bit counts (the Open MPI wheel among them)
refuse more. A longer message is sent in parts. A longer library collective becomes broadcasts or reductions of slices.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from quadrille.algorithms.schedule.ops import Calls, Combination
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.carriers.communicators import Edges, Request, shard_of_member
from quadrille.runtime.carriers.pipelined_steps import MAX_OUTSTANDING

MAX_MESSAGE_BYTES = 1 << 30
DATA, READY = 0, 1
"""Message tags."""
NO_CONTENT = np.empty(0, "u1")


class MpiRequests:
    """A request that consists of several MPI requests, which all must complete."""

    __slots__ = ("requests",)

    def __init__(self, requests: list[MPI.Request]) -> None:
        self.requests = requests

    def done(self) -> bool:
        if not self._ended():
            return False
        self.requests = []
        return True

    def _ended(self) -> bool:
        """Whether all MPI requests have completed. For a single request, Open MPI's Test polls more than Testall."""
        if len(self.requests) == 1:
            return bool(self.requests[0].Test())
        return not self.requests or bool(MPI.Request.Testall(self.requests))


class MpiCommunicator:
    """The communicator of a group of ranks on one lane (queue of communication ops), over MPI.

    Parameters
    ----------
    communicator : MPI communicator of the group
    max_message_bytes : most bytes of one MPI call [B]
    chunk_bytes : chunk size of our own collectives; 0 sends the message of each step whole [B]
    """

    max_outstanding = MAX_OUTSTANDING
    begins_in_order, lane = False, None

    def __init__(
        self, communicator: MPI.Intracomm, max_message_bytes: int = MAX_MESSAGE_BYTES, chunk_bytes: int = 0
    ) -> None:
        self._communicator = communicator
        self._max_message_bytes = max_message_bytes
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
        return MpiRequests([self._communicator.Isend([NO_CONTENT, MPI.BYTE], peer, READY)])

    def await_ready(self, peer: int) -> Request:
        return MpiRequests([self._communicator.Irecv([NO_CONTENT, MPI.BYTE], peer, READY)])

    def _messages(self, buffer: Array) -> list[Array]:
        """The buffer as bytes, in parts of at most `max_message_bytes`; an empty buffer is one empty message."""
        raw = buffer.view("u1")
        return [raw[i : i + self._max_message_bytes] for i in range(0, max(1, raw.size), self._max_message_bytes)]

    def _slices(self, buffer: Array) -> Iterator[Array]:
        """The buffer in slices of at most `max_message_bytes`, as elements."""
        step = max(1, self._max_message_bytes // buffer.itemsize)
        return (buffer[i : i + step] for i in range(0, buffer.size, step))

    def _exceeds_message_limit(self, buffer: Array) -> bool:
        return bool(buffer.nbytes > self._max_message_bytes)

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        if self._exceeds_message_limit(whole):
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
        if self._exceeds_message_limit(whole):
            return self._reduce_scatter_in_slices(whole, edges, piece)
        group = self._communicator
        in_place = piece.ctypes.data == whole.ctypes.data  # on every member, also if the piece is empty
        buffers = (MPI.IN_PLACE, whole) if in_place else (whole, piece)
        if calls == "regular":
            return self._begin(blocking, group.Reduce_scatter_block, group.Ireduce_scatter_block, buffers)
        return self._begin(blocking, group.Reduce_scatter, group.Ireduce_scatter, (*buffers, _counts(edges)))

    def sum_in_place(self, whole: Array, edges: Edges) -> Array:
        """The shard at the start of `whole`, where MPI leaves it; the member's own shard if the sum is made in slices.

        Source: MPI Forum, "MPI: A Message-Passing Interface Standard", version 4.1, 2023, section 6.10 (in place, the
        result of a reduce-scatter is at the start of the receive buffer).
        """
        shard = shard_of_member(whole, edges, self.member)
        return shard if self._exceeds_message_limit(whole) else whole[: shard.size]

    def _reduce_scatter_in_slices(self, source: Array, edges: Edges, into: Array) -> Request:
        requests: list[MPI.Request] = []
        for root in range(self.size):
            parts = self._slices(source[edges[root] : edges[root + 1]])
            targets = self._slices(into) if root == self.member else iter(())
            requests += [self._reduce_slice(part, next(targets, None), root) for part in parts]
        return MpiRequests(requests)

    def _reduce_slice(self, part: Array, into: Array | None, root: int) -> MPI.Request:
        """The sum of a slice into `into`, which at the root may be the slice itself."""
        if into is not None and np.may_share_memory(part, into):
            return self._communicator.Ireduce(MPI.IN_PLACE, into, root=root)
        return self._communicator.Ireduce(part, into, root=root)

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request:
        operation = MPI.MAX if combination == "max" else MPI.SUM
        if self._exceeds_message_limit(buffer):
            parts = self._slices(buffer)
            return MpiRequests([self._communicator.Iallreduce(MPI.IN_PLACE, part, operation) for part in parts])
        arguments = (MPI.IN_PLACE, buffer, operation)
        return self._begin(blocking, self._communicator.Allreduce, self._communicator.Iallreduce, arguments)

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        if self._exceeds_message_limit(buffer):
            return MpiRequests([self._communicator.Ibcast(part, root) for part in self._slices(buffer)])
        return self._begin(blocking, self._communicator.Bcast, self._communicator.Ibcast, (buffer, root))

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        parts = list(self._slices(buffer)) if self._exceeds_message_limit(buffer) else [buffer]
        if len(parts) > 1 or not blocking:
            return MpiRequests([self._communicator.Ireduce(*self._at_root(part, root), root=root) for part in parts])
        self._communicator.Reduce(*self._at_root(buffer, root), root=root)
        return MpiRequests([])

    def _at_root(self, part: Array, root: int) -> tuple[Any, Any]:
        """The send and receive buffers of an in-place reduction, at the root and at all other members."""
        return (MPI.IN_PLACE, part) if self.member == root else (part, None)

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request:
        sending, receiving = self._short_counts(sent, sent_edges), self._short_counts(received, received_edges)
        messages = self._send_long_shards(sent, sent_edges, received, received_edges)
        arguments = ([sent, (sending, sent_edges[:-1])], [received, (receiving, received_edges[:-1])])
        if not blocking:
            return MpiRequests([self._communicator.Ialltoallv(*arguments), *messages])
        self._communicator.Alltoallv(*arguments)
        return MpiRequests(messages)

    def _short_counts(self, buffer: Array, edges: Edges) -> tuple[int, ...]:
        """The number of elements that the collective moves for each shard; 0 for a long shard, sent separately.

        Only the sender and the receiver of a shard know that it is long, so every member calls the collective.
        """
        longest = self._max_message_bytes // self.size
        return tuple(count if count * buffer.itemsize <= longest else 0 for count in _counts(edges))

    def _send_long_shards(self, source: Array, sent: Edges, into: Array, received: Edges) -> list[MPI.Request]:
        """The receives and sends of the shards that the collective leaves out."""
        requests: list[MPI.Request] = []
        for peer, count in enumerate(self._short_counts(into, received)):
            target = into[received[peer] : received[peer + 1]]
            if count < target.size:
                requests += [self._communicator.Irecv([part, MPI.BYTE], peer, DATA) for part in self._messages(target)]
        for peer, count in enumerate(self._short_counts(source, sent)):
            piece = source[sent[peer] : sent[peer + 1]]
            if count < piece.size:
                requests += [self._communicator.Isend([part, MPI.BYTE], peer, DATA) for part in self._messages(piece)]
        return requests

    def barrier(self, *, blocking: bool) -> Request:
        return self._begin(blocking, self._communicator.Barrier, self._communicator.Ibarrier, ())

    def _begin(
        self,
        blocking: bool,
        blocking_call: Callable[..., None],
        nonblocking_call: Callable[..., MPI.Request],
        arguments: tuple[Any, ...],
    ) -> Request:
        """The collective as a blocking or a non-blocking call: MPI libraries tune the two separately."""
        if not blocking:
            return MpiRequests([nonblocking_call(*arguments)])
        blocking_call(*arguments)
        return MpiRequests([])


def _counts(edges: Edges) -> tuple[int, ...]:
    """The number of elements of each shard."""
    return tuple(edges[i + 1] - edges[i] for i in range(len(edges) - 1))
