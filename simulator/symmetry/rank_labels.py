"""Colours of ranks, split finer as more is known of them; and one look for each combination of kinds of coordinates."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quadrille.algorithms.analysis.coordinate_dependence import Dependence
from quadrille.algorithms.analysis.labels import Ints, pairs
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
from quadrille.algorithms.schedule.parts import Coordinates


@dataclass(frozen=True, eq=False)
class Sorted:
    """Some ranks, sorted by the kinds of their coordinates; two are the same if they are one object.

    Parameters
    ----------
    ranks : which ones
    used : numbers of the combinations of kinds that some of them has
    which : place in `used` of each of them
    """

    ranks: Ints
    used: Sequence[int]
    which: Ints


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
        self._sorted: dict[Hashable, Sorted] = {}
        self._known: set[Hashable] = set()

    def split(self, ranks: Ints, kinds: Ints) -> None:
        """Gives ranks of different kinds different colours."""
        if len(kinds) and (kinds != kinds[0]).any():
            extra = np.zeros(len(self.of_rank), dtype=np.int64)
            extra[ranks] = kinds + 1
            self.of_rank = pairs(self.of_rank, extra)

    def told_apart(self, by: Sorted, numbers: Sequence[int]) -> None:
        """Gives ranks that were sorted to different numbers different colours; `numbers` has one for each of `used`."""
        key = by, tuple(numbers)
        if len(set(numbers)) > 1 and key not in self._known:
            self._known.add(key)
            self.split(by.ranks, np.array(numbers)[by.which])

    def looked_at(
        self,
        needed: Dependence,
        moment: Coordinates,
        ranks: Ints,
        look: Callable[[Coordinates], Hashable],
        among: set[Axis] | None = None,
    ) -> tuple[list[Any], Sorted]:
        """What `look` sees for each combination of kinds of coordinates, and the one of each of the ranks.

        Parameters
        ----------
        ranks : must stay as it is, since what was found for it is kept
        among : axes of which the kinds count; by default all
        """
        kinds_of = {
            axis: needed.kinds(axis, self._grid.length(axis))
            for axis in needed.axes
            if self._grid.length(axis) > 1 and (among is None or axis in among)
        }
        several = {axis: found for axis, found in kinds_of.items() if len(found[0]) > 1}
        by = self._sorted_by(ranks, {axis: (len(ones), kinds) for axis, (ones, kinds) in several.items()})
        values = []
        for rest in by.used:
            coordinates = {**moment.coordinates, **{axis: ones[0] for axis, (ones, _) in kinds_of.items()}}
            for axis, (ones, _) in reversed(several.items()):
                rest, kind = divmod(rest, len(ones))  # noqa: PLW2901 - the digits of a number, the last one first
                coordinates[axis] = ones[kind]
            values.append(look(replace(moment, coordinates=coordinates)))
        return values, by

    def _sorted_by(self, ranks: Ints, kinds_of: dict[Axis, tuple[int, list[int]]]) -> Sorted:
        key = id(ranks), tuple((axis, tuple(kinds)) for axis, (_, kinds) in kinds_of.items())
        if key not in self._sorted:
            index = np.zeros(len(ranks), dtype=np.int64)
            for axis, (count, kinds) in kinds_of.items():
                index = index * count + np.array(kinds)[self.coordinates[axis][ranks]]
            used, which = np.unique(index, return_inverse=True) if kinds_of else (np.zeros(1, dtype=np.int64), index)
            self._sorted[key] = Sorted(ranks, used.tolist(), which)
        return self._sorted[key]
