"""Reader of GraphML graphs, as networkx, yEd and the Internet Topology Zoo write them.

    read          nodes and edges; `kind` (or `type`, `role`) and `label` of a node; `cores` of a host;
                  `bandwidth` [B/s] (or `LinkSpeedRaw` [bit/s]), `latency` [s], `failed`, `unshared` and `link` of an
                  edge; `family`, `arguments` (JSON), `per_node` and `node` of a graph that Quadrille wrote
    ignored       other attributes, pictures, ports, hyperedges
    not there     listed routes

A node of the kind `gpu`, or else `host` or `server`, computes; `kind:index` names such
as `host:0` have their kind.  Without kinds, the nodes with one neighbour are hosts.
An edge of a directed graph is one direction of a cable, else an edge is both.

Source: Brandes et al., "GraphML Progress Report", GD 2001; graphml.graphdrawing.org.
"""

import re
from dataclasses import dataclass, field

from quadrille.algorithms.formats.input_files import parse_json
from quadrille.topologies.files import node_link
from quadrille.topologies.files.imported.slurm_topology import Say
from quadrille.topologies.files.xml_elements import Element
from quadrille.topologies.network import Network
from quadrille.topologies.size_limits import MAX_LINKS, MAX_NODES

KIND_NAMES = ("kind", "type", "role")
COMPUTING = {"gpu": "gpu", "host": "host", "server": "host", "compute": "host", "node": "host"}
KIND = re.compile(r"([a-z_]+):(0|[1-9][0-9]{0,8})")


@dataclass(slots=True)
class _Node:
    kind: str
    attributes: dict[str, str]
    neighbours: set[str] = field(default_factory=set)


def read_graphml(root: Element, ignored: Say, rates: tuple[float | None, float]) -> Network:
    """The network in a document whose outermost element is `<graphml>`.

    Parameters
    ----------
    ignored : is called with each thing that is not used
    rates : bandwidth [B/s], or None, and latency [s] of edges that have none

    Raises
    ------
    InputError : an edge to a missing node, an edge without a rate, no node that computes, or as `node_link.parse`
    """
    names = _attribute_names(root)
    graph = next((element for element in root.children if _tag(element) == "graph"), None)
    if graph is None:
        raise root.error("<graphml> has no <graph>")
    directed = graph.attributes.get("edgedefault", "directed") == "directed"
    nodes: dict[str, _Node] = {}
    edges: list[tuple[Element, dict[str, str]]] = []
    for element in graph.children:
        tag = _tag(element)
        if tag == "node":
            _add_node(nodes, element, _data(element, names))
        elif tag == "edge":
            edges.append((element, _data(element, names)))
        elif tag != "data":
            ignored(f"<{tag}>")
    attributes = _graph_attributes(graph, _data(graph, names))
    if attributes:
        edges.sort(key=lambda edge: _link_number(*edge))
    if len(nodes) > MAX_NODES or len(edges) > MAX_LINKS:
        raise graph.error(f"<graph> has {len(nodes)} nodes and {len(edges)} edges; that is too many")
    _add_neighbours(nodes, [element for element, _ in edges])
    _choose_hosts(root, nodes)
    return _network(root, nodes, edges, directed, rates, attributes)


def _add_neighbours(nodes: dict[str, _Node], edges: list[Element]) -> None:
    """Notes the neighbours of each node; raises InputError for an edge to a missing node."""
    for element in edges:
        ends = [element.needed(word) for word in ("source", "target")]
        for end, far in (ends, ends[::-1]):
            if end not in nodes:
                raise element.error(f"<edge> ends at {end!r:.60}, which is not among the nodes")
            nodes[end].neighbours.add(far)


