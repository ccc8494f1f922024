"""Bisection bandwidth and oversubscription of a network.

The bisection bandwidth is the largest bandwidth at which the first half of the
endpoints (by number; the smaller half of an odd number) can send to the second half,
each endpoint to any targets.  By the max-flow min-cut theorem it is the capacity of
the narrowest cut between the halves.  Every cut is an upper bound, and every flow
that fits is a lower bound.

The cuts tried are the links of the endpoints, and the links between the nodes nearer
to one half and the others.  The flows tried send from endpoint i to endpoint
i + half, on one shortest path or equally on all.  If the bounds meet, the result is
exact.  Otherwise networkx finds a maximum flow of a network that is small enough; for
a larger network the smallest cut is an upper bound.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from quadrille.topologies.measures.figure import Figure
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.routes.routing import Routes, Routing
from quadrille.topologies.routes.search import Hops

if TYPE_CHECKING:
    import networkx as nx

NODE_PARTS = ("gpu", "nvswitch", "cpu", "pcie", "nic")
MAX_FLOW_LINKS = 6_000
"""Largest number of links (each half of the endpoints merged, parallel links as one) for a maximum flow."""
MAX_FLOW_PATHS = 4_000_000
"""Largest number of paths of a flow that is tried."""
SAME = 1e-9


def bisection(net: Network, *, max_flow_links: int = MAX_FLOW_LINKS) -> Figure:
    """The bisection bandwidth: the largest bandwidth from the first half of the endpoints to the second [B/s].

    >>> from quadrille.topologies.families.torus import ring
    >>> bisection(ring(6, bandwidth=1e9, latency=0.0)).value
    2000000000.0

    Parameters
    ----------
    max_flow_links : largest number of links for a maximum flow, see `MAX_FLOW_LINKS`

    Raises
    ------
    InputError : endpoints that do not reach each other
    """
    if net.endpoint_count < 2:
        return Figure(0.0, "exact", "a single place")
    least, name = min(_cuts(net), key=lambda cut: cut[0])
    if any(flow >= least * (1 - SAME) for flow in _shifted_flows(net)):
        return Figure(least, "exact", f"{name}, and a flow that fills it")
    graph = _merged_graph(net, max_flow_links)
    if graph is not None:
        import networkx as nx

        return Figure(float(nx.maximum_flow_value(graph, "source", "sink")), "exact", "minimum cut by maximum flow")
    return Figure(least, "at most", name)


def oversubscription(net: Network, halves: Figure) -> Figure:
    """Injection bandwidth of half of the endpoints / bisection bandwidth, at least 1.

    Parameters
    ----------
    halves : bisection bandwidth of the network

    >>> from quadrille.topologies.families.basic import star
    >>> net = star(4, bandwidth=1e9, latency=0.0)
    >>> oversubscription(net, bisection(net)).value
    1.0
    """
    if halves.value == 0:
        return Figure(1.0, "exact", halves.method)
    ratio = max(1.0, _injection(net) / halves.value)
    return Figure(
        ratio,
        "exact" if halves.bound == "exact" else "at least",
        "injection bandwidth of half of the endpoints / bisection bandwidth",
    )


def _injection(net: Network) -> float:
    """Bandwidth at which half of the endpoints can send into the network, over the links that leave nodes [B/s].

    In a cluster these are the links from NICs, or from GPUs of nodes without NICs,
    to parts outside the node.  If there is nothing outside nodes, these are the links
    of the GPUs.
    """
    network_port = net.card_kind
    leaving, inside = np.zeros(net.node_count, dtype=bool), np.zeros(net.node_count, dtype=bool)
    leaving[_span(net, network_port)] = True
    for kind in (kind for kind in NODE_PARTS if kind in net.kinds and kind != network_port):
        inside[_span(net, kind)] = True
    wires = leaving[net.sources] & ~inside[net.targets]
    outward = wires & ~leaving[net.targets]
    # NICs may be wired to each other; GPUs without NICs are wired to each other inside their node.
    chosen = wires if network_port != "gpu" else outward if outward.any() else leaving[net.sources]
    _, endpoints = net.kinds[net.endpoints[0]]
    return float(net.bandwidths[chosen].sum()) * (net.endpoint_count // 2) / endpoints


def _span(net: Network, kind: str) -> slice:
    first, count = net.kinds[kind]
    return slice(first, first + count)


def _halves(net: Network) -> tuple[Ints, Ints]:
    nodes = net.endpoint_nodes()
    return nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]


def _cuts(net: Network) -> list[tuple[float, str]]:
    """Capacity [B/s] and description of some cuts between the halves."""
    senders, receivers = _halves(net)
    near, far = Hops(net).nearest(senders), Hops(net, against=True).nearest(receivers)
    near, far = (np.where(hops < 0, net.node_count, hops) for hops in (near, far))
    cuts = []
    for side, name in (
        (near <= far, "the links between what is nearer to one half and the rest"),
        (near < far, "the links between what is nearer to one half and the rest"),
        (np.zeros(net.node_count, dtype=bool), "the links of the endpoints of one half"),
        (np.ones(net.node_count, dtype=bool), "the links of the endpoints of one half"),
    ):
        side[senders], side[receivers] = True, False
        crossing = side[net.sources] & ~side[net.targets]
        cuts.append((float(net.bandwidths[crossing].sum()), name))
    return cuts


def _shifted_flows(net: Network) -> Iterator[float]:
    """Total bandwidth if endpoint i sends equally to endpoint i + half, on one shortest path, then on all [B/s]."""
    half = net.endpoint_count // 2
    sources = np.arange(half)
    if net.paths is None or net.failed.any():
        return
    yield _flow(net, Routing("shortest"), sources, sources + half)
    if half * int(net.paths.counts(sources[:1], sources[:1] + half)[0]) <= MAX_FLOW_PATHS:
        yield _flow(net, Routing("spray"), sources, sources + half)


def _flow(net: Network, routing: Routing, sources: Ints, targets: Ints) -> float:
    """Total bandwidth of the largest equal flows between these pairs that fit on the links [B/s]."""
    paths = Routes(net, routing).between(sources, targets)
    load = np.bincount(paths.links, paths.shares, minlength=net.link_count)
    used = load > 0
    return float(len(sources) * np.min(net.bandwidths[used] / load[used], initial=np.inf))


def _merged_graph(net: Network, most_links: int) -> "nx.DiGraph | None":
    """The network with each half merged into a node, "source" and "sink"; None if it has too many links."""
    senders, receivers = _halves(net)
    merged = np.arange(net.node_count)
    source, sink = int(senders[0]), int(receivers[0])
    merged[senders], merged[receivers] = source, sink
    ends = merged[net.sources] * net.node_count + merged[net.targets]
    keys, where = np.unique(ends, return_inverse=True)
    if len(keys) > most_links:
        return None
    import networkx as nx

    names: dict[int, int | str] = {source: "source", sink: "sink"}
    graph = nx.DiGraph()
    graph.add_nodes_from(names.values())
    for key, capacity in zip(keys.tolist(), np.bincount(where, net.bandwidths).tolist(), strict=True):
        tail, head = divmod(key, net.node_count)
        if tail != head:
            graph.add_edge(names.get(tail, tail), names.get(head, head), capacity=capacity)
    return graph
