"""The figure of `quadrille place`: the predicted time of each order of nodes, and the switches above each node."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import (
    MUTED_COLOUR,
    PALETTE,
    legend_below,
    new_figure,
    scale_axis,
    styled,
)
from quadrille.algorithms.schedule.grid import lengths_text
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.place.node_traffic import node_classes
from quadrille.experiments.place.place import Placed
from quadrille.experiments.workloads.training_lines import workload_text
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from quadrille.experiments.workloads.experiment import Experiment

QUESTION = "Which order of the nodes is the fastest?"
MOST_SETS = len(PALETTE) - 1
"""Number of sets of switches that have a colour and a line of the legend of their own."""
OTHERS = "below other switches"
EDGE = "#ffffff"
BEST_COLOUR = "#333333"
MOST_NAMED_NODES = 16
"""Number of nodes of an order up to which each has its name."""


@styled
def place_figure(placed: Placed, setting: str) -> "Figure":
    """The figure: a bar for each order, and beside it a row with a box for each node.

    Parameters
    ----------
    setting : workload and machine, the last line of the title
    """
    count = len(placed.orders)
    figure = new_figure(11, 2.6 + 0.5 * count, question=QUESTION, setting=setting)
    times, places = figure.subplots(1, 2, sharey=True, width_ratios=(2, 3))
    _draw_times(times, placed)
    _draw_places(places, placed)
    places.set_yticks(range(count), [order.name for order in placed.orders])
    times.set_ylim(count - 0.5, -0.5)
    legend_below(figure)
    return figure


def place_setting(experiment: "Experiment", machine: Machine) -> str:
    """The workload, the grid and the machine, in one line."""
    workload = f"{workload_text(experiment.workload)} {experiment.dtype}, grid {lengths_text(experiment.grid.lengths)}"
    return f"{workload}, on {Path(machine.name).name}, predicted"


def _draw_times(axes: "Axes", placed: Placed) -> None:
    """Draws a bar for each order, with its time behind it, and the time without the faults."""
    seconds = [order.seconds for order in placed.orders]
    for place, order in enumerate(placed.orders):
        is_best = order is placed.best
        axes.barh(
            place,
            order.seconds,
            height=0.6,
            color=BEST_COLOUR if is_best else MUTED_COLOUR,
            label="the least predicted time" if is_best else "other orders",
        )
        axes.annotate(
            format_seconds(order.seconds),
            (order.seconds, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
        )
    if placed.healthy_seconds is not None:
        axes.axvline(placed.healthy_seconds, color=PALETTE[3], linestyle="--", label="the best without the faults")
    scale_axis(axes.xaxis, [1.25 * most for most in seconds], "s", logarithmic=False)
    axes.set_xlabel("predicted time")
    axes.grid(visible=False, axis="y")


def _draw_places(axes: "Axes", placed: Placed) -> None:
    """Draws a box for each node of each order, in the colour of the set of switches that it is below."""
    orders = [[*dict.fromkeys((order.of_rank // placed.net.per_node).tolist())] for order in placed.orders]
    sets, names = _switch_sets(placed.net, sorted({node for order in orders for node in order})), placed.net.node_names
    boxes: dict[str, list[tuple[int, int]]] = {}
    for row, order in enumerate(orders):
        for place, node in enumerate(order):
            boxes.setdefault(sets[node], []).append((place, row))
    for number, label in enumerate(dict.fromkeys(sets.values())):
        lefts, rows = zip(*boxes[label], strict=True)
        colour = PALETTE[number] if label != OTHERS else "#dddddd"
        axes.barh(rows, 1, left=lefts, height=0.6, align="center", color=colour, edgecolor=EDGE, label=label)
    for place in range(max(map(len, orders)) if max(map(len, orders)) <= MOST_NAMED_NODES else 0):
        for row, order in enumerate(orders):
            if place < len(order):
                name = names[order[place]]
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                axes.text(place + 0.5, row, name, ha="center", va="center", fontsize=6, bbox=box)
    axes.set(xlim=(0, max(map(len, orders))), xlabel="place of the node in the order of ranks")
    axes.grid(visible=False)


def _switch_sets(net: Network, nodes: Sequence[int]) -> dict[int, str]:
    """The name of the set of switches that each node is below, after its first node.

    Parameters
    ----------
    nodes : numbers of compute nodes
    """
    firsts: dict[int, int] = {}
    of_node = dict(zip(nodes, node_classes(net, nodes).tolist(), strict=True))
    for node, own in of_node.items():
        firsts.setdefault(own, node)
    labels = {own: f"below the switches of {net.node_names[firsts[own]]}" for own in [*firsts][:MOST_SETS]}
    return {node: labels.get(own, OTHERS) for node, own in of_node.items()}
