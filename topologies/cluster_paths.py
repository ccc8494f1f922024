"""Paths between the GPUs of a cluster: by the node's own cables, else out by a door, across, and in by another."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from quadrille.topologies.builder import reverse
from quadrille.topologies.network import Floats, Ints
from quadrille.topologies.nodes.gpu_node import NodeKind, paths_inside_node
from quadrille.topologies.structured_paths import ClosedFormSplit, PathSet


@dataclass(frozen=True)
class ClusterPaths:
    """Within a node by the node's own cables, else out by the source's door and in by the target's.

    Link tables hold the number of the link in node 0, -1 where there is none;
    in node i it is 2 i higher, since all nodes get one cable at a time.

    Parameters
    ----------
    within : from GPU to GPU of a node [gpus, gpus, hops]
    out : from a GPU to its door [gpus, hops]
    network_port : of each GPU, numbered within the node [gpus]
    endpoint : of each door, numbered node by node, its number in the fabric [nodes · doors]
    """

    gpus: int
    network_ports: int
    within: Ints
    out: Ints
    network_port: Ints
    endpoint: Ints
    fabric: PathSet

    def _ends(self, gpus: Ints) -> tuple[Ints, Ints, Ints]:
        """Node, number within the node, and endpoint of the fabric of each GPU."""
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
        """Links inside nodes: of pairs in one node, and of the others from source to door and from door to target."""
        near = (first == last)[:, None]
        within = np.where(near, _in_node(self.within[here, there], first), -1)
        out = np.where(near, -1, _in_node(self.out[here], first))
        enter = np.where(near, -1, reverse(_in_node(self.out[there][:, ::-1], last)))
        return within, out, enter


@dataclass(frozen=True)
class SplitClusterPaths(ClusterPaths):
    """Over a fabric that spreads flows in closed form."""

    def spread(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints, Floats]:
        """All of a flow on the links inside nodes, and the fabric's shares across."""
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
    """Paths of a cluster of such nodes.

    Parameters
    ----------
    inside : links of node 0, by the parts that they join
    order : the doors, numbered node by node, in the order in which the fabric joined them
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
    made = SplitClusterPaths if isinstance(fabric, ClosedFormSplit) else ClusterPaths
    return made(kind.gpus, kind.network_ports, within, out, network_port, endpoint, fabric)


def _in_node(links: Ints, nodes: Ints) -> Ints:
    """Links of node 0 as those of the given nodes."""
    return np.where(links < 0, -1, links + 2 * nodes[:, None])


def _table(paths: list[list[int]]) -> Ints:
    """Paths side by side, -1 after their ends."""
    table = np.full((len(paths), max(map(len, paths), default=0)), -1, dtype=np.int64)
    for row, path in enumerate(paths):
        table[row, : len(path)] = path
    return table
