"""Pipelined steps: the messages of our own collectives, in chunks, so that consecutive steps overlap.

Theory of operation
-------------------
The message of a step is split into chunks. A chunk is reduced while the next one arrives, and is forwarded while its
step is still in progress. So a ring of p members has no pause between its p - 1 steps. The dependencies between chunks
follow from the memory that they read and write. The order of additions and every byte on the wire are the same as with
whole steps.

Flow control: a few chunks go to a receiver that may not have reached the op yet (an eager protocol). The remaining
chunks wait for the receiver's ready signal; a receiver of more than those few chunks sends it when it reaches the op.
So early messages occupy little of the links that other ranks need, and only the last chunk is a synchronous send. If
every chunk were acknowledged, the acknowledgements of two ranks that send to each other would queue behind the other's
chunks and slow both directions.
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
"""Chunks of an op that are sent to a rank before its ready signal.

A product by Cannon's algorithm on four hosts (1536^3 at 200 Mbit/s) takes 474 ms with 16 chunks, 456 ms with 8 and
445 ms with 4; with every chunk acknowledged and 16 in flight it takes 504 ms. Training steps on four hosts do not
differ; on eight hosts they are 3 to 8 % longer with 4.
"""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One step: its receives and sends with their peers, then `into = held + received` (or the maximum)."""

    receives: tuple[tuple[Array, int], ...]
    sends: tuple[tuple[Array, int], ...]
    sums: tuple[tuple[Array, Array, Array], ...]


@dataclass(frozen=True, slots=True)
class ChunkDependencies:
    """The first so many receives, sends and reductions of an op that must have completed before a chunk starts."""

    receives: int
    sends: int = 0
    additions: int = 0


@dataclass(frozen=True, slots=True)
class ChunkMessage:
    """A chunk that is sent or received."""

    buffer: Array
    peer: int
    needs: ChunkDependencies


@dataclass(frozen=True, slots=True)
class ChunkReduction:
    """A chunk of `into = held + room`, or of the maximum."""

    held: Array
    room: Array
    into: Array
    needs: ChunkDependencies


@dataclass(frozen=True, slots=True)
class ChunkedPlan:
    """The chunks of an op on one rank, each list in starting order.

    Parameters
    ----------
    received_from, sent_to : chunks by peer
    """

    receives: tuple[ChunkMessage, ...]
    sends: tuple[ChunkMessage, ...]
    additions: tuple[ChunkReduction, ...]
    received_from: Mapping[int, int]
    sent_to: Mapping[int, int]


Extent = tuple[int, int]
"""The address of the first byte of an array and the address after its last byte."""


class _MemoryAccesses:
    """The memory that the entries of one list read or write, step by step."""

    def __init__(self) -> None:
        self._steps: list[list[tuple[int, int, int]]] = []

    def add_step(self, extents: Sequence[tuple[Extent, int]]) -> None:
        """Add the extents of one step, each with the number of entries up to it. The extents do not overlap."""
        if extents:
            self._steps.append(sorted((start, stop, count) for (start, stop), count in extents))

    def count_before(self, *extents: Extent) -> int:
        """The number of entries up to the last one that touches any of these extents."""
        for step in reversed(self._steps):
            counts = [step[position][2] for extent in extents if (position := _overlapping(step, extent)) is not None]
            if counts:
                return max(counts)
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
    return ChunkedPlan(tuple(builder.receives), tuple(builder.sends), tuple(builder.additions), received_from, sent_to)


