"""The NCCL communicator of a group of ranks, on a CUDA stream of its own.

- A request completes when the device has passed the event after it. Arrays are ready on the device when the executor
  hands them over, so no stream waits for another. The sums of our own collectives run on the group's stream.
- A send and a receive between two ranks must be in one NCCL group call; otherwise the ranks wait for each other for
  ever. So sends and receives are collected and start as one group call when one of them is first polled.
- Communicators of one device may deadlock if ranks begin their work in different orders. So the ops of all lanes begin
  in program order (`lanes.py`).
- NCCL has no collectives with unequal shards. They become one broadcast or reduction per shard, in one group call.
- Empty messages, as in our own barrier, carry one element. A library barrier sums one element.

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
from quadrille.runtime.carriers.communicators import Edges, Request, shard_of_member

if TYPE_CHECKING:
    from quadrille.runtime.arrays.cupy_library import CupyLibrary, EventMarker

MAX_CALL_ELEMENTS = 1 << 30
"""Most elements of one call: CuPy before version 13 counts the elements of a broadcast in 32 bits."""

NCCL_TYPES = {
    "float64": "NCCL_FLOAT64",
    "float32": "NCCL_FLOAT32",
    "float16": "NCCL_FLOAT16",
    "uint16": "NCCL_BFLOAT16",
}
"""NCCL's element types by array dtype; bfloat16 is stored as uint16 (`cupy_library.py`)."""


class NcclRequest:
    """The request of one message of a group call: complete when the device has passed the event after the call."""

    __slots__ = ("_group_call",)

    def __init__(self, group_call: "GroupCall") -> None:
        self._group_call = group_call

    def done(self) -> bool:
        """Whether the group call has completed. The first poll of any of its messages starts the whole call."""
        return self._group_call.done()


class GroupCall:
    """NCCL calls that start together, between ncclGroupStart and ncclGroupEnd.

    Parameters
    ----------
    start : function that submits the calls to the device and returns a marker after them
    check : function that raises the errors that NCCL has met since the last check: a kernel that waits for a lost rank
        never ends
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
    """The communicator of a group of ranks on one lane (queue of communication ops), over NCCL.

    Parameters
    ----------
    nccl : CuPy's NCCL module
    communicator : CuPy's NcclCommunicator, whose ranks are the members of the group
    library : array library of the GPU, which creates the communicator's stream
    member, size : number of this rank in the group, and number of members
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
        self._open_group_call: GroupCall | None = None
        self.member = member
        self.size = size

    def send(self, buffer: Array, to: int, *, synchronous: bool = False) -> Request:
        assert not synchronous, "NCCL tells when a buffer has been read, not when its message has been received"
        return self._collect(lambda: self._send(buffer, to))

    def signal_ready(self, peer: int) -> Request:
        raise AssertionError(f"ready signal to {peer}: NCCL steps are not chunked")

    def await_ready(self, peer: int) -> Request:
        raise AssertionError(f"ready signal from {peer}: NCCL steps are not chunked")

    def receive(self, buffer: Array, sender: int) -> Request:
        return self._collect(lambda: self._receive(buffer, sender))

    def _send(self, buffer: Array, to: int) -> None:
        for part in self._parts(buffer):
            self._communicator.send(part.data.ptr, part.size, self._type(part), to, self.lane.stream.ptr)

    def _receive(self, buffer: Array, sender: int) -> None:
        for part in self._parts(buffer, self._token[1:]):
            self._communicator.recv(part.data.ptr, part.size, self._type(part), sender, self.lane.stream.ptr)

    def _parts(self, buffer: Array, token: Array | None = None) -> Iterator[Array]:
        """The buffer in parts that one call can carry; a token for an empty buffer."""
        if buffer.size == 0:
            yield self._token[:1] if token is None else token
        for start in range(0, buffer.size, MAX_CALL_ELEMENTS):
            yield buffer[start : start + MAX_CALL_ELEMENTS]

    def _type(self, array: Array) -> int:
        return int(getattr(self._nccl, NCCL_TYPES[str(array.dtype)]))

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        if not are_equal(edges):
            return self._start_call(lambda: self._broadcast_pieces(whole, edges))
        own = whole[edges[self.member] : edges[self.member + 1]]
        call = self._communicator.allGather
        return self._start_call(
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
            return self._start_call(lambda: self._reduce_pieces(whole, edges, piece))
        call, kind, total = self._communicator.reduceScatter, self._type(whole), self._nccl.NCCL_SUM
        return self._start_call(
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

    def sum_in_place(self, whole: Array, edges: Edges) -> Array:
        return shard_of_member(whole, edges, self.member)

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request:
        return self._start_call(lambda: self._all_reduce(buffer, combination))

    def _all_reduce(self, buffer: Array, combination: Combination = "sum") -> None:
        operation = self._nccl.NCCL_MAX if combination == "max" else self._nccl.NCCL_SUM
        address, kind = buffer.data.ptr, self._type(buffer)
        self._communicator.allReduce(address, address, buffer.size, kind, operation, self.lane.stream.ptr)

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        return self._start_call(lambda: self._broadcast(buffer, root))

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        return self._start_call(lambda: self._reduce(buffer, buffer, root))

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request:
        def exchange() -> None:
            for peer in range(self.size):
                piece = sent[sent_edges[peer] : sent_edges[peer + 1]]
                room = received[received_edges[peer] : received_edges[peer + 1]]
                if peer == self.member:
                    self.lane.copy(room, piece)
                else:
                    self._receive(room, peer)
                    self._send(piece, peer)

        return self._start_call(exchange)

    def barrier(self, *, blocking: bool) -> Request:
        return self._start_call(lambda: self._all_reduce(self._token[:1]))

    def _collect(self, call: Callable[[], None]) -> Request:
        """Add a call to the group call that has not started yet; returns the request of the call."""
        if self._open_group_call is None:
            self._open_group_call = GroupCall(self._start, self._check)
        self._open_group_call.calls.append(call)
        return NcclRequest(self._open_group_call)

    def _check(self) -> None:
        """Raise an asynchronous NCCL error. CuPy has no names for newer errors."""
        try:
            self._communicator.check_async_error()
        except (RuntimeError, KeyError) as error:
            raise RunError(f"NCCL among {self.size} ranks on {self.lane.device} has failed: {error}") from None

    def _start_call(self, call: Callable[[], None]) -> Request:
        """Start a separate group call after the collected group call; returns the request of the call."""
        if self._open_group_call is not None:
            self._open_group_call.done()
        request = self._collect(call)
        request.done()
        return request

    def _start(self, group_call: GroupCall) -> "EventMarker":
        """Submit a group call to the device; returns a marker after it."""
        if group_call is self._open_group_call:
            self._open_group_call = None
        self._nccl.groupStart()
        try:
            for call in group_call.calls:
                call()
        finally:
            self._nccl.groupEnd()
        group_call.calls.clear()
        return self.lane.mark()

    def close(self) -> None:
        """Free NCCL's communicator."""
        self._communicator.destroy()
