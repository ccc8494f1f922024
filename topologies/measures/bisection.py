"""Bisection bandwidth, and how far a network falls short of what its nodes inject.

The bisection is what the first half of the endpoints (by number, the smaller half
where their number is odd) can send to the others at once, each sending to whom
it likes.  By the theorem of maximum flow and minimum cut this is the capacity of
the narrowest cut between the halves.  Every cut is an upper bound, and every
flow that fits a lower one.  Cuts tried: the endpoints' own links, and those between
what is nearer to one half and the rest.  Flows tried: place i to place i + half
by one shortest path or by all equally.  Where both meet, it is exact; else a
maximum flow is found by networkx if the network is small enough; else the least
cut is an upper bound.
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
CUT_LINKS = 6_000
"""Links, with each half of the endpoints merged and parallel ones counted once, up to which a maximum flow is found."""
MAX_FLOW_PATHS = 4_000_000
"""Paths of a flow that is tried."""
SAME = 1e-9


def bisection(net: Network) -> Figure:
    """What the first half of the endpoints can send to the second at once [B/s].

    >>> from quadrille.topologies.families.torus import ring
    >>> bisection(ring(6, bandwidth=1e9, latency=0.0)).value
    2000000000.0

    Raises
    ------
    InputError : endpoints that are not joined
    """
    if net.endpoint_count < 2:
        return Figure(0.0, "exact", "a single place")
    least, name = min(_cuts(net), key=lambda cut: cut[0])
    if any(flow >= least * (1 - SAME) for flow in _shifted_flows(net)):
        return Figure(least, "exact", f"{name}, and a flow that fills it")
    graph = _merged_graph(net)
    if graph is not None:
        import networkx as nx

        return Figure(float(nx.maximum_flow_value(graph, "source", "sink")), "exact", "minimum cut by maximum flow")
    return Figure(least, "at most", name)


def oversubscription(net: Network, halves: Figure) -> Figure:
    """What half of the nodes can inject into the network / what the bisection carries, at least 1.

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
    """What half of the endpoints can send into the network, by the links that leave nodes [B/s].

    In a cluster these are the links of NICs, or of GPUs where there are none, to
    what is not part of a node; with nothing outside nodes they are those of GPUs.
    """
    network_port = "nic" if "nic" in net.kinds else net.endpoints[0]
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
    """Capacities of some cuts between the halves, and what they cut [B/s]."""
    one, other = _halves(net)
    near, far = Hops(net).nearest(one), Hops(net, against=True).nearest(other)
    near, far = (np.where(hops < 0, net.node_count, hops) for hops in (near, far))
    cuts = []
    for side, name in (
        (near <= far, "the links between what is nearer to one half and the rest"),
        (near < far, "the links between what is nearer to one half and the rest"),
        (np.zeros(net.node_count, dtype=bool), "the links of the endpoints of one half"),
        (np.ones(net.node_count, dtype=bool), "the links of the endpoints of one half"),
    ):
        side[one], side[other] = True, False
        crossing = side[net.sources] & ~side[net.targets]
        cuts.append((float(net.bandwidths[crossing].sum()), name))
    return cuts


def _shifted_flows(net: Network) -> Iterator[float]:
    """What flows if each place of one half sends alike to its image in the other, by one path, then by all [B/s]."""
    half = net.endpoint_count // 2
    sources = np.arange(half)
    if net.paths is None or net.failed.any():
        return
    yield _flow(net, Routing("shortest"), sources, sources + half)
    if half * int(net.paths.counts(sources[:1], sources[:1] + half)[0]) <= MAX_FLOW_PATHS:
        yield _flow(net, Routing("spray"), sources, sources + half)


def _flow(net: Network, routing: Routing, sources: Ints, targets: Ints) -> float:
    """The largest equal flows that fit, together [B/s]."""
    paths = Routes(net, routing).between(sources, targets)
    load = np.bincount(paths.links, paths.shares, minlength=net.link_count)
    used = load > 0
    return float(len(sources) * np.min(net.bandwidths[used] / load[used], initial=np.inf))


def _merged_graph(net: Network) -> "nx.DiGraph | None":
    """The network with each half merged to one node, "source" and "sink"; None if it is too large."""
    one, other = _halves(net)
    merged = np.arange(net.node_count)
    source, sink = int(one[0]), int(other[0])
    merged[one], merged[other] = source, sink
    ends = merged[net.sources] * net.node_count + merged[net.targets]
    keys, where = np.unique(ends, return_inverse=True)
    if len(keys) > CUT_LINKS:
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
