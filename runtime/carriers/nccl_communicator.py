"""One group of ranks over NCCL, on a stream of its own.

A request ends when the device has passed the event behind it.  Arrays are lent when
the device has written them (the executor sees to that before it starts an op), so no
stream waits for another; sums of our own collectives are on the group's stream.

NCCL cannot receive before it sends: both must be in one group call, or two ranks
that send to each other wait forever.  So what is sent and received is collected,
and started as one group when a request is first asked whether it is done.

Several groups of one device may lock each other out if ranks begin their work in different orders, so
ops of all lanes begin in the order of the program (`lanes.py`); later steps of our own on two lanes may alternate.

NCCL knows no pieces of unequal size: such gathers and sums are a broadcast or a
reduction for each piece, in one group call.  Empty messages, which barriers of our own are
made of, carry one element, and a barrier of the library sums one.

Source: NVIDIA, "NCCL user guide", sections "Group calls", "Point-to-point communication", "In-place operations",
"Using multiple NCCL communicators concurrently".
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from quadrille.algorithms.analysis.shard_ranges import are_equal
from quadrille.algorithms.errors import RunError
from quadrille.algorithms.schedule.ops import Calls, Combination
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.carriers.communicators import Edges, Request

if TYPE_CHECKING:
    from quadrille.runtime.arrays.cupy_library import CupyLibrary, EventMarker

MOST_ELEMENTS = 1 << 30
"""Of one call: CuPy before version 13 counts a broadcast in 32 bits."""

NAMES = {"float64": "NCCL_FLOAT64", "float32": "NCCL_FLOAT32", "float16": "NCCL_FLOAT16", "uint16": "NCCL_BFLOAT16"}
"""NCCL's names for elements by dtype of the arrays; bfloat16 is kept as uint16 (`cupy_library.py`)."""


class NcclRequest:
    """A part of a batch: done when the device has passed the event behind the batch."""

    __slots__ = ("_batch",)

    def __init__(self, batch: "GroupCall") -> None:
        self._batch = batch

    def done(self) -> bool:
        """Whether it has ended; the first time anyone of the batch is asked, the batch is started."""
        return self._batch.done()


class GroupCall:
    """Calls to NCCL that start together.

    Parameters
    ----------
    check : raises what NCCL has met since it was last asked: a kernel that waits for a lost member never ends
    """

    def __init__(self, start: Callable[["GroupCall"], "EventMarker"], check: Callable[[], None]) -> None:
        self._start = start
        self._check = check
        self._marker: EventMarker | None = None
        self.calls: list[Callable[[], None]] = []

    def done(self) -> bool:
        if self._marker is None:
            self._marker = self._start(self)
        if self._marker.done():
            return True
        self._check()
        return False


