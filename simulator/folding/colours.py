"""Colours of ranks, split finer as more is known of them; and one look for each combination of kinds of coordinates."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from algorithms.grid import AXES, Axis, Grid
from algorithms.parts import Place
from simulator.folding.coordinates import Needs
from simulator.folding.labels import Ints, pairs


class Colours:
    """A colour of each rank of a grid, at first the same.

    >>> colours = Colours(Grid(x=4))
    >>> colours.split(np.array([1, 3]), np.array([0, 5]))
    >>> len(set(colours.of_rank.tolist()))
    3
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        ranks = np.arange(grid.size)
        self.coordinates = {axis: ranks // grid.stride(axis) % grid.length(axis) for axis in AXES}
        self.of_rank = np.zeros(grid.size, dtype=np.int64)

    def split(self, ranks: Ints, kinds: Ints) -> None:
        """Gives ranks of different kinds different colours."""
        if len(kinds) and (kinds != kinds[0]).any():
            extra = np.zeros(len(self.of_rank), dtype=np.int64)
            extra[ranks] = kinds + 1
            self.of_rank = pairs(self.of_rank, extra)

    def looked_at(
        self,
        needed: Needs,
        moment: Place,
        ranks: Ints,
        look: Callable[[Place], Hashable],
        among: set[Axis] | None = None,
    ) -> tuple[list[Any], Ints]:
        """What `look` sees for each combination of kinds of coordinates, and the one of each of the ranks."""
        index = np.zeros(len(ranks), dtype=np.int64)
        representatives = {}
        for axis in needed.axes:
            if among is None or axis in among:
                ones, kinds = needed.kinds(axis, self._grid.length(axis))
                index = index * len(ones) + np.array(kinds)[self.coordinates[axis][ranks]]
                representatives[axis] = ones
        used, which = np.unique(index, return_inverse=True)
        values = []
        for rest in used.tolist():
            coordinates = dict(moment.coordinates)
            for axis, ones in reversed(list(representatives.items())):
                rest, kind = divmod(rest, len(ones))  # noqa: PLW2901 - the digits of a number, the last one first
                coordinates[axis] = ones[kind]
            values.append(look(replace(moment, coordinates=coordinates)))
        return values, which
