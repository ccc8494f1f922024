"""One group of ranks over MPI: host arrays as they are, device arrays through `staging`.

One message holds at most `most_bytes`: MPI libraries with 32-bit counts (the
Open MPI wheel among them) cannot be asked for more at once.  What is longer
goes as several messages; a library collective that is longer is made of
broadcasts or reductions of slices.
"""

from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from algorithms.ops import Combination
from runtime.communicators import Array, Edges, Request

MOST_BYTES = 1 << 30


class Flight:
    """MPI requests under way, and what is to be done when they have ended."""

    __slots__ = ("_finish", "requests")

    def __init__(self, requests: list[MPI.Request], finish: Callable[[], None] | None = None) -> None:
        self.requests = requests
        self._finish = finish

    def done(self) -> bool:
        if not self._ended():
            return False
        self.requests = []
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        return True

    def _ended(self) -> bool:
        """Whether all have; one is asked for by itself, since Open MPI then looks again after it has made progress."""
        if len(self.requests) == 1:
            return bool(self.requests[0].Test())
        return not self.requests or bool(MPI.Request.Testall(self.requests))


class Staging:
    """How buffers meet MPI: host arrays directly.  `runtime.staging` has the one for device arrays."""

    def outgoing(self, buffer: Array) -> tuple[Array, Callable[[], None] | None]:
        """What MPI may read, and what to do when it has."""
        return buffer, None

    def incoming(self, buffer: Array) -> tuple[Array, Callable[[], None] | None]:
        """What MPI may write, and what to do when it has."""
        return buffer, None

    def both_ways(self, buffer: Array) -> tuple[Array, Callable[[], None] | None]:
        """What MPI may read and write, and what to do when it has."""
        return buffer, None


