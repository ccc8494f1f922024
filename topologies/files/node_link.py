"""Node-link JSON, as networkx writes graphs: in and out.

    {"directed": true, "multigraph": true,
     "graph": {"name": "pair", "places": ["host", 2]},
     "nodes": [{"id": "host:0", "cores": 2}, {"id": "host:1", "cores": 2}],
     "edges": [{"source": "host:0", "target": "host:1", "bandwidth": 1e9, "latency": 1e-6}, …]}

`schema` and `provenance` may stand beside these.  Every node is `kind:index`;
every edge is one direction of a cable and carries
`bandwidth` [B/s] and `latency` [s]; a host may carry `cores`.  The compute places
are the graph's attribute `places` = [kind, count], by default all GPUs, or all
hosts where there are no GPUs; `per_node` of them, in order, share a node.
Where `family` and `arguments` build these very nodes and links, whatever their
rates, the family's ways hold; else ways are searched.
"""

import json
import re
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.errors import InputError
from topologies.network import MOST_COUNTED, Network

NODE = re.compile(r"([a-z_]+):(0|[1-9][0-9]{0,8})")
SCHEMA = "quadrille/topology/1"
KEYS = ("schema", "directed", "multigraph", "graph", "nodes", "edges", "links", "provenance")
GRAPH_KEYS = ("name", "family", "arguments", "places", "per_node")
NODE_KEYS = ("id", "kind", "cores")
EDGE_KEYS = ("source", "target", "key", "bandwidth", "latency")