class _ChunkBuilder:
    """Splits one step after the other.

    All messages of a step may start together, as in a whole step. Its reductions wait for the chunks that they touch.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self.receives: list[ChunkMessage] = []
        self.sends: list[ChunkMessage] = []
        self.additions: list[ChunkReduction] = []
        self._received, self._sent, self._added = _MemoryAccesses(), _MemoryAccesses(), _MemoryAccesses()

    def add(self, step: PipelineStep) -> None:
        receives, sends = list(self._receives(step)), list(self._sends(step))
        self._received.add_step(_numbered([entry.buffer for entry in receives], len(self.receives)))
        self._sent.add_step(_numbered([entry.buffer for entry in sends], len(self.sends)))
        self.receives += receives
        self.sends += sends
        additions = list(self._additions(step))
        for arrays in zip(*((entry.into, entry.held, entry.room) for entry in additions), strict=True):
            self._added.add_step(_numbered(arrays, len(self.additions)))
        self.additions += additions

    def _receives(self, step: PipelineStep) -> Iterator[ChunkMessage]:
        """A receive waits until the memory that it overwrites has been read."""
        for room, sender in step.receives:
            for part in self._parts(room):
                memory = extent(part)
                counts = (touched.count_before(memory) for touched in (self._received, self._sent, self._added))
                yield ChunkMessage(part, sender, ChunkDependencies(*counts))

    def _sends(self, step: PipelineStep) -> Iterator[ChunkMessage]:
        """A send waits until its data have been received and reduced."""
        for source, to in step.sends:
            for part in self._parts(source):
                memory = extent(part)
                yield ChunkMessage(
                    part,
                    to,
                    ChunkDependencies(self._received.count_before(memory), 0, self._added.count_before(memory)),
                )

    def _additions(self, step: PipelineStep) -> Iterator[ChunkReduction]:
        """A reduction waits until both operands are there and the memory that it overwrites has been sent."""
        for arrays in step.sums:
            for held, room, into in zip(*map(self._parts, arrays), strict=True):
                came = self._received.count_before(extent(held), extent(room), extent(into))
                yield ChunkReduction(held, room, into, ChunkDependencies(came, self._sent.count_before(extent(into))))

    def _parts(self, array: Array) -> list[Array]:
        """The chunks of an array; an empty array is one empty chunk."""
        step = max(1, self._chunk_bytes // array.itemsize)
        return [array[i : i + step] for i in range(0, max(1, array.size), step)]


def _numbered(arrays: Iterable[Array], before: int) -> list[tuple[Extent, int]]:
    return [(extent(array), before + i + 1) for i, array in enumerate(arrays)]


def extent(array: Array) -> Extent:
    """The extent of a contiguous array in host or device memory."""
    on_device = getattr(array.data, "ptr", None)
    start = int(array.__array_interface__["data"][0]) if on_device is None else int(on_device)
    return start, start + int(array.nbytes)


class PipelinedTransfer:
    """A chunked op in progress: a request that advances whenever it is polled.

    It is created when the rank reaches the op; then the ready signals are sent.

    Parameters
    ----------
    combine : computes `into` from `held` and `room`
    """

    def __init__(
        self, chunks: ChunkedPlan, group: Communicator, combine: Callable[[Array, Array, Array], None]
    ) -> None:
        self._chunks = chunks
        self._group = group
        self._combine = combine
        self._receiving: deque[Request] = deque()
        self._sending: deque[Request] = deque()
        self._received = self._sent = self._added = 0
        self._begun_to = dict.fromkeys(chunks.sent_to, 0)
        self._greeted = {
            peer: group.await_ready(peer) for peer, count in chunks.sent_to.items() if count > CHUNKS_BEFORE_READY
        }
        self._greets = [
            group.signal_ready(peer) for peer, count in chunks.received_from.items() if count > CHUNKS_BEFORE_READY
        ]
        self._awaited: list[Request] = []

    @property
    def heads(self) -> list[Request]:
        """The next requests: the transfer can advance when one of them has completed."""
        first = (queue[0] for queue in (self._receiving, self._sending) if queue)
        return [*first, *self._awaited, *(greeting for greeting in self._greets if not greeting.done())]

    @property
    def moves(self) -> int:
        """A progress count: the number of messages started plus the number completed."""
        return 2 * (self._received + self._sent) + len(self._receiving) + len(self._sending)

    @property
    def messages(self) -> int:
        """The number of messages, sends and receives together."""
        return len(self._chunks.receives) + len(self._chunks.sends)

    @property
    def ended(self) -> int:
        """The number of completed messages."""
        return self._received + self._sent

    def done(self) -> bool:
        while self._step():
            pass
        chunks = self._chunks
        have_ended = (self._received, self._sent, self._added) == tuple(
            len(entries) for entries in (chunks.receives, chunks.sends, chunks.additions)
        )
        return have_ended and all(greeting.done() for greeting in self._greets)

    def _step(self) -> bool:
        """Complete, reduce and start what is possible; returns whether anything happened."""
        ended = self._end()
        self._add()
        return self._begin() or ended

    def _end(self) -> bool:
        before = self._received + self._sent
        while self._receiving and self._receiving[0].done():
            self._receiving.popleft()
            self._received += 1
        while self._sending and self._sending[0].done():
            self._sending.popleft()
            self._sent += 1
        return self._received + self._sent > before

    def _add(self) -> None:
        additions = self._chunks.additions
        while self._added < len(additions) and self._has(additions[self._added].needs):
            reduction = additions[self._added]
            self._combine(reduction.held, reduction.room, reduction.into)
            self._added += 1

    def _begin(self) -> bool:
        begun = False
        receives, sends = self._chunks.receives, self._chunks.sends
        most_receives, most_sends = self._group.max_outstanding
        while len(self._receiving) < most_receives and (
            message := self._next(receives, self._received, self._receiving)
        ):
            self._receiving.append(self._group.receive(message.buffer, message.peer))
            begun = True
        self._awaited = []
        while len(self._sending) < most_sends and (message := self._next(sends, self._sent, self._sending)):
            if (greeting := self._missing(message.peer)) is not None:
                self._awaited = [greeting]
                break
            self._begun_to[message.peer] += 1
            is_last = self._begun_to[message.peer] == self._chunks.sent_to[message.peer]
            self._sending.append(self._group.send(message.buffer, message.peer, synchronous=is_last))
            begun = True
        return begun

    def _missing(self, peer: int) -> Request | None:
        """The ready signal that the next chunk to `peer` waits for; None if it has arrived or is not needed yet."""
        if self._begun_to[peer] < CHUNKS_BEFORE_READY or self._greeted[peer].done():
            return None
        return self._greeted[peer]

    def _next(self, messages: Sequence[ChunkMessage], ended: int, under_way: Sequence[Request]) -> ChunkMessage | None:
        """The next message, if it can start now."""
        position = ended + len(under_way)
        if position < len(messages) and self._has(messages[position].needs):
            return messages[position]
        return None

    def _has(self, needs: ChunkDependencies) -> bool:
        return self._received >= needs.receives and self._sent >= needs.sends and self._added >= needs.additions
