"""The members of a group in one pattern: which of them do the same steps, and who sends to whom in which."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints, bags, pairs, sequences
from quadrille.algorithms.analysis.traffic import Traffic
from quadrille.algorithms.collectives.lowered import Lowered
from quadrille.algorithms.schedule.grid import Axis, Grid

SIZED = ("first_piece_sent", "first_piece_received", "piece_stride", "piece_spacing", "origin", "around")

SHAPED = ("count", "cycle", "pieces_sent", "pieces_received", "reduce")


def equal_pieces(moved: Traffic) -> bool:
    """Whether all pieces have one size, so that it does not matter which one goes when."""
    sizes = {after - before for edges in (moved.edges, moved.receive_edges) for before, after in pairwise(edges)}
    return len(sizes) == 1


@dataclass(frozen=True, slots=True, eq=False)
class MemberKinds:
    """The members of a group in one pattern.

    Parameters
    ----------
    kinds : members of one kind do the same steps, whoever their peers are, and bear the same mark [members]
    events : (place in the program, whether it is a send) of the uses of channels
    sender, receiver, event : each use of a channel, from the sender's or the receiver's side
    """

    kinds: Ints
    events: list[tuple[int, bool]]
    sender: Ints
    receiver: Ints
    event: Ints

    @classmethod
    def of(cls, lowered: Lowered, marks: Ints, *, even: bool) -> "MemberKinds":
        """From all members' programs; pieces of one size need not be told apart.

        Parameters
        ----------
        marks : numbers from 0 that tell members apart beside their steps [members]
        """
        runs = lowered.runs()
        member = np.repeat(np.arange(runs.members), np.diff(runs.offsets))
        position = np.arange(len(member)) - runs.offsets[member]
        sends, receives = runs.send_to >= 0, runs.receive_from >= 0
        columns = [getattr(runs, name) for name in (SHAPED if even else (*SHAPED, *SIZED))]
        columns += [sends, receives, runs.send_to == runs.receive_from]
        kinds = sequences(member, position, columns, runs.members)
        place = np.concatenate([position[sends], position[receives]])
        is_send = np.concatenate([np.ones(sends.sum(), dtype=bool), np.zeros(receives.sum(), dtype=bool)])
        found, event = np.unique(place * 2 + is_send, return_inverse=True)
        return cls(
            pairs(kinds, marks),
            [(int(one) // 2, bool(one % 2)) for one in found],
            np.concatenate([member[sends], runs.receive_from[receives]]),
            np.concatenate([runs.send_to[sends], member[receives]]),
            event,
        )


Rows = tuple[Ints, Ints, Ints]
"""Sender, receiver and event of each use of a channel."""


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """Channels, each once.

    Parameters
    ----------
    lanes : names; a channel's lane is a place in it
    lane, sender, receiver, label : of each channel
    """

    lanes: tuple[str, ...]
    lane: Ints
    sender: Ints
    receiver: Ints
    label: Ints


class ChannelUses:
    """What uses the channels of a grid.

    >>> uses = ChannelUses(Grid(x=4))
    >>> uses.singly("x", np.array([0, 1]), np.array([1, 2]), "send")
    >>> uses.singly("x", np.array([0]), np.array([1]), "receive")
    >>> found = uses.channels()
    >>> found.sender.tolist(), found.receiver.tolist(), found.label.tolist()
    ([0, 1], [1, 2], [1, 0])
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._members: dict[tuple[Axis, str], dict[Hashable, MemberKinds]] = {}
        self._groups: dict[tuple[Axis, str, Hashable], NDArray[np.bool_]] = {}
        self._single: dict[str, list[Rows]] = {}
        self._events: dict[Hashable, int] = {}
        self._labels: dict[Hashable, int] = {}

    def by_groups(self, axis: Axis, lane: str, key: Hashable, members: MemberKinds, first: Ints) -> None:
        """Groups along an axis, by their first ranks, in which the members of a pattern use a lane."""
        self._members.setdefault((axis, lane), {})[key] = members
        self._groups.setdefault((axis, lane, key), np.zeros(self._grid.size, dtype=bool))[first] = True

    def singly(self, lane: str, sender: Ints, receiver: Ints, event: Hashable) -> None:
        """Ranks that use a lane each by itself."""
        number = self._events.setdefault(event, len(self._events))
        self._single.setdefault(lane, []).append((sender, receiver, np.full(len(sender), number)))

    def count(self) -> int:
        """How often channels are used, each event of a group counted once."""
        by_groups = (
            int(np.count_nonzero(self._groups[axis, lane, key])) * len(members.sender)
            for (axis, lane), patterns in self._members.items()
            for key, members in patterns.items()
        )
        return sum(by_groups) + sum(len(rows[0]) for listed in self._single.values() for rows in listed)

    def channels(self) -> Channels:
        """All channels, by lane."""
        names = dict.fromkeys([*(lane for _, lane in self._members), *self._single])
        found = [(at, rows) for at, lane in enumerate(names) for rows in self._on(lane)]
        none = np.zeros(0, dtype=np.int64)
        lane = np.concatenate([none, *(np.full(len(rows[0]), at) for at, rows in found)])
        sender, receiver, label = (np.concatenate([none, *(rows[part] for _, rows in found)]) for part in range(3))
        return Channels(tuple(names), lane, sender, receiver, label)

    def _on(self, lane: str) -> Iterator[Rows]:
        """Sender, receiver and label of the channels of a lane."""
        axes = [axis for axis, name in self._members if name == lane]
        listed = self._single.get(lane, [])
        for axis in axes:
            for events, first in self._alike(axis, lane):
                if not listed:
                    sender, receiver, label = self._labelled(lane, events, self._grid.length(axis))
                    yield (
                        self._set_down(axis, first, sender),
                        self._set_down(axis, first, receiver),
                        _each(label, first),
                    )
                else:
                    sender, receiver = (self._set_down(axis, first, ends) for ends in events[:2])
                    listed = [*listed, (sender, receiver, _each(events[2], first))]
        if listed:
            sender, receiver, event = (np.concatenate([rows[part] for rows in listed]) for part in range(3))
            yield self._labelled(lane, (sender, receiver, event), self._grid.size)

    def _set_down(self, axis: Axis, first: Ints, members: Ints) -> Ints:
        """The members of each group, group by group."""
        return (first[:, None] + members * self._grid.stride(axis)).ravel()

    def _alike(self, axis: Axis, lane: str) -> Iterator[tuple[Rows, Ints]]:
        """Groups that use a lane alike, by their first ranks: what their members use."""
        patterns = self._members[axis, lane]
        kind = np.zeros(self._grid.size, dtype=np.int64)
        for key in patterns:
            kind = pairs(kind, self._groups[axis, lane, key].astype(np.int64))
        for number in np.unique(kind).tolist():
            first = np.flatnonzero(kind == number)
            used = [key for key in patterns if self._groups[axis, lane, key][first[0]]]
            if used:
                rows = [self._rows(key, patterns[key]) for key in used]
                sender, receiver, event = (np.concatenate([row[part] for row in rows]) for part in range(3))
                yield (sender, receiver, event), first

    def _rows(self, key: Hashable, members: MemberKinds) -> Rows:
        numbers = [self._events.setdefault((key, *event), len(self._events)) for event in members.events]
        return members.sender, members.receiver, np.array(numbers, dtype=np.int64)[members.event]

    def _labelled(self, lane: str, uses: Rows, size: int) -> Rows:
        """Sender, receiver and label of each channel; `size` is more than any number of a sender or receiver."""
        sender, receiver, event = uses
        channels, owner = np.unique(sender * size + receiver, return_inverse=True)
        numbers = bags(owner, event)
        order = np.argsort(owner, kind="stable")
        begins = np.searchsorted(owner[order], np.arange(len(channels) + 1))
        labels = []
        for at in np.unique(numbers, return_index=True)[1]:
            used = np.unique(event[order[begins[at] : begins[at + 1]]])
            labels.append(self._labels.setdefault((lane, *used.tolist()), len(self._labels)))
        label = np.array(labels, dtype=np.int64)[numbers]
        return *np.divmod(channels, size), label


def _each(values: Ints, first: Sequence[int] | Ints) -> Ints:
    """The values once for each group."""
    return np.broadcast_to(values, (len(first), len(values))).ravel()
