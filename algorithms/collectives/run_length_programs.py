"""Run-length encoded programs: the send and receive steps of a collective for all members of its group, as arrays.

A collective algorithm is a program of steps for each member (rank of the group).  The buffer is cut into pieces 0, 1,
….  In each step a member sends at most one range of pieces to one peer, and receives at most one range, which it adds
to its own (`reduce`) or stores.  A member starts step s + 1 when its own send and receive of step s have ended. A
transfer starts when both ends have reached it.

A *run* is a number of consecutive steps with the same peers, in which the piece numbers advance by a constant stride.
The p - 1 steps of a ring are one run: a member receives from the left and sends to the right, and the piece number
falls by one.  The programs of a hundred thousand members are a few arrays, where the steps would be 10^10.

    pipelined broadcast, 3 pieces     member 0: 3 x send
    along the chain 0 → 1 → 2         member 1: 1 x receive, 2 x both, 1 x send
                                      member 2: 3 x receive

Idle steps are omitted, since they wait for nothing.  Messages between two members stay in order: the k-th send from i
to j matches the k-th receive of j from i.

An algorithm is written as *sections*: the k-th run of all members at once, with one array element for each member.
`encode` turns sections into `Runs`, which are ordered by member.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PieceRange:
    """The `count` pieces first, first + spacing, first + 2 spacing, …, modulo the number of pieces of the buffer."""

    first: int
    count: int
    spacing: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """The send and the receive of one member in one step; None for a side that is idle.

    Parameters
    ----------
    send_to, receive_from : peers, by their index in the group
    send, receive : pieces sent and received
    reduce : whether received pieces are added to the member's own
    """

    send_to: int | None = None
    send: PieceRange | None = None
    receive_from: int | None = None
    receive: PieceRange | None = None
    reduce: bool = False

    def backwards(self) -> "Step":
        """The step in reverse: a gather step becomes a reduction step.

        >>> Step(1, PieceRange(0, 1)).backwards()
        Step(send_to=None, send=None, receive_from=1, receive=PieceRange(first=0, count=1, spacing=1), reduce=True)
        """
        return Step(self.receive_from, self.receive, self.send_to, self.send, reduce=self.send is not None)


IDLE = Step()


Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
NOBODY = -1
"""Peer of an idle side in an array of peers."""
MEMBERS_PER_BLOCK = 4096
"""Members that `encode` orders at once, so that their sections stay in the CPU's cache."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Section:
    """One run of every member: consecutive steps with constant peers; their number may differ between members.

    Each field is one value for each member, or one value for all members.  In its k-th step, from 0, a member sends the
    pieces that begin at

        origin + (send_first - origin + k stride) mod modulus

    and receives likewise.  Sections of one step need no stride, origin or modulus.

    Parameters
    ----------
    steps : number of steps; 0 where the member skips the section
    send_to, receive_from : peers; NOBODY where that side is idle
    send_first, receive_first : first piece of the first step
    sent, received : pieces in each step
    reduce : whether received pieces are added
    stride : offset of the first piece from step to step
    spacing : offset between the pieces of one step
    origin, modulus : range in which the first piece cycles
    alternates : whether this section and the next alternate, one step each, `steps` times, this one first
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
    spacing: int = 1
    origin: Integers | int = 0
    modulus: int = 1 << 62
    alternates: bool = False

    def backwards(self) -> "Section":
        """The section in reverse, as `Step.backwards`."""
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

    def sends_of(self, member: int) -> tuple[Integers, int]:
        """The first piece that a member sends in each of its steps, and the number of pieces of a step.

        >>> Section(steps=3, send_to=1, send_first=np.array([1, 0]), stride=-1, modulus=4).sends_of(1)
        (array([0, 3, 2]), 1)
        """
        return self._side(member, self.send_to, self.send_first, self.sent)

    def receives_of(self, member: int) -> tuple[Integers, int]:
        """The first piece that a member receives in each of its steps, and the number of pieces of a step."""
        return self._side(member, self.receive_from, self.receive_first, self.received)

    def _side(
        self, member: int, peers: Integers | int, firsts: Integers | int, counts: Integers | int
    ) -> tuple[Integers, int]:
        steps, peer, first, count, origin = (
            value if isinstance(value, int) else int(np.asarray(value)[member])
            for value in (self.steps, peers, firsts, counts, self.origin)
        )
        taken = np.arange(0 if peer == NOBODY else steps)
        return origin + (first - origin + taken * self.stride) % self.modulus, count

    def _last(self, first: Integers | int) -> Integers | int:
        return self.origin + (first - self.origin + (self.steps - 1) * self.stride) % self.modulus


def backwards(sections: Iterable[Section]) -> list[Section]:
    """Returns the sections in reverse; of two alternating sections the later goes first."""
    ordered = list(sections)
    second = [False, *(section.alternates for section in ordered)]
    return [replace(section.backwards(), alternates=second[j]) for j, section in reversed(list(enumerate(ordered)))]


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The programs of all members: member i executes the runs offsets[i] .. offsets[i + 1] - 1 in order.

    A run is `count` steps with the same peers and the same number of pieces.  All arrays but `offsets` have one element
    for each run.

    Parameters
    ----------
    pieces : number of pieces of the buffer
    offsets : first run of each member; members + 1 entries
    count : steps of each run, from 1
    cycle : 1 for a single run; 2 if this run and the next run alternate, one step each, `count` times; 0 for that next
        run.  Only double binary trees have alternating runs; `unrolled` removes them
    send_to, receive_from : peers; -1 where that side is idle
    pieces_sent, pieces_received : pieces in each step; 0 where that side is idle
    first_piece_sent, first_piece_received : first piece of the first step; -1 where that side is idle
    piece_stride : offset of the first piece from step to step: origin + (first - origin + k stride) mod modulus; -1 in
        rings, 1 along chains, 0 for a single step
    piece_spacing : offset between the pieces of one step, modulo `pieces`; 1 except in hierarchies
    origin, modulus : range in which the first piece cycles; 0 and `pieces` except in hierarchies
    reduce : whether received pieces are added
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
    modulus: Integers
    reduce: Flags

    @property
    def members(self) -> int:
        """Number of members of the group."""
        return len(self.offsets) - 1

    def program(self, member: int) -> Iterator[Step]:
        """Yields the member's steps one by one, for display and tests."""
        run, stop = int(self.offsets[member]), int(self.offsets[member + 1])
        while run < stop:
            together = range(run, run + int(self.cycle[run]))
            for k in range(int(self.count[run])):
                for row in together:
                    yield self.step(row, k)
            run = together.stop

    def step(self, run: int, k: int) -> Step:
        """The k-th step of a run, both counted from 0."""
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
        first = origin + (int(firsts[run]) - origin + k * int(self.piece_stride[run])) % int(self.modulus[run])
        return int(peers[run]), PieceRange(first, int(counts[run]), int(self.piece_spacing[run]))

    def unrolled(self) -> "Runs":
        """The same programs without alternating runs."""
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
            distance = columns[name] - columns["origin"] + k * columns["piece_stride"]
            first_piece = columns["origin"] + distance % columns["modulus"]
            columns[name] = np.where(columns[peers] == NOBODY, NOBODY, first_piece)
        alternates = self.cycle[head] != 1
        columns["count"] = np.where(alternates, 1, columns["count"])
        columns["cycle"] = np.ones_like(head)
        offsets = np.concatenate(([0], ends))[self.offsets]
        return Runs(self.pieces, offsets, **columns)


