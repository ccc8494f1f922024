"""Parts of a dimension: symbolic sizes that become numbers at a place.

A dimension (m, k or n) is cut over axes, one inside the other.  The cut is
written once for all ranks; a `Coordinates`, the coordinates of one rank and the loop
indices of one moment, turns it into a range.

    cut of 7 over 3            0 1 2 | 3 4 | 5 6
    cut of 6 over 2, then 2    0 1 | 2 || 3 4 | 5
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import cast

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid


def cut(size: int, parts: int, index: int) -> tuple[int, int]:
    """Start and stop of part `index`; the first `size mod parts` parts are one longer.

    >>> [cut(7, 3, index) for index in range(3)]
    [(0, 3), (3, 5), (5, 7)]

    A size that is a fraction has parts of one length, fractions too: no rank
    has such blocks, but a simulation may (`simulator/symmetry/even_shards.py`).
    """
    if is_mean(size):
        edges = Fraction(size * index, parts), Fraction(size * (index + 1), parts)
        return cast(tuple[int, int], edges)  # they count as whole numbers do
    short, longer = divmod(size, parts)
    if index < longer:
        start = index * (short + 1)
        return start, start + short + 1
    start = index * short + longer
    return start, start + short


LEAST_BANDS_WITH_ENDS = 4
"""From which the first and the last are shorter: ends of three would leave half of all in one band."""


def cut_in_bands(size: int, count: int, index: int) -> tuple[int, int]:
    """Start and stop of band `index`; the first and the last are half as long as others, if there is enough for that.

    What is multiplied before the first can be summed, and summed behind the last, is beside nothing.

    >>> [cut_in_bands(62, 4, index) for index in range(4)], [cut_in_bands(7, 4, index) for index in range(4)]
    ([(0, 10), (10, 31), (31, 52), (52, 62)], [(0, 2), (2, 4), (4, 6), (6, 7)])
    >>> [cut_in_bands(10, 4, index) for index in range(4)]
    [(0, 2), (2, 5), (5, 8), (8, 10)]
    """
    if count < LEAST_BANDS_WITH_ENDS or size < 2 * count:
        return cut(size, count, index)
    halves = 2 * count - 2
    end = cast(int, Fraction(size, halves)) if is_mean(size) else (2 * size + halves) // (2 * halves)
    if index in (0, count - 1):
        return (0, end) if index == 0 else (size - end, size)
    start, stop = cut(size - 2 * end, count - 2, index - 1)
    return end + start, end + stop


def is_mean(size: object) -> bool:
    """Whether a size is a mean one, that no rank has."""
    return type(size) is Fraction  # whose isinstance is slow, and this is asked for every block


def boundaries(size: int, parts: int) -> list[int]:
    """Where the parts of a cut begin, and where the last one ends.

    >>> boundaries(7, 3)
    [0, 3, 5, 7]
    """
    if is_mean(size):
        return [cut(size, parts, index)[0] for index in range(parts)] + [size]
    short, longer = divmod(size, parts)
    return [index * short + min(index, longer) for index in range(parts + 1)]


@dataclass(frozen=True, slots=True)
class Coordinates:
    """One rank at one moment: where symbolic sizes become numbers.

    Parameters
    ----------
    grid : the grid of ranks
    sizes : length of each dimension, by its letter
    along : those of the rank
    indices : the loop indices of the enclosing Repeats, by name
    """

    grid: Grid
    sizes: Mapping[str, int]
    along: Mapping[Axis, int]
    indices: Mapping[str, int] = field(default_factory=dict)

    def at(self, axis: Axis, coordinate: int) -> "Coordinates":
        """The same moment at another member of the group along `axis`."""
        return Coordinates(self.grid, self.sizes, {**self.along, axis: coordinate}, self.indices)

    def during(self, loop: str, index: int) -> "Coordinates":
        """The same rank in iteration `index` of `loop`."""
        return Coordinates(self.grid, self.sizes, self.along, {**self.indices, loop: index})

    def variable(self, name: str) -> int:
        """Value of a coordinate, or of a loop index; outside its loop an index is 0."""
        for axis in AXES:
            if name == axis:
                return self.along[axis]
        return self.indices.get(name, 0)


@dataclass(frozen=True, slots=True)
class Panel:
    """Consecutive windows over a dimension, the ones that SUMMA broadcasts.

    A panel is `width` long and ends early where a block of any of the cuts
    over `axes` ends, so that it has one owner along each of them.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> panel = Panel("k", width=4, axes=("x", "z"), loop="p")
    >>> panel.edges(Grid(z=2, x=3), 10)
    (0, 4, 5, 7, 10)
    """

    dimension: str
    width: int
    axes: tuple[Axis, ...]
    loop: str
    shared_over: Axis | None = None
    """The axis whose members take turns: each takes a run of the panels."""
    unit: int = 1
    """Elements of every unit of the dimension; `width` counts units."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise InputError(f"panel {self.width}: a panel is a whole number of columns from 1")

    def edges(self, grid: Grid, size: int) -> tuple[int, ...]:
        """Where the panels begin, and where the last one ends."""
        return _panel_edges(size, self.width, tuple([grid.length(axis) for axis in self.axes]))

    def iterations(self, place: Coordinates) -> tuple[int, int]:
        """First panel this rank takes part in, and one past the last."""
        count = len(self.edges(place.grid, place.sizes[self.dimension])) - 1
        if self.shared_over is None:
            return 0, count
        return cut(count, place.grid.length(self.shared_over), place.along[self.shared_over])

    def bounds(self, place: Coordinates) -> tuple[int, int]:
        """Range of the dimension covered by the panel of this moment."""
        edges = self.edges(place.grid, place.sizes[self.dimension])
        first = 0 if self.shared_over is None else self.iterations(place)[0]
        number = first + place.indices[self.loop]
        return edges[number] * self.unit, edges[number + 1] * self.unit


