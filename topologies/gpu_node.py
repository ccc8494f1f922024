"""What is inside a node of GPUs: GPUs, the switches between them, NICs to the network.

Numbers of the named kinds have their sources in `named.py`.
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise

import networkx as nx

from algorithms.errors import InputError
from topologies.graph import add_cable, add_node, check_cable, check_counts


@dataclass(frozen=True, slots=True)
class Cable:
    """Two ends, numbered within the node, and what each direction carries [B/s], after how long [s]."""

    one: str
    other: str
    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A node of `gpus` GPUs, `switches` NVSwitches and `nics` NICs.

    GPU g leaves the node by NIC g * nics // gpus.  `nic_bandwidth` [B/s] and
    `nic_latency` [s] are those of the cable from a NIC to the network.
    """

    name: str
    gpus: int
    switches: int
    nics: int
    cables: tuple[Cable, ...]
    nic_bandwidth: float
    nic_latency: float

    def nic(self, gpu: int) -> int:
        """The NIC by which a GPU leaves the node, both numbered within the node."""
        return gpu * self.nics // self.gpus


NVLINK3_LATENCY = 0.6e-6
XGMI_LATENCY = 0.6e-6
SLINGSHOT_LATENCY = 1.35e-6

PERLMUTTER = NodeKind(
    "perlmutter",
    gpus=4,
    switches=0,
    nics=4,
    cables=(
        *(Cable(f"gpu:{a}", f"gpu:{b}", 100e9, NVLINK3_LATENCY) for a, b in combinations(range(4), 2)),
        *(Cable(f"gpu:{g}", f"nic:{g}", 31.5e9, 0.0) for g in range(4)),
    ),
    nic_bandwidth=25e9,
    nic_latency=SLINGSHOT_LATENCY,
)

# Links by pair of GPUs: inside a package, and between packages two or one.
XGMI_LINKS = {
    **dict.fromkeys(((0, 1), (2, 3), (4, 5), (6, 7)), 4),
    **dict.fromkeys(((0, 6), (2, 4)), 2),
    **dict.fromkeys(((0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)), 1),
}

FRONTIER = NodeKind(
    "frontier",
    gpus=8,
    switches=0,
    nics=4,
    cables=(
        *(Cable(f"gpu:{a}", f"gpu:{b}", 50e9 * count, XGMI_LATENCY) for (a, b), count in XGMI_LINKS.items()),
        *(Cable(f"gpu:{2 * n + 1}", f"nic:{n}", 50e9, 0.0) for n in range(4)),
    ),
    nic_bandwidth=25e9,
    nic_latency=SLINGSHOT_LATENCY,
)

NODE_KINDS = {kind.name: kind for kind in (PERLMUTTER, FRONTIER)}


@cache
def nvswitch_node(
    gpus: int, nics: int, *, gpu_bandwidth: float, gpu_latency: float, nic_bandwidth: float, nic_latency: float
) -> NodeKind:
    """GPUs on one NVSwitch, and NICs, each serving gpus / nics of them.

    The cable between a GPU and its NIC never limits and costs no time; what
    limits is the NIC's own cable to the network.  One NIC of n-fold bandwidth
    joins a node's n NICs in one injection link.

    >>> kind = nvswitch_node(
    ...     8, 4, gpu_bandwidth=450e9, gpu_latency=1e-6, nic_bandwidth=50e9, nic_latency=1e-6)
    >>> [kind.nic(gpu) for gpu in range(8)]
    [0, 0, 1, 1, 2, 2, 3, 3]

    Raises
    ------
    InputError : fewer than one GPU or NIC, more NICs than GPUs, a cable that cannot be
    """
    check_counts("gpu-cluster", gpus_per_node=gpus, nics_per_node=nics)
    if nics > gpus:
        raise InputError(f"gpu-cluster: nics_per_node={nics} must be at most gpus_per_node={gpus}")
    check_cable("gpu-cluster", gpu_bandwidth, gpu_latency, prefix="gpu_")
    check_cable("gpu-cluster", nic_bandwidth, nic_latency, prefix="nic_")
    attached = max(gpu_bandwidth, nic_bandwidth)
    cables = [Cable(f"gpu:{g}", "nvswitch:0", gpu_bandwidth, gpu_latency) for g in range(gpus)]
    cables += [Cable(f"gpu:{g}", f"nic:{g * nics // gpus}", attached, 0.0) for g in range(gpus)]
    return NodeKind("nvswitch", gpus, 1, nics, tuple(cables), nic_bandwidth, nic_latency)


def add_gpu_node(net: nx.MultiDiGraph, kind: NodeKind, index: int) -> None:
    """Adds node number `index`; its GPUs, switches and NICs are numbered on from those of the nodes before."""
    for name, count in (("gpu", kind.gpus), ("nvswitch", kind.switches), ("nic", kind.nics)):
        for local in range(count):
            add_node(net, f"{name}:{index * count + local}")
    for cable in kind.cables:
        one, other = in_cluster(kind, index, cable.one), in_cluster(kind, index, cable.other)
        add_cable(net, one, other, bandwidth=cable.bandwidth, latency=cable.latency)


def in_cluster(kind: NodeKind, index: int, local: str) -> str:
    """Name in the cluster of a part of node `index`.

    >>> in_cluster(PERLMUTTER, 2, "nic:1")
    'nic:9'
    """
    name, _, number = local.partition(":")
    count = {"gpu": kind.gpus, "nvswitch": kind.switches, "nic": kind.nics}[name]
    return f"{name}:{index * count + int(number)}"


@cache
def inside_path(kind: NodeKind, source: str, target: str) -> tuple[str, ...]:
    """Parts of a node on the way from one to another: fewest hops, then the widest, then the first by name.

    >>> inside_path(FRONTIER, "gpu:0", "gpu:4")
    ('gpu:0', 'gpu:2', 'gpu:4')
    >>> inside_path(FRONTIER, "gpu:0", "nic:0")
    ('gpu:0', 'gpu:1', 'nic:0')
    """
    net = nx.Graph()
    net.add_weighted_edges_from((c.one, c.other, c.bandwidth) for c in kind.cables)

    paths = [tuple(path) for path in nx.all_shortest_paths(net, source, target)]
    widths = {path: min(net.edges[hop]["weight"] for hop in pairwise(path)) for path in paths}
    return min(sorted(paths), key=lambda path: -widths[path])
