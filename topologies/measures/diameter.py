"""Diameter of a network: most hops of a shortest path between two endpoints.

Searches from some endpoints give a lower bound.  Upper bounds come from the family's
structure and from searches from and to a switch: no shortest path has more hops than
the longest path to the switch plus the longest path from it.  The result is exact if
the bounds meet, or if every endpoint was searched from.
"""

import numpy as np

from quadrille.topologies.cluster_paths import ClusterPaths
from quadrille.topologies.measures.figure import Figure
from quadrille.topologies.network import Network
from quadrille.topologies.routes.search import Hops, SearchedPaths

LEAST_SEARCHES = 4
MOST_VISITS = 20_000_000
"""Number of links that all searches from endpoints together may visit."""


def diameter(net: Network, *, most_visits: int = MOST_VISITS) -> Figure:
    """The diameter: most hops of a shortest path between two endpoints.

    >>> from quadrille.topologies.families.basic import star
    >>> str(diameter(star(3, bandwidth=1e9, latency=0.0)))
    '2 (searched from 1 of 3 endpoints, and no two can be further apart)'

    Parameters
    ----------
    most_visits : number of links that all searches from endpoints together may visit

    Raises
    ------
    InputError : endpoints that do not reach each other
    """
    nodes, count, hops, most = net.endpoint_nodes(), net.endpoint_count, Hops(net), 0
    bound = _most_hops(net, hops)
    searches = min(count, max(LEAST_SEARCHES, most_visits // max(1, net.link_count)))
    for done, start in enumerate(np.linspace(0, count - 1, searches).astype(np.int64).tolist(), start=1):
        distances = hops.nearest(int(nodes[start]))[nodes]
        if (distances < 0).any():
            # Raises, with the failed links and how many endpoints are reached.
            SearchedPaths(net).counts(np.array([start]), np.array([int(np.argmax(distances < 0))]))
        most = max(most, int(distances.max()))
        if most == bound:
            return Figure(most, "exact", f"searched from {done} of {count} endpoints, and no two can be further apart")
    if searches == count:
        return Figure(most, "exact", "searched from every place")
    return Figure(most, "at least", f"searched from {searches} of {count} endpoints")


def _most_hops(net: Network, hops: Hops) -> int:
    """Upper bound of the hops of a shortest path between endpoints."""
    paths, bounds, nodes = net.paths, [net.node_count], net.endpoint_nodes()
    fabric = paths.fabric if isinstance(paths, ClusterPaths) else paths
    closed_form = getattr(fabric, "most_hops", None)
    if closed_form is not None and not net.failed.any():
        out, within = (paths.out.shape[1], paths.within.shape[2]) if isinstance(paths, ClusterPaths) else (0, 0)
        bounds.append(max(within, int(closed_form) + 2 * out))
    # Through the last node of each kind of switch, which includes the top of a tree.
    back = Hops(net, against=True)
    for first, number in (span for kind, span in net.kinds.items() if kind != net.endpoints[0]):
        there, here = hops.nearest(first + number - 1)[nodes], back.nearest(first + number - 1)[nodes]
        if (there >= 0).all() and (here >= 0).all():
            bounds.append(int(there.max() + here.max()))
    return min(bounds)
