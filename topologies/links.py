"""Links: the directions of cables, by name.

`leaf:3>spine:1` is one direction, `leaf:3-spine:1` both; the j-th parallel
cable, from j = 1, has `#j` at the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from algorithms.errors import InputError


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a cable: bandwidth [B/s], latency [s]."""

    source: str
    target: str
    index: int
    bandwidth: float
    latency: float

    @property
    def name(self) -> str:
        return link_name(self.source, self.target, self.index)


def link_name(source: str, target: str, index: int = 0) -> str:
    """Name of the `index`-th parallel link from one node to another.

    >>> link_name("leaf:3", "spine:1"), link_name("leaf:3", "spine:1", 2)
    ('leaf:3>spine:1', 'leaf:3>spine:1#2')
    """
    return f"{source}>{target}#{index}" if index else f"{source}>{target}"


def links(net: nx.MultiDiGraph) -> Iterator[Link]:
    """All links, in the order in which the builder made them."""
    for source, target, index, edge in net.edges(keys=True, data=True):
        yield Link(source, target, index, edge["bandwidth"], edge["latency"])


def find_link(net: nx.MultiDiGraph, name: str) -> Link:
    """The link of this name (one direction).

    Raises
    ------
    InputError : no such link; the message lists those that leave the same node
    """
    way, _, index = name.partition("#")
    source, _, target = way.partition(">")
    if index in ("", *map(str, range(1, 1 + net.number_of_edges(source, target)))):
        parallel = int(index or 0)
        if net.has_edge(source, target, parallel):
            edge = net.edges[source, target, parallel]
            return Link(source, target, parallel, edge["bandwidth"], edge["latency"])
    raise InputError(f"link {name!r} is not in topology {net.name!r}: {_choices(net, source)}")


def find_links(net: nx.MultiDiGraph, name: str) -> tuple[Link, ...]:
    """The link `a>b`, or both directions of `a-b`.

    Raises
    ------
    InputError : no such link
    """
    if ">" in name or "-" not in name:
        return (find_link(net, name),)
    way, mark, index = name.partition("#")
    one, _, other = way.partition("-")
    return find_link(net, f"{one}>{other}{mark}{index}"), find_link(net, f"{other}>{one}{mark}{index}")


def _choices(net: nx.MultiDiGraph, source: str) -> str:
    if source not in net:
        return f"there is no node {source!r}; a link is written leaf:3>spine:1"
    names = [link_name(source, target, index) for _, target, index in net.out_edges(source, keys=True)]
    return f"{source} has " + (", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "no links")
