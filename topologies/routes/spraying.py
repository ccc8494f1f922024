"""Packet spraying: an equal share of each flow on every shortest path; by bandwidth where links of a file differ.

The shares on links come from the closed form of the topology
(`structured_paths.ClosedFormSplit`), from a list of the paths, or from a search that
counts the paths and knows their bandwidths.  Paths with a failed link carry nothing.  The remaining paths are
counted on the links of the closed form, or listed; if none remains, a search finds
other paths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from quadrille.topologies.network import Floats, Ints, Network
from quadrille.topologies.routes.search import SearchedPaths
from quadrille.topologies.structured_paths import ClosedFormSplit, PathSet

MAX_LISTED_PATHS = 4096
"""Largest number of paths of a pair that are listed; more paths are counted by a search."""


@dataclass(frozen=True, slots=True)
class Split:
    """The shares of flows on links; entries with the same flow and link add up.

    Parameters
    ----------
    flows, links, shares : flow, link and share of each entry [entries]
    latency : latency of each flow, the largest of its paths [s] [flows]
    """

    flows: Ints
    links: Ints
    shares: Floats
    latency: Floats

    @classmethod
    def none(cls, flows: int) -> "Split":
        """The split of `flows` flows that has no entries."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(flows))

    def without(self, flows: Ints) -> "Split":
        """The split without the entries of these flows."""
        kept = ~np.isin(self.flows, flows)
        latency = self.latency.copy()
        latency[flows] = 0.0
        return Split(self.flows[kept], self.links[kept], self.shares[kept], latency)

    def joined(self, flows: Ints, split: "Split") -> "Split":
        """The entries of this split and of another, whose flow i is flow flows[i] here."""
        latency = self.latency.copy()
        latency[flows] = np.maximum(latency[flows], split.latency)
        return Split(
            np.concatenate([self.flows, flows[split.flows]]),
            np.concatenate([self.links, split.links]),
            np.concatenate([self.shares, split.shares]),
            latency,
        )

    def summed(self, links: int) -> tuple[Ints, Ints, Floats]:
        """Offsets, links and shares as in `Paths`, with each link of a flow once.

        Parameters
        ----------
        links : number of links of the network
        """
        width = max(1, links)
        keys, where = np.unique(self.flows * width + self.links, return_inverse=True)
        sums = np.bincount(where, self.shares, minlength=len(keys)).astype(np.float64)
        flow, link = np.divmod(keys, width)
        return np.concatenate([[0], np.cumsum(np.bincount(flow, minlength=len(self.latency)))]), link, sums

    def ordered(self) -> tuple[Ints, Ints, Floats]:
        """Offsets, links and shares as in `Paths`, if no flow has two entries of one link."""
        order = np.argsort(self.flows, kind="stable")
        counts = np.bincount(self.flows, minlength=len(self.latency))
        return np.concatenate([[0], np.cumsum(counts)]), self.links[order], self.shares[order]


