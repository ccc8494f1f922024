"""One host, whose ranks share its cores and memory and need no network."""

import networkx as nx

from topologies.graph import add_hosts, check_counts, empty_topology


def host(cores: int = 1) -> nx.MultiDiGraph:
    """The single node host:0 with `cores` cores, without links.

    >>> host(cores=2).nodes["host:0"]
    {'kind': 'host', 'cores': 2}

    Raises
    ------
    InputError : fewer than one core
    """
    check_counts("host", cores=cores)
    net = empty_topology("host", {"cores": cores}, "host", 1)
    add_hosts(net, 1, cores)
    return net
