"""Our own steps in chunks: each chunk goes on as soon as what it needs has come.

A step's message is cut into chunks.  A chunk is added while the next one
arrives, and sent on while its step is still under way, so a ring of p members
has no pause between its p - 1 steps.  Which chunk needs which follows from the
memory they read and write; what is added, in which order, and every byte on the
wire are those of whole steps.

A few chunks go ahead of a receiver that may not be there yet; those that follow
wait for a greeting, which every receiver of more sends when it comes to the op.
So early messages take little of the links that others need, and no chunk has to be
acknowledged but the last: where two ranks send to each other, acknowledgements wait
behind the other's chunks, and would slow both directions to the slower one.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.carriers.communicators import Communicator, Request

MAX_OUTSTANDING = 32, 16
"""Receives and sends of one op under way at once, where buffers are the host's."""
CHUNKS_BEFORE_READY = 8
"""Chunks of an op that go to a rank before it has said that it is there.

A product by Cannon on four hosts of a laboratory (1536^3 at 200 Mbit/s) takes 474 ms with 16, 456 with 8 and 445 with
4, and took 504 where every chunk was acknowledged and 16 were under way. Steps of training on four hosts are the same
in all, on eight 3 to 8 % longer with 4.
"""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One step: what is received from whom, what is sent to whom, then `into = held + received` (or the larger)."""

    receives: tuple[tuple[Array, int], ...]
    sends: tuple[tuple[Array, int], ...]
    sums: tuple[tuple[Array, Array, Array], ...]


@dataclass(frozen=True, slots=True)
class ChunkDependencies:
    """How many of an op's receives, sends and additions, from the first on, must have ended before."""

    receives: int
    sends: int = 0
    additions: int = 0


@dataclass(frozen=True, slots=True)
class ChunkMessage:
    """A chunk that is received or sent."""

    buffer: Array
    peer: int
    needs: ChunkDependencies


@dataclass(frozen=True, slots=True)
class ChunkReduction:
    """A chunk of `into = held + room`, or the larger of the two."""

    held: Array
    room: Array
    into: Array
    needs: ChunkDependencies


@dataclass(frozen=True, slots=True)
class ChunkedPlan:
    """The steps of an op on one rank, cut; each list in the order in which its entries begin.

    Parameters
    ----------
    come_from, go_to : how many do, by member
    """

    receives: tuple[ChunkMessage, ...]
    sends: tuple[ChunkMessage, ...]
    additions: tuple[ChunkReduction, ...]
    come_from: Mapping[int, int]
    go_to: Mapping[int, int]


Extent = tuple[int, int]
"""The first byte of an array in memory, and the one behind its last."""


class _Touched:
    """The memory that the entries of one list read or write, step by step."""

    def __init__(self) -> None:
        self._steps: list[list[tuple[int, int, int]]] = []

    def add_step(self, extents: Sequence[tuple[Extent, int]]) -> None:
        """What one step's entries touch, each with how many entries there are up to it; no two overlap."""
        if extents:
            self._steps.append(sorted((start, stop, count) for (start, stop), count in extents))

    def count_before(self, *extents: Extent) -> int:
        """How many entries there are up to the last that touches any of these."""
        for step in reversed(self._steps):
            found = [step[place][2] for extent in extents if (place := _overlapping(step, extent)) is not None]
            if found:
                return max(found)
        return 0


def _overlapping(step: list[tuple[int, int, int]], extent: Extent) -> int | None:
    """The last entry of a sorted step that overlaps the extent."""
    start, stop = extent
    place = bisect_left(step, (stop,)) - 1
    return place if place >= 0 and step[place][1] > start else None


def split_into_chunks(steps: Sequence[PipelineStep], chunk_bytes: int) -> ChunkedPlan:
    """The steps in chunks of at most so many bytes, each with what it needs."""
    cutter = _Cutter(chunk_bytes)
    for step in steps:
        cutter.add(step)
    come_from, go_to = (Counter(one.peer for one in messages) for messages in (cutter.receives, cutter.sends))
    return ChunkedPlan(tuple(cutter.receives), tuple(cutter.sends), tuple(cutter.additions), come_from, go_to)


