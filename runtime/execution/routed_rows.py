"""Rows that travel to the ranks of their experts: how many, and where each part of them stands.

A member sends its rows sorted by expert, so those for one member are consecutive.  The receiver has them by sender and
then by expert, and sorts them by expert and then by sender.  Ranks that cut the same experts gather each other's rows,
and sort them by expert and then by rank.
"""

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.schedule.parts import Coordinates, experts_of


class RoutedRows:
    """The rows that one member of a group sends and receives.

    >>> rows = RoutedRows(np.array([[1, 0, 2, 0], [0, 3, 0, 1]]), member=0)
    >>> rows.received, rows.edges(1), rows.sorts
    (4, ((0, 1, 3), (0, 1, 4)), True)
    >>> [(by_member.start, by_member.stop, by_expert.start) for by_member, by_expert in rows.pairs(1)]
    [(0, 1, 0), (1, 4, 1)]

    Parameters
    ----------
    counts : rows of each member (row) for each expert (column); each member has as many experts
    member : the member
    """

    def __init__(self, counts: NDArray[np.int64], member: int) -> None:
        members, experts = counts.shape
        each = experts // members
        self._to_members = counts[member].reshape(members, each).sum(axis=1)
        self._received = counts[:, member * each : (member + 1) * each]
        self.sorts = each > 1

    @property
    def received(self) -> int:
        """The rows that the member's experts have."""
        return int(self._received.sum())

    def edges(self, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The edges of the rows for each member, and of those from each member [elements].

        Parameters
        ----------
        width : elements of a row
        """
        sent, received = (
            tuple(width * edge for edge in accumulate(rows.tolist(), initial=0))
            for rows in (self._to_members, self._received.sum(axis=1))
        )
        return sent, received

    def pairs(self, width: int) -> Iterator[tuple[slice, slice]]:
        """The rows of each sender and expert, where they stand by sender, and where they stand by expert [elements]."""
        yield from _pairs(self._received, width)


class GatheredRows:
    """The rows that the ranks that cut the same experts have together.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> coordinates = Coordinates(Grid(data=2, expert_tensor=2), {}, {"data": 1})
    >>> rows = GatheredRows(np.array([[1, 2], [3, 0]]), coordinates)
    >>> rows.of_ranks, [(by_rank.start, by_expert.start) for by_rank, by_expert in rows.pairs(1)]
    ([3, 3], [(0, 0), (1, 4), (3, 1)])

    Parameters
    ----------
    counts : rows of each rank of a group (row) for each expert (column); ranks along expert_tensor are the fastest
    coordinates : coordinates of the rank
    """

    def __init__(self, counts: NDArray[np.int64], coordinates: Coordinates) -> None:
        first, last = experts_of(coordinates, counts.shape[1])
        by_rank = counts.reshape(-1, coordinates.grid.expert_tensor, counts.shape[1])
        self._received = by_rank[:, :, first:last].sum(axis=0)
        self.sorts = last - first > 1

    @property
    def of_ranks(self) -> list[int]:
        """The rows of each rank."""
        return [int(count) for count in self._received.sum(axis=1)]

    def pairs(self, width: int) -> Iterator[tuple[slice, slice]]:
        """The rows of each rank and expert, where they stand by rank, and where they stand by expert [elements]."""
        yield from _pairs(self._received, width)


def _pairs(received: NDArray[np.int64], width: int) -> Iterator[tuple[slice, slice]]:
    """The rows of each member and expert, where they stand by member, and where they stand by expert [elements]."""
    by_member = np.concatenate([[0], np.cumsum(received)]) * width
    by_expert = np.concatenate([[0], np.cumsum(received.T)]) * width
    members, each = received.shape
    for member in range(members):
        for expert in range(each):
            here, there = member * each + expert, expert * members + member
            first, last = int(by_member[here]), int(by_member[here + 1])
            if last > first:
                yield slice(first, last), slice(int(by_expert[there]), int(by_expert[there + 1]))
