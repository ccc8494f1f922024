"""The figure of the use of links: the network with a colour for each cable, or bars of the busiest links."""

from collections.abc import Mapping
from heapq import nlargest
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import new_figure, styled
from quadrille.experiments.drawing.topology_figure import HEAT, HOT_QUESTION, MAX_NODES, network_figure
from quadrille.experiments.output.pictures import write_figure
from quadrille.topologies.network import Network

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 20
"""Links that are drawn as bars, the busiest."""


def draw_links(utilisation: Mapping[str, float], net: Network | None, path: str, *, setting: str = "") -> None:
    """Writes the figure of the use of links."""
    write_figure(links_figure(utilisation, net, setting=setting), path)


def links_figure(utilisation: Mapping[str, float], net: Network | None, *, setting: str = "") -> "Figure":
    """The network with its cables coloured by their use; bars if it is unknown or has more than `MAX_NODES` nodes.

    Parameters
    ----------
    utilisation : load of links by their names, as a share of their bandwidth; other resources are left out
    net : network of the links; None if it is unknown
    setting : workload and machine, the last line of the title
    """
    named_by_file = net is not None and bool(net.cable_names)
    used = {link: share for link, share in utilisation.items() if ">" in link or named_by_file}
    if net is not None and net.node_count <= MAX_NODES:
        return network_figure(net, used, setting)
    return busiest_links_figure(used, setting=setting)


@styled
def busiest_links_figure(utilisation: Mapping[str, float], *, setting: str = "") -> "Figure":
    """A bar for each of the busiest links, the busiest on top."""
    from matplotlib import colormaps

    busiest = nlargest(MOST_BARS, utilisation.items(), key=lambda item: item[1])
    left_out = len(utilisation) - len(busiest)
    others = f"the {len(busiest)} busiest of {len(utilisation):,} links" if left_out else ""
    details = "; ".join(text for text in (setting, others) if text)
    figure = new_figure(8, 1.8 + 0.26 * max(1, len(busiest)), question=HOT_QUESTION, setting=details)
    axes = figure.subplots()
    shares = [100 * share for _, share in busiest]
    colours = [colormaps[HEAT](0.15 + 0.85 * min(share / 100, 1.0)) for share in shares]
    axes.barh(range(len(busiest)), shares, color=colours, edgecolor="#444444", linewidth=0.5)
    axes.set_yticks(range(len(busiest)), [link for link, _ in busiest])
    axes.set(xlim=(0, max(100.0, *shares, 0.0)), xlabel="utilisation [%]")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    return figure
