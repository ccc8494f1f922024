"""Programs of a lowered collective for all its members at once, run-length encoded.

A member of a ring does the same thing p - 1 times: receives from its left,
sends to its right, and the piece moves on by one.  So its program is one *run*,
and the programs of a hundred thousand members are a few arrays, where the steps
themselves would be 10^10.

    pipelined broadcast, 3 pieces     member 0: 3 x send
    down the chain 0 → 1 → 2          member 1: 1 x receive, 2 x both, 1 x send
                                      member 2: 3 x receive

Idle steps are left out: they wait for nothing.  Between two members messages
keep their order, so the k-th that i sends to j is the k-th that j receives from i.

Algorithms describe themselves by *sections*, one value per member; `encode`
lays them out member by member.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PieceRange:
    """`count` pieces: first, first + every, first + 2 every, …, counted around the end of the buffer."""

    first: int
    count: int
    every: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """What one member does in one step; a side that is None does nothing."""

    send_to: int | None = None
    send: PieceRange | None = None
    receive_from: int | None = None
    receive: PieceRange | None = None
    reduce: bool = False

    def backwards(self) -> "Step":
        """The step in reversed time: a gather's step becomes a reduction's.

        >>> Step(1, PieceRange(0, 1)).backwards()
        Step(send_to=None, send=None, receive_from=1, receive=PieceRange(first=0, count=1, every=1), reduce=True)
        """
        return Step(self.receive_from, self.receive, self.send_to, self.send, reduce=self.send is not None)


IDLE = Step()


Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
NOBODY = -1
TOGETHER = 4096
"""Members that are laid out at once: their sections are then in cache."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Section:
    """What the members do in a stretch of their programs, of equal or different lengths.

    Each field is one value per member, or one for all.  In its k-th step, from
    0, a member sends the pieces that begin at

        origin + (send_first - origin + k stride) mod around

    and receives alike.  Sections of one step need no stride, origin or around.

    Parameters
    ----------
    steps : how many steps; 0 where the member skips the section
    send_to, receive_from : peers; NOBODY where that side does nothing
    send_first, receive_first : the first piece of the first step
    sent, received : pieces in each step
    reduce : what is received is added to what is held
    every : distance of the pieces of one step
    alternates : this section and the next alternate, this one first: one step each, `steps` times
    """

    steps: Integers | int
    send_to: Integers | int = NOBODY
    send_first: Integers | int = 0
    sent: Integers | int = 1
    receive_from: Integers | int = NOBODY
    receive_first: Integers | int = 0
    received: Integers | int = 1
    reduce: Flags | bool = False
    stride: int = 0
    every: int = 1
    origin: Integers | int = 0
    modulus: int = 1 << 62
    alternates: bool = False

    def backwards(self) -> "Section":
        """The section in reversed time, as `Step.backwards`."""
        return replace(
            self,
            send_to=self.receive_from,
            send_first=self._last(self.receive_first),
            sent=self.received,
            receive_from=self.send_to,
            receive_first=self._last(self.send_first),
            received=self.sent,
            reduce=self.send_to != NOBODY,
            stride=-self.stride,
        )

    def _last(self, first: Integers | int) -> Integers | int:
        return self.origin + (first - self.origin + (self.steps - 1) * self.stride) % self.modulus


