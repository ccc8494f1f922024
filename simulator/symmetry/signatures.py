"""What the ranks that follow one program do, op by op and turn by turn.

A loop is known by where it stands: `i#0` is the first loop over i of a program, and
`i#0[3]/j#1` the second loop over j in the fourth turn of that one.  So the loops of two
programs can be told to be the same.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quadrille.algorithms.analysis.coordinate_dependence import Dependence, OpDependences
from quadrille.algorithms.analysis.labels import Ints, pairs
from quadrille.algorithms.schedule.expressions import variables
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
from quadrille.algorithms.schedule.ops import Op
from quadrille.algorithms.schedule.parts import Coordinates, Panel
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule

Key = Hashable

LoopPosition = str
"""Where a loop stands."""


def loop_position(program: Program, at: int, within: str = "") -> LoopPosition:
    """Where the loop stands that is an entry of a program, or of the body of a loop.

    >>> body = Repeat("j", 2, ())
    >>> loop_position((body, Repeat("i", 3, ()), body), 2, within="k#0[1]/")
    'k#0[1]/j#1'
    """
    entry = program[at]
    assert isinstance(entry, Repeat)
    before = sum(isinstance(other, Repeat) and other.loop == entry.loop for other in program[:at])
    return f"{within}{entry.loop}#{before}"


def in_turn(loop: LoopPosition, number: int) -> str:
    """Within a turn of a loop: what stands before the names of the loops there."""
    return f"{loop}[{number}]/"


def outer_loops(loop: LoopPosition) -> list[LoopPosition]:
    """The loops around a loop, the outermost first.

    >>> outer_loops("i#0[3]/j#1[0]/k#0")
    ['i#0', 'i#0[3]/j#1']
    """
    ends = [place for place, letter in enumerate(loop) if letter == "["]
    return [loop[:end] for end in ends]


class Signatures:
    """What was seen of the ops of one program, each looked at once for each value of the loops that it depends on.

    Parameters
    ----------
    look_at : says what an op does at a moment, as far as it must know; the same for moments that are alike
    """

    def __init__(self, schedule: Schedule, look_at: Callable[[Op, Coordinates, Dependence], Key]) -> None:
        self._needs = schedule.cached(OpDependences)
        self._look_at = look_at
        self._seen: dict[Key, int] = {}
        self._numbers: dict[Key, int] = {}

    def turns(self, program: Program, place: Coordinates) -> dict[LoopPosition, list[int]]:
        """A number for what is done in each turn of each loop; an outer loop comes before those in it."""
        found: dict[LoopPosition, list[int]] = {}
        self._through(program, place, "", found)
        return found

    def _through(self, program: Program, place: Coordinates, within: str, found: dict[LoopPosition, list[int]]) -> int:
        """A number for all that is done in a program."""
        done = []
        for at, entry in enumerate(program):
            if not isinstance(entry, Repeat):
                done.append(self.seen(entry, place))
                continue
            loop = loop_position(program, at, within)
            turns = found.setdefault(loop, [])
            for number, index in enumerate(entry.indices(place)):
                turns.append(self._through(entry.body, place.during(entry.loop, index), in_turn(loop, number), found))
            done.append(self._number((id(entry), *turns)))
        return self._number(tuple(done))

    def seen(self, op: Op, moment: Coordinates) -> int:
        """A number for what the op does at that moment."""
        needed = self._needs.of(op)
        key = (id(op), *(moment.indices.get(loop) for loop in sorted(needed.loops)))
        if key not in self._seen:
            self._seen[key] = self._number((id(op), self._look_at(op, moment, needed)))
        return self._seen[key]

    def _number(self, what: Key) -> int:
        return self._numbers.setdefault(what, len(self._numbers))


def loop_count_axes(program: Program) -> set[Axis]:
    """Axes on whose coordinate it depends how often something is repeated, and from which index on."""
    found: set[Axis] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            counts = {entry.count.shared_over} if isinstance(entry.count, Panel) else variables(entry.count)
            told = {*variables(entry.first), *counts}
            found |= {axis for axis in AXES if axis in told} | loop_count_axes(entry.body)
    return found


@dataclass(frozen=True, eq=False)
class RanksByKind:
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


class RankLabels:
    """A colour of each rank of a grid, at first the same.

    >>> colours = RankLabels(Grid(x=4))
    >>> colours.split(np.array([1, 3]), np.array([0, 5]))
    >>> len(set(colours.of_rank.tolist()))
    3
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        ranks = np.arange(grid.size)
        self.coordinates = {axis: ranks // grid.stride(axis) % grid.length(axis) for axis in AXES}
        self.of_rank = np.zeros(grid.size, dtype=np.int64)
        self._sorted: dict[Hashable, RanksByKind] = {}
        self._known: set[Hashable] = set()

    def split(self, ranks: Ints, kinds: Ints) -> None:
        """Gives ranks of different kinds different colours."""
        if len(kinds) and (kinds != kinds[0]).any():
            extra = np.zeros(len(self.of_rank), dtype=np.int64)
            extra[ranks] = kinds + 1
            self.of_rank = pairs(self.of_rank, extra)

    def told_apart(self, by: RanksByKind, numbers: Sequence[int]) -> None:
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
    ) -> tuple[list[Any], RanksByKind]:
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
            coordinates = {**moment.along, **{axis: ones[0] for axis, (ones, _) in kinds_of.items()}}
            for axis, (ones, _) in reversed(several.items()):
                rest, kind = divmod(rest, len(ones))  # noqa: PLW2901 - the digits of a number, the last one first
                coordinates[axis] = ones[kind]
            values.append(look(replace(moment, along=coordinates)))
        return values, by

    def _sorted_by(self, ranks: Ints, kinds_of: dict[Axis, tuple[int, list[int]]]) -> RanksByKind:
        key = id(ranks), tuple((axis, tuple(kinds)) for axis, (_, kinds) in kinds_of.items())
        if key not in self._sorted:
            index = np.zeros(len(ranks), dtype=np.int64)
            for axis, (count, kinds) in kinds_of.items():
                index = index * count + np.array(kinds)[self.coordinates[axis][ranks]]
            used, which = np.unique(index, return_inverse=True) if kinds_of else (np.zeros(1, dtype=np.int64), index)
            self._sorted[key] = RanksByKind(ranks, used.tolist(), which)
        return self._sorted[key]