class MpiCommunicator:
    """One group of ranks on one lane."""

    def __init__(
        self, communicator: MPI.Intracomm, staging: Staging, most_bytes: int = MOST_BYTES, chunk_bytes: int = 0
    ) -> None:
        self._communicator = communicator
        self._staging = staging
        self._most_bytes = most_bytes
        self.chunk_bytes = chunk_bytes
        self.member: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()

    def send(self, buffer: Array, to: int) -> Request:
        host, finish = self._staging.outgoing(buffer)
        # chunks that lie in the library's queue when their op has ended would share links with those of the next
        begin = self._communicator.Issend if self.chunk_bytes else self._communicator.Isend
        return Flight([begin([part, MPI.BYTE], to) for part in self._messages(host)], finish)

    def receive(self, buffer: Array, sender: int) -> Request:
        host, finish = self._staging.incoming(buffer)
        return Flight([self._communicator.Irecv([part, MPI.BYTE], sender) for part in self._messages(host)], finish)

    def _messages(self, host: Array) -> list[Array]:
        """The buffer as bytes, in messages that MPI can count; an empty buffer is one empty message."""
        raw = host.view("u1")
        return [raw[i : i + self._most_bytes] for i in range(0, max(1, raw.size), self._most_bytes)]

    def _slices(self, host: Array) -> Iterator[Array]:
        """The buffer in slices of elements that MPI can count."""
        step = max(1, self._most_bytes // host.itemsize)
        return (host[i : i + step] for i in range(0, host.size, step))

    def _is_long(self, host: Array) -> bool:
        return bool(host.nbytes > self._most_bytes)

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool) -> Request:
        host, finish = self._staging.both_ways(whole)
        if self._is_long(host):
            roots = [(host[edges[i] : edges[i + 1]], i) for i in range(self.size)]
            return Flight(
                [self._communicator.Ibcast(part, i) for piece, i in roots for part in self._slices(piece)], finish
            )
        into = [host, (_counts(edges), edges[:-1])]
        return self._begin(
            blocking, self._communicator.Allgatherv, self._communicator.Iallgatherv, (MPI.IN_PLACE, into), finish
        )

    def reduce_scatter(self, whole: Array, edges: Edges, piece: Array, *, blocking: bool) -> Request:
        source, read = self._staging.outgoing(whole)
        into, written = self._staging.incoming(piece)
        finish = _both(read, written)
        if self._is_long(source):
            return self._reduce_scatter_in_slices(source, edges, into, finish)
        arguments = (source, into, _counts(edges))
        return self._begin(
            blocking, self._communicator.Reduce_scatter, self._communicator.Ireduce_scatter, arguments, finish
        )

    def _reduce_scatter_in_slices(
        self, source: Array, edges: Edges, into: Array, finish: Callable[[], None] | None
    ) -> Request:
        requests: list[MPI.Request] = []
        for root in range(self.size):
            parts = self._slices(source[edges[root] : edges[root + 1]])
            rooms = self._slices(into) if root == self.member else iter(())
            requests += [self._communicator.Ireduce(part, next(rooms, None), root=root) for part in parts]
        return Flight(requests, finish)

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request:
        operation = MPI.MAX if combination == "max" else MPI.SUM
        host, finish = self._staging.both_ways(buffer)
        if self._is_long(host):
            parts = self._slices(host)
            return Flight([self._communicator.Iallreduce(MPI.IN_PLACE, part, operation) for part in parts], finish)
        return self._begin(
            blocking,
            self._communicator.Allreduce,
            self._communicator.Iallreduce,
            (MPI.IN_PLACE, host, operation),
            finish,
        )

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        host, finish = self._staging.both_ways(buffer)
        if self._is_long(host):
            return Flight([self._communicator.Ibcast(part, root) for part in self._slices(host)], finish)
        return self._begin(blocking, self._communicator.Bcast, self._communicator.Ibcast, (host, root), finish)

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        host, finish = self._staging.both_ways(buffer)
        parts = list(self._slices(host)) if self._is_long(host) else [host]
        if len(parts) > 1 or not blocking:
            return Flight([self._communicator.Ireduce(*self._at_root(part, root), root=root) for part in parts], finish)
        self._communicator.Reduce(*self._at_root(host, root), root=root)
        return Flight([], finish)

    def _at_root(self, part: Array, root: int) -> tuple[Any, Any]:
        return (MPI.IN_PLACE, part) if self.member == root else (part, None)

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request:
        source, read = self._staging.outgoing(sent)
        into, written = self._staging.incoming(received)
        finish = _both(read, written)
        sending, receiving = self._short(source, sent_edges), self._short(into, received_edges)
        messages = self._long_pieces(source, sent_edges, into, received_edges)
        arguments = ([source, (sending, sent_edges[:-1])], [into, (receiving, received_edges[:-1])])
        if not blocking:
            return Flight([self._communicator.Ialltoallv(*arguments), *messages], finish)
        self._communicator.Alltoallv(*arguments)
        return Flight(messages, finish)

    def _short(self, host: Array, edges: Edges) -> tuple[int, ...]:
        """Elements of each piece that goes by the collective: none of a long one.

        Only its two ends know that a piece is long, so every member calls the collective all the same.
        """
        longest = self._most_bytes // self.size
        return tuple(count if count * host.itemsize <= longest else 0 for count in _counts(edges))

    def _long_pieces(self, source: Array, sent: Edges, into: Array, received: Edges) -> list[MPI.Request]:
        """Receives and sends of the pieces that the collective leaves out."""
        requests: list[MPI.Request] = []
        for peer, short in enumerate(self._short(into, received)):
            room = into[received[peer] : received[peer + 1]]
            if short < room.size:
                requests += [self._communicator.Irecv([part, MPI.BYTE], peer) for part in self._messages(room)]
        for peer, short in enumerate(self._short(source, sent)):
            piece = source[sent[peer] : sent[peer + 1]]
            if short < piece.size:
                requests += [self._communicator.Isend([part, MPI.BYTE], peer) for part in self._messages(piece)]
        return requests

    def barrier(self, *, blocking: bool) -> Request:
        return self._begin(blocking, self._communicator.Barrier, self._communicator.Ibarrier, (), None)

    def _begin(
        self,
        blocking: bool,
        now: Callable[..., None],
        soon: Callable[..., MPI.Request],
        arguments: tuple[Any, ...],
        finish: Callable[[], None] | None,
    ) -> Request:
        """The collective as a blocking call, or as one that ends later: MPI libraries tune the two apart."""
        if not blocking:
            return Flight([soon(*arguments)], finish)
        now(*arguments)
        return Flight([], finish)


def _counts(edges: Edges) -> tuple[int, ...]:
    return tuple(edges[i + 1] - edges[i] for i in range(len(edges) - 1))


def _both(read: Callable[[], None] | None, written: Callable[[], None] | None) -> Callable[[], None] | None:
    """What is to be done when MPI has read one buffer and written another."""
    if read is None or written is None:
        return read or written

    first, then = read, written

    def finish() -> None:
        first()
        then()

    return finish
