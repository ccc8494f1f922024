"""Compute nodes that are equal: the search for paths from one of them answers for all.

Two compute nodes are equal if they have the same parts, joined by the same cables, and
the same cables to the same switches, all with the same rates.  Exchanging them changes
nothing in the network, so the split of a flow between two nodes is that of any pair of
nodes equal to them, with the links of the one in place of the links of the other.
"""

from functools import cached_property

import numpy as np

from quadrille.topologies.network import Floats, Ints, Network

INSIDE = ("gpu", "nvswitch", "nic", "cpu", "pcie")
"""Kinds of the parts of a compute node; all other nodes belong to none."""
MOST_KEPT = 1 << 16
Spread = tuple[Ints, Floats, float]
Ends = tuple[int, int, int, int, bool]


class EqualNodes:
    """The splits of flows that were searched, by the kinds of their nodes.

    >>> from quadrille.topologies.build import build
    >>> net = build("gpu-cluster", {"nodes": 3, "node": "hgx-h100"})
    >>> EqualNodes(net).ends(3, 20) == EqualNodes(net).ends(11, 4)
    True
    """

    def __init__(self, net: Network) -> None:
        self._net = net
        self._kept: dict[Ends, tuple[int, int, Spread]] = {}

    @cached_property
    def _owners(self) -> Ints:
        """Compute node of each node of the network; -1 for switches [nodes]."""
        net = self._net
        owners = np.full(net.node_count, -1, dtype=np.int64)
        count = -(-net.endpoint_count // net.per_node)
        for kind in INSIDE:
            first, parts = net.kinds.get(kind, (0, 0))
            if parts % count:
                return np.full(net.node_count, -1, dtype=np.int64)
            if parts:
                owners[first : first + parts] = np.arange(parts) // (parts // count)
        return owners

    @cached_property
    def _links(self) -> list[Ints]:
        """Links with an end in each compute node, in order [compute nodes]."""
        net, owners = self._net, self._owners
        owner = np.maximum(owners[net.sources], owners[net.targets])
        order = np.argsort(owner, kind="stable")
        count = -(-net.endpoint_count // net.per_node)
        bounds = np.searchsorted(owner[order], np.arange(count + 1))
        return [order[bounds[node] : bounds[node + 1]] for node in range(count)]

    @cached_property
    def _classes(self) -> list[int]:
        """Class of each compute node: equal if and only if the nodes are equal; empty if nodes have no parts."""
        net, owners = self._net, self._owners
        if net.endpoints[0] != "gpu" or net.indices is not None or net.kinds["gpu"][1] != net.endpoint_count:
            return []
        if (owners < 0).all():
            return []
        crossing = (owners[net.sources] >= 0) & (owners[net.targets] >= 0)
        if (owners[net.sources][crossing] != owners[net.targets][crossing]).any():
            return []  # cables between nodes
        places = np.where(owners < 0, np.arange(net.node_count), self._places())
        inner = owners >= 0
        columns = [np.where(inner[ends], places[ends], -1 - ends) for ends in (net.sources, net.targets)]
        numbers: dict[bytes, int] = {}
        rates = (net.bandwidths, net.latencies)
        keys = [b"".join(column[links].tobytes() for column in (*columns, *rates)) for links in self._links]
        return [numbers.setdefault(key, len(numbers)) for key in keys]

    def _places(self) -> Ints:
        """Place of each part in its compute node: equal for equal parts of all nodes [nodes]."""
        net = self._net
        places = np.zeros(net.node_count, dtype=np.int64)
        count, before = -(-net.endpoint_count // net.per_node), 0
        for kind in INSIDE:
            first, parts = net.kinds.get(kind, (0, 0))
            each = parts // count
            if each:
                places[first : first + parts] = before + np.arange(parts) % each
            before += each
        return places

    def ends(self, source: int, target: int) -> Ends | None:
        """The key of a pair of endpoints: equal for pairs whose splits are equal; None if nodes have no classes."""
        if not self._classes:
            return None
        per_node = self._net.per_node
        (first, here), (last, there) = divmod(source, per_node), divmod(target, per_node)
        return self._classes[first], here, self._classes[last], there, first == last

    def kept(self, ends: Ends, source: int, target: int) -> Spread | None:
        """The split of a pair from that of an equal pair; None if none was searched."""
        if ends not in self._kept:
            return None
        first, last, (links, shares, latency) = self._kept[ends]
        per_node = self._net.per_node
        moved = links.copy()
        for old, new in ((first, source // per_node), (last, target // per_node)):
            if old != new:
                own = self._links[old]
                place = np.searchsorted(own, links)
                inside = (place < len(own)) & (own[np.minimum(place, len(own) - 1)] == links)
                moved[inside] = self._links[new][place[inside]]
        return moved, shares, latency

    def keep(self, ends: Ends, source: int, target: int, spread: Spread) -> None:
        """Keeps the split of a pair, unless it passes through other compute nodes."""
        per_node = self._net.per_node
        nodes = source // per_node, target // per_node
        links = spread[0]
        owner = np.maximum(self._owners[self._net.sources[links]], self._owners[self._net.targets[links]])
        if len(self._kept) < MOST_KEPT and np.isin(owner, (-1, *nodes)).all():
            self._kept[ends] = (*nodes, spread)
