"""The links that a message takes from one compute place to another.

Where the topology's builder has a structure, the route follows from the numbers
of the two places alone.  Otherwise it is one of the shortest by hops, found by
one breadth-first search per source; the last sources are kept.  Nothing here
grows with the square of the number of places.

Routes are deterministic.  Among equals the number of the target decides: its
residue picks the spine, the predecessor, the parallel cable, so that the
targets spread over them.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import networkx as nx

from algorithms.errors import InputError
from topologies.cluster import gpu_cluster_path, node_kind
from topologies.fat_tree import fat_tree_path
from topologies.graph import Argument, place_count
from topologies.leaf_spine import leaf_spine_path
from topologies.links import link_name
from topologies.star import star_path

ROUTES_KEPT = 1 << 16
SOURCES_KEPT = 256

Path = Callable[[int, int], list[str]]


class Routes:
    """Routes through one topology, between places given by number.

    >>> from topologies.star import star
    >>> Routes(star(3, bandwidth=1e9, latency=1e-6)).between(0, 2)
    ('host:0>switch:0', 'switch:0>host:2')
    """

    def __init__(self, net: nx.MultiDiGraph) -> None:
        self._net = net
        self._kind = net.graph["places"][0]
        self._path = _structure(net)
        self._route = lru_cache(ROUTES_KEPT)(self._found)
        self._search = lru_cache(SOURCES_KEPT)(self._predecessors)

    def between(self, source: int, target: int) -> tuple[str, ...]:
        """Names of the links from place `source` to place `target`; none from a place to itself.

        Raises
        ------
        InputError : a place that is not there, or no way between the two
        """
        return self._route(source, target)

    def _found(self, source: int, target: int) -> tuple[str, ...]:
        for place in (source, target):
            if not 0 <= place < place_count(self._net):
                raise InputError(f"place {place}: topology {self._net.name!r} has {place_count(self._net)}, from 0")
        if source == target:
            return ()
        path = self._path(source, target) if self._path else self._searched(source, target)
        hops = list(pairwise(path))
        if self._path and not all(self._net.has_edge(*hop) for hop in hops):  # a link was taken away
            path = self._searched(source, target)
            hops = list(pairwise(path))
        return tuple(self._link(one, other, target) for one, other in hops)

    def _link(self, one: str, other: str, target: int) -> str:
        """The parallel link that traffic to place `target` takes between two neighbours."""
        parallel = sorted(self._net[one][other])
        return link_name(one, other, parallel[target % len(parallel)])

    def _searched(self, source: int, target: int) -> list[str]:
        """A shortest path by hops, walked back from the target."""
        predecessors = self._search(source)
        first, last = f"{self._kind}:{source}", f"{self._kind}:{target}"
        if last not in predecessors:
            raise InputError(f"topology {self._net.name!r} has no way from {first} to {last}")
        path = [last]
        while path[-1] != first:
            choices = predecessors[path[-1]]
            path.append(choices[target % len(choices)])
        return path[::-1]

    def _predecessors(self, source: int) -> Mapping[str, Sequence[str]]:
        """The last nodes before each node on all shortest paths from `source`."""
        first = f"{self._kind}:{source}"
        distance, predecessors, queue = {first: 0}, {first: list[str]()}, deque([first])
        while queue:
            node = queue.popleft()
            for neighbour in sorted(self._net[node]):
                if neighbour not in distance:
                    distance[neighbour] = distance[node] + 1
                    predecessors[neighbour] = []
                    queue.append(neighbour)
                if distance[neighbour] == distance[node] + 1:
                    predecessors[neighbour].append(node)
        return predecessors


def _structure(net: nx.MultiDiGraph) -> Path | None:
    """The path that the topology's builder prescribes, where there is one."""
    arguments: dict[str, Argument] = net.graph.get("arguments", {})
    match net.graph.get("family"):
        case "star":
            return star_path
        case "leaf-spine":
            spines, hosts_per_leaf = int(arguments["spines"]), int(arguments["hosts_per_leaf"])
            return lambda source, target: leaf_spine_path(spines, hosts_per_leaf, source, target)
        case "fat-tree":
            ports = int(arguments["ports"])
            return lambda source, target: fat_tree_path(ports, source, target)
        case "gpu-cluster":
            kind, per_leaf = node_kind(arguments), arguments.get("nodes_per_leaf")
            leaf_nodes = None if per_leaf is None else int(per_leaf)
            return lambda source, target: gpu_cluster_path(kind, leaf_nodes, source, target)
        case _:
            return None