def parse(text: str, path: str) -> Network:
    """The network in this text; `path` is for messages.

    Raises
    ------
    InputError : not JSON, not such a graph, or a node or edge that cannot be; the message says which
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: is not a graph in node-link form: it is nested too deep") from None
    data, edges = _outline(path, data)
    cores = _nodes(path, data["nodes"])
    numbers, kinds, indices = _numbered(cores)
    ends, rates = _edges(path, edges, numbers)
    graph = data.get("graph", {})
    places = _places(path, graph, cores)
    hosts = [name for name in cores if name.startswith("host:")] if places[0] == "host" else []
    return Network(
        name=graph.get("name") or Path(path).stem,
        family=graph["family"] if isinstance(graph.get("family"), str) else "file",
        arguments=graph["arguments"] if isinstance(graph.get("arguments"), dict) else {},
        kinds=kinds,
        sources=np.array([source for source, _ in ends], dtype=np.int64),
        targets=np.array([target for _, target in ends], dtype=np.int64),
        bandwidths=np.array([bandwidth for bandwidth, _ in rates], dtype=np.float64),
        latencies=np.array([latency for _, latency in rates], dtype=np.float64),
        places=places,
        cores=np.array([cores[host] for host in hosts], dtype=np.int64),
        indices=indices,
        per_node=_per_node(path, graph),
    )


def dumps(net: Network, provenance: Mapping[str, Any] | None = None) -> str:
    """The network as text that `parse` reads again to an equal one, an edge a line."""
    names = [net.node_name(node) for node in range(net.node_count)]
    nodes: list[dict[str, Any]] = [{"id": name, "kind": name.partition(":")[0]} for name in names]
    if net.places[0] == "host":
        first, count = net.kinds["host"]
        for host in range(count):
            nodes[first + host]["cores"] = int(net.cores[host])
    keys: dict[tuple[int, int], int] = {}
    edges = []
    columns = (net.sources, net.targets, net.bandwidths, net.latencies)
    for source, target, bandwidth, latency in zip(*(column.tolist() for column in columns), strict=True):
        key = keys[source, target] = keys.get((source, target), -1) + 1
        edge = {"source": names[source], "target": names[target], "key": key}
        edges.append({**edge, "bandwidth": bandwidth, "latency": latency})
    graph: dict[str, Any] = {"name": net.name, "family": net.family, "arguments": dict(net.arguments)}
    graph |= {"places": list(net.places), "per_node": net.per_node}
    outline: dict[str, Any] = {"schema": SCHEMA, "directed": True, "multigraph": True, "graph": graph}
    head = json.dumps(outline | ({"provenance": dict(provenance)} if provenance else {}))[:-1]
    return f'{head},\n"nodes": [\n{_lines(nodes)}\n],\n"edges": [\n{_lines(edges)}\n]}}\n'


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return ",\n".join(map(json.dumps, rows))


def _outline(path: str, data: Any) -> tuple[dict[str, Any], list[Any]]:
    """The data and its edges, called `edges`, or `links` as networkx called them before 3.6."""
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise InputError(f"{path}: is not a graph in node-link form, which has nodes and edges")
    _check_keys(path, "the graph", data, KEYS)
    if data.get("schema", SCHEMA) != SCHEMA:
        raise InputError(f"{path}: schema={data['schema']!r:.60} must be {SCHEMA!r}, or not there")
    if data.get("directed") is not True or data.get("multigraph") is not True:
        raise InputError(f"{path}: must be directed and multigraph: an edge is one direction of a cable")
    edges = data.get("edges", data.get("links"))
    if not isinstance(edges, list):
        raise InputError(f"{path}: is not a graph in node-link form: it has no list of edges")
    if not isinstance(data.get("graph", {}), dict):
        raise InputError(f"{path}: graph={data['graph']!r:.60} must be a table of attributes")
    _check_keys(path, "graph", data.get("graph", {}), GRAPH_KEYS)
    if not isinstance(data.get("graph", {}).get("name") or "", str):
        raise InputError(f"{path}: name={data['graph']['name']!r:.60} must be a word")
    return data, edges


def _check_keys(path: str, what: str, table: Mapping[str, Any], accepted: tuple[str, ...]) -> None:
    if unknown := [key for key in table if key not in accepted]:
        raise InputError(f"{path}: {what} has {unknown[0]!r:.60}, which is unknown; accepted are {', '.join(accepted)}")


def _nodes(path: str, nodes: list[Any]) -> dict[str, int]:
    """Cores of each node, by name, in the order of the file; 1 where it is no host."""
    cores: dict[str, int] = {}
    for place, node in enumerate(nodes):
        name = node.get("id") if isinstance(node, dict) else node
        if not (isinstance(node, dict) and isinstance(name, str) and NODE.fullmatch(name)):
            raise InputError(f"{path}: nodes[{place}]: node {name!r:.60} is not kind:index, such as host:0")
        _check_keys(path, f"nodes[{place}], {name},", node, NODE_KEYS)
        if name in cores:
            raise InputError(f"{path}: nodes[{place}]: {name} is there twice")
        kind, count = name.partition(":")[0], node.get("cores", 1)
        if node.get("kind", kind) != kind:
            raise InputError(f"{path}: nodes[{place}]: {name} has kind={node['kind']!r:.40}; it must be {kind!r}")
        if not _is_count(count):
            raise InputError(
                f"{path}: nodes[{place}]: {name} has cores={count!r:.40}; it must be a whole number from 1"
            )
        cores[name] = count
    return cores


def _numbered(names: Iterable[str]) -> tuple[dict[str, int], dict[str, tuple[int, int]], np.ndarray | None]:
    """Numbers of the nodes, those of a kind together; first and count of each kind; indices, where not 0, 1, …"""
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


def _edges(
    path: str, edges: list[Any], numbers: Mapping[str, int]
) -> tuple[list[tuple[int, int]], list[tuple[float, float]]]:
    """Ends of each edge, and its bandwidth and latency."""
    ends, rates, keys = [], [], set()
    for place, edge in enumerate(edges):
        if not isinstance(edge, dict) or not ("source" in edge and "target" in edge):
            raise InputError(f"{path}: edges[{place}]={edge!r:.80} has no source and target")
        for end in (edge["source"], edge["target"]):
            if not (isinstance(end, str) and end in numbers):
                raise InputError(f"{path}: edges[{place}]: an edge ends at {end!r:.60}, which is not among the nodes")
        name = f"{edge['source']}>{edge['target']}"
        _check_keys(path, f"edges[{place}], {name},", edge, EDGE_KEYS)
        if edge["source"] == edge["target"]:
            raise InputError(f"{path}: edges[{place}]: {name} leads from a node to itself")
        if "key" in edge:
            key = (name, json.dumps(edge["key"]))
            if key in keys:
                raise InputError(f"{path}: edges[{place}]: link {name} with key={edge['key']!r} is there twice")
            keys.add(key)
        ends.append((numbers[edge["source"]], numbers[edge["target"]]))
        rates.append(
            (
                _rate(path, place, name, edge, "bandwidth", "B/s above 0"),
                _rate(path, place, name, edge, "latency", "seconds from 0"),
            )
        )
    return ends, rates


def _rate(path: str, place: int, name: str, edge: Mapping[str, Any], attribute: str, accepted: str) -> float:
    value = edge.get(attribute)
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and isfinite(value)
    if not fits or value < 0 or (value == 0 and "above" in accepted):  # type: ignore[operator]
        found = f"link {name} has {attribute}={value!r:.40}"
        raise InputError(f"{path}: edges[{place}]: {found}; it must be a finite number of {accepted}")
    return float(value)  # type: ignore[arg-type]


def _places(path: str, graph: Mapping[str, Any], nodes: Mapping[str, int]) -> tuple[str, int]:
    """Kind and count of the compute places, all of which are there."""
    kinds = [name.partition(":")[0] for name in nodes]
    kind = "gpu" if "gpu" in kinds else "host"
    given = graph.get("places", [kind, kinds.count(kind)])
    if not (isinstance(given, list) and len(given) == 2 and _is_count(given[1])):
        raise InputError(f"{path}: places={given!r:.60} must be [kind, count], with at least one compute place")
    if given[0] not in ("gpu", "host"):
        raise InputError(f"{path}: places={given!r} must be GPUs or hosts: ['gpu', {given[1]}] or ['host', {given[1]}]")
    for index in range(min(given[1], len(nodes) + 1)):
        if f"{given[0]}:{index}" not in nodes:
            raise InputError(f"{path}: place {given[0]}:{index} of {given[1]} is not among the nodes")
    return str(given[0]), given[1]


def _per_node(path: str, graph: Mapping[str, Any]) -> int:
    """Places that share a node, 1 where the file does not say."""
    given = graph.get("per_node", 1)
    if not _is_count(given):
        raise InputError(f"{path}: per_node={given!r:.40} must be a whole number from 1")
    return int(given)


def _is_count(value: object) -> bool:
    """Whether a value is a whole number from 1 that something can be counted by."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_COUNTED
