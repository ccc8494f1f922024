"""The traffic of an experiment between its nodes, axis by axis, and the time that links need for it.

A collective along an axis passes its bytes around a ring over the members of each
group; stages pass activations to the next one.  The groups of a pipeline stage
communicate at once, those of different stages do not.  The load of an order of nodes is

    seconds = sum over axes of max(bytes out of a node / its bandwidth,
                                   max over stages and links of bytes over the link / bandwidth)

It says which of two orders is better, not how long a step takes: the simulation does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.topologies.network import Floats, Ints, Network
from quadrille.topologies.routes.routing import Routes

OPEN_AXES = ("pipeline",)
"""Axes whose last member sends nothing to the first."""
MOST_PAIRS = 4096
"""Pairs of endpoints whose routes are computed; beyond, one endpoint of each node stands for all."""
INSIDE = frozenset(("gpu", "nvswitch", "nic", "cpu", "pcie", "host"))
"""Kinds of the parts of a compute node; all other nodes are switches."""
WORK = 4e8
"""Products that a search may take for the loads of its orders."""
EXCHANGES = (100, 3000)
"""Least and most exchanges of a search."""
EVERYWHERE = 1e-3
"""Weight of the mean load of links against that of the fullest link."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeTraffic:
    """Bytes between places of nodes in the order of ranks.

    Parameters
    ----------
    phase : axis and pipeline stage of each edge: number of the axis * stages + stage
    first, second : places of the sending and the receiving node
    sizes : bytes of a step that cross the edge
    stages : number of pipeline stages
    out : bytes out of the node that sends most, along each axis [axes]
    """

    phase: Ints
    first: Ints
    second: Ints
    sizes: Floats
    stages: int
    out: Floats


def node_traffic(grid: Grid, bytes_by_axis: Mapping[str, float], node_of_rank: Ints) -> NodeTraffic:
    """The traffic between the nodes of ranks.

    Parameters
    ----------
    bytes_by_axis : bytes that a rank sends along each axis in a step
    node_of_rank : place of each rank's node in the order of nodes [ranks]
    """
    ranks, stages = np.arange(grid.size), grid.length("pipeline")
    stage = ranks // grid.stride("pipeline") % stages
    columns: list[tuple[Ints, Ints, Ints, Floats]] = []
    out: list[float] = []
    for axis in (axis for axis in AXES if bytes_by_axis.get(axis) and grid.length(axis) > 1):
        length, stride = grid.length(axis), grid.stride(axis)
        coordinate = ranks // stride % length
        ahead = ranks + np.where(coordinate + 1 < length, stride, -(length - 1) * stride)
        sending = (node_of_rank != node_of_rank[ahead]) & ~((axis in OPEN_AXES) & (coordinate + 1 == length))
        ends = node_of_rank[sending], node_of_rank[ahead][sending]
        sizes = np.full(len(ends[0]), float(bytes_by_axis[axis]))
        columns.append((len(out) * stages + stage[sending], *ends, sizes))
        out.append(float(np.bincount(ends[0], sizes).max(initial=0.0)))
    if not columns:
        none = np.zeros(0, dtype=np.int64)
        return NodeTraffic(none, none, none, np.zeros(0), stages, np.zeros(0))
    phases, first, second, sizes = (np.concatenate(column) for column in zip(*columns, strict=True))
    keys, where = np.unique(np.stack([phases, first, second]), axis=1, return_inverse=True)
    return NodeTraffic(
        keys[0], keys[1], keys[2], np.bincount(where.ravel(), sizes).astype(np.float64), stages, np.array(out)
    )


def _injection(net: Network, nodes: Sequence[int]) -> float:
    """Bandwidth of the cables from one of these nodes to switches [B/s], the least of all nodes; 1 without cables."""
    owner, leaving = _owners(net)
    sums = np.bincount(owner[net.sources[leaving]], net.bandwidths[leaving], minlength=max(nodes) + 1)[nodes]
    return float(sums[sums > 0].min(initial=np.inf)) if (sums > 0).any() else 1.0