class _Cutter:
    """Cuts step after step.

    The messages of one step begin together, as those of a whole step do; its
    additions wait for what they touch of them.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self.receives: list[ChunkMessage] = []
        self.sends: list[ChunkMessage] = []
        self.additions: list[ChunkReduction] = []
        self._received, self._sent, self._added = _Touched(), _Touched(), _Touched()

    def add(self, step: PipelineStep) -> None:
        receives, sends = list(self._receives(step)), list(self._sends(step))
        self._received.add_step(_numbered([one.buffer for one in receives], len(self.receives)))
        self._sent.add_step(_numbered([one.buffer for one in sends], len(self.sends)))
        self.receives += receives
        self.sends += sends
        additions = list(self._additions(step))
        for arrays in zip(*((one.into, one.held, one.room) for one in additions), strict=True):
            self._added.add_step(_numbered(arrays, len(self.additions)))
        self.additions += additions

    def _receives(self, step: PipelineStep) -> Iterator[ChunkMessage]:
        """What is overwritten must have been read before."""
        for room, sender in step.receives:
            for part in self._parts(room):
                where = extent(part)
                counts = (touched.count_before(where) for touched in (self._received, self._sent, self._added))
                yield ChunkMessage(part, sender, ChunkDependencies(*counts))

    def _sends(self, step: PipelineStep) -> Iterator[ChunkMessage]:
        """What is sent must have come, and been added to."""
        for source, to in step.sends:
            for part in self._parts(source):
                where = extent(part)
                yield ChunkMessage(
                    part, to, ChunkDependencies(self._received.count_before(where), 0, self._added.count_before(where))
                )

    def _additions(self, step: PipelineStep) -> Iterator[ChunkReduction]:
        """Both summands must have come, and what is overwritten must have been sent."""
        for arrays in step.sums:
            for held, room, into in zip(*map(self._parts, arrays), strict=True):
                came = self._received.count_before(extent(held), extent(room), extent(into))
                yield ChunkReduction(held, room, into, ChunkDependencies(came, self._sent.count_before(extent(into))))

    def _parts(self, array: Array) -> list[Array]:
        """The array in chunks; an empty one is one empty chunk."""
        step = max(1, self._chunk_bytes // array.itemsize)
        return [array[i : i + step] for i in range(0, max(1, array.size), step)]


def _numbered(arrays: Iterable[Array], before: int) -> list[tuple[Extent, int]]:
    return [(extent(array), before + i + 1) for i, array in enumerate(arrays)]


def extent(array: Array) -> Extent:
    """Where a contiguous array lies, in the host's memory or a device's."""
    on_device = getattr(array.data, "ptr", None)
    start = int(array.__array_interface__["data"][0]) if on_device is None else int(on_device)
    return start, start + int(array.nbytes)


class PipelinedTransfer:
    """An op on its way, chunk by chunk: a request that goes on whenever it is asked whether it is done.

    Made when its rank has come to the op: others are told.

    Parameters
    ----------
    combine : makes `into` of `held` and `room`
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
        self._begun_to = dict.fromkeys(chunks.go_to, 0)
        self._greeted = {
            peer: group.await_ready(peer) for peer, count in chunks.go_to.items() if count > CHUNKS_BEFORE_READY
        }
        self._greets = [
            group.signal_ready(peer) for peer, count in chunks.come_from.items() if count > CHUNKS_BEFORE_READY
        ]
        self._awaited: list[Request] = []

    @property
    def heads(self) -> list[Request]:
        """What comes next: it can go on when one of these has ended."""
        first = (queue[0] for queue in (self._receiving, self._sending) if queue)
        return [*first, *self._awaited, *(greeting for greeting in self._greets if not greeting.done())]

    @property
    def moves(self) -> int:
        """Messages begun and ended so far: whether it has gone on."""
        return 2 * (self._received + self._sent) + len(self._receiving) + len(self._sending)

    @property
    def messages(self) -> int:
        """How many it has, both ways."""
        return len(self._chunks.receives) + len(self._chunks.sends)

    @property
    def ended(self) -> int:
        """How many of them have come or gone."""
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
        """Begin, end and add what can be; whether anything was."""
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
            one = additions[self._added]
            self._combine(one.held, one.room, one.into)
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
            is_last = self._begun_to[message.peer] == self._chunks.go_to[message.peer]
            self._sending.append(self._group.send(message.buffer, message.peer, taken=is_last))
            begun = True
        return begun

    def _missing(self, peer: int) -> Request | None:
        """The greeting of a member without which no more chunks go to it; None where it has come, or few have gone."""
        if self._begun_to[peer] < CHUNKS_BEFORE_READY or self._greeted[peer].done():
            return None
        return self._greeted[peer]

    def _next(self, messages: Sequence[ChunkMessage], ended: int, under_way: Sequence[Request]) -> ChunkMessage | None:
        """The message that can begin now, if there is one."""
        place = ended + len(under_way)
        if place < len(messages) and self._has(messages[place].needs):
            return messages[place]
        return None

    def _has(self, needs: ChunkDependencies) -> bool:
        return self._received >= needs.receives and self._sent >= needs.sends and self._added >= needs.additions
