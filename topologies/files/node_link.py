"""Reader and writer of topologies as node-link JSON, the format in which networkx writes graphs.

    {"directed": true, "multigraph": true,
     "graph": {"name": "pair", "places": ["host", 2]},
     "nodes": [{"id": "host:0", "cores": 2}, {"id": "host:1", "cores": 2}],
     "edges": [{"source": "host:0", "target": "host:1", "bandwidth": 1e9, "latency": 1e-6}, …]}

The keys `schema` and `provenance` are optional.  Every node is `kind:index`; a host
may have `cores`.  Every edge has `bandwidth` [B/s] and `latency` [s].  In a `directed`
graph an edge is one direction of a cable, else a cable with both directions.  In a
`multigraph`, edges with equal ends have a `key` each.  An edge that is `failed`
carries nothing, whatever its bandwidth; an edge that is `unshared` limits no flow.
The graph's attribute `places` = [kind, count] names the compute endpoints, by
default all GPUs, or all hosts if there are no GPUs; `per_node` of the endpoints, in
order, share a node, by default those that links between GPUs and NVSwitches join;
`node` names the kind of node, such as `hgx-h100`, and with it the kind of GPU;
`node_names` names the compute nodes, in order.  A node may have a `label`, by which
options name it, too.

If `family` and `arguments` build these nodes and links, at any rates, the paths are
those of the family; else paths are searched.  A network whose paths do not follow from
its links also has `routes`: routes[s][t] lists the links from endpoint s to endpoint t,
by their numbers in the order of the edges (of a cable first the link from its
`source`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.node_link_parts import (
    check_keys,
    cores_of_nodes,
    labels_of,
    links_of_edges,
    node_kind_of,
    node_names_of,
    numbered,
    per_node_of,
    places_of,
    routes_of,
)
from quadrille.topologies.joined_gpus import joined_endpoints
from quadrille.topologies.network import Network, with_unshared
from quadrille.topologies.structured_paths import ListedPaths, RouteTable

SCHEMA = "quadrille/topology/1"
KEYS = ("schema", "directed", "multigraph", "graph", "nodes", "edges", "links", "routes", "provenance")
GRAPH_KEYS = ("name", "family", "arguments", "places", "per_node", "node", "node_names")


def parse(text: str, path: str) -> Network:
    """The network in this text; `path` is for messages.

    Raises
    ------
    InputError : not JSON, not a graph of this format, or a node or edge that cannot be; the message says which
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: is not a graph in node-link form: it is nested too deep") from None
    return network_of(data, path)


def network_of(value: Any, path: str) -> Network:
    """The network of a node-link graph, as JSON has it; `path` is for messages.

    Raises
    ------
    InputError : not a graph of this format, or a node or edge that cannot be; the message says which
    """
    data, edges = _outline(path, value)
    cores = cores_of_nodes(path, data["nodes"])
    numbers, kinds, indices = numbered(cores)
    links = links_of_edges(path, edges, numbers, directed=data["directed"], multigraph=data["multigraph"])
    graph = data.get("graph", {})
    endpoints = places_of(path, graph, cores)
    listed = routes_of(path, data["routes"], endpoints, len(links.ends)) if "routes" in data else None
    hosts = [name for name in cores if name.startswith("host:")] if endpoints[0] == "host" else []
    per_node = per_node_of(path, graph)
    net = Network(
        name=graph.get("name") or Path(path).stem,
        family=graph["family"] if isinstance(graph.get("family"), str) else "file",
        arguments=graph["arguments"] if isinstance(graph.get("arguments"), dict) else {},
        kinds=kinds,
        sources=np.array([source for source, _ in links.ends], dtype=np.int64),
        targets=np.array([target for _, target in links.ends], dtype=np.int64),
        bandwidths=np.array([bandwidth for bandwidth, _ in links.rates], dtype=np.float64),
        latencies=np.array([latency for _, latency in links.rates], dtype=np.float64),
        endpoints=endpoints,
        cores=np.array([cores[host] for host in hosts], dtype=np.int64),
        paths=None if listed is None else RouteTable.of(listed),
        indices=indices,
        per_node=per_node,
        node_kind=node_kind_of(path, graph),
        labels=labels_of(path, data["nodes"]),
    )
    if "per_node" not in graph:
        net = replace(net, per_node=joined_endpoints(net))
    if "node_names" in graph:
        names = node_names_of(path, graph, net.endpoint_count, net.per_node)
        net = replace(net, node_names=names, host_names=names if endpoints[0] == "host" and net.per_node == 1 else ())
    return with_unshared(net, np.array(links.unshared, dtype=bool))


