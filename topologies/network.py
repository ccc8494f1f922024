"""`Network`: a topology as arrays of nodes `kind:index` and of links, each one direction of a cable.

A cluster of 131,072 GPUs has half a million links, so nodes and links are
numbers, their attributes are arrays, and names are composed on demand.  Nodes of
one kind have consecutive numbers.  `leaf:3>spine:1` is a link, `leaf:3-spine:1`
is both directions of a cable, and the j-th parallel link, from j = 1, ends in `#j`.

    nodes   host:0 host:1 | leaf:0      kinds  {"host": (0, 2), "leaf": (2, 1)}
    links   host:0>leaf:0  leaf:0>host:0  host:1>leaf:0  leaf:0>host:1

`graph()` returns the same topology as a networkx graph.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError, nearest_names
from quadrille.topologies.structured_paths import PathSet

if TYPE_CHECKING:
    import networkx as nx

NUMBER = re.compile("0|[1-9][0-9]{0,17}")
Argument = int | float | str
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a cable: bandwidth [B/s], latency [s]."""

    source: str
    target: str
    index: int
    bandwidth: float
    latency: float
    label: str = ""

    @property
    def name(self) -> str:
        """The name of the network's file, or else of both ends."""
        return self.label or link_name(self.source, self.target, self.index)


