"""Readers of the parts of a node-link JSON file: nodes, edges, endpoints and routes.

Each function checks its part.  It raises InputError with the path of the file, the
position in it and the accepted values.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import LARGEST_RATE, LEAST_RATE, LONGEST_SECONDS
from quadrille.topologies.size_limits import MAX_COUNT

NODE = re.compile(r"([a-z_]+):(0|[1-9][0-9]{0,8})")
NODE_KEYS = ("id", "kind", "cores", "label")
EDGE_KEYS = frozenset(("source", "target", "key", "bandwidth", "latency", "unshared", "failed"))
LARGEST = 1e300


def check_keys(path: str, subject: str, table: Mapping[str, Any], accepted: Iterable[str]) -> None:
    """Raises InputError if a table, called `subject` in the message, has a key that is not accepted."""
    if unknown := [key for key in table if key not in accepted]:
        names = ", ".join(accepted)
        raise InputError(f"{path}: {subject} has {unknown[0]!r:.60}, which is unknown; accepted are {names}")


def cores_of_nodes(path: str, nodes: list[Any]) -> dict[str, int]:
    """Number of cores of each node, by name, in the order of the file; 1 for nodes that are not hosts."""
    cores: dict[str, int] = {}
    for place, node in enumerate(nodes):
        name = node.get("id") if isinstance(node, dict) else node
        if not (isinstance(node, dict) and isinstance(name, str) and NODE.fullmatch(name)):
            raise InputError(f"{path}: nodes[{place}]: node {name!r:.60} is not kind:index, such as host:0")
        check_keys(path, f"nodes[{place}], {name},", node, NODE_KEYS)
        if name in cores:
            raise InputError(f"{path}: nodes[{place}]: {name} is there twice")
        kind, count = name.partition(":")[0], node.get("cores", 1)
        if node.get("kind", kind) != kind:
            raise InputError(f"{path}: nodes[{place}]: {name} has kind={node['kind']!r:.40}; it must be {kind!r}")
        if not is_count(count):
            raise InputError(
                f"{path}: nodes[{place}]: {name} has cores={count!r:.40}; it must be a whole number from 1"
            )
        cores[name] = count
    return cores


def numbered(names: Iterable[str]) -> tuple[dict[str, int], dict[str, tuple[int, int]], np.ndarray | None]:
    """Number of each node, by name; first number and count of each kind; index of each node, or None for 0, 1, …

    Nodes of one kind get consecutive numbers.
    """
    by_kind: dict[str, list[str]] = {}
    for name in names:
        by_kind.setdefault(name.partition(":")[0], []).append(name)
    kinds, first = {}, 0
    for kind, members in by_kind.items():
        kinds[kind] = (first, len(members))
        first += len(members)
    ordered = [name for members in by_kind.values() for name in members]
    indices = np.array([int(name.partition(":")[2]) for name in ordered], dtype=np.int64)
    counted = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(len(members)) for members in by_kind.values())])
    numbers = {name: number for number, name in enumerate(ordered)}
    return numbers, kinds, None if np.array_equal(indices, counted) else indices


@dataclass(slots=True)
class Links:
    """Links read so far: node numbers of both ends, (bandwidth [B/s], latency [s]), and whether they never limit."""

    ends: list[tuple[int, int]] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)
    unshared: list[bool] = field(default_factory=list)

    def add(self, source: int, target: int, bandwidth: float, latency: float, *, unshared: bool) -> None:
        """Appends a link."""
        self.ends.append((source, target))
        self.rates.append((bandwidth, latency))
        self.unshared.append(unshared)


def links_of_edges(
    path: str, edges: list[Any], numbers: Mapping[str, int], *, directed: bool, multigraph: bool
) -> Links:
    """The links of all edges, in order: one for each directed edge, two (there and back) for each undirected edge."""
    links, seen = Links(), set[tuple[int, int, object]]()
    for place, edge in enumerate(edges):
        source, target = _ends(path, place, edge, numbers)
        name = f"{edge['source']}>{edge['target']}"
        if not edge.keys() <= EDGE_KEYS:
            check_keys(path, f"edges[{place}], {name},", edge, sorted(EDGE_KEYS))
        if source == target:
            raise InputError(f"{path}: edges[{place}]: {name} leads from a node to itself")
        if "key" in edge or not multigraph:
            ends = (source, target) if directed or source < target else (target, source)
            key = edge.get("key")
            parallel = *ends, key if isinstance(key, int | str) else json.dumps(key)
            if parallel in seen:
                which = f" with key={key!r}" if "key" in edge else ""
                raise InputError(f"{path}: edges[{place}]: link {name}{which} is there twice")
            seen.add(parallel)
        failed, unshared = (_switch(path, place, name, edge, word) for word in ("failed", "unshared"))
        bandwidth = 0.0 if failed else _rate(path, place, name, edge, "bandwidth", "B/s above 0")
        latency = _rate(path, place, name, edge, "latency", "seconds from 0")
        links.add(source, target, bandwidth, latency, unshared=unshared)
        if not directed:
            links.add(target, source, bandwidth, latency, unshared=unshared)
    return links


def _ends(path: str, place: int, edge: Any, numbers: Mapping[str, int]) -> tuple[int, int]:
    """Node numbers of the source and target of an edge."""
    if not isinstance(edge, dict) or not ("source" in edge and "target" in edge):
        raise InputError(f"{path}: edges[{place}]={edge!r:.80} has no source and target")
    for end in (edge["source"], edge["target"]):
        if not (isinstance(end, str) and end in numbers):
            raise InputError(f"{path}: edges[{place}]: an edge ends at {end!r:.60}, which is not among the nodes")
    return numbers[edge["source"]], numbers[edge["target"]]


def _switch(path: str, place: int, name: str, edge: Mapping[str, Any], attribute: str) -> bool:
    value = edge.get(attribute, False)
    if not isinstance(value, bool):
        raise InputError(f"{path}: edges[{place}]: link {name} has {attribute}={value!r:.40}; it must be true or false")
    return value


def _rate(path: str, place: int, name: str, edge: Mapping[str, Any], attribute: str, accepted: str) -> float:
    value = edge.get(attribute)
    least, most = (LEAST_RATE, LARGEST_RATE) if "above" in accepted else (0.0, LONGEST_SECONDS)
    if type(value) is float and least <= value <= most:
        return value
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST and isfinite(value)
    if not fits or value < 0 or (value == 0 and "above" in accepted):  # type: ignore[operator]
        needed = f"a finite number of {accepted}"
    elif not least <= value <= most:  # type: ignore[operator]
        needed = f"from {least:g} to {most:g}"
    else:
        return float(value)  # type: ignore[arg-type]
    raise InputError(f"{path}: edges[{place}]: link {name} has {attribute}={value!r:.40}; it must be {needed}")


def places_of(path: str, graph: Mapping[str, Any], nodes: Mapping[str, int]) -> tuple[str, int]:
    """Kind and number of the compute endpoints, all of which are among the nodes."""
    kinds = [name.partition(":")[0] for name in nodes]
    kind = "gpu" if "gpu" in kinds else "host"
    entry = graph.get("places", [kind, kinds.count(kind)])
    if not (isinstance(entry, list) and len(entry) == 2 and is_count(entry[1])):
        raise InputError(f"{path}: endpoints={entry!r:.60} must be [kind, count], with at least one compute place")
    if entry[0] not in ("gpu", "host"):
        raise InputError(
            f"{path}: endpoints={entry!r} must be GPUs or hosts: ['gpu', {entry[1]}] or ['host', {entry[1]}]"
        )
    for index in range(min(entry[1], len(nodes) + 1)):
        if f"{entry[0]}:{index}" not in nodes:
            raise InputError(f"{path}: place {entry[0]}:{index} of {entry[1]} is not among the nodes")
    return str(entry[0]), entry[1]


def per_node_of(path: str, graph: Mapping[str, Any]) -> int:
    """Number of endpoints in a node as the file has it, or 1."""
    count = graph.get("per_node", 1)
    if not is_count(count):
        raise InputError(f"{path}: per_node={count!r:.40} must be a whole number from 1")
    return int(count)


def node_kind_of(path: str, graph: Mapping[str, Any]) -> str:
    """The name of the kind of nodes; empty if the file does not have it."""
    from quadrille.topologies.nodes.node_kinds import NODE_KINDS  # brings the kinds of nodes along

    name = graph.get("node", "")
    if name != "" and name not in NODE_KINDS:
        raise InputError(f"{path}: node={name!r:.40} must be a kind of node: {', '.join(NODE_KINDS)}")
    return str(name)


def node_names_of(path: str, graph: Mapping[str, Any], endpoints: int, per_node: int) -> tuple[str, ...]:
    """Names of the compute nodes, in their order; empty if the file has none."""
    names = graph.get("node_names", [])
    count = -(-endpoints // per_node)
    if not (isinstance(names, list) and all(isinstance(name, str) and name for name in names)):
        raise InputError(f"{path}: node_names={names!r:.60} must be a list of names")
    if names and len(names) != count:
        raise InputError(f"{path}: node_names has {len(names)} names; there are {count} nodes")
    if len(set(names)) < len(names):
        raise InputError(f"{path}: node_names has a name twice")
    return tuple(names)


def labels_of(path: str, nodes: list[Any]) -> dict[str, str]:
    """Node `kind:index` by its label, for the nodes that have one."""
    labels: dict[str, str] = {}
    for place, node in enumerate(nodes):
        if "label" not in node:
            continue
        label = node["label"]
        if not isinstance(label, str) or not label or label in labels:
            raise InputError(f"{path}: nodes[{place}]: label={label!r:.60} must be a name that no other node has")
        labels[label] = node["id"]
    return labels


def routes_of(path: str, rows: Any, endpoints: tuple[str, int], links: int) -> list[list[list[int]]]:
    """Link numbers of the path from each endpoint to each endpoint: routes[source][target]."""
    kind, count = endpoints
    if not (isinstance(rows, list) and len(rows) == count):
        raise InputError(f"{path}: routes must be a list of {count} lists, one from each {kind}")
    for source, row in enumerate(rows):
        if not (isinstance(row, list) and len(row) == count):
            raise InputError(f"{path}: routes[{source}] must be a list of {count} routes, one to each {kind}")
        for target, route in enumerate(row):
            here = f"{path}: routes[{source}][{target}]={route!r:.60}"
            if not (isinstance(route, list) and all(type(link) is int and 0 <= link < links for link in route)):
                raise InputError(f"{here} must be a list of numbers of links, from 0 to {links - 1}")
            if source == target and route:
                raise InputError(f"{here} leads from {kind}:{source} to itself; it must be empty")
    return rows


def is_count(value: object) -> bool:
    """Whether a value is a whole number from 1 to `MAX_COUNT`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT
