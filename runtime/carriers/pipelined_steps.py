"""Pipelined collectives: the messages of our own algorithms, split into chunks, so that consecutive steps overlap.

Theory of operation
-------------------
This is segmentation with pipelining, as in the segmented ring algorithms of MPI libraries. The message of each step is
split into chunks. A chunk is reduced while the next one arrives, and is forwarded while its step is still in progress.
So a ring of p ranks has no pause between its p - 1 steps. The dependencies between chunks follow from the memory that
they read and write. The order of additions and every byte on the network are the same as with whole steps.

Flow control: the first chunks go to a receiver that may not have reached the op yet (an eager protocol). The remaining
chunks wait for the receiver's ready signal; a receiver of more than `CHUNKS_BEFORE_READY` chunks sends it when it
reaches the op. So early messages occupy little of the links that other ranks need, and only the last chunk is a
synchronous send. If every chunk were acknowledged, the acknowledgements of two ranks that send to each other would
queue behind the other's chunks and slow both directions.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005
(ring algorithms); MPI 4.1, section 3.4 (synchronous mode).
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.carriers.communicators import Communicator, Request

MAX_OUTSTANDING = 32, 16
"""Receives and sends of one op in progress at once, for host buffers."""
CHUNKS_BEFORE_READY = 8
"""The number of chunks of an op that are sent to a rank before its ready signal.

A product by Cannon's algorithm on four hosts (1536^3 at 200 Mbit/s) takes 474 ms with 16 chunks, 456 ms with 8 and
445 ms with 4; with every chunk acknowledged and 16 in flight it takes 504 ms. Training steps on four hosts do not
differ; on eight hosts they are 3 to 8 % longer with 4.
"""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One step of a collective on one rank.

    Parameters
    ----------
    receives, sends : arrays, each with the rank of its sender or receiver in the group
    reductions : left, right and out of each `out = left + right` (or the maximum), after the receives
    """

    receives: tuple[tuple[Array, int], ...]
    sends: tuple[tuple[Array, int], ...]
    reductions: tuple[tuple[Array, Array, Array], ...]


@dataclass(frozen=True, slots=True)
class ChunkDependencies:
    """The number of receives, sends and reductions of an op that must have completed before a chunk starts.

    They complete in starting order, so a number says which ones.
    """

    receives: int
    sends: int = 0
    reductions: int = 0


@dataclass(frozen=True, slots=True)
class ChunkMessage:
    """A chunk that is sent to, or received from, the rank `peer` of the group."""

    buffer: Array
    peer: int
    needs: ChunkDependencies


@dataclass(frozen=True, slots=True)
class ChunkReduction:
    """A chunk of `out = left + right`, or of the maximum."""

    left: Array
    right: Array
    out: Array
    needs: ChunkDependencies


@dataclass(frozen=True, slots=True)
class ChunkedPlan:
    """The chunks of an op on one rank, each list in starting order.

    Parameters
    ----------
    receives, sends, reductions : chunks that are received, sent and reduced
    received_from, sent_to : number of chunks by peer
    """

    receives: tuple[ChunkMessage, ...]
    sends: tuple[ChunkMessage, ...]
    reductions: tuple[ChunkReduction, ...]
    received_from: Mapping[int, int]
    sent_to: Mapping[int, int]


Extent = tuple[int, int]
"""The address of the first byte of an array and the address after its last byte."""


class _MemoryAccesses:
    """The memory ranges that receives, sends or reductions touch, step by step."""

    def __init__(self) -> None:
        self._steps: list[list[tuple[int, int, int]]] = []

    def add_step(self, extents: Sequence[tuple[Extent, int]]) -> None:
        """Add the extents of one step, each with the number of entries up to it. The extents do not overlap."""
        if extents:
            self._steps.append(sorted((start, stop, count) for (start, stop), count in extents))

    def count_before(self, *extents: Extent) -> int:
        """The number of entries up to and including the last one that touches any of these extents."""
        for step in reversed(self._steps):
            numbers = [step[position][2] for extent in extents if (position := _overlapping(step, extent)) is not None]
            if numbers:
                return max(numbers)
        return 0


def _overlapping(step: list[tuple[int, int, int]], extent: Extent) -> int | None:
    """The index of the last entry of a sorted step that overlaps the extent."""
    start, stop = extent
    position = bisect_left(step, (stop,)) - 1
    return position if position >= 0 and step[position][1] > start else None