class Spraying:
    """Equal splits of flows over all shortest paths of one network.

    Parameters
    ----------
    search : function that returns the searched paths of the network
    """

    def __init__(self, net: Network, search: Callable[[], SearchedPaths]) -> None:
        self._net = net
        self._search = search

    def between(self, sources: Ints, targets: Ints) -> Split:
        """The equal split of each flow over all its shortest paths.

        Raises
        ------
        InputError : a pair without a path
        """
        paths, flows = self._net.paths, np.arange(len(sources))
        if paths is None:
            return self._searched(sources, targets)
        if isinstance(paths, ClosedFormSplit):
            done = self._closed_form(paths, sources, targets)
        else:
            if self._net.failed.any():
                self._search().check_reachable(sources, targets)
            done = self._listed(paths, sources, targets)
        carried = np.zeros(len(flows), dtype=bool)
        carried[done.flows] = True
        rest = np.flatnonzero(~carried & (sources != targets))
        if len(rest):
            self._search().check_reachable(sources[rest], targets[rest])
        return done.joined(rest, self._searched(sources[rest], targets[rest]))

    def _closed_form(self, paths: ClosedFormSplit, sources: Ints, targets: Ints) -> Split:
        """Splits in closed form over the paths without a failed link; a flow without such a path has no entries."""
        flows, links, shares = paths.spread(sources, targets)
        first = paths.links(sources, targets, np.zeros(len(sources), dtype=np.int64))
        whole = Split(flows, links, shares, self._latency(first))
        recounted = self._net.failed[links]
        if self._uneven_latency is not None:
            recounted |= self._uneven_latency[links] & (
                shares < 1
            )  # the slowest of several paths need not be the first
        broken = np.unique(flows[recounted])
        if not len(broken):
            return whole
        entries = np.flatnonzero(np.isin(flows, broken))
        owners = np.searchsorted(broken, flows[entries])
        left = remaining_shares(self._net, sources[broken], targets[broken], owners, links[entries])
        return whole.without(broken).joined(broken, Split(*left))

    @cached_property
    def _uneven_latency(self) -> NDArray[np.bool_] | None:
        """Whether the latency of links between the same two kinds of nodes differs [links]; None if it never does."""
        net = self._net
        firsts = np.array([first for first, _ in net.kinds.values()])
        tails, heads = (np.searchsorted(firsts, nodes, side="right") for nodes in (net.sources, net.targets))
        _, kinds = np.unique(tails * (len(firsts) + 1) + heads, return_inverse=True)
        least = np.full(int(kinds.max(initial=-1)) + 1, np.inf)
        np.minimum.at(least, kinds, net.latencies)
        most = np.zeros(len(least))
        np.maximum.at(most, kinds, net.latencies)
        unlike = (least < most)[kinds]
        return unlike if unlike.any() else None

    def _listed(self, paths: PathSet, sources: Ints, targets: Ints) -> Split:
        """Splits over the listed paths without a failed link.

        A flow with more than `MAX_LISTED_PATHS` paths, or with no path left, has no entries.
        """
        counts = paths.counts(sources, targets)
        counts = np.where(counts > MAX_LISTED_PATHS, 0, counts)
        alive, splits = np.zeros(len(sources), dtype=np.int64), list[Split]()
        for path in range(int(counts.max(initial=0))):
            flows = np.flatnonzero(counts > path)
            table = paths.links(sources[flows], targets[flows], np.full(len(flows), path))
            whole = ~(self._net.failed[table] & (table >= 0)).any(axis=1) if self._net.link_count else flows >= 0
            flows, table = flows[whole], table[whole]
            alive[flows] += 1
            used, latency = table >= 0, np.zeros(len(sources))
            latency[flows] = self._latency(table)
            owners = np.broadcast_to(flows[:, None], table.shape)[used]
            splits.append(Split(owners, table[used], np.ones(len(owners)), latency))
        if not splits:
            return Split.none(len(sources))
        owners = np.concatenate([split.flows for split in splits])
        links = np.concatenate([split.links for split in splits])
        return Split(owners, links, 1.0 / alive[owners], reduce(np.maximum, (split.latency for split in splits)))

    def _searched(self, sources: Ints, targets: Ints) -> Split:
        """Splits from a search for each pair."""
        if not len(sources):
            return Split.none(0)
        search = self._search()
        splits = [search.spread(s, t) for s, t in zip(sources.tolist(), targets.tolist(), strict=True)]
        return Split(
            np.repeat(np.arange(len(splits)), [len(links) for links, _, _ in splits]),
            np.concatenate([links for links, _, _ in splits]),
            np.concatenate([shares for _, shares, _ in splits]),
            np.array([latency for _, _, latency in splits]),
        )

    def _latency(self, table: Ints) -> Floats:
        """Latency of each path, the sum over its links [s] [paths]."""
        if not self._net.link_count:
            return np.zeros(len(table))
        latency: Floats = np.where(table >= 0, self._net.latencies[table], 0.0).sum(axis=1)
        return latency


ENTRIES_AT_ONCE = 1 << 22
"""Number of entries whose remaining paths are counted together."""