def encode(sections: Iterable[Section], members: int, pieces: int) -> Runs:
    """Returns the run-length encoded programs that these sections describe; skipped sections are omitted.

    Parameters
    ----------
    sections : sections in order of execution
    members : number of members of the group
    pieces : number of pieces of the buffer
    """
    ordered = list(sections)
    sends = [np.asarray(section.send_to) != NOBODY for section in ordered]
    receives = [np.asarray(section.receive_from) != NOBODY for section in ordered]
    length = np.zeros((members, len(ordered)), np.int64)
    for j, section in enumerate(ordered):
        length[:, j] = np.where(sends[j] | receives[j], section.steps, 0)
    executed = length > 0
    table = _SectionTable(ordered, executed, np.concatenate(([0], np.cumsum(executed.sum(axis=1)))))
    return Runs(
        pieces,
        offsets=table.offsets,
        count=length[executed],
        cycle=_cycles(ordered, length)[executed],
        send_to=table.column("send_to"),
        receive_from=table.column("receive_from"),
        pieces_sent=table.column("sent", sends),
        pieces_received=table.column("received", receives),
        first_piece_sent=table.column("send_first", sends, NOBODY),
        first_piece_received=table.column("receive_first", receives, NOBODY),
        piece_stride=table.column("stride"),
        piece_spacing=table.column("spacing"),
        origin=table.column("origin"),
        modulus=np.minimum(table.column("modulus"), pieces),
        reduce=table.column("reduce").astype(bool),
    )


@dataclass(frozen=True, slots=True)
class _SectionTable:
    """The sections as a table of members and sections, from which the columns of `Runs` are read member by member.

    Parameters
    ----------
    sections : the sections
    executed : whether a member executes a section [members, sections]
    offsets : first run of each member [members + 1]
    """

    sections: list[Section]
    executed: Flags
    offsets: Integers

    def column(self, name: str, sides: list[Flags] | None = None, otherwise: int = 0) -> Integers:
        """The values of one field of the sections [runs]; `otherwise` where its side is idle."""
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
        """The values of the executed sections, member by member [runs], in blocks that fit in the CPU's cache."""
        values_by_run = np.empty(self.offsets[-1], np.int64)
        members, sections = self.executed.shape
        for low in range(0, members, MEMBERS_PER_BLOCK):
            high = min(low + MEMBERS_PER_BLOCK, members)
            block = np.empty((high - low, sections), np.int64)
            for j, value in enumerate(values):
                block[:, j] = value[low:high] if isinstance(value, np.ndarray) and value.ndim else value
            values_by_run[self.offsets[low] : self.offsets[high]] = block[self.executed[low:high]]
        return values_by_run


def _cycles(sections: list[Section], length: Integers) -> Integers:
    """Column `cycle` of `Runs` [members, sections]: 2 and 0 where a member alternates between two sections, else 1."""
    cycles = np.ones_like(length)
    for j, section in enumerate(sections):
        if section.alternates:
            both = (length[:, j] > 1) & (length[:, j + 1] > 1)
            cycles[both, j], cycles[both, j + 1] = 2, 0
    return cycles
