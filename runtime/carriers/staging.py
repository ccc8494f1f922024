"""Staging: device arrays over an MPI that knows no CUDA streams, through pinned host buffers or directly.

    send      device ──copy──► pinned ──MPI──►           receive   ──MPI──► pinned ──copy──► device

Theory of operation
-------------------
Every communicator has its own stream, its `lane`. Copies and the sums of our own collectives are in order there, and
neither a GEMM nor the messages of another communicator delay them. No message waits for another message's copy: MPI
gets a buffer at the first poll after the device has passed the event behind the copy. A request completes when its data
have arrived in their destination. The executor starts a send only after the compute lane has written its data.

Messages of our own steps are chunked (`pipelined_steps.py`). While one chunk is on the wire, the next one is copied,
each through a pinned buffer that becomes free when its chunk has been sent or copied to the device. The buffers of a
library collective are copied whole, because MPI takes them whole.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quadrille.algorithms.collectives.collective_choices import Provider
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Calls, Combination
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.arrays.pinned import PINNED_CHUNK_BYTES, Bytes
from quadrille.runtime.carriers.communicators import DONE, Communicator, Edges, Request, Staging

if TYPE_CHECKING:
    from quadrille.runtime.arrays.cupy_library import CupyLibrary
    from quadrille.runtime.carriers.gpu_awareness import GpuAwareness


class StagedRequest:
    """A request in three stages: the device releases the buffers, MPI transfers them, the device receives the result.

    Parameters
    ----------
    left : completes when the device has released the buffers
    begin : starts the MPI transfer
    land : starts the copies to the device
    over : frees the pinned buffers
    """

    def __init__(
        self,
        waiting: "StagingQueues",
        left: Request,
        begin: Callable[[], Request],
        land: Callable[[], Request],
        over: Callable[[], None],
    ) -> None:
        self._waiting = waiting
        self._left = left
        self._begin = begin
        self._land = land
        self._over: Callable[[], None] | None = over
        self._carried: Request | None = None
        self._landed: Request | None = None

    def begin(self) -> bool:
        """Start the MPI transfer if the device has released the buffers; returns whether it started."""
        if not self._left.done():
            return False
        self._carried = self._begin()
        return True

    def land(self) -> bool:
        """Start the copies to the device if the transfer has completed; returns whether they have started."""
        if self._landed is None:
            if self._carried is None or not self._carried.done():
                return False
            self._landed = self._land()
        return True

    def done(self) -> bool:
        if self._over is None:
            return True
        self._waiting.go_on()
        if not self.land() or self._landed is None or not self._landed.done():
            return False
        self._over()
        self._over = None
        return True


class StagingQueues:
    """The requests of one communicator that wait for the device, in the order by which MPI matches them."""

    def __init__(self) -> None:
        self.sends: deque[StagedRequest] = deque()
        self.receives: deque[StagedRequest] = deque()
        self._received: deque[StagedRequest] = deque()

    def go_on(self) -> None:
        """Advance all requests that can advance, whichever request is polled."""
        while self.sends and self.sends[0].begin():
            self.sends.popleft()
        while self.receives and self.receives[0].begin():
            self._received.append(self.receives.popleft())
        while self._received and self._received[0].land():
            self._received.popleft()


@dataclass(frozen=True, slots=True)
class StagedArray:
    """A device array and its copy in pinned memory."""

    device: Array
    host: Array
    pinned: Bytes


class DeviceCommunicator:
    """One group of ranks on one lane, for device arrays.

    Parameters
    ----------
    group : communicator of the same ranks for buffers that MPI accepts
    library : array library of the device
    """

    begins_in_order = False

    def __init__(self, group: Communicator, library: "CupyLibrary") -> None:
        self._group = group
        self._waiting = StagingQueues()
        self.lane = library.lane()
        self.member, self.size = group.member, group.size

    def signal_ready(self, peer: int) -> Request:
        return self._group.signal_ready(peer)

    def await_ready(self, peer: int) -> Request:
        return self._group.await_ready(peer)

    def barrier(self, *, blocking: bool) -> Request:
        return self._group.barrier(blocking=blocking)

    def _relay(
        self,
        queue: deque[StagedRequest],
        left: Request,
        begin: Callable[[], Request],
        land: Callable[[], Request] = lambda: DONE,
        over: Callable[[], None] = lambda: None,
    ) -> Request:
        relay = StagedRequest(self._waiting, left, begin, land, over)
        queue.append(relay)
        self._waiting.go_on()
        return relay


class StagedCommunicator(DeviceCommunicator):
    """Device arrays through pinned buffers; at most 48 MiB of them where every message is chunked."""

    max_outstanding = 8, 4

    def __init__(self, group: Communicator, library: "CupyLibrary", chunk_bytes: int = PINNED_CHUNK_BYTES) -> None:
        super().__init__(group, library)
        self._pool = library.pinned
        self.chunk_bytes = chunk_bytes

    def send(self, buffer: Array, to: int, *, synchronous: bool = False) -> Request:
        room = self._pinned_copy(buffer)
        return self._carry(lambda: self._group.send(room.host, to, synchronous=synchronous), outgoing=(room,))

    def receive(self, buffer: Array, sender: int) -> Request:
        """A receive. MPI may write into the pinned buffer at once."""
        room = self._pinned_copy(buffer)
        return self._carry(lambda: self._group.receive(room.host, sender), incoming=(room,))

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        room = self._pinned_copy(whole)
        return self._both_ways(room, lambda: self._group.all_gather(room.host, edges, blocking=blocking, calls=calls))

    def reduce_scatter(
        self, whole: Array, edges: Edges, piece: Array, *, blocking: bool, calls: Calls = "vector"
    ) -> Request:
        source, into = self._pinned_copy(whole), self._pinned_copy(piece)
        return self._carry(
            lambda: self._group.reduce_scatter(source.host, edges, into.host, blocking=blocking, calls=calls),
            (source,),
            (into,),
        )

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request:
        room = self._pinned_copy(buffer)
        return self._both_ways(room, lambda: self._group.all_reduce(room.host, combination, blocking=blocking))

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        room = self._pinned_copy(buffer)
        return self._both_ways(room, lambda: self._group.broadcast(room.host, root, blocking=blocking))

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        room = self._pinned_copy(buffer)
        return self._both_ways(room, lambda: self._group.reduce(room.host, root, blocking=blocking))

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request:
        source, into = self._pinned_copy(sent), self._pinned_copy(received)
        return self._carry(
            lambda: self._group.all_to_all(source.host, sent_edges, into.host, received_edges, blocking=blocking),
            (source,),
            (into,),
        )

    def _pinned_copy(self, device: Array) -> StagedArray:
        pinned = self._pool.take(device.nbytes)
        return StagedArray(device, pinned[: device.nbytes].view(device.dtype), pinned)

    def _both_ways(self, room: StagedArray, begin: Callable[[], Request]) -> Request:
        return self._carry(begin, (room,), (room,))

    def _carry(
        self, begin: Callable[[], Request], outgoing: Sequence[StagedArray] = (), incoming: Sequence[StagedArray] = ()
    ) -> Request:
        """Copy outgoing arrays to the host, start the transfer, and copy incoming arrays to the device at its end."""
        for room in outgoing:
            self.lane.copy_to_host(room.host, room.device)
        rooms = {id(room): room for room in (*outgoing, *incoming)}.values()

        def land() -> Request:
            for room in incoming:
                self.lane.copy_to_device(room.device, room.host)
            return self.lane.mark() if incoming else DONE

        def over() -> None:
            for room in rooms:
                self._pool.give_back(room.pinned)

        if not outgoing:
            return self._relay(self._waiting.receives, DONE, begin, land, over)
        return self._relay(self._waiting.sends, self.lane.mark(), begin, land, over)


class DirectCommunicator(DeviceCommunicator):
    """MPI reads and writes device memory directly.

    Only point-to-point messages, and so only our own collectives, may do this: Open MPI has no non-blocking reductions
    of device arrays.

    Source: Open MPI issues 9845 and 12045.
    """

    chunk_bytes, max_outstanding = 0, (0, 0)

    def send(self, buffer: Array, to: int, *, synchronous: bool = False) -> Request:
        """A send. MPI reads the buffer when the device has written it."""
        return self._relay(
            self._waiting.sends, self.lane.mark(), lambda: self._group.send(buffer, to, synchronous=synchronous)
        )

    def receive(self, buffer: Array, sender: int) -> Request:
        """A receive. MPI writes into the buffer when the device no longer uses it."""
        return self._relay(self._waiting.receives, self.lane.mark(), lambda: self._group.receive(buffer, sender))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of device arrays goes through the host")


def choose_staging(library: "CupyLibrary", awareness: "GpuAwareness", implementation: Provider) -> Staging:
    """The wrapper for device arrays: direct only where MPI is known to accept them, staged otherwise."""
    communicator_class = DirectCommunicator if awareness.aware and implementation == "own" else StagedCommunicator
    return lambda group: communicator_class(group, library)


def check_sums(dtype: DType, implementation: Provider) -> None:
    """Check that MPI can sum the dtype, or is not asked to.

    Raises
    ------
    InputError : MPI's own collectives with 16-bit elements
    """
    if implementation == "library" and dtype in ("float16", "bfloat16"):
        raise InputError(f"dtype {dtype!r} with collectives 'library': MPI has no sum of it; accepted are own and NCCL")
