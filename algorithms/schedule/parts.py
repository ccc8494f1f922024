"""Parts of a matrix dimension: the range of a rank, written once for all ranks and evaluated at its coordinates.

Axes cut a dimension one inside the other.  The cut is written once for all ranks.  `Coordinates`, a rank's grid
coordinates and loop indices, turn it into a range.

    7 elements cut into 3            0 1 2 | 3 4 | 5 6
    6 elements cut into 2, then 2    0 1 | 2 || 3 4 | 5
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
    """Returns start and stop of part `index`; the first `size mod parts` parts are one element longer.

    >>> [cut(7, 3, index) for index in range(3)]
    [(0, 3), (3, 5), (5, 7)]

    A fractional size gives equal fractional parts.  No rank has such blocks; the simulator uses them
    (`simulator/symmetry/even_shards.py`).
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
"""From this many bands on, the first and last are half size; with three, half of all rows would be in one band."""


def cut_in_bands(size: int, count: int, index: int) -> tuple[int, int]:
    """Returns start and stop of band `index`; with enough rows, the first and last bands are half size.

    Nothing overlaps the computation before the first reduction, nor the reduction after the last computation.

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
    """Whether a size is a fractional mean size, which no rank has."""
    return type(size) is Fraction  # whose isinstance is slow, and this is asked for every block


def boundaries(size: int, parts: int) -> list[int]:
    """Returns the starts of all parts, and the end of the last.

    >>> boundaries(7, 3)
    [0, 3, 5, 7]
    """
    if is_mean(size):
        each = size / parts
        above, below = each.numerator, each.denominator  # type: ignore[attr-defined]
        return [cast(int, Fraction(index * above, below)) for index in range(parts)] + [size]
    short, longer = divmod(size, parts)
    middle = longer * (short + 1)
    after = range(middle, size + 1, short) if short else [size] * (parts - longer + 1)
    return [*range(0, middle, short + 1), *after]


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Grid coordinates of a rank and its loop indices: where symbolic sizes become numbers.

    Parameters
    ----------
    grid : grid of ranks
    sizes : length of each dimension, by letter
    along : coordinate of the rank along each axis
    indices : index of each enclosing loop, by loop name
    """

    grid: Grid
    sizes: Mapping[str, int]
    along: Mapping[Axis, int]
    indices: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.grid.folds:
            object.__setattr__(self, "along", self.grid.with_expert_axes(self.along))

    def at(self, axis: Axis, coordinate: int) -> "Coordinates":
        """Coordinates of another member of the group along `axis`, with the loop indices unchanged."""
        return Coordinates(self.grid, self.sizes, self.grid.moved(self.along, axis, coordinate), self.indices)

    def during(self, loop: str, index: int) -> "Coordinates":
        """Coordinates of this rank in iteration `index` of the loop `loop`."""
        return Coordinates(self.grid, self.sizes, self.along, {**self.indices, loop: index})

    def variable(self, name: str) -> int:
        """Value of a grid coordinate or loop index; an index is 0 outside its loop."""
        for axis in AXES:
            if name == axis:
                return self.along[axis]
        return self.indices.get(name, 0)


def experts_of(coordinates: Coordinates, count: int) -> tuple[int, int]:
    """First expert of a rank, and one past the last, among `count` experts."""
    grid = coordinates.grid
    return cut(count, grid.expert, coordinates.along["expert"]) if grid.expert > 1 else (0, count)


