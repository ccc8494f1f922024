"""Rank orders: the axes of a grid from the innermost to the outermost in the numbering of ranks.

The order determines which groups of ranks are in one node or below one switch, and therefore the load of the links
above.  `--order auto` chooses the order for a machine (`experiments/predict/order_choice.py`).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import permutations

from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, NEWER_AXES, Axis, Grid

FASTEST_FIRST: tuple[Axis, ...] = tuple(axis for axis in DEFAULT_ORDER if axis not in NEWER_AXES)
ORDERS: tuple[tuple[Axis, ...], ...] = tuple(permutations(FASTEST_FIRST))
"""Rank orders of all axes except context and the pipeline's, which is always the slowest."""


def distinct_orders(axes: Collection[Axis]) -> list[int]:
    """Indices into ORDERS of one order for each sequence of these axes: the first with that sequence.

    >>> [ORDERS[number] for number in distinct_orders({"y", "z"})]
    [('x', 'y', 'z', 'data'), ('x', 'z', 'y', 'data')]
    """
    first: dict[Sequence[Axis], int] = {}
    for number, order in enumerate(ORDERS):
        first.setdefault(tuple(axis for axis in order if axis in axes), number)
    return list(first.values())


def grids_in_every_order(grid: Grid) -> list[Grid]:
    """The grid in every order of its axes with more than one rank; the pipeline axis is always the outermost."""
    if grid.context > 1:
        axes = [axis for axis in DEFAULT_ORDER if grid.length(axis) > 1 and axis != "pipeline"]
        return [replace(grid, order=order) for order in permutations(axes)]
    numbers = distinct_orders([axis for axis in FASTEST_FIRST if grid.length(axis) > 1])
    return [replace(grid, order=ORDERS[number]) for number in numbers]
