"""Staging: communicators of GPU arrays over an MPI that knows no CUDA streams, through pinned host buffers or directly.

    send      device ──copy──► pinned ──MPI──►           receive   ──MPI──► pinned ──copy──► device

Theory of operation
-------------------
Every communicator has its own CUDA stream (`lane`). Copies and the sums of our own collectives are in order there, and
neither a GEMM nor the messages of another communicator delay them. No message waits for another message's copy: MPI
gets a buffer at the first poll after the device has passed the event behind the copy. A request completes when its data
have arrived in their destination. The executor starts a send only after the compute lane has written its data.

Messages of our own collectives are chunked (`pipelined_steps.py`). While MPI sends one chunk, the next one is copied,
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
from quadrille.runtime.arrays.pinned_memory import PINNED_CHUNK_BYTES, Bytes
from quadrille.runtime.carriers.communicators import DONE, Communicator, Edges, Request, Staging, shard_of_member

if TYPE_CHECKING:
    from quadrille.runtime.arrays.cupy_library import CupyLibrary
    from quadrille.runtime.carriers.gpu_awareness import GpuAwareness


class StagedRequest:
    """A request in three stages: the device releases the buffers, MPI transfers them, the device receives the result.

    Parameters
    ----------
    queues : queues of the communicator, which are advanced whenever a request is polled
    released : request that completes when the device has released the buffers
    begin : function that starts the MPI transfer
    start_copies_back : function that starts the copies to the device
    free_buffers : function that returns the pinned buffers to their pool
    """

    def __init__(
        self,
        queues: "StagingQueues",
        released: Request,
        begin: Callable[[], Request],
        start_copies_back: Callable[[], Request],
        free_buffers: Callable[[], None],
    ) -> None:
        self._queues = queues
        self._released = released
        self._begin = begin
        self._start_copies_back = start_copies_back
        self._free_buffers: Callable[[], None] | None = free_buffers
        self._transfer: Request | None = None
        self._copies_back: Request | None = None

    def begin(self) -> bool:
        """Start the MPI transfer if the device has released the buffers; returns whether it started."""
        if not self._released.done():
            return False
        self._transfer = self._begin()
        return True

    def start_copies_back(self) -> bool:
        """Start the copies to the device if the transfer has completed; returns whether they have started."""
        if self._copies_back is None:
            if self._transfer is None or not self._transfer.done():
                return False
            self._copies_back = self._start_copies_back()
        return True

    def done(self) -> bool:
        if self._free_buffers is None:
            return True
        self._queues.advance()
        if not self.start_copies_back() or self._copies_back is None or not self._copies_back.done():
            return False
        self._free_buffers()
        self._free_buffers = None
        return True


class StagingQueues:
    """The requests of one communicator that wait for the device or for MPI, in the order in which MPI matches them."""

    def __init__(self) -> None:
        self.sends: deque[StagedRequest] = deque()
        self.receives: deque[StagedRequest] = deque()
        self._received: deque[StagedRequest] = deque()

    def advance(self) -> None:
        """Advance all requests that can advance, whichever request is polled."""
        while self.sends and self.sends[0].begin():
            self.sends.popleft()
        while self.receives and self.receives[0].begin():
            self._received.append(self.receives.popleft())
        while self._received and self._received[0].start_copies_back():
            self._received.popleft()


@dataclass(frozen=True, slots=True)
class StagedArray:
    """A device array and its copy in pinned memory."""

    device: Array
    host: Array
    pinned: Bytes


class DeviceCommunicator:
    """The base of communicators of device arrays over MPI: a group of ranks on one lane (queue of communication ops).

    Parameters
    ----------
    group : communicator of the same ranks for buffers that MPI accepts
    library : array library of the device
    """

    begins_in_order = False

    def __init__(self, group: Communicator, library: "CupyLibrary") -> None:
        self._group = group
        self._queues = StagingQueues()
        self.lane = library.lane()
        self.member, self.size = group.member, group.size

    def signal_ready(self, peer: int) -> Request:
        return self._group.signal_ready(peer)

    def await_ready(self, peer: int) -> Request:
        return self._group.await_ready(peer)

    def barrier(self, *, blocking: bool) -> Request:
        return self._group.barrier(blocking=blocking)

    def _enqueue(
        self,
        queue: deque[StagedRequest],
        released: Request,
        begin: Callable[[], Request],
        start_copies_back: Callable[[], Request] = lambda: DONE,
        free_buffers: Callable[[], None] = lambda: None,
    ) -> Request:
        """Append a request to a queue and advance the queues."""
        request = StagedRequest(self._queues, released, begin, start_copies_back, free_buffers)
        queue.append(request)
        self._queues.advance()
        return request


class StagedCommunicator(DeviceCommunicator):
    """A communicator of device arrays that copies them through pinned host buffers.

    The buffers take at most 48 MiB if every message is chunked.

    Parameters
    ----------
    chunk_bytes : chunk size of our own collectives [B]
    """

    max_outstanding = 8, 4

    def __init__(self, group: Communicator, library: "CupyLibrary", chunk_bytes: int = PINNED_CHUNK_BYTES) -> None:
        super().__init__(group, library)
        self._pool = library.pinned
        self.chunk_bytes = chunk_bytes

    def send(self, buffer: Array, to: int, *, synchronous: bool = False) -> Request:
        staged = self._pinned_copy(buffer)
        return self._stage(lambda: self._group.send(staged.host, to, synchronous=synchronous), outgoing=(staged,))

    def receive(self, buffer: Array, sender: int) -> Request:
        """A receive. MPI may write into the pinned buffer at once."""
        staged = self._pinned_copy(buffer)
        return self._stage(lambda: self._group.receive(staged.host, sender), incoming=(staged,))

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        staged = self._pinned_copy(whole)
        return self._transfer_in_place(
            staged, lambda: self._group.all_gather(staged.host, edges, blocking=blocking, calls=calls)
        )

    def reduce_scatter(
        self, whole: Array, edges: Edges, piece: Array, *, blocking: bool, calls: Calls = "vector"
    ) -> Request:
        source, into = self._pinned_copy(whole), self._pinned_copy(piece)
        return self._stage(
            lambda: self._group.reduce_scatter(source.host, edges, into.host, blocking=blocking, calls=calls),
            (source,),
            (into,),
        )

    def sum_in_place(self, whole: Array, edges: Edges) -> Array:
        return shard_of_member(whole, edges, self.member)

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request:
        staged = self._pinned_copy(buffer)
        return self._transfer_in_place(
            staged, lambda: self._group.all_reduce(staged.host, combination, blocking=blocking)
        )

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        staged = self._pinned_copy(buffer)
        return self._transfer_in_place(staged, lambda: self._group.broadcast(staged.host, root, blocking=blocking))

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        staged = self._pinned_copy(buffer)
        return self._transfer_in_place(staged, lambda: self._group.reduce(staged.host, root, blocking=blocking))

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request:
        source, into = self._pinned_copy(sent), self._pinned_copy(received)
        return self._stage(
            lambda: self._group.all_to_all(source.host, sent_edges, into.host, received_edges, blocking=blocking),
            (source,),
            (into,),
        )

    def _pinned_copy(self, device: Array) -> StagedArray:
        pinned = self._pool.take(device.nbytes)
        return StagedArray(device, pinned[: device.nbytes].view(device.dtype), pinned)

    def _transfer_in_place(self, staged: StagedArray, begin: Callable[[], Request]) -> Request:
        return self._stage(begin, (staged,), (staged,))

    def _stage(
        self, begin: Callable[[], Request], outgoing: Sequence[StagedArray] = (), incoming: Sequence[StagedArray] = ()
    ) -> Request:
        """Copy outgoing arrays to the host, start the transfer, and copy incoming arrays to the device at its end."""
        for staged in outgoing:
            self.lane.copy_to_host(staged.host, staged.device)
        staged_arrays = {id(staged): staged for staged in (*outgoing, *incoming)}.values()

        def start_copies_back() -> Request:
            for staged in incoming:
                self.lane.copy_to_device(staged.device, staged.host)
            return self.lane.mark() if incoming else DONE

        def free_buffers() -> None:
            for staged in staged_arrays:
                self._pool.give_back(staged.pinned)

        if not outgoing:
            return self._enqueue(self._queues.receives, DONE, begin, start_copies_back, free_buffers)
        return self._enqueue(self._queues.sends, self.lane.mark(), begin, start_copies_back, free_buffers)


class DirectCommunicator(DeviceCommunicator):
    """A communicator of device arrays for a GPU-aware MPI, which reads and writes device memory directly.

    Only point-to-point messages, and so only our own collectives, may do this: Open MPI has no non-blocking reductions
    of device arrays.

    Source: Open MPI issues 9845 and 12045.
    """

    chunk_bytes, max_outstanding = 0, (0, 0)

    def send(self, buffer: Array, to: int, *, synchronous: bool = False) -> Request:
        """A send. MPI reads the buffer when the device has written it."""
        return self._enqueue(
            self._queues.sends, self.lane.mark(), lambda: self._group.send(buffer, to, synchronous=synchronous)
        )

    def receive(self, buffer: Array, sender: int) -> Request:
        """A receive. MPI writes into the buffer when the device no longer uses it."""
        return self._enqueue(self._queues.receives, self.lane.mark(), lambda: self._group.receive(buffer, sender))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of device arrays goes through the host")


def choose_staging(library: "CupyLibrary", awareness: "GpuAwareness", provider: Provider) -> Staging:
    """The function that wraps a communicator for device arrays: direct if MPI is known to accept them, else staged.

    Parameters
    ----------
    library : array library of the device
    awareness : whether MPI accepts device arrays
    provider : provider of the collectives; MPI's own collectives ("library") are always staged
    """
    communicator_class = DirectCommunicator if awareness.aware and provider == "own" else StagedCommunicator
    return lambda group: communicator_class(group, library)


def check_sums(dtype: DType, provider: Provider) -> None:
    """Check that MPI can sum the dtype, or that MPI's collectives are not used.

    Raises
    ------
    InputError : MPI's own collectives with 16-bit elements
    """
    if provider == "library" and dtype in ("float16", "bfloat16"):
        raise InputError(f"dtype {dtype!r} with collectives 'library': MPI has no sum of it; accepted are own and NCCL")
