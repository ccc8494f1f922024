"""The picture of a network: where each node stands, and which nodes a cable joins.

rows      endpoints at the bottom, and each kind of node at its distance from them
lattice   a torus or a mesh: a node stands at its coordinates, its hosts beside it
circle    a ring, and endpoints that are joined directly
routes    a file that lists routes without switches: every link is a node, joined to the next link of a route
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import cos, pi, prod, sin

import numpy as np

from quadrille.topologies.families.number_lists import whole_numbers
from quadrille.topologies.network import Floats, Network
from quadrille.topologies.routes.search import Hops
from quadrille.topologies.structured_paths import ListedPaths

LATTICES = ("torus", "mesh")
CIRCLES = ("ring", "full")
STRAIGHT, CURVED = 0.0, 0.25
"""Curvature of cables between neighbours, and of cables that pass by other nodes."""
OBLIQUE = (0.37, 0.29)
"""Direction of a third dimension."""
HOST_DISTANCE = 0.22
"""Distance of hosts from their router in a lattice."""
LINK_KIND = "link"


@dataclass(frozen=True, slots=True)
class Cable:
    """A line between two nodes.

    Parameters
    ----------
    ends : indices of the nodes
    bandwidth : bandwidth of all its links together [B/s]; 0 if all have failed
    links : numbers of its links
    curvature : distance of the middle from the straight line, as a share of the length
    """

    ends: tuple[int, int]
    bandwidth: float
    links: tuple[int, ...]
    curvature: float = STRAIGHT


@dataclass(frozen=True, slots=True)
class NetworkPicture:
    """The nodes and cables of a picture.

    Parameters
    ----------
    positions : position of each node [nodes, 2]
    kinds : indices of the nodes of each kind
    labels : short text of each node
    cables : lines between nodes
    in_rows : whether each kind stands in a row of its own
    link_nodes : node of each link, where links are nodes
    """

    positions: Floats
    kinds: Mapping[str, range]
    labels: tuple[str, ...]
    cables: tuple[Cable, ...]
    in_rows: bool = False
    link_nodes: Mapping[int, int] = field(default_factory=dict)


def picture_of(net: Network) -> NetworkPicture:
    """The picture of a network.

    >>> from quadrille.topologies.families.torus import torus
    >>> picture = picture_of(torus("3x2", bandwidth=1e9, latency=1e-6))
    >>> picture.positions.tolist()
    [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
    >>> sorted(cable.ends for cable in picture.cables if cable.curvature)
    [(0, 2), (3, 5)]
    """
    if isinstance(net.paths, ListedPaths) and not _joins_endpoints(net):
        return _picture_of_routes(net)
    lengths = _lattice_lengths(net)
    in_rows = not lengths and net.family not in CIRCLES
    if in_rows:
        positions = positions_of_nodes(net)
    elif len(lengths) > 1:
        positions = _lattice_positions(net, lengths)
    else:
        positions = _circle_positions(net)
    kinds = {kind: range(first, first + count) for kind, (first, count) in net.kinds.items()}
    labels = tuple(net.node_name(node).partition(":")[2] for node in range(net.node_count))
    return NetworkPicture(positions, kinds, labels, tuple(_cables(net, positions, lengths)), in_rows)


def positions_of_nodes(net: Network) -> Floats:
    """The position of each node in rows [nodes, 2]: across, spread evenly; up, hops from the nearest endpoint.

    A kind of node at the same distance as another kind gets a row of its own.
    """
    hops = Hops(net).nearest(net.endpoint_nodes())
    hops = np.where(hops < 0, net.node_count, hops)
    first_hops = {kind: int(hops[first : first + count].min()) for kind, (first, count) in net.kinds.items() if count}
    rows = sorted(first_hops, key=lambda kind: (first_hops[kind], list(net.kinds).index(kind)))
    node_positions = np.zeros((net.node_count, 2))
    for row, kind in enumerate(rows):
        first, count = net.kinds[kind]
        node_positions[first : first + count, 0] = (np.arange(count) + 0.5) / count
        node_positions[first : first + count, 1] = row
    return node_positions


def _joins_endpoints(net: Network) -> bool:
    """Whether the links of a network reach its endpoints."""
    return bool(np.isin(net.endpoint_nodes(), net.sources).any())


def _lattice_lengths(net: Network) -> tuple[int, ...]:
    """The lengths of a torus or a mesh above 1; empty for other networks."""
    if net.family not in LATTICES or "dims" not in net.arguments:
        return ()
    dims = net.arguments["dims"]
    return tuple(n for n in whole_numbers(net.family, "dims", dims if isinstance(dims, str) else int(dims)) if n > 1)


def _coordinates(count: int, lengths: Iterable[int]) -> Floats:
    """The coordinates of each vertex of a lattice, the first varies fastest [vertices, dimensions]."""
    return np.stack(np.unravel_index(np.arange(count), tuple(lengths), order="F"), axis=1).astype(float)


def _vertices(net: Network, lengths: tuple[int, ...]) -> tuple[int, int]:
    """The first node, and the number of nodes, that are the vertices of a lattice."""
    return next(
        span for kind, span in net.kinds.items() if span[1] == prod(lengths) and (kind != "host" or len(net.kinds) == 1)
    )


def _lattice_positions(net: Network, lengths: tuple[int, ...]) -> Floats:
    """The positions of the vertices at their coordinates, further dimensions as copies of the lattice, and hosts."""
    first, count = _vertices(net, lengths)
    across, up = lengths[0] + 1.0, lengths[1] + 1.0
    directions = [(1.0, 0.0), (0.0, 1.0), OBLIQUE, (across, 0.0), (0.0, up)]
    directions += (
        [(across * lengths[3], 0.0), (0.0, up * lengths[4])][: max(0, len(lengths) - 5)] if len(lengths) > 5 else []
    )
    directions += [(0.11, 0.17)] * max(0, len(lengths) - len(directions))
    positions = np.zeros((net.node_count, 2))
    positions[first : first + count] = _coordinates(count, lengths) @ np.array(directions[: len(lengths)])
    _place_hosts(net, positions, first)
    return positions


def _circle_positions(net: Network) -> Floats:
    """The positions of the vertices on a circle, and their hosts."""
    kind = next((kind for kind in net.kinds if kind != net.endpoints[0]), net.endpoints[0])
    first, count = net.kinds[kind]
    angles = pi / 2 - 2 * pi * np.arange(count) / max(count, 1)
    positions = np.zeros((net.node_count, 2))
    positions[first : first + count] = max(1.0, count / 6) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    _place_hosts(net, positions, first)
    return positions


def _place_hosts(net: Network, positions: Floats, first_vertex: int) -> None:
    """Puts the endpoints around their routers, unless the endpoints are the vertices."""
    kind, endpoints = net.endpoints
    first, count = net.kinds[kind]
    if first == first_vertex:
        return
    vertices = next(number for start, number in net.kinds.values() if start == first_vertex)
    hosts = max(1, endpoints // max(1, vertices))
    for host in range(count):
        angle = 1.25 * pi + 0.5 * pi * ((host % hosts) + 0.5) / hosts
        offset = HOST_DISTANCE * np.array([cos(angle), sin(angle)])
        positions[first + host] = positions[first_vertex + host // hosts] + offset


def _cables(net: Network, positions: Floats, lengths: tuple[int, ...]) -> Iterable[Cable]:
    """The cables of a network: all links between the same two nodes are one."""
    links: dict[tuple[int, int], list[int]] = defaultdict(list)
    for link in range(net.link_count):
        source, target = sorted((int(net.sources[link]), int(net.targets[link])))
        links[source, target].append(link)
    for ends, numbers in links.items():
        bandwidth = float(sum(net.bandwidths[number] for number in numbers))
        yield Cable(ends, bandwidth, tuple(numbers), _curvature(net, positions, lengths, ends))


def _curvature(net: Network, positions: Floats, lengths: tuple[int, ...], ends: tuple[int, int]) -> float:
    """The curvature of a cable: 0 between neighbours of a lattice, on a circle, and between rows."""
    if len(lengths) > 1:
        first, count = _vertices(net, lengths)
        if not all(first <= end < first + count for end in ends):
            return STRAIGHT
        coordinates = _coordinates(count, lengths)
        steps = np.abs(coordinates[ends[0] - first] - coordinates[ends[1] - first]).sum()
        return STRAIGHT if steps <= 1 else CURVED
    if lengths or net.family in CIRCLES:
        return STRAIGHT
    return CURVED if positions[ends[0], 1] == positions[ends[1], 1] else STRAIGHT


def _picture_of_routes(net: Network) -> NetworkPicture:
    """The picture of a network whose file lists routes: hosts, and links in rows by their distance from the hosts.

    Both directions of a cable are one node.
    """
    assert isinstance(net.paths, ListedPaths)
    nodes: dict[str, int] = {}
    joined: dict[tuple[int, int], None] = {}
    depth: dict[int, int] = {}
    hosts, links_of = net.endpoint_count, defaultdict[int, list[int]](list)
    names = net.link_names(range(net.link_count))
    cable = {number: _cable_name(net, number, names[number]) for number in range(net.link_count)}
    for source, row in enumerate(net.paths.rows(hosts)):
        for target, path in enumerate(row):
            passed = [
                hosts + nodes.setdefault(name, len(nodes)) for name in dict.fromkeys(cable[link] for link in path)
            ]
            for place, node in enumerate(passed):
                depth[node] = min(depth.get(node, len(passed)), 1 + min(place, len(passed) - 1 - place))
            for link in path:
                links_of[hosts + nodes[cable[link]]].append(link)
            ends = [source, *passed, target] if passed else []
            joined |= dict.fromkeys((min(pair), max(pair)) for pair in pairwise(ends))
    positions = np.zeros((hosts + len(nodes), 2))
    positions[:hosts, 0] = (np.arange(hosts) + 0.5) / max(1, hosts)
    for level in set(depth.values()):
        members = sorted(node for node in depth if depth[node] == level)
        positions[members, 0] = (np.arange(len(members)) + 0.5) / len(members)
        positions[members, 1] = level
    widths = {node: float(max(net.bandwidths[link] for link in links)) for node, links in links_of.items()}
    cables = tuple(
        Cable(ends, min(widths[end] for end in ends if end in widths), ()) for ends in joined if ends[0] != ends[1]
    )
    host_labels = net.host_names or [net.node_name(int(node)).partition(":")[2] for node in net.endpoint_nodes()]
    labels = (*host_labels, *nodes)
    kinds = {net.endpoints[0]: range(hosts), LINK_KIND: range(hosts, hosts + len(nodes))}
    link_nodes = {link: node for node, links in links_of.items() for link in links}
    return NetworkPicture(positions, kinds, labels, cables, link_nodes=link_nodes)


def _cable_name(net: Network, link: int, name: str) -> str:
    """The name of both directions of a link: that of the file, or that of the ends in their order."""
    for cable, numbers in net.cable_names.items():
        if link in numbers:
            return cable
    return "-".join(sorted(name.partition("#")[0].split(">")))