def backwards(sections: Iterable[Section]) -> list[Section]:
    """The sections in reversed order and time; of two that take turns, the later one goes first."""
    given = list(sections)
    turns = [False, *(section.alternates for section in given)]
    return [replace(section.backwards(), alternates=turns[j]) for j, section in reversed(list(enumerate(given)))]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Every member's program: member i does runs offsets[i] .. offsets[i + 1] - 1 in order.

    A run is `count` steps with the same peers and as many pieces each time.
    With even pieces, bytes / pieces each, `pieces_sent` says all about sizes;
    the exact ones belong to the pieces that a step moves.

    Parameters
    ----------
    pieces : into how many the buffer is cut
    offsets : members + 1 of them
    count : steps of each run, from 1
    cycle : 1 for a run by itself; 2 where it and the next one take turns, one step each, `count` times (the next
        one then has 0).  Only double binary trees have such; `unrolled` gives the same programs without
    send_to, receive_from : peers; -1 where that side does nothing
    pieces_sent, pieces_received : in each step; 0 where that side does nothing
    first_piece_sent, first_piece_received : of the first step; -1 where that side does nothing
    piece_stride : the first piece of the k-th step, from 0, is origin + (first - origin + k stride) mod around;
        the stride is -1 in rings, 1 down a chain, 0 where a run is one step
    piece_spacing : distance of the pieces of one step, counted around the end of the buffer; 1 but in hierarchies
    origin, around : the range of pieces in which the first piece turns; 0 and `pieces` but in hierarchies
    reduce : what is received is added to what is held
    """

    pieces: int
    offsets: Integers
    count: Integers
    cycle: Integers
    send_to: Integers
    receive_from: Integers
    pieces_sent: Integers
    pieces_received: Integers
    first_piece_sent: Integers
    first_piece_received: Integers
    piece_stride: Integers
    piece_spacing: Integers
    origin: Integers
    around: Integers
    reduce: Flags

    @property
    def members(self) -> int:
        return len(self.offsets) - 1

    def program(self, member: int) -> Iterator[Step]:
        """The member's steps, one by one: for reading and for tests."""
        run, stop = int(self.offsets[member]), int(self.offsets[member + 1])
        while run < stop:
            together = range(run, run + int(self.cycle[run]))
            for k in range(int(self.count[run])):
                for one in together:
                    yield self.step(one, k)
            run = together.stop

    def step(self, run: int, k: int) -> Step:
        """The k-th step of a run, from 0."""
        return Step(
            *self._side(run, k, self.send_to, self.first_piece_sent, self.pieces_sent),
            *self._side(run, k, self.receive_from, self.first_piece_received, self.pieces_received),
            reduce=bool(self.reduce[run]),
        )

    def _side(
        self, run: int, k: int, peers: Integers, firsts: Integers, counts: Integers
    ) -> tuple[int | None, PieceRange | None]:
        if peers[run] == NOBODY:
            return None, None
        origin = int(self.origin[run])
        first = origin + (int(firsts[run]) - origin + k * int(self.piece_stride[run])) % int(self.around[run])
        return int(peers[run]), PieceRange(first, int(counts[run]), int(self.piece_spacing[run]))

    def unrolled(self) -> "Runs":
        """The same programs, with turns written out: every run is one by itself."""
        if (self.cycle == 1).all():
            return self
        repeats = np.where(self.cycle == 2, 2 * self.count, self.cycle)
        ends = np.cumsum(repeats)
        head = np.repeat(np.arange(len(repeats)), repeats)
        position = np.arange(len(head)) - (ends - repeats)[head]
        row, k = head + position % 2, position // 2
        columns = {
            column.name: getattr(self, column.name)[row]
            for column in fields(self)
            if column.name not in ("pieces", "offsets")
        }
        for name, peers in (("first_piece_sent", "send_to"), ("first_piece_received", "receive_from")):
            moved = (
                columns["origin"]
                + (columns[name] - columns["origin"] + k * columns["piece_stride"]) % columns["around"]
            )
            columns[name] = np.where(columns[peers] == NOBODY, NOBODY, moved)
        in_turns = self.cycle[head] != 1
        columns["count"] = np.where(in_turns, 1, columns["count"])
        columns["cycle"] = np.ones_like(head)
        offsets = np.concatenate(([0], ends))[self.offsets]
        return Runs(self.pieces, offsets, **columns)


def encode(sections: Iterable[Section], members: int, pieces: int) -> Runs:
    """The sections, laid out member by member; what a member skips is left out."""
    given = list(sections)
    sends = [np.asarray(section.send_to) != NOBODY for section in given]
    receives = [np.asarray(section.receive_from) != NOBODY for section in given]
    length = np.zeros((members, len(given)), np.int64)
    for j, section in enumerate(given):
        length[:, j] = np.where(sends[j] | receives[j], section.steps, 0)
    taken = length > 0
    laid = _Laid(given, taken, np.concatenate(([0], np.cumsum(taken.sum(axis=1)))))
    return Runs(
        pieces,
        offsets=laid.offsets,
        count=length[taken],
        cycle=_cycles(given, length)[taken],
        send_to=laid.column("send_to"),
        receive_from=laid.column("receive_from"),
        pieces_sent=laid.column("sent", sends),
        pieces_received=laid.column("received", receives),
        first_piece_sent=laid.column("send_first", sends, NOBODY),
        first_piece_received=laid.column("receive_first", receives, NOBODY),
        piece_stride=laid.column("stride"),
        piece_spacing=laid.column("every"),
        origin=laid.column("origin"),
        around=np.minimum(laid.column("modulus"), pieces),
        reduce=laid.column("reduce").astype(bool),
    )


@dataclass(frozen=True, slots=True)
class _Laid:
    """Which member takes which section [members, sections], and where each member's begin in a column."""

    sections: list[Section]
    taken: Flags
    offsets: Integers

    def column(self, name: str, sides: list[Flags] | None = None, otherwise: int = 0) -> Integers:
        """One field of the sections, `otherwise` where its side has no peer."""
        values = [getattr(section, name) for section in self.sections]
        if sides is not None:
            values = [
                value if side.all() else np.where(side, value, otherwise)
                for side, value in zip(sides, values, strict=True)
            ]
        if all(isinstance(value, int) for value in values) and len(set(values)) == 1:
            return np.full(self.offsets[-1], values[0], np.int64)
        return self._flat(values)

    def _flat(self, values: Sequence[Integers | int]) -> Integers:
        """What each section has for each member, of the sections that it takes; a few members at a time, in cache."""
        found = np.empty(self.offsets[-1], np.int64)
        members, sections = self.taken.shape
        for low in range(0, members, TOGETHER):
            high = min(low + TOGETHER, members)
            block = np.empty((high - low, sections), np.int64)
            for j, value in enumerate(values):
                block[:, j] = value[low:high] if isinstance(value, np.ndarray) and value.ndim else value
            found[self.offsets[low] : self.offsets[high]] = block[self.taken[low:high]]
        return found


def _cycles(sections: list[Section], length: Integers) -> Integers:
    """2 and 0 where a member takes both of two sections in turns and more than once, 1 elsewhere."""
    cycles = np.ones_like(length)
    for j, section in enumerate(sections):
        if section.alternates:
            both = (length[:, j] > 1) & (length[:, j + 1] > 1)
            cycles[both, j], cycles[both, j + 1] = 2, 0
    return cycles
