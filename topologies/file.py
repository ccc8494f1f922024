"""Topologies from node-link JSON files, as networkx writes them."""

import json
import re
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

import networkx as nx

from algorithms.errors import InputError

NODE = re.compile(r"[a-z_]+:(0|[1-9][0-9]*)")


def load_topology(path: str | Path) -> nx.MultiDiGraph:
    """The topology in a file of `json.dump(networkx.node_link_data(net, edges="edges"), file)`.

    Every node is `kind:index`; every edge is one direction and carries
    `bandwidth` [B/s] and `latency` [s]; a host may carry `cores`.  The compute
    places are the graph's attribute `places` = [kind, count], by default all
    GPUs, or all hosts where there are no GPUs.

    Raises
    ------
    InputError : a file that cannot be read, is not such a graph, or has a node or edge that cannot be
    """
    data = _read(path)
    net = _graph(path, data)
    for node, attributes in net.nodes(data=True):
        if not (isinstance(node, str) and NODE.fullmatch(node)):
            raise InputError(f"{path}: node {node!r} is not kind:index, such as host:0")
        attributes["kind"] = node.partition(":")[0]
        cores = attributes.setdefault("cores", 1) if attributes["kind"] == "host" else 1
        if not isinstance(cores, int) or isinstance(cores, bool) or cores < 1:
            raise InputError(f"{path}: {node} has cores={cores!r}; it must be a whole number from 1")
    for source, target, edge in net.edges(data=True):
        _check_edge(path, f"{source}>{target}", edge)
    places = _places(path, net)
    net.graph.update(name=net.graph.get("name") or Path(path).stem, family="file", arguments={}, places=places)
    return net


def _read(path: str | Path) -> dict[str, object]:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise InputError(f"{path}: is not a graph in node-link form, which has nodes and edges")
    return data


def _graph(path: str | Path, data: dict[str, object]) -> nx.MultiDiGraph:
    """The graph of the data; its edges are called `edges`, or `links` as networkx called them before 3.6."""
    name = "edges" if "edges" in data else "links"
    if data.get("directed") is not True or data.get("multigraph") is not True:
        raise InputError(f"{path}: must be directed and multigraph: an edge is one direction of a cable")
    try:
        net = nx.node_link_graph(data, edges=name)
    except (KeyError, TypeError, nx.NetworkXError) as error:
        raise InputError(f"{path}: is not a graph in node-link form: {type(error).__name__}: {error}") from None
    if undeclared := set(net) - {node.get("id") for node in data["nodes"]}:  # type: ignore[attr-defined]
        raise InputError(f"{path}: an edge ends at {min(map(str, undeclared))}, which is not among the nodes")
    return net


def _check_edge(path: str | Path, name: str, edge: Mapping[str, object]) -> None:
    for attribute, least, accepted in (("bandwidth", "above", "B/s above 0"), ("latency", "from", "seconds from 0")):
        value = edge.get(attribute)
        number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
        if not number or not isinstance(value, int | float) or value < 0 or (value == 0 and least == "above"):
            raise InputError(f"{path}: link {name} has {attribute}={value!r}; it must be a finite number of {accepted}")


def _places(path: str | Path, net: nx.MultiDiGraph) -> tuple[str, int]:
    """Kind and count of the compute places, all of which are there."""
    kinds = [kind for _, kind in net.nodes(data="kind")]
    kind = "gpu" if "gpu" in kinds else "host"
    given = net.graph.get("places", [kind, kinds.count(kind)])
    if not (isinstance(given, list) and len(given) == 2 and isinstance(given[1], int) and given[1] >= 1):
        raise InputError(f"{path}: places={given!r} must be [kind, count], with at least one compute place")
    for index in range(given[1]):
        if f"{given[0]}:{index}" not in net:
            raise InputError(f"{path}: place {given[0]}:{index} of {given[1]} is not among the nodes")
    return str(given[0]), given[1]
