"""Hosts on one switch."""

import networkx as nx

from topologies.graph import add_cable, add_hosts, add_node, check_cable, check_counts, empty_topology


def star(hosts: int, *, bandwidth: float, latency: float, cores: int = 1) -> nx.MultiDiGraph:
    """`hosts` hosts, each on its own cable to switch:0, which blocks nothing.

    >>> net = star(4, bandwidth=25e9, latency=1e-6)
    >>> nx.shortest_path_length(net, "host:0", "host:3")
    2

    Parameters
    ----------
    bandwidth : of each cable, each direction [B/s]
    latency : of each cable [s]
    cores : of each host

    Raises
    ------
    InputError : fewer than one host or core; a cable that cannot be
    """
    check_counts("star", hosts=hosts, cores=cores)
    check_cable("star", bandwidth, latency)
    arguments = {"hosts": hosts, "bandwidth": bandwidth, "latency": latency, "cores": cores}
    net = empty_topology("star", arguments, "host", hosts)
    add_hosts(net, hosts, cores)
    add_node(net, "switch:0")
    for index in range(hosts):
        add_cable(net, f"host:{index}", "switch:0", bandwidth=bandwidth, latency=latency)
    return net


def star_path(source: int, target: int) -> list[str]:
    """Nodes from host `source` to host `target`.

    >>> star_path(0, 3)
    ['host:0', 'switch:0', 'host:3']
    """
    return [f"host:{source}", "switch:0", f"host:{target}"]