@dataclass(frozen=True, slots=True)
class Panel:
    """Consecutive windows over a dimension, such as the panels that SUMMA broadcasts.

    A panel is `width` long.  It ends early where a block of any cut over `axes` ends, so it has one owner along each of
    them.

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
    """Axis whose members each take a contiguous range of the panels."""
    unit: int = 1
    """Elements of one unit of the dimension; `width` counts units."""

    def __post_init__(self) -> None:
        if self.width < 1:
            raise InputError(f"panel {self.width}: a panel is a whole number of columns from 1")

    def edges(self, grid: Grid, size: int) -> tuple[int, ...]:
        """Starts of all panels, and the end of the last."""
        return _panel_edges(size, self.width, tuple([grid.length(axis) for axis in self.axes]))

    def iterations(self, coordinates: Coordinates) -> tuple[int, int]:
        """First panel that this rank takes part in, and one past the last."""
        count = len(self.edges(coordinates.grid, coordinates.sizes[self.dimension])) - 1
        if self.shared_over is None:
            return 0, count
        return cut(count, coordinates.grid.length(self.shared_over), coordinates.along[self.shared_over])

    def bounds(self, coordinates: Coordinates) -> tuple[int, int]:
        """Range of the dimension that the current panel covers."""
        edges = self.edges(coordinates.grid, coordinates.sizes[self.dimension])
        first = 0 if self.shared_over is None else self.iterations(coordinates)[0]
        number = first + coordinates.indices[self.loop]
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
    dimension : letter of the dimension
    axes : axes that cut the dimension, outermost first
    rotated_by : coordinates and loop indices added to the part index of the innermost cut, modulo its length (Cannon's
        skew)
    panel : current window, instead of a cut
    unit : elements that a cut keeps together (rows of a sequence, columns of an attention head)
    finer : axes that cut further, through units too
    band : (index, count) of one band of rows; whole units where there are enough
    in_iteration : (loop, index, dimension): iteration `index` of `loop` cuts another dimension (a smaller last
        microbatch); index 0 is not accepted, because an index is 0 outside its loop
    loads : expected rows of each expert, in any unit; the rank has those of its experts instead of an even part
    dropped : expected rows that no expert takes, in the unit of `loads`
    gathered : number of ranks whose rows the rank has, as many of each as its own: those that cut its experts

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> rows = Part("m", ("data", "z"))
    >>> coordinates = Coordinates(Grid(data=2, z=2), {"m": 6}, {"data": 1, "z": 0, "y": 0, "x": 0})
    >>> rows.bounds(coordinates)
    (3, 5)
    >>> Part("m", ("data", "z"), unit=10).bounds(coordinates)
    (30, 50)
    >>> [Part("m", ("data", "z"), unit=10, band=(i, 3)).bounds(coordinates) for i in range(3)]
    [(30, 37), (37, 44), (44, 50)]
    >>> [Part("m", ("data", "z"), unit=10, band=(i, 2)).bounds(coordinates) for i in range(2)]
    [(30, 40), (40, 50)]
    >>> rows = Part("m", ("z",), in_iteration=("microbatch", 2, "last m"))
    >>> coordinates = Coordinates(Grid(z=2), {"m": 8, "last m": 4}, {"z": 1})
    >>> [rows.bounds(coordinates.during("microbatch", index)) for index in range(3)]
    [(4, 8), (4, 8), (2, 4)]
    >>> rows, grid = Part("m", ("data",), loads=(3, 1, 1, 1)), Grid(data=2, expert=2)
    >>> [rows.bounds(Coordinates(grid, {"m": 12}, {"data": rank})) for rank in range(2)]
    [(0, 8), (6, 10)]
    """

    dimension: str
    axes: tuple[Axis, ...] = ()
    rotated_by: tuple[str, ...] = ()
    panel: Panel | None = None
    unit: int = 1
    finer: tuple[Axis, ...] = ()
    band: tuple[int, int] | None = None
    in_iteration: tuple[str, int, str] | None = None
    loads: tuple[int, ...] = ()
    dropped: int = 0
    gathered: int = 1

    def __post_init__(self) -> None:
        assert self.in_iteration is None or self.in_iteration[1] > 0, self.in_iteration

    @property
    def variants(self) -> tuple["Part", ...]:
        """The part in most iterations and, if there is an iteration with another dimension, the part in it."""
        if self.in_iteration is None:
            return (self,)
        usual = replace(self, in_iteration=None)
        return usual, replace(usual, dimension=self.in_iteration[2])

    @property
    def cut_over(self) -> tuple[Axis, ...]:
        """All axes that cut the dimension."""
        return self.axes + self.finer

    def bounds(self, coordinates: Coordinates) -> tuple[int, int]:
        """First element in the whole dimension, and one past the last."""
        if self.panel is not None:
            return self.panel.bounds(coordinates)
        start, stop = 0, coordinates.sizes[self._dimension(coordinates)]
        for axis in self.axes:
            length = coordinates.grid.length(axis)
            if length == 1:
                continue
            index = coordinates.along[axis] if not self.rotated_by else self._index(axis, coordinates)
            first, last = cut(stop - start, length, index)
            start, stop = start + first, start + last
        start, stop = start * self.unit, stop * self.unit
        for axis in self.finer:
            index = coordinates.along[axis] if not self.rotated_by else self._index(axis, coordinates)
            first, last = cut(stop - start, coordinates.grid.length(axis), index)
            start, stop = start + first, start + last
        if self.band is not None:
            first, last = self.band_of(stop - start)
            start, stop = start + first, start + last
        length = self.loaded(stop - start, coordinates) if self.loads else stop - start
        return start, start + length * self.gathered

    def loaded(self, length: int, coordinates: Coordinates) -> int:
        """Rows of the experts of a rank, where each rank of its group sends `length` rows."""
        ranks = coordinates.grid.expert
        own = sum(self.loads[slice(*experts_of(coordinates, len(self.loads)))])
        expected = length * ranks * Fraction(own, sum(self.loads) + self.dropped)
        return cast(int, expected) if is_mean(length) else round(expected)

    def _dimension(self, coordinates: Coordinates) -> str:
        """The dimension that the part cuts in the current iteration."""
        if self.in_iteration is None:
            return self.dimension
        loop, index, dimension = self.in_iteration
        return dimension if coordinates.indices.get(loop) == index else self.dimension

    def band_of(self, length: int) -> tuple[int, int]:
        """Start and stop of the band in a range of `length` elements.

        >>> Part("m", unit=10, band=(0, 2)).band_of(30), Part("m", unit=10, band=(0, 4)).band_of(30)
        ((0, 20), (0, 5))
        """
        assert self.band is not None
        index, count = self.band
        in_units = length >= count * self.unit and not self.finer and length % self.unit == 0
        unit = self.unit if in_units else 1
        first, last = cut_in_bands(length // unit if unit > 1 else length, count, index)
        return first * unit, last * unit

    def _index(self, axis: Axis, coordinates: Coordinates) -> int:
        index = coordinates.along[axis]
        if axis == self.cut_over[-1]:
            index += sum(coordinates.variable(name) for name in self.rotated_by)
        return index % coordinates.grid.length(axis)

    @property
    def is_fixed(self) -> bool:
        """Whether the range is the same in all iterations of all loops."""
        return self.panel is None and not self.rotated_by and self.in_iteration is None

    @property
    def rotates(self) -> bool:
        """Whether a loop rotates the part, so that a rank's range changes."""
        return any(name not in AXES for name in self.rotated_by)

    def longest(self, coordinates: Coordinates) -> int:
        """Length of the longest range that the part takes while its loop runs."""
        if self.panel is not None:
            edges = self.panel.edges(coordinates.grid, coordinates.sizes[self.dimension])
            first, last = self.panel.iterations(coordinates)
            return max((edges[i + 1] - edges[i] for i in range(first, last)), default=0) * self.panel.unit
        if not self.rotates:
            start, stop = self.bounds(coordinates)
            return stop - start
        turning = replace(self, rotated_by=())
        innermost = self.cut_over[-1]
        members = range(coordinates.grid.length(innermost))
        ranges = (turning.bounds(coordinates.at(innermost, member)) for member in members)
        return max(stop - start for start, stop in ranges)

    def without(self, axis: Axis) -> "Part":
        """The part that the group along `axis` holds together."""
        return replace(self, axes=tuple(remaining for remaining in self.axes if remaining != axis))

    def __str__(self) -> str:
        if self.panel is not None:
            return f"{self.dimension}[{self.panel.loop}]"
        turned = "+" + "+".join(self.rotated_by) if self.rotated_by else ""
        units = f"{self.unit}·{self.dimension}" if self.unit > 1 else self.dimension
        band = "" if self.band is None else f" [{self.band[0] + 1} of {self.band[1]}]"
        return "/".join((units, *self.cut_over)) + turned + band
