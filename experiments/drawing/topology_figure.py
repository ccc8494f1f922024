"""The figure of a network: a mark for each node, and a line for each cable, which may be coloured by its load."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.figure_style import MARKERS, PALETTE, legend_below, new_figure, styled
from quadrille.algorithms.units import format_bytes_per_second
from quadrille.experiments.drawing.network_picture import LINK_KIND, NetworkPicture, picture_of, positions_of_nodes
from quadrille.experiments.output.pictures import write_figure
from quadrille.topologies.network import Network

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_drawable", "draw_network", "network_figure", "positions_of_nodes"]

MAX_NODES = 600
NAMED_NODES = 48
"""Largest number of nodes of a kind whose indices are printed."""
WIDEST, THINNEST = 4.0, 0.4
HEAT = "YlOrRd"
"""Colours of the utilisation of links."""
QUESTION = "How are the nodes joined?"
HOT_QUESTION = "Which links are used most?"


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


def draw_network(net: Network, path: str | Path) -> None:
    """Writes the picture of a network.

    Raises
    ------
    InputError : too many nodes, or an unknown format
    """
    check_drawable(net)
    write_figure(network_figure(net), path)


@styled
def network_figure(net: Network, utilisation: Mapping[str, float] | None = None, setting: str = "") -> "Figure":
    """The figure of a network; the width of a line grows with the bandwidth.

    Parameters
    ----------
    utilisation : load of links by their names, as a share of their bandwidth; None for a picture without loads
    setting : workload and machine, in the title; empty for the name of the network
    """
    picture = picture_of(net)
    most = max((cable.bandwidth for cable in picture.cables), default=0.0)
    widths = f"widest line: {format_bytes_per_second(most)}, both directions" if most else ""
    question = QUESTION if utilisation is None else HOT_QUESTION
    details = "; ".join(text for text in (setting or net.name, widths) if text)
    figure = new_figure(*_size(picture), question=question, setting=details)
    axes = figure.subplots()
    _draw_cables(axes, picture, most, _cable_loads(net, picture, utilisation or {}), hot=utilisation is not None)
    _draw_nodes(axes, picture)
    axes.set_axis_off()
    axes.margins(0.06)
    if picture.in_rows:
        _name_rows(axes, picture)
    else:
        axes.set_aspect("auto" if LINK_KIND in picture.kinds else "equal")
        legend_below(figure)
    if utilisation is not None:
        _draw_heat_scale(figure, axes)
    return figure


def _size(picture: NetworkPicture) -> tuple[float, float]:
    """Width and height of the figure [inches]."""
    if picture.in_rows or LINK_KIND in picture.kinds:
        widest = max(map(len, picture.kinds.values()))
        levels = len({float(y) for y in picture.positions[:, 1]})
        return min(24.0, max(6.0, 0.25 * widest)), 1.8 + 1.3 * levels
    spread = picture.positions.max(axis=0) - picture.positions.min(axis=0) + 1.0
    scale = min(1.0, 16.0 / max(spread))
    return max(6.0, 1.0 + scale * float(spread[0])), max(4.0, 1.8 + scale * float(spread[1]))


def _cable_loads(net: Network, picture: NetworkPicture, utilisation: Mapping[str, float]) -> dict[int, float]:
    """The largest utilisation of the links of each cable, and of each node that is a link (as -1 - node)."""
    if not utilisation:
        return {}
    names = net.link_names(range(net.link_count))
    loads = {
        number: max((utilisation.get(names[link], 0.0) for link in cable.links), default=0.0)
        for number, cable in enumerate(picture.cables)
    }
    for link, node in picture.link_nodes.items():
        loads[-1 - node] = max(loads.get(-1 - node, 0.0), utilisation.get(names[link], 0.0))
    for number, cable in enumerate(picture.cables):
        loads[number] = max(loads[number], *(loads.get(-1 - end, 0.0) for end in cable.ends))
    return loads


def _draw_cables(axes: "Axes", picture: NetworkPicture, most: float, loads: Mapping[int, float], *, hot: bool) -> None:
    """Draws a line for each cable; dotted for a cable that has failed."""
    from matplotlib import colormaps
    from matplotlib.patches import FancyArrowPatch

    for number, cable in enumerate(picture.cables):
        source, target = cable.ends
        load = loads.get(number, 0.0)
        line = FancyArrowPatch(
            tuple(picture.positions[source]),
            tuple(picture.positions[target]),
            arrowstyle="-",
            connectionstyle=f"arc3,rad={cable.curvature}",
            linewidth=max(THINNEST, WIDEST * (cable.bandwidth / (most or 1.0)) ** 0.5),
            linestyle="-" if cable.bandwidth else ":",
            color=colormaps[HEAT](0.15 + 0.85 * min(load, 1.0)) if hot and load else "#cccccc" if hot else "0.6",
            zorder=1 + min(load, 1.0) / 2,
        )
        axes.add_patch(line)


def _draw_heat_scale(figure: "Figure", axes: "Axes") -> None:
    """Draws the colours of the utilisation beside the picture."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    colours = ListedColormap(colormaps[HEAT]([0.15 + 0.85 * step / 99 for step in range(100)]))
    scale = figure.colorbar(ScalarMappable(Normalize(0, 100), colours), ax=axes, shrink=0.6)
    scale.set_label("utilisation of the busier direction [%]")


def _draw_nodes(axes: "Axes", picture: NetworkPicture) -> None:
    """Draws a mark for each node, and its index if there is room."""
    for number, (kind, nodes) in enumerate(picture.kinds.items()):
        named = len(nodes) <= NAMED_NODES
        positions = picture.positions[nodes.start : nodes.stop]
        axes.scatter(
            positions[:, 0],
            positions[:, 1],
            s=90 if named else 20,
            color=PALETTE[number % len(PALETTE)],
            marker=MARKERS[number % len(MARKERS)] if not picture.in_rows else "o",
            zorder=2,
            label=f"{kind}, {len(nodes)}",
        )
        for node in nodes if named else ():
            beside = LINK_KIND in picture.kinds
            axes.annotate(
                picture.labels[node],
                picture.positions[node],
                xytext=(7, 4) if beside else (0, 0),
                textcoords="offset points",
                ha="left" if beside else "center",
                va="bottom" if beside else "center",
                fontsize=7 if beside else 5,
                color="black" if beside else "white",
                zorder=3,
            )


def _name_rows(axes: "Axes", picture: NetworkPicture) -> None:
    """Writes the kind and the number of nodes of each row beside it."""
    for kind, nodes in picture.kinds.items():
        if nodes:
            axes.text(
                -0.02, picture.positions[nodes.start, 1], f"{kind}\n{len(nodes)}", ha="right", va="center", fontsize=8
            )
