"""Channels of a schedule: sender, receiver and lane of all messages, derived from the groups that use each lane.

A *channel* goes from one rank to another on a lane; its *label* says at which
events of which communication patterns its sender sends and its receiver receives.
Groups along an axis that use a lane in the same way have the same channels between
their members, so these channels are computed once and copied to every group. The
channels of point-to-point ops are listed rank by rank, and so are all channels of a
lane with both kinds of ops.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.equality_labels import Ints, pair_labels, sequence_labels, set_labels
from quadrille.algorithms.analysis.traffic import Traffic
from quadrille.algorithms.collectives.lowered_collective import Lowered
from quadrille.algorithms.schedule.grid import Axis, Grid

SIZED = ("first_piece_sent", "first_piece_received", "piece_stride", "piece_spacing", "origin", "modulus")

SHAPED = ("count", "cycle", "pieces_sent", "pieces_received", "reduce")


def equal_pieces(moved: Traffic) -> bool:
    """Whether all pieces have the same size, so that their order does not matter."""
    sizes = {after - before for edges in (moved.edges, moved.receive_edges) for before, after in pairwise(edges)}
    return len(sizes) == 1


@dataclass(frozen=True, slots=True, eq=False)
class MemberKinds:
    """The members of a group in one communication pattern: kinds with equal steps, and uses of channels.

    Parameters
    ----------
    kinds : kind of each member; members of a kind have equal steps, except for peers, and equal marks [members]
    events : (position in the program, whether it is a send) of each use of a channel
    sender, receiver, event : each use of a channel, seen by the sender or by the receiver
    """

    kinds: Ints
    events: list[tuple[int, bool]]
    sender: Ints
    receiver: Ints
    event: Ints

    @classmethod
    def of(cls, lowered: Lowered, marks: Ints, *, even: bool) -> "MemberKinds":
        """The kinds of the members of a collective; pieces of one size are not distinguished.

        Parameters
        ----------
        marks : numbers from 0 that distinguish members in addition to their steps [members]
        even : whether all pieces have the same size
        """
        runs = lowered.runs()
        member = np.repeat(np.arange(runs.members), np.diff(runs.offsets))
        position = np.arange(len(member)) - runs.offsets[member]
        sends, receives = runs.send_to >= 0, runs.receive_from >= 0
        columns = [getattr(runs, name) for name in (SHAPED if even else (*SHAPED, *SIZED))]
        columns += [sends, receives, runs.send_to == runs.receive_from]
        kinds = sequence_labels(member, position, columns, runs.members)
        place = np.concatenate([position[sends], position[receives]])
        is_send = np.concatenate([np.ones(sends.sum(), dtype=bool), np.zeros(receives.sum(), dtype=bool)])
        numbers, event = np.unique(place * 2 + is_send, return_inverse=True)
        return cls(
            pair_labels(kinds, marks),
            [(int(number) // 2, bool(number % 2)) for number in numbers],
            np.concatenate([member[sends], runs.receive_from[receives]]),
            np.concatenate([runs.send_to[sends], member[receives]]),
            event,
        )


Rows = tuple[Ints, Ints, Ints]
"""Sender, receiver and event of each use of a channel."""


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """All channels, without duplicates.

    Parameters
    ----------
    lanes : names of lanes
    lane : lane of each channel, an index into `lanes` [channels]
    sender, receiver : ranks at the two ends of each channel [channels]
    label : label of each channel [channels]
    """

    lanes: tuple[str, ...]
    lane: Ints
    sender: Ints
    receiver: Ints
    label: Ints


class ChannelUses:
    """The uses of channels by the ranks of a grid.

    >>> uses = ChannelUses(Grid(x=4))
    >>> uses.point_to_point("x", np.array([0, 1]), np.array([1, 2]), "send")
    >>> uses.point_to_point("x", np.array([0]), np.array([1]), "receive")
    >>> channels = uses.channels()
    >>> channels.sender.tolist(), channels.receiver.tolist(), channels.label.tolist()
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
        """Adds groups along an axis, given by their first ranks, whose members use a lane in the same pattern."""
        self._members.setdefault((axis, lane), {})[key] = members
        self._groups.setdefault((axis, lane, key), np.zeros(self._grid.size, dtype=bool))[first] = True

    def point_to_point(self, lane: str, sender: Ints, receiver: Ints, event: Hashable) -> None:
        """Adds ranks that use a lane in point-to-point ops."""
        number = self._events.setdefault(event, len(self._events))
        self._single.setdefault(lane, []).append((sender, receiver, np.full(len(sender), number)))

    def count(self) -> int:
        """Number of uses; each event of a group counts once."""
        by_groups = (
            int(np.count_nonzero(self._groups[axis, lane, key])) * len(members.sender)
            for (axis, lane), patterns in self._members.items()
            for key, members in patterns.items()
        )
        return sum(by_groups) + sum(len(rows[0]) for listed in self._single.values() for rows in listed)

    def channels(self) -> Channels:
        """All channels, lane by lane."""
        names = dict.fromkeys([*(lane for _, lane in self._members), *self._single])
        rows_by_lane = [(at, rows) for at, lane in enumerate(names) for rows in self._on(lane)]
        empty = np.zeros(0, dtype=np.int64)
        lane = np.concatenate([empty, *(np.full(len(rows[0]), at) for at, rows in rows_by_lane)])
        sender, receiver, label = (
            np.concatenate([empty, *(rows[part] for _, rows in rows_by_lane)]) for part in range(3)
        )
        return Channels(tuple(names), lane, sender, receiver, label)

    def _on(self, lane: str) -> Iterator[Rows]:
        """Sender, receiver and label of the channels of a lane."""
        axes = [axis for axis, name in self._members if name == lane]
        listed = self._single.get(lane, [])
        for axis in axes:
            for events, first in self._uses_of_groups(axis, lane):
                if not listed:
                    sender, receiver, label = self._labelled(lane, events, self._grid.length(axis))
                    yield (
                        self._ranks_of(axis, first, sender),
                        self._ranks_of(axis, first, receiver),
                        _repeat_for_groups(label, first),
                    )
                else:
                    sender, receiver = (self._ranks_of(axis, first, ends) for ends in events[:2])
                    listed = [*listed, (sender, receiver, _repeat_for_groups(events[2], first))]
        if listed:
            sender, receiver, event = (np.concatenate([rows[part] for rows in listed]) for part in range(3))
            yield self._labelled(lane, (sender, receiver, event), self._grid.size)

    def _ranks_of(self, axis: Axis, first: Ints, members: Ints) -> Ints:
        """The ranks of these members in each group, group by group."""
        return (first[:, None] + members * self._grid.stride(axis)).ravel()

    def _uses_of_groups(self, axis: Axis, lane: str) -> Iterator[tuple[Rows, Ints]]:
        """The uses of a lane within a group, and the first ranks of the groups that have these uses."""
        patterns = self._members[axis, lane]
        kind = np.zeros(self._grid.size, dtype=np.int64)
        for key in patterns:
            kind = pair_labels(kind, self._groups[axis, lane, key].astype(np.int64))
        for number in np.unique(kind).tolist():
            first = np.flatnonzero(kind == number)
            used = [key for key in patterns if self._groups[axis, lane, key][first[0]]]
            if used:
                rows = [self._rows(key, patterns[key]) for key in used]
                sender, receiver, event = (np.concatenate([row[part] for row in rows]) for part in range(3))
                yield (sender, receiver, event), first

    def _rows(self, key: Hashable, members: MemberKinds) -> Rows:
        """The uses of a lane by one pattern."""
        numbers = [self._events.setdefault((key, *event), len(self._events)) for event in members.events]
        return members.sender, members.receiver, np.array(numbers, dtype=np.int64)[members.event]

    def _labelled(self, lane: str, uses: Rows, size: int) -> Rows:
        """Sender, receiver and label of each channel.

        Parameters
        ----------
        size : number above every sender and receiver
        """
        sender, receiver, event = uses
        channels, owner = np.unique(sender * size + receiver, return_inverse=True)
        numbers = set_labels(owner, event)
        order = np.argsort(owner, kind="stable")
        begins = np.searchsorted(owner[order], np.arange(len(channels) + 1))
        labels = []
        for at in np.unique(numbers, return_index=True)[1]:
            used = np.unique(event[order[begins[at] : begins[at + 1]]])
            labels.append(self._labels.setdefault((lane, *used.tolist()), len(self._labels)))
        label = np.array(labels, dtype=np.int64)[numbers]
        return *np.divmod(channels, size), label


def _repeat_for_groups(values: Ints, first: Sequence[int] | Ints) -> Ints:
    """The values once for each group."""
    return np.broadcast_to(values, (len(first), len(values))).ravel()
