"""The section of the busiest links: a table, and a drawing of the network on which they stand out.

A small network is drawn whole, in rows by the distance from the endpoints. Of a large or unknown network the part that
the busiest links join is drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from quadrille.algorithms.units import format_bytes, format_percent
from quadrille.experiments.drawing.topology_figure import positions_of_nodes
from quadrille.experiments.explain.explanation import FULL, ExplainedLink, is_link
from quadrille.experiments.output.tables import UNKNOWN, duration, percent
from quadrille.experiments.report.amounts import compact
from quadrille.experiments.report.charts import INK, LEGEND, PAGE_WIDTH
from quadrille.experiments.report.elements import Chart, Section, Spec, Table
from quadrille.experiments.report.palette import COLOURS
from quadrille.topologies.network import Network

MOST_NODES = 200
"""Number of nodes up to which a network is drawn whole."""
BUSY = 0.5
CLASSES = (f"used to {FULL:.0%} or more", f"used to {BUSY:.0%} or more", "used less", "carries less than these")
WIDTHS = (5, 3.5, 2, 0.6)
"""Width of a link of each class [pixels]."""
DASHES = ([1, 0], [8, 3], [1, 0], [1, 0])
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left")
Position = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Drawing:
    """The positions of nodes by name, the pairs of nodes that are joined, and whether the network is whole."""

    positions: Mapping[str, Position]
    pairs: Sequence[tuple[str, str]]
    is_whole: bool


def links_section(links: Sequence[ExplainedLink], net: Network | None, lacking: str = "") -> Iterator[Section]:
    """The section of the busiest links; none if no link is known.

    Parameters
    ----------
    links : links and other shared resources, the busiest first
    net : network of the machine; None if it is unknown
    lacking : sentence that says why no link is known
    """
    if not links:
        if net is not None and lacking:
            yield Section("Busiest links", [f"{lacking} The command is under How to repeat it."])
        return
    table = _table(links)
    busy = [link for link in links if is_link(link.link)]
    if not busy:
        yield Section("Shared resources", tables=[table])
        return
    drawing = drawing_of(busy, net)
    most = busy[0]
    whole = "the network" if drawing.is_whole else "the part of the network that the busiest links join"
    label = (
        f"A drawing of {whole}: {len(drawing.positions):,} nodes; {most.link} is used most, to "
        f"{format_percent(most.utilisation, digits=0)}. Wide lines are used more."
    )
    if any(link.alike > 1 for link in busy):
        label += " Of links with the same load one is marked, unless all links of a kind have it."
    yield Section("Busiest links", charts=[Chart(_spec(drawing, busy), label, table)])


def _table(links: Sequence[ExplainedLink]) -> Table:
    rows = [
        (
            link.link + (f" and {link.alike - 1} more like it" if link.alike > 1 else ""),
            format_bytes(link.bytes) if is_link(link.link) else UNKNOWN,
            duration(link.busy_s),
            percent(link.utilisation, signed=False),
        )
        for link in links
    ]
    return Table(("link or other shared resource", "carried", "in use", "used"), rows)


def ends_of(link: str) -> tuple[str, str]:
    """The two ends of a link, by its name.

    >>> ends_of("leaf:0>spine:1#2")
    ('leaf:0', 'spine:1')
    """
    source, _, target = link.partition("#")[0].partition(">")
    return source, target


def drawing_of(busy: Sequence[ExplainedLink], net: Network | None) -> Drawing:
    """The drawing of the network, or of the part that the links join."""
    if net is not None and net.node_count <= MOST_NODES:
        names = [net.node_name(node) for node in range(net.node_count)]
        ends = {tuple(sorted((int(a), int(b)))) for a, b in zip(net.sources, net.targets, strict=True)}
        pairs = [(names[a], names[b]) for a, b in sorted(ends)]
        if len(net.kinds) > 1:
            placed = positions_of_nodes(net)
            return Drawing(
                {name: (float(x), float(y)) for name, (x, y) in zip(names, placed, strict=True)}, pairs, True
            )
        return Drawing(_positions(pairs), pairs, True)
    pairs = list(dict.fromkeys(_sorted_pair(ends_of(link.link)) for link in busy))
    return Drawing(_positions(pairs), pairs, False)


def _sorted_pair(ends: tuple[str, str]) -> tuple[str, str]:
    return (ends[0], ends[1]) if ends[0] <= ends[1] else (ends[1], ends[0])


def _positions(pairs: Sequence[tuple[str, str]]) -> dict[str, Position]:
    """Positions of nodes: in rows by kind, or by springs where all nodes are of one kind."""
    graph = nx.Graph(list(pairs))
    kinds = [kind_of(node) for node in graph]
    order = sorted(set(kinds), key=lambda kind: (-kinds.count(kind), kinds.index(kind)))
    if len(order) == 1:
        placed: Mapping[Any, Any] = nx.spring_layout(graph, seed=0, iterations=100)
    else:
        for node in graph:
            graph.nodes[node]["subset"] = order.index(kind_of(node))
        placed = nx.multipartite_layout(graph, align="horizontal")
    return {str(node): (float(x), float(y)) for node, (x, y) in placed.items()}


def kind_of(node: str) -> str:
    """The kind of a node, by its name.

    >>> kind_of("leaf:3")
    'leaf'
    """
    return node.partition(":")[0]


def _class_of(utilisation: float | None) -> int:
    if utilisation is None:
        return 3
    return 0 if utilisation >= FULL else 1 if utilisation >= BUSY else 2


def _spec(drawing: Drawing, busy: Sequence[ExplainedLink]) -> Spec:
    """Rules for links, points for nodes, and names of nodes where there is room."""
    used = _links_of_pairs(drawing, busy)
    lines = [_line(drawing.positions, pair, used.get(_sorted_pair(pair))) for pair in drawing.pairs]
    lines.sort(key=lambda line: -int(line["c"]))
    nodes = [
        {"x": compact(x), "y": compact(y), "node": node, "kind": kind_of(node)}
        for node, (x, y) in drawing.positions.items()
    ]
    rows = {node["y"] for node in nodes}
    widest = max(sum(node["y"] == row for node in nodes) for row in rows)
    x, y = ({"field": name, "type": "quantitative", "axis": None, "scale": {"zero": False}} for name in "xy")
    layers: list[Spec] = [
        {
            "data": {"values": lines},
            "transform": [{"calculate": f"{list(CLASSES)!r}[datum.c]", "as": "use"}],
            "mark": {"type": "rule"},
            "encoding": {
                "x": x,
                "y": y,
                "x2": {"field": "x2"},
                "y2": {"field": "y2"},
                "color": _by_class([COLOURS[3], COLOURS[1], COLOURS[0], "var(--line)"]),
                "strokeWidth": {"field": "w", "type": "quantitative", "scale": None, "legend": None},
                "strokeDash": _by_class(DASHES),
                "tooltip": [{"field": "link"}, {"field": "used"}],
            },
        },
        {
            "data": {"values": nodes},
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1, "color": INK},
            "encoding": {
                "x": x,
                "y": y,
                "shape": {"field": "kind", "type": "nominal", "scale": {"range": list(SHAPES)}, "legend": LEGEND},
                "tooltip": [{"field": "node"}],
            },
        },
    ]
    if widest <= 12:
        text = {"type": "text", "dy": -11, "fontSize": 11, "color": INK}
        layers.append(
            {"data": {"values": nodes}, "mark": text, "encoding": {"x": x, "y": y, "text": {"field": "node"}}}
        )
    height = min(420, 120 + 70 * len(rows)) if len(rows) < 9 else 420
    return {**PAGE_WIDTH, "height": height, "layer": layers, "resolve": {"scale": {"shape": "independent"}}}


def _links_of_pairs(drawing: Drawing, busy: Sequence[ExplainedLink]) -> dict[tuple[str, str], ExplainedLink]:
    """The busiest link of each pair of nodes; a link that stands for all of its kind is that of all their pairs."""
    pairs_of: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for pair in map(_sorted_pair, drawing.pairs):
        pairs_of.setdefault(_kinds_of(pair), []).append(pair)
    used: dict[tuple[str, str], ExplainedLink] = {}
    for link in busy:
        pair = _sorted_pair(ends_of(link.link))
        of_its_kind = pairs_of.get(_kinds_of(pair), [])
        for each in of_its_kind if drawing.is_whole and link.alike == len(of_its_kind) else [pair]:
            used.setdefault(each, link)
    return used


def _kinds_of(pair: tuple[str, str]) -> tuple[str, ...]:
    return tuple(sorted(map(kind_of, pair)))


def _line(positions: Mapping[str, Position], pair: tuple[str, str], link: ExplainedLink | None) -> dict[str, Any]:
    (x, y), (x2, y2) = positions[pair[0]], positions[pair[1]]
    place = _class_of(None if link is None else link.utilisation)
    ends = {"x": compact(x), "y": compact(y), "x2": compact(x2), "y2": compact(y2), "c": place, "w": WIDTHS[place]}
    if link is None:
        return {**ends, "link": f"{pair[0]}-{pair[1]}", "used": "less than the busiest"}
    return {**ends, "link": link.link, "used": percent(link.utilisation, signed=False)}


def _by_class(values: Sequence[Any]) -> Spec:
    """A channel with a value for each class of use."""
    scale = {"domain": list(CLASSES), "range": list(values)}
    return {"field": "use", "type": "nominal", "scale": scale, "legend": LEGEND}