@lru_cache(maxsize=256)
def _panel_edges(size: int, width: int, cuts: tuple[int, ...]) -> tuple[int, ...]:
    blocks = sorted({edge for parts in cuts for edge in boundaries(size, parts)} | {0, size})
    starts = [start for first, last in pairwise(blocks) for start in range(first, last, width)]
    return (*starts, size)


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of one dimension.

    Parameters
    ----------
    dimension : its letter
    axes : the axes that cut it, the outermost first
    rotated_by : coordinates and loop indices added to the index of the innermost
        cut, modulo its length (Cannon's skew)
    panel : the window of the moment, instead of a cut
    unit : elements of every unit of the dimension, which a cut leaves whole (the
        rows of a sequence, the columns of an attention head)
    finer : axes that cut on, through units too
    band : which of how many bands of that, where only one is meant: of whole units, where there are enough

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> rows = Part("m", ("data", "z"))
    >>> place = Coordinates(Grid(data=2, z=2), {"m": 6}, {"data": 1, "z": 0, "y": 0, "x": 0})
    >>> rows.bounds(place)
    (3, 5)
    >>> Part("m", ("data", "z"), unit=10).bounds(place)
    (30, 50)
    >>> [Part("m", ("data", "z"), unit=10, band=(i, 3)).bounds(place) for i in range(3)]
    [(30, 37), (37, 44), (44, 50)]
    >>> [Part("m", ("data", "z"), unit=10, band=(i, 2)).bounds(place) for i in range(2)]
    [(30, 40), (40, 50)]
    """

    dimension: str
    axes: tuple[Axis, ...] = ()
    rotated_by: tuple[str, ...] = ()
    panel: Panel | None = None
    unit: int = 1
    finer: tuple[Axis, ...] = ()
    band: tuple[int, int] | None = None

    @property
    def cut_over(self) -> tuple[Axis, ...]:
        """All axes that cut it."""
        return self.axes + self.finer

    def bounds(self, place: Coordinates) -> tuple[int, int]:
        """First element in the whole dimension, and one past the last."""
        if self.panel is not None:
            return self.panel.bounds(place)
        start, stop = 0, place.sizes[self.dimension]
        for axis in self.axes:
            length = place.grid.length(axis)
            if length == 1:
                continue
            index = place.along[axis] if not self.rotated_by else self._index(axis, place)
            first, last = cut(stop - start, length, index)
            start, stop = start + first, start + last
        start, stop = start * self.unit, stop * self.unit
        for axis in self.finer:
            first, last = cut(stop - start, place.grid.length(axis), place.along[axis])
            start, stop = start + first, start + last
        if self.band is not None:
            first, last = self.band_of(stop - start)
            start, stop = start + first, start + last
        return start, stop

    def band_of(self, length: int) -> tuple[int, int]:
        """Start and stop of its band in a range of so many elements.

        >>> Part("m", unit=10, band=(0, 2)).band_of(30), Part("m", unit=10, band=(0, 4)).band_of(30)
        ((0, 20), (0, 5))
        """
        assert self.band is not None
        index, count = self.band
        in_units = length >= count * self.unit and not self.finer and length % self.unit == 0
        unit = self.unit if in_units else 1
        first, last = cut_in_bands(length // unit if unit > 1 else length, count, index)
        return first * unit, last * unit

    def _index(self, axis: Axis, place: Coordinates) -> int:
        index = place.along[axis]
        if axis == self.axes[-1]:
            index += sum(place.variable(name) for name in self.rotated_by)
        return index % place.grid.length(axis)

    @property
    def rotates(self) -> bool:
        """Whether a loop rotates it, so that a rank's range changes."""
        return any(name not in AXES for name in self.rotated_by)

    def longest(self, place: Coordinates) -> int:
        """Length of the longest range that the part takes while its loop runs."""
        if self.panel is not None:
            edges = self.panel.edges(place.grid, place.sizes[self.dimension])
            first, last = self.panel.iterations(place)
            return max((edges[i + 1] - edges[i] for i in range(first, last)), default=0) * self.panel.unit
        if not self.rotates:
            start, stop = self.bounds(place)
            return stop - start
        turning = replace(self, rotated_by=())
        members = range(place.grid.length(self.axes[-1]))
        ranges = (turning.bounds(place.at(self.axes[-1], member)) for member in members)
        return max(stop - start for start, stop in ranges)

    def without(self, axis: Axis) -> "Part":
        """The part that the group along `axis` holds together."""
        return replace(self, axes=tuple(other for other in self.axes if other != axis))

    def __str__(self) -> str:
        if self.panel is not None:
            return f"{self.dimension}[{self.panel.loop}]"
        turned = "+" + "+".join(self.rotated_by) if self.rotated_by else ""
        units = f"{self.unit}·{self.dimension}" if self.unit > 1 else self.dimension
        band = "" if self.band is None else f" [{self.band[0] + 1} of {self.band[1]}]"
        return "/".join((units, *self.cut_over)) + turned + band