def _owners(net: Network) -> tuple[Ints, Ints]:
    """Compute node of each part of a node, -1 for switches; and the links from compute nodes to switches."""
    owner = np.full(net.node_count, -1, dtype=np.int64)
    count = -(-net.endpoint_count // net.per_node)
    for kind, (first, parts) in net.kinds.items():
        if kind in INSIDE:
            owner[first : first + parts] = np.arange(parts) // max(1, parts // count)
    return owner, np.flatnonzero((owner[net.sources] >= 0) & (owner[net.targets] < 0))


def node_classes(net: Network, nodes: Sequence[int]) -> Ints:
    """A class for each node: equal classes if the nodes have cables with equal rates to the same switches [nodes].

    Parameters
    ----------
    nodes : numbers of compute nodes
    """
    owner, leaving = _owners(net)
    cables: dict[int, list[tuple[int, float]]] = {}
    for node, switch, rate in zip(
        owner[net.sources[leaving]].tolist(),
        net.targets[leaving].tolist(),
        net.bandwidths[leaving].tolist(),
        strict=True,
    ):
        cables.setdefault(node, []).append((switch, rate))
    keys = [tuple(sorted(cables.get(node, []))) for node in nodes]
    number = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([number[key] for key in keys], dtype=np.int64)


class FabricLoad:
    """The load of the switches' links by the traffic between classes of nodes.

    Parameters
    ----------
    nodes, classes : numbers of the allocated nodes, and the class of each
    """

    def __init__(self, routes: Routes, nodes: Sequence[int], classes: Ints) -> None:
        self.count = int(classes.max()) + 1
        members = [
            [node for node, own in zip(nodes, classes.tolist(), strict=True) if own == c] for c in range(self.count)
        ]
        pairs = [
            (first, second)
            for first in range(self.count)
            for second in range(self.count)
            if first != second or len(members[first]) > 1
        ]
        per_node = routes.net.per_node
        used = per_node if len(pairs) * per_node <= MOST_PAIRS else 1
        ends = np.array([(members[a][0], members[b][-1 if a == b else 0]) for a, b in pairs], dtype=np.int64).reshape(
            -1, 2
        )
        local = np.arange(used)
        sources, targets = ((ends[:, side, None] * per_node + local).ravel() for side in (0, 1))
        paths = routes.between(sources, targets)
        flow = np.repeat(np.arange(len(sources)), np.diff(paths.offsets))
        rates = routes.net.bandwidths[paths.links]
        table = np.zeros((len(pairs), routes.net.link_count))
        np.add.at(table, (flow // used, paths.links), paths.shares / used / rates)
        seconds = np.zeros((self.count * self.count, routes.net.link_count))
        seconds[[a * self.count + b for a, b in pairs]] = table
        self._seconds = self._between_switches(routes.net, seconds)
        self._injection = _injection(routes.net, nodes)

    @staticmethod
    def _between_switches(net: Network, seconds: Floats) -> Floats:
        """The columns of links between switches that any pair uses, each different column once."""
        switches = np.ones(net.node_count, dtype=bool)
        for kind, (first, count) in net.kinds.items():
            if kind in INSIDE:
                switches[first : first + count] = False
        chosen = switches[net.sources] & switches[net.targets] & seconds.any(axis=0)
        columns: Floats = np.unique(seconds[:, chosen], axis=1)
        return columns

    def seconds(self, traffic: NodeTraffic, classes: Ints) -> float:
        """The load of an order of nodes [s].

        Parameters
        ----------
        classes : class of the node at each place of the order
        """
        if not self._seconds.shape[1] or not len(traffic.phase):
            return 0.0
        phases, cells = len(traffic.out) * traffic.stages, self.count * self.count
        pairs = classes[traffic.first] * self.count + classes[traffic.second]
        sizes = np.bincount(traffic.phase * cells + pairs, traffic.sizes, minlength=phases * cells)
        loads = sizes.reshape(phases, cells) @ self._seconds
        fullest = loads.max(axis=1).reshape(len(traffic.out), traffic.stages).max(axis=1)
        return float(np.maximum(fullest, traffic.out / self._injection).sum() + EVERYWHERE * loads.mean())

    def exchanges(self, traffic: NodeTraffic) -> int:
        """Number of exchanges of nodes that a search may try."""
        work = len(traffic.out) * traffic.stages * self._seconds.size + 10 * len(traffic.phase) + 1
        return int(np.clip(WORK // work, *EXCHANGES))