def _link_number(element: Element, data: dict[str, str]) -> int:
    """The number of a link in a graph that Quadrille wrote, whose order the paths of a family need."""
    text = data.get("link", "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise element.error(f"<edge> has link={text!r:.40}; a whole number is needed beside the graph's family")
    return int(text)


def _graph_attributes(graph: Element, data: dict[str, str]) -> dict[str, object]:
    """The attributes of a graph that Quadrille wrote, as node-link JSON has them; none for another graph."""
    if "family" not in data or "arguments" not in data:
        return {}
    try:
        arguments = parse_json(data["arguments"])
        per_node = int(data.get("per_node", "1"))
    except ValueError as error:
        raise graph.error(f"<graph> has arguments or per_node that cannot be read: {error}") from None
    attributes: dict[str, object] = {"arguments": arguments, "per_node": per_node}
    return attributes | {word: data[word] for word in ("name", "family", "node") if word in data}


def _tag(element: Element) -> str:
    return element.tag.rpartition(":")[2]


def _attribute_names(root: Element) -> dict[str, str]:
    """Name of each attribute by its key."""
    keys = (element for element in root.children if _tag(element) == "key")
    return {key.needed("id"): key.attributes.get("attr.name", key.needed("id")) for key in keys}


def _data(element: Element, names: dict[str, str]) -> dict[str, str]:
    children = (child for child in element.children if _tag(child) == "data")
    return {names.get(child.needed("key"), child.needed("key")): child.text.strip() for child in children}


def _add_node(nodes: dict[str, _Node], element: Element, attributes: dict[str, str]) -> None:
    name = element.needed("id")
    if name in nodes:
        raise element.error(f"<node> {name!r:.60} is there twice")
    match = KIND.fullmatch(name)
    kind = next((attributes[word].lower() for word in KIND_NAMES if attributes.get(word)), match[1] if match else "")
    nodes[name] = _Node(COMPUTING.get(kind, kind), attributes)


def _choose_hosts(root: Element, nodes: dict[str, _Node]) -> None:
    """Makes hosts of the nodes with one neighbour, if no node has a kind that computes."""
    if any(node.kind in ("gpu", "host") for node in nodes.values()):
        return
    for node in nodes.values():
        if len(node.neighbours) == 1:
            node.kind = "host"
    if not any(node.kind == "host" for node in nodes.values()):
        raise root.error("<graphml> has no node of kind gpu or host, and none with one neighbour")


def _network(
    root: Element,
    nodes: dict[str, _Node],
    edges: list[tuple[Element, dict[str, str]]],
    directed: bool,
    rates: tuple[float | None, float],
    attributes: dict[str, object],
) -> Network:
    """The network, by the reader of node-link JSON, which checks the rest."""
    ids: dict[str, str] = {}
    counts: dict[str, int] = {}
    named = all((match := KIND.fullmatch(name)) and match[1] == node.kind for name, node in nodes.items())
    for name, node in nodes.items():
        kind = node.kind if re.fullmatch("[a-z_]+", node.kind) else "switch"
        ids[name] = name if named else f"{kind}:{counts.get(kind, 0)}"
        counts[kind] = counts.get(kind, 0) + 1
    rows = []
    for name, node in nodes.items():
        row: dict[str, object] = {"id": ids[name]}
        if not named:
            row["label"] = node.attributes.get("label") or name
        if ids[name].startswith("host:") and node.attributes.get("cores"):
            row["cores"] = _whole(root, node.attributes["cores"])
        rows.append(row)
    labels = [row.get("label") for row in rows]
    for row, name in zip(rows, nodes, strict=True):
        if "label" in row and labels.count(row["label"]) > 1:
            row["label"] = name
    links = []
    for element, data in edges:
        edge: dict[str, object] = {word: ids[element.attributes[word]] for word in ("source", "target")}
        edge |= {
            "bandwidth": _bandwidth(element, data, rates[0]),
            "latency": _number(element, data, "latency", rates[1]),
        }
        edge |= {word: True for word in ("failed", "unshared") if data.get(word, "").lower() == "true"}
        links.append(edge)
    outline = {"directed": directed, "multigraph": True, "graph": attributes, "nodes": rows, "edges": links}
    return node_link.network_of(outline, root.path)


def _whole(root: Element, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise root.error(f"<node> has cores={text!r:.40}; a whole number is accepted")
    return int(text)


def _bandwidth(element: Element, data: dict[str, str], default: float | None) -> float:
    if "bandwidth" in data or "LinkSpeedRaw" not in data:
        return _number(element, data, "bandwidth", default)
    return _number(element, data, "LinkSpeedRaw", None) / 8


def _number(element: Element, data: dict[str, str], name: str, default: float | None) -> float:
    if name not in data:
        if default is None:
            raise element.error(f"<edge> has no {name}; --bandwidth gives one to such edges")
        return default
    try:
        return float(data[name])
    except ValueError:
        raise element.error(f"<edge> has {name}={data[name]!r:.40}; a number is accepted") from None
