"""Paths: the shortest paths between endpoints that a topology's structure gives, without a search.

A family numbers the shortest paths of each pair 0 … count - 1.  Which of them a
flow takes is the business of `routing.py`; a family only says how many there
are, which one deterministic routing takes, and what links each consists of.
All of it works on arrays, pair by pair; endpoints are numbered from 0 in the
order in which they were attached.

What a family may know besides: how an equal split over all paths of a pair
falls on links (`ClosedFormSplit`), without listing them; and paths that are not the
shortest (`NonMinimalPaths`): on a dragonfly by way of another group, on a torus by way
of another router.  A detour is asked for by a negative number, so that paths
composed of others hand it on like any other number.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
MAX_COUNTED_PATHS = 2**31
"""Paths of a pair are told apart up to this number."""


class PathSet(Protocol):
    """Shortest paths between endpoints; `sources`, `targets` and `chosen` have one entry a pair."""

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        """How many shortest paths each pair has; 1 from an endpoint to itself."""
        ...

    def default(self, sources: Ints, targets: Ints) -> Ints:
        """The path that deterministic routing takes: D-mod-k on trees, dimension order on tori."""
        ...

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the chosen path of each pair, in order, -1 where there are fewer [pairs, hops]."""
        ...


@runtime_checkable
class ClosedFormSplit(PathSet, Protocol):
    """Paths whose equal split is known in closed form."""

    def spread(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints, Floats]:
        """Pair, link and share of each link that carries some of a pair's flow; shares of one link add up."""
        ...


@runtime_checkable
class NonMinimalPaths(Protocol):
    """Paths that also go round: `links` takes ~random, a negative number, for the detour drawn by `random`.

    The same random number draws the same detour.  Pairs that have none, such as
    two endpoints of one group, get a shortest path.
    """

    @property
    def has_groups(self) -> bool:
        """Whether detours are by way of another group."""
        ...

    @property
    def global_links(self) -> Ints:
        """Links between groups, whose load adaptive routing watches."""
        ...


def detours(paths: PathSet) -> NonMinimalPaths | None:
    """The detours of these paths, or of those that they are composed of (their `fabric`), if there are any."""
    while not isinstance(paths, NonMinimalPaths):
        if not hasattr(paths, "fabric"):
            return None
        paths = paths.fabric
    return paths


class SinglePath:
    """Base of families with a single shortest path between any two endpoints."""

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        return np.ones(len(sources), dtype=np.int64)

    def default(self, sources: Ints, targets: Ints) -> Ints:
        return np.zeros(len(sources), dtype=np.int64)


def side_by_side(*columns: Ints | None, absent: Sequence[Flags | None] = ()) -> Ints:
    """Columns of links as a table [pairs, hops]; column j is -1 where `absent[j]`.

    >>> side_by_side(np.array([4, 6]), np.array([9, 9]), absent=[None, np.array([True, False])])
    array([[ 4, -1],
           [ 6,  9]])
    """
    table = np.stack([column for column in columns if column is not None], axis=1).astype(np.int64)
    for column, missing in enumerate(absent):
        if missing is not None:
            table[missing, column] = -1
    return table


class GroupLinks(Protocol):
    """Links between groups of switches, which are numbered through, group by group; `targets` is the switch of each."""

    @property
    def groups(self) -> int: ...
    @property
    def per_group(self) -> int: ...
    @property
    def links(self) -> Ints: ...
    @property
    def targets(self) -> Ints: ...


@runtime_checkable
class GroupedPaths(NonMinimalPaths, Protocol):
    """Non-minimal paths by way of another group.

    The remainder of `random` by the number of groups less two selects the group.
    """

    @property
    def switch_of(self) -> Ints:
        """Switch of each endpoint, numbered through, group by group."""
        ...

    @property
    def local(self) -> Ints:
        """Links within groups, a row for each such switch."""
        ...

    @property
    def between(self) -> GroupLinks:
        """The links between groups."""
        ...


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
