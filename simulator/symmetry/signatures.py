"""Signatures of ops and loop iterations (equal if they do the same work), and labels of ranks by their signatures.

A loop is known by its position: `i#0` is the first loop over i of a program, and
`i#0[3]/j#1` the second loop over j in iteration 3 of that loop. So the loops of two
programs can be identified with each other.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quadrille.algorithms.analysis.coordinate_dependence import Dependence, OpDependences
from quadrille.algorithms.analysis.equality_labels import Ints, pair_labels
from quadrille.algorithms.schedule.expressions import variables
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
from quadrille.algorithms.schedule.ops import Op
from quadrille.algorithms.schedule.parts import Coordinates, Panel
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule

Key = Hashable

LoopPosition = str
"""The position of a loop."""


def loop_position(program: Program, at: int, prefix: str = "") -> LoopPosition:
    """The position of the loop that is an entry of a program, or of the body of a loop.

    >>> body = Repeat("j", 2, ())
    >>> loop_position((body, Repeat("i", 3, ()), body), 2, prefix="k#0[1]/")
    'k#0[1]/j#1'
    """
    entry = program[at]
    assert isinstance(entry, Repeat)
    before = sum(isinstance(earlier, Repeat) and earlier.loop == entry.loop for earlier in program[:at])
    return f"{prefix}{entry.loop}#{before}"


def iteration_prefix(loop: LoopPosition, number: int) -> str:
    """The prefix of the positions of loops within an iteration of a loop."""
    return f"{loop}[{number}]/"


def outer_loops(loop: LoopPosition) -> list[LoopPosition]:
    """The loops around a loop, the outermost first.

    >>> outer_loops("i#0[3]/j#1[0]/k#0")
    ['i#0', 'i#0[3]/j#1']
    """
    ends = [end for end, letter in enumerate(loop) if letter == "["]
    return [loop[:end] for end in ends]


class Signatures:
    """Signatures of the ops of one program, each computed once for each value of the loops on which it depends.

    Parameters
    ----------
    signature_of : function that gives the signature of an op at some coordinates; equal for equal work
    """

    def __init__(self, schedule: Schedule, signature_of: Callable[[Op, Coordinates, Dependence], Key]) -> None:
        self._needs = schedule.cached(OpDependences)
        self._analyse = signature_of
        self._seen: dict[Key, int] = {}
        self._numbers: dict[Key, int] = {}

    def iterations(self, program: Program, coordinates: Coordinates) -> dict[LoopPosition, list[int]]:
        """The signature of each iteration of each loop, as numbers; an outer loop comes before the loops in it."""
        iterations: dict[LoopPosition, list[int]] = {}
        self._through(program, coordinates, "", iterations)
        return iterations

    def _through(
        self, program: Program, coordinates: Coordinates, prefix: str, iterations: dict[LoopPosition, list[int]]
    ) -> int:
        """The signature of a program, as a number."""
        signatures = []
        for at, entry in enumerate(program):
            if not isinstance(entry, Repeat):
                signatures.append(self.seen(entry, coordinates))
                continue
            loop = loop_position(program, at, prefix)
            of_loop = iterations.setdefault(loop, [])
            for number, index in enumerate(entry.indices(coordinates)):
                of_loop.append(
                    self._through(
                        entry.body, coordinates.during(entry.loop, index), iteration_prefix(loop, number), iterations
                    )
                )
            signatures.append(self._number((id(entry), *of_loop)))
        return self._number(tuple(signatures))

    def seen(self, op: Op, coordinates: Coordinates) -> int:
        """The signature of an op at these loop indices, as a number."""
        dependence = self._needs.of(op)
        key = (id(op), *dependence.of_indices(coordinates.indices))
        if key not in self._seen:
            self._seen[key] = self._number((id(op), self._analyse(op, coordinates, dependence)))
        return self._seen[key]

    def _number(self, signature: Key) -> int:
        """The number of a signature."""
        return self._numbers.setdefault(signature, len(self._numbers))


def loop_count_axes(program: Program) -> set[Axis]:
    """Axes whose coordinate decides how often, or from which index on, a loop runs."""
    axes: set[Axis] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            counts = {entry.count.shared_over} if isinstance(entry.count, Panel) else variables(entry.count)
            deciding = {*variables(entry.first), *counts}
            axes |= {axis for axis in AXES if axis in deciding} | loop_count_axes(entry.body)
    return axes


@dataclass(frozen=True, eq=False)
class RanksByKind:
    """Some ranks, sorted by the kinds of their coordinates; compared by identity.

    Parameters
    ----------
    ranks : the ranks
    used : numbers of the combinations of kinds that occur
    which : index into `used` of each rank
    """

    ranks: Ints
    used: Sequence[int]
    which: Ints


class RankLabels:
    """A label of each rank of a grid, at first the same for all.

    >>> labels = RankLabels(Grid(x=4))
    >>> labels.split(np.array([1, 3]), np.array([0, 5]))
    >>> len(set(labels.of_rank.tolist()))
    3
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        ranks = np.arange(grid.size)
        self.coordinates = {axis: ranks // grid.stride(axis) % grid.length(axis) for axis in grid.axes}
        self.of_rank = np.zeros(grid.size, dtype=np.int64)
        self._sorted: dict[Hashable, RanksByKind] = {}
        self._distinguished: set[Hashable] = set()

    def split(self, ranks: Ints, kinds: Ints) -> None:
        """Gives ranks of different kinds different labels."""
        if len(kinds) and (kinds != kinds[0]).any():
            kinds_of_all = np.zeros(len(self.of_rank), dtype=np.int64)
            kinds_of_all[ranks] = kinds + 1
            self.of_rank = pair_labels(self.of_rank, kinds_of_all)

    def distinguish(self, by: RanksByKind, numbers: Sequence[int]) -> None:
        """Gives ranks with different numbers different labels; `numbers` has one number for each entry of `used`."""
        key = by, tuple(numbers)
        if len(set(numbers)) > 1 and key not in self._distinguished:
            self._distinguished.add(key)
            self.split(by.ranks, np.array(numbers)[by.which])

    def by_kind(
        self,
        dependence: Dependence,
        coordinates: Coordinates,
        ranks: Ints,
        analyse: Callable[[Coordinates], Hashable],
        among: set[Axis] | None = None,
    ) -> tuple[list[Any], RanksByKind]:
        """The result of `analyse` for each combination of kinds of coordinates, and the combination of each rank.

        Parameters
        ----------
        ranks : must not change, because results are cached by its identity
        among : axes whose kinds count; by default all
        """
        kinds_of = {
            axis: dependence.kinds(axis, self._grid.length(axis))
            for axis in dependence.axes
            if self._grid.length(axis) > 1 and (among is None or axis in among)
        }
        several = {axis: kinds for axis, kinds in kinds_of.items() if len(kinds[0]) > 1}
        by = self._sorted_by(
            ranks, {axis: (len(representatives), kinds) for axis, (representatives, kinds) in several.items()}
        )
        values: list[Any] = []
        for rest in by.used:
            along = {
                **coordinates.along,
                **{axis: representatives[0] for axis, (representatives, _) in kinds_of.items()},
            }
            for axis, (representatives, _) in reversed(several.items()):
                rest, kind = divmod(rest, len(representatives))  # noqa: PLW2901 - the digits of a number, the last one first
                along[axis] = representatives[kind]
            if self._grid.folds:  # coordinates along data and its factors belong together
                along = self._grid.coordinates(int(ranks[np.argmax(by.which == len(values))]))
            values.append(analyse(replace(coordinates, along=along)))
        return values, by

    def _sorted_by(self, ranks: Ints, kinds_of: dict[Axis, tuple[int, list[int]]]) -> RanksByKind:
        """The ranks sorted by the kinds of their coordinates, cached."""
        key = id(ranks), tuple((axis, tuple(kinds)) for axis, (_, kinds) in kinds_of.items())
        if key not in self._sorted:
            index = np.zeros(len(ranks), dtype=np.int64)
            for axis, (count, kinds) in kinds_of.items():
                index = index * count + np.array(kinds)[self.coordinates[axis][ranks]]
            used, which = np.unique(index, return_inverse=True) if kinds_of else (np.zeros(1, dtype=np.int64), index)
            self._sorted[key] = RanksByKind(ranks, used.tolist(), which)
        return self._sorted[key]
