"""Ways that a file lists, one for each pair of places: link numbers, whose ends need not meet."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from quadrille.topologies.network import Ints
from quadrille.topologies.structured_paths import OneWay


class ListedWays(OneWay, ABC):
    """Base of ways that nodes and links do not tell."""

    @abstractmethod
    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the way of each pair, in order, -1 where there are fewer [pairs, hops]."""

    def rows(self, places: int) -> "list[list[list[int]]]":
        """The ways from every place to every other, source by source.

        >>> RouteTable.of([[[], [0, 2]], [[3, 1], []]]).rows(2)
        [[[], [0, 2]], [[3, 1], []]]
        """
        targets, found = np.arange(places), []
        for source in range(places):
            table = self.links(np.full(places, source), targets, np.zeros(places, dtype=np.int64))
            found.append([[link for link in way if link >= 0] for way in table.tolist()])
        return found


@dataclass(frozen=True)
class RouteTable(ListedWays):
    """All ways, listed.

    Parameters
    ----------
    table : of pair source · places + target, its links [pairs, hops]
    """

    places: int
    table: Ints

    @classmethod
    def of(cls, rows: list[list[list[int]]]) -> "RouteTable":
        """The ways from every place to every other, source by source."""
        ways = [way for row in rows for way in row]
        lengths = np.array([len(way) for way in ways], dtype=np.int64)
        table = np.full((len(ways), int(lengths.max(initial=0))), -1, dtype=np.int64)
        table[np.arange(table.shape[1]) < lengths[:, None]] = [link for way in ways for link in way]
        return cls(len(rows), table)

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        found: Ints = self.table[sources * self.places + targets]
        return found
