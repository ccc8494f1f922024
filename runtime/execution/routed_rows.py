"""Rows that travel to the ranks of their experts: how many, and where each part of them stands.

A member sends its rows sorted by expert, so those for one member are consecutive.  The receiver has them by sender and
then by expert, and sorts them by expert and then by sender.
"""

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray


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
        by_member = np.concatenate([[0], np.cumsum(self._received)]) * width
        by_expert = np.concatenate([[0], np.cumsum(self._received.T)]) * width
        members, each = self._received.shape
        for sender in range(members):
            for expert in range(each):
                here, there = sender * each + expert, expert * members + sender
                first, last = int(by_member[here]), int(by_member[here + 1])
                if last > first:
                    yield slice(first, last), slice(int(by_expert[there]), int(by_expert[there + 1]))