@dataclass(frozen=True, eq=False)
class Network:
    """A topology: its nodes, its links and its compute endpoints.

    Parameters
    ----------
    name : name of the topology, as it is printed
    family, arguments : family and arguments from which `build` makes the same topology
    kinds : number of the first node, and number of nodes, of each kind
    indices : index of each node within its kind [nodes]; None where the indices of each kind are 0, 1, …
    per_node : number of compute endpoints in a node; endpoint i is in node i // per_node
    sources, targets : node numbers of the two ends of each link [links]
    bandwidths : bandwidth of each link [B/s]; 0 if the link has failed [links]
    latencies : latency of each link [s] [links]
    endpoints : kind and number of the compute endpoints; endpoint i is the node `kind:i`
    cores : number of cores of each host [hosts]; empty if the endpoints are GPUs
    paths : shortest paths between endpoints in closed form; None if they must be searched
    host_names : names of the endpoints in the file of the network, in their order; empty if the file has none
    cable_names : links of each link of the file, by the name that the file gives; a SPLITDUPLEX link `a` is also
        `a_UP` and `a_DOWN`, after `a`
    unshared : whether each link gives every flow more bandwidth than the flow can use, and so only adds latency [links]
    node_kind : name of the kind of the nodes, as in `NODE_KINDS`, if a file names it; else empty
    undegraded : bandwidth of each link without degradation; None where no link is degraded [links] [B/s]
    node_names : names of the compute nodes in the file of the network, in their order; empty if the file has none
    labels : node `kind:index` by the name that the file of the network gives it, such as that of a switch
    """

    name: str
    family: str
    arguments: Mapping[str, Argument]
    kinds: Mapping[str, tuple[int, int]]
    sources: Ints
    targets: Ints
    bandwidths: Floats
    latencies: Floats
    endpoints: tuple[str, int]
    cores: Ints
    paths: PathSet | None = None
    indices: Ints | None = field(default=None, repr=False)
    per_node: int = 1
    host_names: Sequence[str] = field(default=(), repr=False)
    cable_names: Mapping[str, Sequence[int]] = field(default_factory=dict, repr=False)
    unshared: NDArray[np.bool_] | None = field(default=None, repr=False)
    node_kind: str = ""
    undegraded: Floats | None = field(default=None, repr=False)
    node_names: Sequence[str] = field(default=(), repr=False)
    labels: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def node_count(self) -> int:
        return sum(count for _, count in self.kinds.values())

    @property
    def link_count(self) -> int:
        return len(self.sources)

    @property
    def endpoint_count(self) -> int:
        return self.endpoints[1]

    @property
    def card_kind(self) -> str:
        """Kind of the nodes by which messages leave a compute node: network cards, or endpoints where it has none."""
        return "nic" if "nic" in self.kinds else self.endpoints[0]

    @property
    def cards_per_node(self) -> int:
        """Number of nodes of `card_kind` in each compute node; the last compute node counts as full.

        Compute nodes without endpoints, which a machine sets aside, have cards, too.
        """
        if self.card_kind == self.endpoints[0]:
            return self.per_node
        compute_nodes = -(-self.kinds[self.endpoints[0]][1] // self.per_node)
        return max(1, -(-self.kinds[self.card_kind][1] // compute_nodes))

    def endpoint_nodes(self) -> Ints:
        """Node number of each compute endpoint [endpoints]."""
        kind, count = self.endpoints
        if self.indices is None:
            return self.kinds[kind][0] + np.arange(count)
        return np.array([self.node_number(f"{kind}:{index}") for index in range(count)], dtype=np.int64)

    # Names

    def node_name(self, node: int) -> str:
        for kind, (first, count) in self.kinds.items():
            if first <= node < first + count:
                return f"{kind}:{node - first if self.indices is None else int(self.indices[node])}"
        raise IndexError(node)

    def node_number(self, name: str) -> int:
        """Number of the node with this name or label; -1 if there is no such node."""
        kind, _, text = self.labels.get(name, name).partition(":")
        if kind not in self.kinds or not _is_number(text):
            return -1
        (first, count), index = self.kinds[kind], int(text)
        if self.indices is None:
            return first + index if index < count else -1
        matches = np.flatnonzero(self.indices[first : first + count] == index)
        return first + int(matches[0]) if len(matches) else -1

    def link(self, number: int) -> Link:
        return Link(
            self.node_name(int(self.sources[number])),
            self.node_name(int(self.targets[number])),
            int(self._parallel_indices(np.array([number]))[0]),
            float(self.bandwidths[number]),
            float(self.latencies[number]),
            self.link_names([number])[0] if self.cable_names else "",
        )

    def link_names(self, numbers: "Ints | Sequence[int]") -> list[str]:
        """Names of the links with these numbers, found in one pass over all links.

        >>> from quadrille.topologies.families.basic import star
        >>> star(2, bandwidth=1e9, latency=1e-6).link_names([0, 3])
        ['host:0>switch:0', 'switch:0>host:1']
        """
        chosen = np.asarray(numbers, dtype=np.int64)
        if self.cable_names:
            names = {link: name for name, links in self.cable_names.items() for link in links}
            return [names[link] for link in chosen.tolist()]
        ends = self.sources[chosen].tolist(), self.targets[chosen].tolist(), self._parallel_indices(chosen).tolist()
        return [
            link_name(self.node_name(source), self.node_name(target), index)
            for source, target, index in zip(*ends, strict=True)
        ]

    def link_number(self, name: str) -> int:
        """Number of the link with this name (one direction of a cable).

        Raises
        ------
        InputError : no such link; the message lists the links that leave the same node
        """
        path, mark, text = name.partition("#")
        source, _, target = path.partition(">")
        parallel = self._parallel(self.node_number(source), self.node_number(target))
        if not mark and len(parallel):
            return int(parallel[0])
        if _is_number(text) and 0 < int(text) < len(parallel):
            return int(parallel[int(text)])
        raise InputError(f"link {name!r} is not in topology {self.name!r}: {self._choices(source)}")

    def link_numbers(self, name: str) -> list[int]:
        """Numbers of the link `a>b`, or of both directions of the cable `a-b`.

        Raises
        ------
        InputError : no such link
        """
        if name in self.cable_names:
            return list(self.cable_names[name])
        if ">" in name or "-" not in name:
            return [self.link_number(name)]
        path, mark, index = name.partition("#")
        first, second = self._cable_ends(path)
        return [self.link_number(f"{first}>{second}{mark}{index}"), self.link_number(f"{second}>{first}{mark}{index}")]

    def _cable_ends(self, path: str) -> tuple[str, str]:
        """The two ends of `a-b`; labels may have hyphens, so both must be nodes if any hyphen allows it."""
        words = path.split("-")
        for place in range(1, len(words)):
            first, second = "-".join(words[:place]), "-".join(words[place:])
            if self.node_number(first) >= 0 and self.node_number(second) >= 0:
                return first, second
        first, _, second = path.partition("-")
        return first, second

    def _parallel_indices(self, numbers: Ints) -> Ints:
        """Index of each of these links among the parallel links between the same two nodes."""
        pairs = self.sources * self.node_count + self.targets
        parallel = np.flatnonzero(np.isin(pairs, pairs[numbers]))
        order = parallel[np.argsort(pairs[parallel], kind="stable")]
        begins = np.diff(pairs[order], prepend=-1) != 0
        position = np.arange(len(order))
        index = np.zeros(self.link_count, dtype=np.int64)
        index[order] = position - np.maximum.accumulate(np.where(begins, position, 0))
        return index[numbers]

    def _parallel(self, source: int, target: int) -> Ints:
        """Numbers of all links from one node to another."""
        return np.flatnonzero((self.sources == source) & (self.targets == target))

    def _choices(self, source: str) -> str:
        node = self.node_number(source)
        if node < 0 and self.cable_names:
            near = nearest_names(source, self.cable_names, 3) or list(self.cable_names)[:3]
            return f"there is for example {', '.join(near)}"
        if node < 0:
            return f"there is no node {source!r}; a link is written leaf:3>spine:1"
        names = self.link_names(np.flatnonzero(self.sources == node)[:9])
        return f"{source} has " + (", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "no links")

    # Other forms

    def with_bandwidths(self, bandwidths: Floats) -> "Network":
        """A copy of the network with these bandwidths [B/s]; 0 marks a link that has failed.

        Raises
        ------
        InputError : a changed bandwidth, other than 0, of an `unshared` link
        """
        if self.unshared is not None:
            changed = np.flatnonzero(self.unshared & (bandwidths != self.bandwidths) & (bandwidths != 0))
            if len(changed):
                name = self.link_names(changed[:1])[0]
                raise InputError(f"link {name} is not shared by flows (FATPIPE): it can fail, but not be degraded")
        return replace(self, bandwidths=bandwidths)

    def degraded(self, shares: Floats) -> "Network":
        """A copy of the network in which each link keeps a share of its bandwidth.

        Raises
        ------
        InputError : a share below 1 of an `unshared` link
        """
        slower = self.with_bandwidths(self.bandwidths * shares)
        return replace(slower, undegraded=self.bandwidths if self.undegraded is None else self.undegraded)

    def expected(self) -> "Network":
        """The network as libraries expect it: without degraded links, which nothing tells them; the same if none is."""
        if self.undegraded is None:
            return self
        return replace(self, bandwidths=np.where(self.failed, 0.0, self.undegraded), undegraded=None)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Whether each link has failed [links]."""
        failed: NDArray[np.bool_] = self.bandwidths == 0
        return failed

    def graph(self) -> "nx.MultiDiGraph":
        """The topology as a networkx graph; nodes have `kind`, hosts `cores`, edges `bandwidth` and `latency`."""
        import networkx as nx

        net = nx.MultiDiGraph(
            name=self.name, family=self.family, arguments=dict(self.arguments), places=list(self.endpoints)
        )
        names = [self.node_name(node) for node in range(self.node_count)]
        for node, name in enumerate(names):
            net.add_node(name, kind=name.partition(":")[0])
            if self.endpoints[0] == "host" and name.startswith("host:"):
                net.nodes[name]["cores"] = int(self.cores[node - self.kinds["host"][0]])
        net.add_edges_from(
            (names[s], names[t], {"bandwidth": b, "latency": seconds})
            for s, t, b, seconds in zip(
                self.sources.tolist(),
                self.targets.tolist(),
                self.bandwidths.tolist(),
                self.latencies.tolist(),
                strict=True,
            )
        )
        return net


def with_unshared(net: Network, unshared: NDArray[np.bool_]) -> Network:
    """The network in which these links never limit a flow: each gets twice the bandwidth of all other links together.

    This equals a link without sharing, provided that every path over it also has
    a shared link that is no faster: that link limits each flow, and all shared
    links together limit all flows together.

    >>> from quadrille.topologies.families.basic import star
    >>> with_unshared(star(2, bandwidth=1e9, latency=0.0), np.array([True, False, False, False])).bandwidths.tolist()
    [6000000000.0, 1000000000.0, 1000000000.0, 1000000000.0]
    """
    if not unshared.any():
        return net
    bandwidths = np.where(unshared & ~net.failed, 2 * net.bandwidths[~unshared].sum(), net.bandwidths)
    return replace(net, bandwidths=bandwidths, unshared=unshared)


def _is_number(text: str) -> bool:
    """Whether the text is an index as node names have it: 0, 1, 2, … without leading zeros."""
    return NUMBER.fullmatch(text) is not None


def link_name(source: str, target: str, index: int = 0) -> str:
    """Name of the `index`-th parallel link from one node to another.

    >>> link_name("leaf:3", "spine:1"), link_name("leaf:3", "spine:1", 2)
    ('leaf:3>spine:1', 'leaf:3>spine:1#2')
    """
    return f"{source}>{target}#{index}" if index else f"{source}>{target}"
