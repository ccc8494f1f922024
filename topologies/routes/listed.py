"""Paths that a file lists, one for each pair of endpoints: link numbers, whose ends need not meet."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from quadrille.topologies.network import Ints
from quadrille.topologies.structured_paths import SinglePath


class ListedPaths(SinglePath, ABC):
    """Base of paths that nodes and links do not tell."""

    @abstractmethod
    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the path of each pair, in order, -1 where there are fewer [pairs, hops]."""

    def rows(self, endpoints: int) -> "list[list[list[int]]]":
        """The paths from every place to every other, source by source.

        >>> RouteTable.of([[[], [0, 2]], [[3, 1], []]]).rows(2)
        [[[], [0, 2]], [[3, 1], []]]
        """
        targets, found = np.arange(endpoints), []
        for source in range(endpoints):
            table = self.links(np.full(endpoints, source), targets, np.zeros(endpoints, dtype=np.int64))
            found.append([[link for link in path if link >= 0] for path in table.tolist()])
        return found


@dataclass(frozen=True)
class RouteTable(ListedPaths):
    """All paths, listed.

    Parameters
    ----------
    table : of pair source · endpoints + target, its links [pairs, hops]
    """

    endpoints: int
    table: Ints

    @classmethod
    def of(cls, rows: list[list[list[int]]]) -> "RouteTable":
        """The paths from every place to every other, source by source."""
        paths = [path for row in rows for path in row]
        lengths = np.array([len(path) for path in paths], dtype=np.int64)
        table = np.full((len(paths), int(lengths.max(initial=0))), -1, dtype=np.int64)
        table[np.arange(table.shape[1]) < lengths[:, None]] = [link for path in paths for link in path]
        return cls(len(rows), table)

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        found: Ints = self.table[sources * self.endpoints + targets]
        return found
