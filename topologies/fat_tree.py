"""The three-level fat tree of equal switches."""

import networkx as nx

from algorithms.errors import InputError
from topologies.graph import add_cable, add_hosts, add_nodes, check_cable, check_counts, empty_topology


def fat_tree(ports: int, *, bandwidth: float, latency: float, cores: int = 1) -> nx.MultiDiGraph:
    """A fat tree of switches with `ports` ports each (k in the paper), non-blocking.

    With h = ports / 2: `ports` pods, each of h edge and h aggregation switches,
    every edge switch wired to every aggregation switch of its pod and to h hosts;
    h² core switches, core:c wired to aggregation switch c // h of every pod.

    >>> net = fat_tree(4, bandwidth=1e9, latency=1e-6)
    >>> [sum(kind == k for _, k in net.nodes(data="kind")) for kind in ("host", "edge", "aggregation", "core")]
    [16, 8, 8, 4]

    Parameters
    ----------
    ports : per switch, even
    bandwidth : of each cable, each direction [B/s]
    latency : of each cable [s]
    cores : of each host

    Raises
    ------
    InputError : ports odd or below 2; fewer than one core; a cable that cannot be

    Source: Al-Fares, Loukissas, Vahdat, "A Scalable, Commodity Data Center
    Network Architecture", SIGCOMM 2008, section 3.1.
    """
    check_counts("fat-tree", ports=ports, cores=cores)
    if ports % 2:
        raise InputError(f"fat-tree: ports={ports} must be even: half of the ports go up and half down")
    check_cable("fat-tree", bandwidth, latency)
    half = ports // 2
    arguments = {"ports": ports, "bandwidth": bandwidth, "latency": latency, "cores": cores}
    net = empty_topology("fat-tree", arguments, "host", ports * half * half)
    add_hosts(net, ports * half * half, cores)
    add_nodes(net, "edge", ports * half)
    add_nodes(net, "aggregation", ports * half)
    add_nodes(net, "core", half * half)
    for one, other in _cables(ports):
        add_cable(net, one, other, bandwidth=bandwidth, latency=latency)
    return net


def _cables(ports: int) -> list[tuple[str, str]]:
    """The two ends of every cable, from the hosts up."""
    half = ports // 2
    cables = [(f"host:{host}", f"edge:{host // half}") for host in range(ports * half * half)]
    for pod in range(ports):
        switches = range(pod * half, (pod + 1) * half)
        cables += [(f"edge:{edge}", f"aggregation:{aggregation}") for edge in switches for aggregation in switches]
    cables += [
        (f"aggregation:{pod * half + core // half}", f"core:{core}")
        for pod in range(ports)
        for core in range(half * half)
    ]
    return cables


def fat_tree_path(ports: int, source: int, target: int) -> list[str]:
    """Nodes from host `source` to host `target`, the way up chosen by the digits of `target`.

    >>> fat_tree_path(4, 0, 5)
    ['host:0', 'edge:0', 'aggregation:1', 'core:2', 'aggregation:3', 'edge:2', 'host:5']
    """
    half = ports // 2
    first, last = source // half, target // half
    up_pod, down_pod = first // half, last // half
    across = target % half
    if first == last:
        switches = [f"edge:{first}"]
    elif up_pod == down_pod:
        switches = [f"edge:{first}", f"aggregation:{up_pod * half + across}", f"edge:{last}"]
    else:
        core = across * half + last % half
        up, down = f"aggregation:{up_pod * half + across}", f"aggregation:{down_pod * half + across}"
        switches = [f"edge:{first}", up, f"core:{core}", down, f"edge:{last}"]
    return [f"host:{source}", *switches, f"host:{target}"]
