"""Two levels of switches: hosts under leaves, every leaf wired to every spine."""

import networkx as nx

from topologies.graph import add_cable, add_hosts, add_nodes, check_cable, check_counts, empty_topology


def leaf_spine(
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    *,
    bandwidth: float,
    latency: float,
    uplink_bandwidth: float | None = None,
    cores: int = 1,
) -> nx.MultiDiGraph:
    """Hosts under `leaves` leaf switches, every leaf wired to every spine.

    host:h is under leaf:(h // hosts_per_leaf).  The fabric is oversubscribed by
    hosts_per_leaf × bandwidth / (spines × uplink_bandwidth).

    >>> net = leaf_spine(2, 2, 4, bandwidth=50e9, latency=1e-6)
    >>> nx.shortest_path_length(net, "host:0", "host:7")
    4

    Parameters
    ----------
    bandwidth : of each cable, each direction [B/s]
    latency : of each cable [s]
    uplink_bandwidth : of the cables between leaf and spine, where it differs [B/s]
    cores : of each host

    Raises
    ------
    InputError : fewer than one leaf, spine, host per leaf or core; a cable that cannot be
    """
    check_counts("leaf-spine", leaves=leaves, spines=spines, hosts_per_leaf=hosts_per_leaf, cores=cores)
    check_cable("leaf-spine", bandwidth, latency)
    uplink = bandwidth if uplink_bandwidth is None else uplink_bandwidth
    check_cable("leaf-spine", uplink, latency, prefix="uplink_")
    arguments = {
        "leaves": leaves,
        "spines": spines,
        "hosts_per_leaf": hosts_per_leaf,
        "bandwidth": bandwidth,
        "latency": latency,
        "uplink_bandwidth": uplink_bandwidth,
        "cores": cores,
    }
    net = empty_topology("leaf-spine", arguments, "host", leaves * hosts_per_leaf)
    add_hosts(net, leaves * hosts_per_leaf, cores)
    add_nodes(net, "leaf", leaves)
    add_nodes(net, "spine", spines)
    for index in range(leaves * hosts_per_leaf):
        add_cable(net, f"host:{index}", f"leaf:{index // hosts_per_leaf}", bandwidth=bandwidth, latency=latency)
    for leaf in range(leaves):
        for spine in range(spines):
            add_cable(net, f"leaf:{leaf}", f"spine:{spine}", bandwidth=uplink, latency=latency)
    return net


def leaf_spine_path(spines: int, hosts_per_leaf: int, source: int, target: int) -> list[str]:
    """Nodes from host `source` to host `target`; across leaves by spine target mod spines.

    All traffic to one host comes down through one spine, and hosts under a leaf
    are spread evenly over the spines (destination-modulo routing).

    >>> leaf_spine_path(2, 4, 0, 7)
    ['host:0', 'leaf:0', 'spine:1', 'leaf:1', 'host:7']
    """
    up, down = source // hosts_per_leaf, target // hosts_per_leaf
    across = [f"leaf:{up}"] if up == down else [f"leaf:{up}", f"spine:{target % spines}", f"leaf:{down}"]
    return [f"host:{source}", *across, f"host:{target}"]
