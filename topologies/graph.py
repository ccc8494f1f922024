"""What all topologies share: nodes `kind:index`, cables, compute places.

Graph attributes: `name`, `family` and `arguments` (what `build` made it from),
`places` = (kind, count): compute place i is the node `kind:i`.  A host node
carries `cores`.  An edge is one direction of a cable and carries `bandwidth`
[B/s] and `latency` [s]; parallel cables are told apart by their key 0, 1, ….
"""

from collections.abc import Mapping
from math import isfinite

import networkx as nx

from algorithms.errors import InputError

Argument = int | float | str


def empty_topology(family: str, arguments: Mapping[str, Argument | None], kind: str, count: int) -> nx.MultiDiGraph:
    """A topology without nodes, whose compute places will be `kind:0` .. `kind:count-1`.

    >>> empty_topology("star", {"hosts": 3}, "host", 3).name
    'star:hosts=3'
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    text = ",".join(f"{name}={value}" for name, value in given.items())
    return nx.MultiDiGraph(name=f"{family}:{text}", family=family, arguments=given, places=(kind, count))


def add_node(net: nx.MultiDiGraph, node: str, **attributes: int) -> None:
    """Adds `kind:index`, with its kind as an attribute."""
    net.add_node(node, kind=node.partition(":")[0], **attributes)


def add_hosts(net: nx.MultiDiGraph, count: int, cores: int) -> None:
    """Adds host:0 .. host:count-1, each with `cores` cores."""
    for index in range(count):
        add_node(net, f"host:{index}", cores=cores)


def add_nodes(net: nx.MultiDiGraph, kind: str, count: int) -> None:
    """Adds kind:0 .. kind:count-1."""
    for index in range(count):
        add_node(net, f"{kind}:{index}")


def add_cable(net: nx.MultiDiGraph, one: str, other: str, *, bandwidth: float, latency: float) -> None:
    """Joins two nodes in both directions; a second cable between them is a parallel one."""
    net.add_edge(one, other, bandwidth=float(bandwidth), latency=float(latency))
    net.add_edge(other, one, bandwidth=float(bandwidth), latency=float(latency))


def place_count(net: nx.MultiDiGraph) -> int:
    """Number of compute places."""
    count: int = net.graph["places"][1]
    return count


def places(net: nx.MultiDiGraph) -> list[str]:
    """Nodes that compute, in order.

    >>> places(empty_topology("star", {"hosts": 3}, "host", 3))
    ['host:0', 'host:1', 'host:2']
    """
    kind, count = net.graph["places"]
    return [f"{kind}:{index}" for index in range(count)]


def check_counts(family: str, **counts: int) -> None:
    """Refuses a count below one.

    Raises
    ------
    InputError : naming the family, the count and its value
    """
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{family}: {name}={count} must be a whole number from 1")


def check_cable(family: str, bandwidth: float, latency: float, *, prefix: str = "") -> None:
    """Refuses a cable that cannot be: bandwidth [B/s] finite and above 0, latency [s] finite and from 0.

    Raises
    ------
    InputError : naming the family, the quantity (with `prefix`) and its value
    """
    if not (isfinite(bandwidth) and bandwidth > 0):
        raise InputError(f"{family}: {prefix}bandwidth={bandwidth} must be a finite number of B/s above 0")
    if not (isfinite(latency) and latency >= 0):
        raise InputError(f"{family}: {prefix}latency={latency} must be a finite number of seconds from 0")
