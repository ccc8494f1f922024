"""Interfaces of the paths between endpoints that follow from a topology's structure, without a search.

A family numbers the shortest paths of each pair of endpoints 0 … count - 1.  It
computes how many there are, which of them deterministic routing takes, and which
links each has.  `routing.py` chooses the path of a flow.  All functions work on
arrays with one entry a pair; endpoints are numbered from 0 in the order in which
they were attached.

A family may offer more: the equal split of a flow over all its paths
(`ClosedFormSplit`), without listing them, and paths that are not shortest
(`NonMinimalPaths`): on a dragonfly through another group, on a torus through
another router.  A negative path number selects a non-minimal path, so that paths
composed of others can pass the number on.
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
"""Largest number of shortest paths of a pair that is counted."""


class PathSet(Protocol):
    """Shortest paths between endpoints; `sources`, `targets` and path numbers `chosen` have an entry for each pair."""

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        """Number of shortest paths of each pair [pairs]; 1 from an endpoint to itself."""
        ...

    def default(self, sources: Ints, targets: Ints) -> Ints:
        """Number of the path that deterministic routing takes [pairs]: D-mod-k on trees, dimension order on tori."""
        ...

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the chosen path of each pair, in order, filled up with -1 [pairs, hops]."""
        ...


@runtime_checkable
class ClosedFormSplit(PathSet, Protocol):
    """Paths for which the equal split of a flow has a closed form."""

    def spread(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints, Floats]:
        """Pair, link and share of each entry of the equal split; entries with one pair and link add up [entries]."""
        ...


@runtime_checkable
class NonMinimalPaths(Protocol):
    """Paths that include non-minimal paths: `links` takes the negative number ~random for a path drawn by `random`.

    The same random number draws the same path.  Pairs without a non-minimal path,
    such as two endpoints of one group, get a shortest path.
    """

    @property
    def has_groups(self) -> bool:
        """Whether non-minimal paths lead through another group."""
        ...

    @property
    def global_links(self) -> Ints:
        """Links between groups, whose load adaptive routing compares."""
        ...


def non_minimal_paths(paths: PathSet) -> NonMinimalPaths | None:
    """The paths themselves, or the paths of their `fabric`, if they include non-minimal paths; else None."""
    while not isinstance(paths, NonMinimalPaths):
        if not hasattr(paths, "fabric"):
            return None
        paths = paths.fabric
    return paths


class SinglePath:
    """Base of families with one shortest path between any two endpoints."""

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        return np.ones(len(sources), dtype=np.int64)

    def default(self, sources: Ints, targets: Ints) -> Ints:
        return np.zeros(len(sources), dtype=np.int64)


def link_table(*columns: Ints | None, absent: Sequence[Flags | None] = ()) -> Ints:
    """Table of links [pairs, hops] from one column for each hop; column j is -1 where `absent[j]`.

    >>> link_table(np.array([4, 6]), np.array([9, 9]), absent=[None, np.array([True, False])])
    array([[ 4, -1],
           [ 6,  9]])
    """
    table = np.stack([column for column in columns if column is not None], axis=1).astype(np.int64)
    for column, missing in enumerate(absent):
        if missing is not None:
            table[missing, column] = -1
    return table


class GroupLinks(Protocol):
    """Links between groups of switches; `targets` has the switch at which each link ends, numbered group by group."""

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
    """Non-minimal paths through another group.

    The remainder of `random` by (number of groups - 2) selects the group.
    """

    @property
    def switch_of(self) -> Ints:
        """Switch of each endpoint, numbered through, group by group [endpoints]."""
        ...

    @property
    def local(self) -> Ints:
        """Links within groups; the first dimension is the switch."""
        ...

    @property
    def between(self) -> GroupLinks:
        """The links between groups."""
        ...


class ListedPaths(SinglePath, ABC):
    """Base of paths that are listed, because they do not follow from nodes and links."""

    @abstractmethod
    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the path of each pair, in order, filled up with -1 [pairs, hops]."""

    def rows(self, endpoints: int) -> "list[list[list[int]]]":
        """The links of the path from each endpoint to each endpoint: rows[source][target].

        >>> RouteTable.of([[[], [0, 2]], [[3, 1], []]]).rows(2)
        [[[], [0, 2]], [[3, 1], []]]
        """
        targets, rows = np.arange(endpoints), []
        for source in range(endpoints):
            table = self.links(np.full(endpoints, source), targets, np.zeros(endpoints, dtype=np.int64))
            rows.append([[link for link in path if link >= 0] for path in table.tolist()])
        return rows


@dataclass(frozen=True)
class RouteTable(ListedPaths):
    """A table of one path for each pair of endpoints.

    Parameters
    ----------
    endpoints : number of endpoints
    table : links of each pair; the pair's row is source · endpoints + target, filled up with -1 [pairs, hops]
    """

    endpoints: int
    table: Ints

    @classmethod
    def of(cls, rows: list[list[list[int]]]) -> "RouteTable":
        """The table of these paths: rows[source][target] has the links of a path."""
        paths = [path for row in rows for path in row]
        lengths = np.array([len(path) for path in paths], dtype=np.int64)
        table = np.full((len(paths), int(lengths.max(initial=0))), -1, dtype=np.int64)
        table[np.arange(table.shape[1]) < lengths[:, None]] = [link for path in paths for link in path]
        return cls(len(rows), table)

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        links: Ints = self.table[sources * self.endpoints + targets]
        return links
