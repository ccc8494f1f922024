"""Measures of a network as a whole: counts, diameter, bisection bandwidth and oversubscription.

Every figure says whether it is exact or a bound, and how it was computed
(`diameter.py`, `bisection.py`).
"""

from dataclasses import dataclass

import numpy as np

from quadrille.topologies.measures.bisection import bisection, oversubscription
from quadrille.topologies.measures.diameter import diameter
from quadrille.topologies.measures.figure import Figure
from quadrille.topologies.network import Network


@dataclass(frozen=True, slots=True)
class Measures:
    """Counts and figures of a network.

    Parameters
    ----------
    nodes : number of nodes of each kind
    links : number of links, by the kinds of their ends, such as `host>switch`
    endpoints : number of compute endpoints
    diameter : most hops of a shortest path [links]
    bisection : bisection bandwidth [B/s]
    oversubscription : injection bandwidth of half of the endpoints / bisection bandwidth
    """

    nodes: dict[str, int]
    links: dict[str, int]
    endpoints: int
    diameter: Figure
    bisection: Figure
    oversubscription: Figure


def measures(net: Network) -> Measures:
    """All measures of a network.

    >>> from quadrille.topologies.families.leaf_spine import leaf_spine
    >>> net = measures(leaf_spine(4, 1, 8, bandwidth=1e9, latency=1e-6, uplink_bandwidth=4e9))
    >>> net.diameter.value, net.bisection.value, net.oversubscription.value
    (4, 8000000000.0, 2.0)

    Raises
    ------
    InputError : endpoints that do not reach each other
    """
    halves = bisection(net)
    return Measures(
        {kind: count for kind, (_, count) in net.kinds.items()},
        links_by_kind(net),
        net.endpoint_count,
        diameter(net),
        halves,
        oversubscription(net, halves),
    )


def links_by_kind(net: Network) -> dict[str, int]:
    """Number of links from each kind of node to each other kind.

    >>> from quadrille.topologies.families.basic import star
    >>> links_by_kind(star(3, bandwidth=1e9, latency=0.0))
    {'host>switch': 3, 'switch>host': 3}
    """
    kinds = list(net.kinds)
    kind_of = np.repeat(np.arange(len(kinds)), [count for _, count in net.kinds.values()])
    pairs = kind_of[net.sources] * len(kinds) + kind_of[net.targets]
    counts = np.bincount(pairs, minlength=len(kinds) ** 2)
    return {
        f"{kinds[pair // len(kinds)]}>{kinds[pair % len(kinds)]}": int(counts[pair]) for pair in np.flatnonzero(counts)
    }
