"""Network cards that stay idle: of a node's cards, how many carry the messages to other nodes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from quadrille.algorithms.schedule.ops import Collective
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.simulator.collectives.nccl.layout import exit_cards
from quadrille.simulator.collectives.programs import Floats, Ints
from quadrille.topologies.joined_gpus import links_between_gpus
from quadrille.topologies.routes.routing import Routes

if TYPE_CHECKING:
    from quadrille.experiments.predict.prepared_experiment import PreparedExperiment

Cards = tuple[int, int]
"""Number of a node's cards that carry messages, and number of the cards by which its ranks could leave it."""


def most_idle(cards: Cards) -> bool:
    """Whether most of the cards carry nothing.

    >>> most_idle((1, 8)), most_idle((4, 8)), most_idle((1, 1))
    (True, False, False)
    """
    used, count = cards
    return 2 * used < count


def cards_that_carry(routes: Routes, endpoints: Ints, link_bytes: Floats) -> Cards | None:
    """The cards of the node with the smallest used share; None if no message leaves a node.

    Parameters
    ----------
    endpoints : endpoint of each member [groups, members]
    link_bytes : bytes over each link [links]
    """
    net = routes.net
    members = np.unique(endpoints)
    if len(np.unique(members // net.per_node)) < 2:
        return None
    first, count = net.kinds[net.card_kind]
    per_node = net.cards_per_node
    leaving = (net.sources >= first) & (net.sources < first + count) & ~links_between_gpus(net) & (link_bytes > 0)
    to_endpoint = np.isin(net.targets, net.endpoint_nodes())
    used = np.unique(net.sources[leaving & ~to_endpoint] - first)
    own = np.unique(members // net.per_node * per_node + exit_cards(routes, members))
    return _emptiest(used // per_node, own // per_node)


def _emptiest(used_nodes: Ints, nodes: Ints) -> Cards | None:
    """The numbers of used cards and of all cards of the node with the smallest used share."""
    numbers, counts = np.unique(nodes, return_counts=True)
    used = np.array([int((used_nodes == node).sum()) for node in numbers])
    if not used.any():
        return None
    place = int(np.argmin(np.where(used > 0, used / counts, np.inf)))
    return int(used[place]), int(counts[place])


def idle_line(cards: Cards, messages: str, remedy: str = "nccl uses all") -> str:
    """The line that says that most cards are idle.

    Parameters
    ----------
    remedy : what would use more of them, or why nothing does
    """
    used, count = cards
    return f"{messages} by {used} of the {count} network cards of a node; the others are idle ({remedy})"


def idle_cards_remarks(prepared: "PreparedExperiment") -> Iterator[str]:
    """A line for each axis whose own rings leave most of a node's cards idle."""
    experiment, net = prepared.experiment, prepared.placement.net
    choices, grid = experiment.execution.choices, experiment.grid
    if net.per_node == 1 or grid.size == 1 or choices.implementation != "own":
        return
    from quadrille.simulator.machine.network import routes_of

    axes = {op.axis for op in all_ops(prepared.schedule) if isinstance(op, Collective)}
    places = np.asarray(prepared.placement.of_rank)[: grid.size]
    members = np.unique(places)
    if len(np.unique(members // net.per_node)) < 2:
        return
    cards = exit_cards(routes_of(prepared.machine, net), members)[np.searchsorted(members, places)]
    node = places // net.per_node
    for axis in sorted(axes):
        stride, length = grid.stride(axis), grid.length(axis)
        ranks = np.arange(grid.size)
        position = ranks // stride % length
        following = ranks + stride * np.where(position == length - 1, 1 - length, 1)
        crossing = node[ranks] != node[following]
        if crossing.any():
            at = node[np.argmax(crossing)]
            used = len(np.unique(cards[crossing & (node == at)])), len(np.unique(cards[node == at]))
            if most_idle(used):
                yield idle_line(used, f"rings over {axis} leave a node")
