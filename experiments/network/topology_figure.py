"""The picture of a network: rows of nodes with the endpoints at the bottom, and a line for each cable."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.experiments.output.pictures import write_figure
from quadrille.topologies.network import Floats, Network
from quadrille.topologies.routes.search import Hops

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_NODES = 600
NAMED_NODES = 48
"""Largest number of nodes in a row whose indices are printed."""
WIDEST, THINNEST = 4.0, 0.4
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:olive")


def check_drawable(net: Network) -> None:
    """Checks that a network is small enough for a picture.

    Raises
    ------
    InputError : too many nodes; the message has their number and the limit
    """
    if net.node_count > MAX_NODES:
        raise InputError(
            f"--plot: {net.name} has {net.node_count} nodes; at most {MAX_NODES} are drawn, "
            "and fewer --gpus show as much"
        )


def positions_of_nodes(net: Network) -> Floats:
    """The position of each node in the picture [nodes, 2]: across, spread evenly; up, hops from the nearest endpoint.

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


def draw_network(net: Network, path: str | Path) -> None:
    """Writes the picture of a network; the width of a line grows with the bandwidth.

    Raises
    ------
    InputError : too many nodes, or an unknown format
    """
    from matplotlib.figure import Figure

    check_drawable(net)
    node_positions = positions_of_nodes(net)
    widest = max(count for _, count in net.kinds.values())
    rows = len(net.kinds)
    figure = Figure(figsize=(min(24.0, max(6.0, 0.25 * widest)), 1.5 + 1.3 * rows), layout="constrained")
    axis = figure.add_subplot()
    _draw_links(axis, net, node_positions)
    _draw_nodes(axis, net, node_positions)
    axis.set_title(net.name, fontsize=9, wrap=True)
    axis.set_axis_off()
    axis.margins(0.06)
    write_figure(figure, path)


def _draw_links(axis: "Axes", net: Network, node_positions: Floats) -> None:
    """Draws a line for each cable: straight between rows, an arc within a row, dotted for a failed link."""
    from matplotlib.patches import FancyArrowPatch

    ends: dict[frozenset[int], float] = {}
    for link in range(net.link_count):
        pair = frozenset((int(net.sources[link]), int(net.targets[link])))
        ends[pair] = ends.get(pair, 0.0) + float(net.bandwidths[link])
    most = max(ends.values(), default=1.0) or 1.0
    for pair, bandwidth in ends.items():
        source, target = sorted(pair)
        same_row = node_positions[source, 1] == node_positions[target, 1]
        line = FancyArrowPatch(
            tuple(node_positions[source]),
            tuple(node_positions[target]),
            arrowstyle="-",
            connectionstyle=f"arc3,rad={0.25 if same_row else 0.0}",
            linewidth=max(THINNEST, WIDEST * (bandwidth / most) ** 0.5),
            linestyle="-" if bandwidth else ":",
            color="0.6",
            zorder=1,
        )
        axis.add_patch(line)


def _draw_nodes(axis: "Axes", net: Network, node_positions: Floats) -> None:
    """Draws a dot for each node, indices if there is room, and kind and number of nodes of each row."""
    for colour, (kind, (first, count)) in enumerate(net.kinds.items()):
        kind_positions = node_positions[first : first + count]
        axis.scatter(
            kind_positions[:, 0],
            kind_positions[:, 1],
            s=90 if count <= NAMED_NODES else 20,
            color=COLOURS[colour % 8],
            zorder=2,
        )
        axis.text(-0.02, kind_positions[0, 1], f"{kind}\n{count}", ha="right", va="center", fontsize=8)
        for node in range(first, first + count if count <= NAMED_NODES else first):
            number = net.node_name(node).partition(":")[2]
            axis.text(
                node_positions[node, 0],
                node_positions[node, 1],
                number,
                ha="center",
                va="center",
                fontsize=5,
                color="white",
                zorder=3,
            )