def split_into_chunks(steps: Sequence[PipelineStep], chunk_bytes: int) -> ChunkedPlan:
    """The steps in chunks of at most `chunk_bytes`, each with its dependencies."""
    builder = _ChunkBuilder(chunk_bytes)
    for step in steps:
        builder.add(step)
    received_from, sent_to = (
        Counter(message.peer for message in messages) for messages in (builder.receives, builder.sends)
    )
    return ChunkedPlan(tuple(builder.receives), tuple(builder.sends), tuple(builder.reductions), received_from, sent_to)


class _ChunkBuilder:
    """The builder of a chunked plan, from one step after the other.

    All messages of a step may start together, as in a whole step. Its reductions wait for the chunks that they touch.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self.receives: list[ChunkMessage] = []
        self.sends: list[ChunkMessage] = []
        self.reductions: list[ChunkReduction] = []
        self._received, self._sent, self._reduced = _MemoryAccesses(), _MemoryAccesses(), _MemoryAccesses()

    def add(self, step: PipelineStep) -> None:
        receives, sends = list(self._receives(step)), list(self._sends(step))
        self._received.add_step(_numbered([entry.buffer for entry in receives], len(self.receives)))
        self._sent.add_step(_numbered([entry.buffer for entry in sends], len(self.sends)))
        self.receives += receives
        self.sends += sends
        reductions = list(self._reductions(step))
        for arrays in zip(*((entry.out, entry.left, entry.right) for entry in reductions), strict=True):
            self._reduced.add_step(_numbered(arrays, len(self.reductions)))
        self.reductions += reductions

    def _receives(self, step: PipelineStep) -> Iterator[ChunkMessage]:
        """A receive waits until the memory that it overwrites has been read."""
        for buffer, sender in step.receives:
            for part in self._parts(buffer):
                memory = extent(part)
                numbers = (touched.count_before(memory) for touched in (self._received, self._sent, self._reduced))
                yield ChunkMessage(part, sender, ChunkDependencies(*numbers))

    def _sends(self, step: PipelineStep) -> Iterator[ChunkMessage]:
        """A send waits until its data have been received and reduced."""
        for buffer, receiver in step.sends:
            for part in self._parts(buffer):
                memory = extent(part)
                yield ChunkMessage(
                    part,
                    receiver,
                    ChunkDependencies(self._received.count_before(memory), 0, self._reduced.count_before(memory)),
                )

    def _reductions(self, step: PipelineStep) -> Iterator[ChunkReduction]:
        """A reduction waits until both operands have arrived and the memory that it overwrites has been sent."""
        for arrays in step.reductions:
            for left, right, out in zip(*map(self._parts, arrays), strict=True):
                received = self._received.count_before(extent(left), extent(right), extent(out))
                yield ChunkReduction(
                    left, right, out, ChunkDependencies(received, self._sent.count_before(extent(out)))
                )

    def _parts(self, array: Array) -> list[Array]:
        """The chunks of an array; an empty array is one empty chunk."""
        step = max(1, self._chunk_bytes // array.itemsize)
        return [array[i : i + step] for i in range(0, max(1, array.size), step)]


def _numbered(arrays: Iterable[Array], before: int) -> list[tuple[Extent, int]]:
    """The extent of each array with its number in the list, where `before` entries precede the first."""
    return [(extent(array), before + i + 1) for i, array in enumerate(arrays)]


def extent(array: Array) -> Extent:
    """The address range of a contiguous array in host or device memory."""
    on_device = getattr(array.data, "ptr", None)
    start = int(array.__array_interface__["data"][0]) if on_device is None else int(on_device)
    return start, start + int(array.nbytes)


class PipelinedTransfer:
    """A chunked op in progress: a request that advances whenever it is polled.

    It is created when the rank reaches the op; then the ready signals are sent.

    Parameters
    ----------
    chunks : plan of the op
    group : communicator that sends and receives the chunks
    combine : function of (left, right, out) that writes the sum or the maximum
    """

    def __init__(
        self, chunks: ChunkedPlan, group: Communicator, combine: Callable[[Array, Array, Array], None]
    ) -> None:
        self._chunks = chunks
        self._group = group
        self._combine = combine
        self._receiving: deque[Request] = deque()
        self._sending: deque[Request] = deque()
        self._received = self._sent = self._reduced = 0
        self._started_to = dict.fromkeys(chunks.sent_to, 0)
        self._receiver_ready = {
            peer: group.await_ready(peer) for peer, count in chunks.sent_to.items() if count > CHUNKS_BEFORE_READY
        }
        self._own_ready_signals = [
            group.signal_ready(peer) for peer, count in chunks.received_from.items() if count > CHUNKS_BEFORE_READY
        ]
        self._awaited_signals: list[Request] = []

    @property
    def next_requests(self) -> list[Request]:
        """The next requests: the transfer can advance when one of them has completed."""
        first = (queue[0] for queue in (self._receiving, self._sending) if queue)
        return [*first, *self._awaited_signals, *(signal for signal in self._own_ready_signals if not signal.done())]

    @property
    def progress_count(self) -> int:
        """A progress count: the number of messages started plus the number completed."""
        return 2 * (self._received + self._sent) + len(self._receiving) + len(self._sending)

    @property
    def message_count(self) -> int:
        """The number of messages, sends and receives together."""
        return len(self._chunks.receives) + len(self._chunks.sends)

    @property
    def completed_messages(self) -> int:
        """The number of completed messages."""
        return self._received + self._sent

    def done(self) -> bool:
        """Whether all messages and reductions have completed. The call also advances the transfer."""
        while self._step():
            pass
        chunks = self._chunks
        have_ended = (self._received, self._sent, self._reduced) == tuple(
            len(entries) for entries in (chunks.receives, chunks.sends, chunks.reductions)
        )
        return have_ended and all(signal.done() for signal in self._own_ready_signals)

    def _step(self) -> bool:
        """Complete messages, reduce arrived chunks and start messages; returns whether a message completed or
        started.
        """
        has_completed = self._complete_messages()
        self._reduce_arrived()
        return self._start_messages() or has_completed

    def _complete_messages(self) -> bool:
        """Count the messages that have completed; returns whether there are new ones."""
        before = self._received + self._sent
        while self._receiving and self._receiving[0].done():
            self._receiving.popleft()
            self._received += 1
        while self._sending and self._sending[0].done():
            self._sending.popleft()
            self._sent += 1
        return self._received + self._sent > before

    def _reduce_arrived(self) -> None:
        """Run the reductions whose operands have arrived, in order."""
        reductions = self._chunks.reductions
        while self._reduced < len(reductions) and self._are_complete(reductions[self._reduced].needs):
            reduction = reductions[self._reduced]
            self._combine(reduction.left, reduction.right, reduction.out)
            self._reduced += 1

    def _start_messages(self) -> bool:
        """Start the messages that may start now; returns whether there are any."""
        has_started = False
        receives, sends = self._chunks.receives, self._chunks.sends
        most_receives, most_sends = self._group.max_outstanding
        while len(self._receiving) < most_receives and (
            message := self._next(receives, self._received, self._receiving)
        ):
            self._receiving.append(self._group.receive(message.buffer, message.peer))
            has_started = True
        self._awaited_signals = []
        while len(self._sending) < most_sends and (message := self._next(sends, self._sent, self._sending)):
            if (signal := self._missing_signal(message.peer)) is not None:
                self._awaited_signals = [signal]
                break
            self._started_to[message.peer] += 1
            is_last = self._started_to[message.peer] == self._chunks.sent_to[message.peer]
            self._sending.append(self._group.send(message.buffer, message.peer, synchronous=is_last))
            has_started = True
        return has_started

    def _missing_signal(self, peer: int) -> Request | None:
        """The ready signal that the next chunk to `peer` waits for; None if it has arrived or is not needed yet."""
        if self._started_to[peer] < CHUNKS_BEFORE_READY or self._receiver_ready[peer].done():
            return None
        return self._receiver_ready[peer]

    def _next(
        self, messages: Sequence[ChunkMessage], completed: int, in_progress: Sequence[Request]
    ) -> ChunkMessage | None:
        """The next message of a list, if it can start now; None otherwise."""
        position = completed + len(in_progress)
        if position < len(messages) and self._are_complete(messages[position].needs):
            return messages[position]
        return None

    def _are_complete(self, needs: ChunkDependencies) -> bool:
        """Whether the receives, sends and reductions that a chunk needs have completed."""
        return self._received >= needs.receives and self._sent >= needs.sends and self._reduced >= needs.reductions
