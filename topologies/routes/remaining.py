"""Equal splits over the paths that remain where a family's closed form meets failed links.

The links of all shortest paths of a pair form a graph in which every path from
the source to the target is such a path.  Without the failed links, level by
level from both ends and for many pairs at once,

    share of link u > v = paths source..u × paths v..target / paths source..target

so no path is listed.
"""

import numpy as np

from quadrille.topologies.network import Floats, Ints, Network

ENTRIES_AT_ONCE = 1 << 22
"""Links of pairs that are looked at together."""


def remaining_shares(
    net: Network, sources: Ints, targets: Ints, owners: Ints, links: Ints
) -> tuple[Ints, Ints, Floats, Floats]:
    """Pair, link and share of an equal split over the paths without a failed link, and each pair's largest latency [s].

    A pair of which no path remains has no entries.

    >>> from quadrille.topologies.families.tree import tree
    >>> net = tree("1x2", "1x3", bandwidth=1e9, latency=1e-6)
    >>> one, other = np.array([0]), np.array([1])
    >>> owners, links, _ = net.paths.spread(one, other)
    >>> bandwidths = net.bandwidths.copy()
    >>> bandwidths[links[2]] = 0.0
    >>> remaining_shares(net.with_bandwidths(bandwidths), one, other, owners, links)[2].tolist()
    [1.0, 0.5, 0.5, 0.5, 0.5, 1.0]

    Parameters
    ----------
    sources, targets : endpoints of each pair
    owners, links : pair and link of each entry; of a pair all links of its shortest paths, and no others that lead on
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
    """The same for as many pairs as are looked at together."""
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
    levels, before = _counted(start, tails, heads, len(points))
    behind = _back(levels, end, tails, heads, len(points))
    kept = np.concatenate([np.zeros(0, dtype=np.int64), *(level[behind[heads[level]] > 0] for level in levels)])
    delay = np.zeros(len(points))
    for level in levels:
        on = level[behind[heads[level]] > 0]
        np.maximum.at(delay, heads[on], delay[tails[on]] + net.latencies[links[on]])
    paths = before[end][owners[kept]]
    share = before[tails[kept]] * behind[heads[kept]] / paths
    return owners[kept], links[kept], share, np.where(before[end] > 0, delay[end], 0.0)


def _counted(start: Ints, tails: Ints, heads: Ints, points: int) -> tuple[list[Ints], Floats]:
    """Links by their hops from the start, and paths from the start to every point."""
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


def _back(levels: list[Ints], end: Ints, tails: Ints, heads: Ints, points: int) -> Floats:
    """Paths from every point to the end."""
    paths = np.zeros(points)
    paths[end] = 1.0
    for level in reversed(levels):
        np.add.at(paths, tails[level], paths[heads[level]])
    return paths