def remaining_shares(
    net: Network, sources: Ints, targets: Ints, owners: Ints, links: Ints
) -> tuple[Ints, Ints, Floats, Floats]:
    """Pair, link and share of equal splits over the paths without a failed link, and largest latency of each pair [s].

    A pair without such a path has no entries.

    >>> from quadrille.topologies.families.tree import tree
    >>> net = tree("1x2", "1x3", bandwidth=1e9, latency=1e-6)
    >>> sources, targets = np.array([0]), np.array([1])
    >>> owners, links, _ = net.paths.spread(sources, targets)
    >>> bandwidths = net.bandwidths.copy()
    >>> bandwidths[links[2]] = 0.0
    >>> remaining_shares(net.with_bandwidths(bandwidths), sources, targets, owners, links)[2].tolist()
    [1.0, 0.5, 0.5, 0.5, 0.5, 1.0]

    Parameters
    ----------
    sources, targets : endpoints of each pair
    owners, links : pair and link of each entry: for each pair exactly the links of its shortest paths
    """
    order = np.argsort(owners, kind="stable")
    owners, links = owners[order], links[order]
    ends = np.searchsorted(owners, np.arange(len(sources)), side="right")
    parts, first = [], 0
    while first < len(sources):
        begin = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, begin + ENTRIES_AT_ONCE, side="right")))
        chosen = slice(begin, int(ends[last - 1]))
        pair, link, share, latency = _remaining(
            net, sources[first:last], targets[first:last], owners[chosen] - first, links[chosen]
        )
        parts.append((pair + first, link, share, latency))
        first = last
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return columns[0], columns[1], columns[2], columns[3]


def _remaining(
    net: Network, sources: Ints, targets: Ints, owners: Ints, links: Ints
) -> tuple[Ints, Ints, Floats, Floats]:
    """`remaining_shares` of pairs that are counted together."""
    alive = ~net.failed[links]
    owners, links = np.divmod(np.unique(owners[alive] * net.link_count + links[alive]), net.link_count)
    nodes, base = net.endpoint_nodes(), owners * net.node_count
    pairs = np.arange(len(sources)) * net.node_count
    points, where = np.unique(
        np.concatenate(
            [pairs + nodes[sources], pairs + nodes[targets], base + net.sources[links], base + net.targets[links]]
        ),
        return_inverse=True,
    )
    cuts = np.cumsum([len(pairs), len(pairs), len(links)])
    start, end, tails, heads = np.split(where, cuts)
    levels, before = _count_paths_from_start(start, tails, heads, len(points))
    behind = _count_paths_to_end(levels, end, tails, heads, len(points))
    kept = np.concatenate([np.zeros(0, dtype=np.int64), *(level[behind[heads[level]] > 0] for level in levels)])
    delay = np.zeros(len(points))
    for level in levels:
        on = level[behind[heads[level]] > 0]
        np.maximum.at(delay, heads[on], delay[tails[on]] + net.latencies[links[on]])
    paths = before[end][owners[kept]]
    share = before[tails[kept]] * behind[heads[kept]] / paths
    return owners[kept], links[kept], share, np.where(before[end] > 0, delay[end], 0.0)


def _count_paths_from_start(start: Ints, tails: Ints, heads: Ints, points: int) -> tuple[list[Ints], Floats]:
    """Links grouped by their hops from the start, and number of paths from the start to every point [points]."""
    paths, reached = np.zeros(points), np.zeros(points, dtype=bool)
    paths[start], reached[start] = 1.0, True
    levels, rest = [], np.arange(len(tails))
    while len(rest):
        now = reached[tails[rest]]
        if not now.any():
            break
        level, rest = rest[now], rest[~now]
        np.add.at(paths, heads[level], paths[tails[level]])
        reached[heads[level]] = True
        levels.append(level)
    return levels, paths


def _count_paths_to_end(levels: list[Ints], end: Ints, tails: Ints, heads: Ints, points: int) -> Floats:
    """Number of paths from every point to the end [points]."""
    paths = np.zeros(points)
    paths[end] = 1.0
    for level in reversed(levels):
        np.add.at(paths, tails[level], paths[heads[level]])
    return paths
