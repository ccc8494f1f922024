"""Paths between the GPUs of a cluster: inside a node, or out by a network port, over the fabric, and in by another."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from quadrille.topologies.network import Floats, Ints
from quadrille.topologies.network_builder import reverse
from quadrille.topologies.nodes.gpu_node import NodeKind, paths_inside_node
from quadrille.topologies.structured_paths import ClosedFormSplit, PathSet


@dataclass(frozen=True)
class ClusterPaths:
    """The paths of a cluster: over cables inside the node, or out and in by the network ports of source and target.

    The tables `within` and `out` hold link numbers of node 0, and -1 where a path
    has fewer hops.  The same link of node i is 2 i higher, because the builder
    adds each cable to all nodes at once.

    Parameters
    ----------
    gpus, network_ports : number of GPUs and of network ports in a node
    within : links from each GPU to each GPU of a node [gpus, gpus, hops]
    out : links from each GPU to its network port [gpus, hops]
    network_port : network port of each GPU, numbered within the node [gpus]
    endpoint : number in the fabric of each network port, numbered node by node [nodes · network ports]
    fabric : paths between the network ports of different nodes
    """

    gpus: int
    network_ports: int
    within: Ints
    out: Ints
    network_port: Ints
    endpoint: Ints
    fabric: PathSet

    def _ends(self, gpus: Ints) -> tuple[Ints, Ints, Ints]:
        """Node, index within the node, and endpoint in the fabric of each GPU [gpus]."""
        node, local = np.divmod(gpus, self.gpus)
        return node, local, self.endpoint[node * self.network_ports + self.network_port[local]]

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        first, _, exits = self._ends(sources)
        last, _, enters = self._ends(targets)
        return np.where(first == last, 1, self.fabric.counts(exits, enters))

    def default(self, sources: Ints, targets: Ints) -> Ints:
        first, _, exits = self._ends(sources)
        last, _, enters = self._ends(targets)
        return np.where(first == last, 0, self.fabric.default(exits, enters))

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        first, here, exits = self._ends(sources)
        last, there, enters = self._ends(targets)
        near = first == last
        inside = self._in_nodes(first, here, last, there)
        across = self.fabric.links(exits, enters, np.where(near, 0, chosen))
        across[near] = -1
        return np.concatenate([*inside[:2], across, inside[2]], axis=1)

    def _in_nodes(self, first: Ints, here: Ints, last: Ints, there: Ints) -> tuple[Ints, Ints, Ints]:
        """Links inside nodes [pairs, hops]: between GPUs of one node, from source to port, from port to target."""
        near = (first == last)[:, None]
        within = np.where(near, _in_node(self.within[here, there], first), -1)
        out = np.where(near, -1, _in_node(self.out[here], first))
        enter = np.where(near, -1, reverse(_in_node(self.out[there][:, ::-1], last)))
        return within, out, enter


@dataclass(frozen=True)
class SplitClusterPaths(ClusterPaths):
    """The paths of a cluster whose fabric spreads flows in closed form."""

    def spread(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints, Floats]:
        """Flow, link and share of each entry: share 1 on links inside nodes, and the shares of the fabric elsewhere."""
        assert isinstance(self.fabric, ClosedFormSplit)
        first, here, exits = self._ends(sources)
        last, there, enters = self._ends(targets)
        inside = np.concatenate(self._in_nodes(first, here, last, there), axis=1)
        pairs, columns = np.nonzero(inside >= 0)
        far = np.flatnonzero(first != last)
        owners, links, shares = self.fabric.spread(exits[far], enters[far])
        return (
            np.concatenate([pairs, far[owners]]),
            np.concatenate([inside[pairs, columns], links]),
            np.concatenate([np.ones(len(pairs)), shares]),
        )


def cluster_paths(kind: NodeKind, inside: Mapping[tuple[str, str], int], fabric: PathSet, order: Ints) -> ClusterPaths:
    """The paths between the GPUs of a cluster of nodes of this kind.

    Parameters
    ----------
    inside : links of node 0, by the two parts that each joins
    fabric : paths between network ports
    order : network ports, numbered node by node, in the order in which the fabric joined them [ports]
    """
    gpus = range(kind.gpus)
    paths = [paths_inside_node(kind.cables, f"gpu:{gpu}") for gpu in gpus]

    def path(source: int, target: str) -> list[int]:
        return [inside[hop] for hop in pairwise(paths[source][target])]

    within = _table([path(a, f"gpu:{b}") for a in gpus for b in gpus]).reshape(kind.gpus, kind.gpus, -1)
    out = _table([path(gpu, kind.network_port(gpu)) for gpu in gpus])
    network_port = np.array([int(kind.network_port(a).partition(":")[2]) for a in gpus])
    endpoint = np.empty(len(order), dtype=np.int64)
    endpoint[order] = np.arange(len(order))
    paths_class = SplitClusterPaths if isinstance(fabric, ClosedFormSplit) else ClusterPaths
    return paths_class(kind.gpus, kind.network_ports, within, out, network_port, endpoint, fabric)


def _in_node(links: Ints, nodes: Ints) -> Ints:
    """The links in these nodes that correspond to links of node 0."""
    return np.where(links < 0, -1, links + 2 * nodes[:, None])


def _table(paths: list[list[int]]) -> Ints:
    """Paths as a table, filled up with -1 [paths, hops]."""
    table = np.full((len(paths), max(map(len, paths), default=0)), -1, dtype=np.int64)
    for row, path in enumerate(paths):
        table[row, : len(path)] = path
    return table