class NcclCommunicator:
    """One group of ranks on one lane.

    Parameters
    ----------
    nccl : CuPy's module
    communicator : CuPy's NcclCommunicator, whose ranks are the members
    library : whose arrays are carried, on a stream of the lane's own
    """

    chunk_bytes, max_outstanding = 0, (0, 0)
    begins_in_order = True

    def __init__(self, nccl: Any, communicator: Any, library: "CupyLibrary", member: int, size: int) -> None:
        self._nccl = nccl
        self._communicator = communicator
        self.lane = library.lane()
        self._token = self.lane.empty(2, "float32")
        self.lane.zero(self._token)
        self.lane.synchronise()
        self._batch: GroupCall | None = None
        self.member = member
        self.size = size

    def send(self, buffer: Array, to: int, *, taken: bool = False) -> Request:
        assert not taken, "NCCL says when a buffer has been read, not when it has been taken"
        return self._collect(lambda: self._send(buffer, to))

    def signal_ready(self, peer: int) -> Request:
        raise AssertionError(f"a greeting to {peer}: steps go whole")

    def await_ready(self, peer: int) -> Request:
        raise AssertionError(f"a greeting from {peer}: steps go whole")

    def receive(self, buffer: Array, sender: int) -> Request:
        return self._collect(lambda: self._receive(buffer, sender))

    def _send(self, buffer: Array, to: int) -> None:
        for part in self._parts(buffer):
            self._communicator.send(part.data.ptr, part.size, self._type(part), to, self.lane.stream.ptr)

    def _receive(self, buffer: Array, sender: int) -> None:
        for part in self._parts(buffer, self._token[1:]):
            self._communicator.recv(part.data.ptr, part.size, self._type(part), sender, self.lane.stream.ptr)

    def _parts(self, buffer: Array, token: Array | None = None) -> Iterator[Array]:
        """What one call each can carry; a token for an empty buffer."""
        if buffer.size == 0:
            yield self._token[:1] if token is None else token
        for start in range(0, buffer.size, MOST_ELEMENTS):
            yield buffer[start : start + MOST_ELEMENTS]

    def _type(self, array: Array) -> int:
        return int(getattr(self._nccl, NAMES[str(array.dtype)]))

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        if not are_equal(edges):
            return self._at_once(lambda: self._broadcast_pieces(whole, edges))
        own = whole[edges[self.member] : edges[self.member + 1]]
        call = self._communicator.allGather
        return self._at_once(
            lambda: call(own.data.ptr, whole.data.ptr, own.size, self._type(whole), self.lane.stream.ptr)
        )

    def _broadcast_pieces(self, whole: Array, edges: Edges) -> None:
        for root, (start, stop) in enumerate(pairwise(edges)):
            if stop > start:
                self._broadcast(whole[start:stop], root)

    def _broadcast(self, buffer: Array, root: int) -> None:
        for part in self._parts(buffer):
            self._communicator.bcast(part.data.ptr, part.size, self._type(part), root, self.lane.stream.ptr)

    def reduce_scatter(
        self, whole: Array, edges: Edges, piece: Array, *, blocking: bool, calls: Calls = "vector"
    ) -> Request:
        if not are_equal(edges):
            return self._at_once(lambda: self._reduce_pieces(whole, edges, piece))
        call, kind, total = self._communicator.reduceScatter, self._type(whole), self._nccl.NCCL_SUM
        return self._at_once(
            lambda: call(whole.data.ptr, piece.data.ptr, piece.size, kind, total, self.lane.stream.ptr)
        )

    def _reduce_pieces(self, whole: Array, edges: Edges, piece: Array) -> None:
        for root, (start, stop) in enumerate(pairwise(edges)):
            if stop > start:
                self._reduce(whole[start:stop], piece if root == self.member else whole[start:stop], root)

    def _reduce(self, source: Array, into: Array, root: int) -> None:
        for part, room in zip(self._parts(source), self._parts(into), strict=True):
            self._communicator.reduce(
                part.data.ptr, room.data.ptr, part.size, self._type(part), self._nccl.NCCL_SUM, root,
                self.lane.stream.ptr,
            )  # fmt: skip

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request:
        return self._at_once(lambda: self._all_reduce(buffer, combination))

    def _all_reduce(self, buffer: Array, combination: Combination = "sum") -> None:
        operation = self._nccl.NCCL_MAX if combination == "max" else self._nccl.NCCL_SUM
        address, kind = buffer.data.ptr, self._type(buffer)
        self._communicator.allReduce(address, address, buffer.size, kind, operation, self.lane.stream.ptr)

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        return self._at_once(lambda: self._broadcast(buffer, root))

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        return self._at_once(lambda: self._reduce(buffer, buffer, root))

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request:
        def act() -> None:
            for peer in range(self.size):
                piece = sent[sent_edges[peer] : sent_edges[peer + 1]]
                room = received[received_edges[peer] : received_edges[peer + 1]]
                if peer == self.member:
                    self.lane.copy(room, piece)
                else:
                    self._receive(room, peer)
                    self._send(piece, peer)

        return self._at_once(act)

    def barrier(self, *, blocking: bool) -> Request:
        return self._at_once(lambda: self._all_reduce(self._token[:1]))

    def _collect(self, call: Callable[[], None]) -> Request:
        """A part of the batch that nobody has asked about yet."""
        if self._batch is None:
            self._batch = GroupCall(self._start, self._check)
        self._batch.calls.append(call)
        return NcclRequest(self._batch)

    def _check(self) -> None:
        """Ask NCCL whether what was handed to the device has failed; CuPy has no names for newer errors."""
        try:
            self._communicator.check_async_error()
        except (RuntimeError, KeyError) as error:
            raise RunError(f"NCCL among {self.size} ranks on {self.lane.device} has failed: {error}") from None

    def _at_once(self, call: Callable[[], None]) -> Request:
        """A batch of its own, behind what was collected."""
        if self._batch is not None:
            self._batch.done()
        request = self._collect(call)
        request.done()
        return request

    def _start(self, batch: GroupCall) -> "EventMarker":
        """Hand the batch to the device as one group call."""
        if batch is self._batch:
            self._batch = None
        self._nccl.groupStart()
        try:
            for call in batch.calls:
                call()
        finally:
            self._nccl.groupEnd()
        batch.calls.clear()
        return self.lane.mark()

    def close(self) -> None:
        """Free NCCL's communicator."""
        self._communicator.destroy()
