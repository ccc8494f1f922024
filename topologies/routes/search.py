"""Shortest paths by breadth-first search, for networks without closed-form paths or with failed links.

One search for each source computes, level by level in arrays, the hops and the number
of shortest paths to every node; the results of the last sources are cached.  From the
counts, in which parallel links are different paths, path number w of a pair follows
without listing the others, and so does an equal split over all paths:

    share of link u > v = paths source..u × paths v..target / paths source..target

Where parallel links of a file's topology have different bandwidths, each node splits by bandwidth instead: in
proportion to what each of its links, and the links behind it, carry towards the target.
"""

from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.network import Floats, Ints, Network
from quadrille.topologies.routes.equal_nodes import EqualNodes
from quadrille.topologies.structured_paths import MAX_COUNTED_PATHS

CACHED_SOURCES = 256
MAX_COMPONENTS = 64
"""Largest number of connected components that are labelled; further endpoints are searched one by one."""


class SearchedPaths:
    """Shortest paths (fewest hops) between the endpoints of a network, over the links that have not failed."""

    def __init__(self, net: Network) -> None:
        self._net = net
        self._nodes = net.endpoint_nodes()
        links = np.flatnonzero(~net.failed)
        self._out = _Incidence(net.sources[links], links, net.node_count)
        self._in = _Incidence(net.targets[links], links, net.node_count)
        self._search = lru_cache(CACHED_SOURCES)(self._from)

    @cached_property
    def _components(self) -> Ints:
        """Strongly connected component of each endpoint; -1 beyond `MAX_COMPONENTS` components [endpoints]."""
        components = np.full(len(self._nodes), -1, dtype=np.int64)
        ahead, back = Hops(self._net), Hops(self._net, against=True)
        for component in range(MAX_COMPONENTS):
            if (components >= 0).all():
                break
            start = int(self._nodes[np.argmin(components)])
            joined = (ahead.nearest(start) >= 0) & (back.nearest(start) >= 0)
            components[joined[self._nodes]] = component
        return components

    def check_reachable(self, sources: Ints, targets: Ints) -> None:
        """Checks that each pair has a path, with a search only for pairs in different components.

        Raises
        ------
        InputError : a pair without a path
        """
        first, last = self._components[sources], self._components[targets]
        apart = np.flatnonzero((first != last) | (first < 0))
        self.counts(sources[apart], targets[apart])

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        """Number of shortest paths of each pair, at most `MAX_COUNTED_PATHS` [pairs].

        Raises
        ------
        InputError : a pair without a path
        """
        counts = np.empty(len(sources), dtype=np.int64)
        for pair, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
            distance, paths = self._search(source)
            node = self._nodes[target]
            if distance[node] < 0:
                raise InputError(self._unreachable_text(source, target))
            counts[pair] = min(paths[node], MAX_COUNTED_PATHS)
        return counts

    def default(self, sources: Ints, targets: Ints) -> Ints:
        """Path number target mod count, so that the targets are spread over the paths [pairs]."""
        return targets % self.counts(sources, targets)

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the chosen path of each pair, in order, filled up with -1 [pairs, hops]."""
        self.counts(sources, targets)
        paths = [
            self._walk(s, t, w) for s, t, w in zip(sources.tolist(), targets.tolist(), chosen.tolist(), strict=True)
        ]
        table = np.full((len(paths), max(map(len, paths), default=0)), -1, dtype=np.int64)
        for row, path in enumerate(paths):
            table[row, : len(path)] = path
        return table

    @cached_property
    def _equal_nodes(self) -> EqualNodes:
        return EqualNodes(self._net)

    def spread(self, source: int, target: int) -> tuple[Ints, Floats, float]:
        """Links of all shortest paths of a pair, their shares of the split, and the largest latency [s]."""
        ends = self._equal_nodes.ends(source, target)
        if ends is None:
            return self._spread(source, target)
        if (kept := self._equal_nodes.kept(ends, source, target)) is not None:
            return kept
        spread = self._spread(source, target)
        self._equal_nodes.keep(ends, source, target, spread)
        return spread

    def _spread(self, source: int, target: int) -> tuple[Ints, Floats, float]:
        """The split of a pair, searched."""
        self.counts(np.array([source]), np.array([target]))
        distance, paths = self._search(source)
        net, last = self._net, int(self._nodes[target])
        onward, latency = {last: 1.0}, {last: 0.0}
        links, shares, levels = list[int](), list[float](), [0]
        level = [last]
        while distance[level[0]] > 0:
            before: dict[int, float] = {}
            for node in level:
                for link in self._in.of(node).tolist():
                    previous = int(net.sources[link])
                    if distance[previous] == distance[node] - 1:
                        links.append(link)
                        shares.append(float(paths[previous]) * onward[node] / float(paths[last]))
                        before[previous] = before.get(previous, 0.0) + onward[node]
                        later = latency[node] + float(net.latencies[link])
                        latency[previous] = max(latency.get(previous, 0.0), later)
            onward, level = before, list(before)
            levels.append(len(links))
        numbers = np.array(links, dtype=np.int64)
        if net.paths is None and self._unequal(numbers, levels):
            return numbers, self._shares_by_bandwidth(numbers, last), latency[level[0]]
        return numbers, np.array(shares), latency[level[0]]

    def _unequal(self, links: Ints, levels: list[int]) -> bool:
        """Whether links that are equally far from the target have different bandwidths.

        Parameters
        ----------
        links : links of all shortest paths of a pair, from the target on
        levels : first link of each distance from the target, and the number of links
        """
        rates = self._net.bandwidths[links]
        return any(np.ptp(rates[begin:end]) > 0 for begin, end in pairwise(levels))

    def _shares_by_bandwidth(self, links: Ints, target: int) -> Floats:
        """Shares of a split by bandwidth over all shortest paths of a pair [links].

        Parameters
        ----------
        links : links of the paths, from the target on
        target : last node of the paths
        """
        net = self._net
        carried = {target: np.inf}
        rates = np.empty(len(links))
        for place, link in enumerate(links.tolist()):
            rates[place] = min(float(net.bandwidths[link]), carried[int(net.targets[link])])
            carried[int(net.sources[link])] = carried.get(int(net.sources[link]), 0.0) + rates[place]
        shares = np.empty(len(links))
        arriving: dict[int, float] = {}
        for place, link in reversed(list(enumerate(links.tolist()))):
            source, onward = int(net.sources[link]), int(net.targets[link])
            shares[place] = arriving.get(source, 1.0) * rates[place] / carried[source]
            arriving[onward] = arriving.get(onward, 0.0) + shares[place]
        return shares

    def _walk(self, source: int, target: int, index: int) -> list[int]:
        """Links of path number `index` of a pair, in order."""
        distance, paths = self._search(source)
        node, path = int(self._nodes[target]), list[int]()
        rest = float(index)
        while distance[node] > 0:
            links = self._in.of(node)
            links = links[distance[self._net.sources[links]] == distance[node] - 1]
            before = np.cumsum(paths[self._net.sources[links]])
            chosen = min(int(np.searchsorted(before, rest, side="right")), len(links) - 1)
            rest -= float(before[chosen - 1]) if chosen else 0.0
            path.append(int(links[chosen]))
            node = int(self._net.sources[links[chosen]])
        return path[::-1]

    def _from(self, source: int) -> tuple[Ints, Floats]:
        """Hops (-1 if there is no path) and number of shortest paths from an endpoint to every node [nodes]."""
        net = self._net
        distance = np.full(net.node_count, -1, dtype=np.int64)
        paths = np.zeros(net.node_count)
        level = np.array([self._nodes[source]])
        distance[level], paths[level], hops = 0, 1.0, 0
        while len(level):
            hops += 1
            links = self._out.of_all(level)
            ahead = net.targets[links]
            distance[ahead[distance[ahead] < 0]] = hops
            fresh = distance[ahead] == hops
            np.add.at(paths, ahead[fresh], paths[net.sources[links[fresh]]])
            level = np.unique(ahead[fresh])
        return distance, paths

    def _unreachable_text(self, source: int, target: int) -> str:
        kind, name = self._net.endpoints[0], self._net.name
        reached = int(np.count_nonzero(self._search(source)[0][self._nodes] >= 0))
        why = ""
        if self._net.failed.any():
            failed = self._net.link_names(np.flatnonzero(self._net.failed)[:4])
            why = f" with {', '.join(failed)} failed: the network is cut in two"
        return (
            f"topology {name!r} has no path from {kind}:{source} to {kind}:{target}{why}; "
            f"{kind}:{source} reaches {reached} of {self._net.endpoint_count} endpoints"
        )


class Hops:
    """The hops between nodes of a network over links that have not failed.

    >>> from quadrille.topologies.families.basic import star
    >>> Hops(star(2, bandwidth=1e9, latency=0.0)).nearest(0).tolist()
    [0, 2, 1]

    Parameters
    ----------
    against : whether hops are counted from every node to the start nodes, against the direction of the links
    """

    def __init__(self, net: Network, *, against: bool = False) -> None:
        tails, self._heads = (net.targets, net.sources) if against else (net.sources, net.targets)
        links = np.flatnonzero(~net.failed)
        self._out = _Incidence(tails[links], links, net.node_count)
        self._nodes = net.node_count

    def nearest(self, starts: "Ints | int") -> Ints:
        """Hops from the nearest of these nodes to every node; -1 if there is no path [nodes]."""
        distance = np.full(self._nodes, -1, dtype=np.int64)
        level = np.atleast_1d(np.asarray(starts, dtype=np.int64))
        distance[level], hops = 0, 0
        while len(level):
            hops += 1
            ahead = self._heads[self._out.of_all(level)]
            level = np.unique(ahead[distance[ahead] < 0])
            distance[level] = hops
        return distance


class _Incidence:
    """The links at each node, in order of their numbers.

    Parameters
    ----------
    ends : node of each link [links]
    links : link numbers [links]
    nodes : number of nodes
    """

    def __init__(self, ends: Ints, links: Ints, nodes: int) -> None:
        order = np.argsort(ends, kind="stable")
        self._links = links[order]
        self._offsets = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=nodes))])

    def of(self, node: int) -> Ints:
        """Links at this node."""
        links: Ints = self._links[self._offsets[node] : self._offsets[node + 1]]
        return links

    def of_all(self, nodes: Ints) -> Ints:
        """Links at all of these nodes."""
        counts = self._offsets[nodes + 1] - self._offsets[nodes]
        ends = np.cumsum(counts)
        steps = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
        links: Ints = self._links[np.repeat(self._offsets[nodes], counts) + steps]
        return links
