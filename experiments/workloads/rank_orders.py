"""Orders of ranks: which axis of the grid is innermost, and all orders that differ on a grid.

The order determines which groups are in one node or below one switch, and so the load of
the links above.  `auto` stands for the order that is chosen for a machine
(`experiments/predict/order_choice.py`).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import permutations

from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, Grid

FASTEST_FIRST: tuple[Axis, ...] = tuple(axis for axis in DEFAULT_ORDER if axis != "pipeline")
ORDERS: tuple[tuple[Axis, ...], ...] = tuple(permutations(FASTEST_FIRST))
"""Rank orders of all axes except the pipeline's, which is always the slowest."""


def distinct_orders(axes: Collection[Axis]) -> list[int]:
    """The first of all orders that agree on these axes, by their number in ORDERS.

    >>> [ORDERS[number] for number in distinct_orders({"y", "z"})]
    [('x', 'y', 'z', 'data'), ('x', 'z', 'y', 'data')]
    """
    first: dict[Sequence[Axis], int] = {}
    for number, order in enumerate(ORDERS):
        first.setdefault(tuple(axis for axis in order if axis in axes), number)
    return list(first.values())


def in_every_order(grid: Grid) -> list[Grid]:
    """The grid in all orders of its axes that differ; the pipeline axis is always the slowest."""
    numbers = distinct_orders([axis for axis in FASTEST_FIRST if grid.length(axis) > 1])
    return [replace(grid, order=ORDERS[number]) for number in numbers]
