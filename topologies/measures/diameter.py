"""Diameter: most hops of a shortest way between two places.

Searches from some places give a lower bound.  Upper bounds come from the
family's structure and from searches from and to switches: no two places are
further apart by way of a switch than the longest way to it and the longest from
it.  Where both meet, or where every place was searched from, it is exact.
"""

import numpy as np

from quadrille.topologies.cluster_paths import ClusterWays
from quadrille.topologies.measures.figure import Figure
from quadrille.topologies.network import Network
from quadrille.topologies.routes.search import Hops, SearchedWays

LEAST_SEARCHES = 4
WORK = 20_000_000
"""Links that searches from places may look at."""


def diameter(net: Network) -> Figure:
    """Most hops of a shortest way between two places.

    >>> from quadrille.topologies.families.star import star
    >>> str(diameter(star(3, bandwidth=1e9, latency=0.0)))
    '2 (searched from 1 of 3 places, and no two can be further apart)'

    Raises
    ------
    InputError : places that are not joined
    """
    nodes, count, hops, most = net.place_nodes(), net.place_count, Hops(net), 0
    bound = _most_hops(net, hops)
    searches = min(count, max(LEAST_SEARCHES, WORK // max(1, net.link_count)))
    for done, start in enumerate(np.linspace(0, count - 1, searches).astype(np.int64).tolist(), start=1):
        found = hops.nearest(int(nodes[start]))[nodes]
        if (found < 0).any():
            # Raises, with the failed links and how many places are reached.
            SearchedWays(net).counts(np.array([start]), np.array([int(np.argmax(found < 0))]))
        most = max(most, int(found.max()))
        if most == bound:
            return Figure(most, "exact", f"searched from {done} of {count} places, and no two can be further apart")
    if searches == count:
        return Figure(most, "exact", "searched from every place")
    return Figure(most, "at least", f"searched from {searches} of {count} places")


def _most_hops(net: Network, hops: Hops) -> int:
    """A number of hops that no shortest way exceeds."""
    ways, bounds, nodes = net.ways, [net.node_count], net.place_nodes()
    fabric = ways.fabric if isinstance(ways, ClusterWays) else ways
    known = getattr(fabric, "most_hops", None)
    if known is not None and not net.failed.any():
        out, within = (ways.out.shape[1], ways.within.shape[2]) if isinstance(ways, ClusterWays) else (0, 0)
        bounds.append(max(within, int(known) + 2 * out))
    # By way of the last node of each kind that is not a place: the top of a tree is among them.
    back = Hops(net, against=True)
    for first, number in (span for kind, span in net.kinds.items() if kind != net.places[0]):
        there, here = hops.nearest(first + number - 1)[nodes], back.nearest(first + number - 1)[nodes]
        if (there >= 0).all() and (here >= 0).all():
            bounds.append(int(there.max() + here.max()))
    return min(bounds)
