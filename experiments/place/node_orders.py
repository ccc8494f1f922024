"""Orders of nodes for the ranks of an experiment: grouped by switches, then improved by exchanges.

Nodes of one class are equal, so an order is a class for each place.  The search
begins with the given order and with all nodes of a class in a row, and exchanges the
nodes of two places, or of two rows of places, as long as the load gets less.  It is the
same search for the same question: its random numbers have a fixed seed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quadrille.topologies.network import Ints

SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class NodeOrder:
    """An order of nodes: number of the allocated node at each place, and its load [s]."""

    places: Ints
    load: float


def best_orders(classes: Ints, used: int, load: Callable[[Ints], float], most: int, exchanges: int) -> list[NodeOrder]:
    """Different orders, the least load first.

    Parameters
    ----------
    classes : class of each allocated node
    used : number of nodes that the ranks need
    load : function that returns the load of the classes at the places [s]
    most : largest number of orders
    exchanges : exchanges that are tried from each start
    """
    draw = np.random.default_rng(SEED)
    orders = [_improved(start, classes, used, load, draw, exchanges) for start in _starts(classes, used)]
    orders += [NodeOrder(start, load(classes[start[:used]])) for start in _starts(classes, used)]
    different: dict[bytes, NodeOrder] = {}
    for order in sorted(orders, key=lambda order: order.load):
        different.setdefault(classes[order.places[:used]].tobytes(), order)
    return list(different.values())[:most]


def _starts(classes: Ints, used: int) -> Iterator[Ints]:
    """Orders to begin with: as given; by class; and by class, those with the most nodes first."""
    yield np.arange(len(classes))
    yield np.argsort(classes, kind="stable")
    sizes = np.bincount(classes)
    yield np.lexsort((classes, -sizes[classes]))
    if used < len(classes):  # the fewest classes that have enough nodes
        fits = np.flatnonzero(sizes >= used)
        if len(fits):
            smallest = int(fits[np.argmin(sizes[fits])])
            yield np.lexsort((classes, classes != smallest))


def _improved(
    start: Ints, classes: Ints, used: int, load: Callable[[Ints], float], draw: np.random.Generator, exchanges: int
) -> NodeOrder:
    """The order after exchanges that lessen the load."""
    places, least = start.copy(), load(classes[start[:used]])
    lengths = _row_lengths(used)
    for _ in range(exchanges if len({*classes.tolist()}) > 1 else 0):
        length = int(draw.choice(lengths))
        first = int(draw.integers(0, used // length)) * length
        second = int(draw.integers(0, len(places) // length)) * length
        rows = [np.arange(begin, begin + length) for begin in (first, second)]
        if np.array_equal(classes[places[rows[0]]], classes[places[rows[1]]]):
            continue
        changed = places.copy()
        changed[rows[0]], changed[rows[1]] = places[rows[1]], places[rows[0]]
        if (seconds := load(classes[changed[:used]])) < least * (1 - 1e-12):
            places, least = changed, seconds
    return NodeOrder(places, least)


def _row_lengths(used: int) -> Sequence[int]:
    """Lengths of the rows of places that are exchanged: powers of two up to half of the nodes."""
    return [1 << power for power in range(max(1, used.bit_length() - 1)) if 1 << power <= max(1, used // 2)]