def dumps(net: Network, provenance: Mapping[str, Any] | None = None) -> str:
    """The network as text that `parse` reads again to an equal one, an edge a line."""
    names = [net.node_name(node) for node in range(net.node_count)]
    nodes: list[dict[str, Any]] = [{"id": name, "kind": name.partition(":")[0]} for name in names]
    if net.endpoints[0] == "host":
        first, count = net.kinds["host"]
        for host in range(count):
            nodes[first + host]["cores"] = int(net.cores[host])
    for label, name in net.labels.items():
        nodes[net.node_number(name)]["label"] = label
    keys: dict[tuple[int, int], int] = {}
    edges = []
    columns = (net.sources, net.targets, net.bandwidths, net.latencies)
    for source, target, bandwidth, latency in zip(*(column.tolist() for column in columns), strict=True):
        key = keys[source, target] = keys.get((source, target), -1) + 1
        edge = {"source": names[source], "target": names[target], "key": key}
        edges.append({**edge, "bandwidth": bandwidth, "latency": latency})
    for word, links in (("failed", net.failed), ("unshared", net.unshared)):
        for link in np.flatnonzero(links).tolist() if links is not None else ():
            edges[link][word] = True
    graph: dict[str, Any] = {"name": net.name, "family": net.family, "arguments": dict(net.arguments)}
    graph |= {"places": list(net.endpoints), "per_node": net.per_node}
    graph |= {"node": net.node_kind} if net.node_kind else {}
    graph |= {"node_names": list(net.node_names)} if net.node_names else {}
    outline: dict[str, Any] = {"schema": SCHEMA, "directed": True, "multigraph": True, "graph": graph}
    head = json.dumps(outline | ({"provenance": dict(provenance)} if provenance else {}))[:-1]
    lists: dict[str, Iterable[Any]] = {"nodes": nodes, "edges": edges}
    if isinstance(net.paths, ListedPaths):
        lists["routes"] = net.paths.rows(net.endpoint_count)
    body = ",\n".join(f'"{name}": [\n{_lines(rows)}\n]' for name, rows in lists.items())
    return f"{head},\n{body}}}\n"


def _lines(rows: Iterable[Any]) -> str:
    return ",\n".join(map(json.dumps, rows))


def _outline(path: str, data: Any) -> tuple[dict[str, Any], list[Any]]:
    """The data and its edges, called `edges`, or `links` as networkx called them before 3.6."""
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise InputError(f"{path}: is not a graph in node-link form, which has nodes and edges")
    check_keys(path, "the graph", data, KEYS)
    if data.get("schema", SCHEMA) != SCHEMA:
        raise InputError(f"{path}: schema={data['schema']!r:.60} must be {SCHEMA!r}, or not there")
    for word, meaning in (
        ("directed", "an edge is one direction of a cable, or both"),
        ("multigraph", "edges have keys"),
    ):
        if not isinstance(data.get(word), bool):
            raise InputError(f"{path}: {word}={data.get(word)!r:.40} must be true or false: {meaning}")
    edges = data.get("edges", data.get("links"))
    if not isinstance(edges, list):
        raise InputError(f"{path}: is not a graph in node-link form: it has no list of edges")
    if not isinstance(data.get("graph", {}), dict):
        raise InputError(f"{path}: graph={data['graph']!r:.60} must be a table of attributes")
    check_keys(path, "graph", data.get("graph", {}), GRAPH_KEYS)
    if not isinstance(data.get("graph", {}).get("name") or "", str):
        raise InputError(f"{path}: name={data['graph']['name']!r:.60} must be a word")
    arguments = data.get("graph", {}).get("arguments")
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        if isinstance(value, float) and not isfinite(value):
            raise InputError(f"{path}: graph has {name}={value}; a finite number is accepted")
    return data, edges
