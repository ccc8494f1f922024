"""Nodes of GPUs under a network of leaves and one spine."""

from collections.abc import Mapping

import networkx as nx

from algorithms.errors import InputError
from topologies.gpu_node import NODE_KINDS, NodeKind, add_gpu_node, in_cluster, inside_path, nvswitch_node
from topologies.graph import Argument, add_cable, add_node, add_nodes, check_cable, check_counts, empty_topology

OWN_NUMBERS = ("gpus_per_node", "nics_per_node", "gpu_bandwidth", "gpu_latency", "nic_bandwidth", "nic_latency")


def gpu_cluster(
    nodes: int,
    node: str = "nvswitch",
    *,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    nics_per_node: int | None = None,
    gpu_bandwidth: float | None = None,
    gpu_latency: float | None = None,
    nic_bandwidth: float | None = None,
    nic_latency: float | None = None,
    nodes_per_leaf: int | None = None,
    uplink_bandwidth: float | None = None,
) -> nx.MultiDiGraph:
    """`nodes` nodes of GPUs; every NIC has its own cable to its node's leaf.

    Without `nodes_per_leaf` one leaf, leaf:0, holds all nodes: a fabric that
    blocks nothing.  Otherwise each leaf has one cable to spine:0, which stands
    for all its uplinks together under ideal spraying.

    >>> net = gpu_cluster(2, "perlmutter")
    >>> nx.shortest_path(net, "gpu:0", "gpu:5")
    ['gpu:0', 'nic:0', 'leaf:0', 'nic:5', 'gpu:5']

    Parameters
    ----------
    node : "nvswitch", which needs the six numbers from gpus_per_node to nic_latency, or a kind that has its own:
        "perlmutter", "frontier"
    gpus : compute places, where the last node is not full; all GPUs by default
    gpu_bandwidth, gpu_latency : of the cable from a GPU to the NVSwitch [B/s, s]
    nic_bandwidth, nic_latency : of the cable from a NIC to its leaf [B/s, s]
    uplink_bandwidth : of the cable from a leaf to the spine [B/s]; its latency is that of a NIC

    Raises
    ------
    InputError : a count below one; numbers missing, superfluous or out of range
    """
    arguments = {name: value for name, value in locals().items() if value is not None}
    check_counts("gpu-cluster", nodes=nodes)
    kind = node_kind(arguments)
    count = nodes * kind.gpus if gpus is None else gpus
    if not 1 <= count <= nodes * kind.gpus:
        raise InputError(f"gpu-cluster: gpus={count} must be from 1 to {nodes * kind.gpus}, what {nodes} nodes hold")
    net = empty_topology("gpu-cluster", arguments, "gpu", count)
    for index in range(nodes):
        add_gpu_node(net, kind, index)
    _add_network(net, kind, nodes, nodes_per_leaf, uplink_bandwidth)
    return net


def node_kind(arguments: Mapping[str, Argument]) -> NodeKind:
    """The kind of node that these arguments of `gpu_cluster` ask for.

    Raises
    ------
    InputError : an unknown kind; a number that the kind needs, or has of its own
    """
    name = str(arguments.get("node", "nvswitch"))
    own = {key: arguments[key] for key in OWN_NUMBERS if arguments.get(key) is not None}
    if name in NODE_KINDS:
        if own:
            raise InputError(f"gpu-cluster: node={name} has its own {', '.join(own)}; node=nvswitch takes yours")
        return NODE_KINDS[name]
    if name != "nvswitch":
        raise InputError(f"gpu-cluster: node={name} is unknown; there are nvswitch, {', '.join(NODE_KINDS)}")
    if missing := [key for key in OWN_NUMBERS if key not in own]:
        raise InputError(f"gpu-cluster: node=nvswitch lacks {', '.join(missing)}")
    rates = {key: float(own[key]) for key in OWN_NUMBERS[2:]}
    return nvswitch_node(int(own["gpus_per_node"]), int(own["nics_per_node"]), **rates)


def _add_network(
    net: nx.MultiDiGraph, kind: NodeKind, nodes: int, nodes_per_leaf: int | None, uplink_bandwidth: float | None
) -> None:
    """Adds the leaves, the cables from the NICs and, above several leaves, the spine."""
    if (nodes_per_leaf is None) != (uplink_bandwidth is None):
        raise InputError("gpu-cluster: nodes_per_leaf and uplink_bandwidth are given together or not at all")
    per_leaf = nodes if nodes_per_leaf is None else nodes_per_leaf
    check_counts("gpu-cluster", nodes_per_leaf=per_leaf)
    leaves = -(-nodes // per_leaf)
    add_nodes(net, "leaf", leaves)
    for nic in range(nodes * kind.nics):
        leaf = nic // kind.nics // per_leaf
        add_cable(net, f"nic:{nic}", f"leaf:{leaf}", bandwidth=kind.nic_bandwidth, latency=kind.nic_latency)
    if uplink_bandwidth is not None:
        check_cable("gpu-cluster", uplink_bandwidth, kind.nic_latency, prefix="uplink_")
        add_node(net, "spine:0")
        for leaf in range(leaves):
            add_cable(net, f"leaf:{leaf}", "spine:0", bandwidth=uplink_bandwidth, latency=kind.nic_latency)


def gpu_cluster_path(kind: NodeKind, nodes_per_leaf: int | None, source: int, target: int) -> list[str]:
    """Nodes of the graph from GPU `source` to GPU `target`.

    Within a node by the node's own cables, else out by the source's NIC and in
    by the target's.

    >>> gpu_cluster_path(NODE_KINDS["frontier"], None, 0, 10)
    ['gpu:0', 'gpu:1', 'nic:0', 'leaf:0', 'nic:5', 'gpu:11', 'gpu:10']
    """
    (first, here), (last, there) = divmod(source, kind.gpus), divmod(target, kind.gpus)
    if first == last:
        return [in_cluster(kind, first, part) for part in inside_path(kind, f"gpu:{here}", f"gpu:{there}")]
    way_out = inside_path(kind, f"gpu:{here}", f"nic:{kind.nic(here)}")
    way_in = inside_path(kind, f"gpu:{there}", f"nic:{kind.nic(there)}")[::-1]
    up, down = (0, 0) if nodes_per_leaf is None else (first // nodes_per_leaf, last // nodes_per_leaf)
    network = [f"leaf:{up}"] if up == down else [f"leaf:{up}", "spine:0", f"leaf:{down}"]
    return [
        *(in_cluster(kind, first, part) for part in way_out),
        *network,
        *(in_cluster(kind, last, part) for part in way_in),
    ]
