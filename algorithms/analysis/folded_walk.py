"""A rank's program as counting needs it: turns of a loop that come to the same walked once.

Beside the loops whose index changes nothing (`folded_walk.py`), these are the turns
of SUMMA's panels.  What a turn comes to follows from the width of its panel and, down
a chain, from whether the rank is the first member from the root, the last or one
between: of 64 turns there are a handful of kinds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from quadrille.algorithms.analysis.root_distances import CHAIN
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.schedule.expressions import PanelOwner, variables
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Broadcast, Op, Reduce, collective_kind
from quadrille.algorithms.schedule.parts import Coordinates, Panel, Part, boundaries
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import Tensor


@dataclass(frozen=True, slots=True)
class RepeatedInstance:
    """An op at one moment that stands for `count` moments at which it does the same."""

    op: Op
    coordinates: Coordinates
    count: int


def differing_loops(schedule: Schedule) -> frozenset[str]:
    """Loops whose index changes a size, a peer, a root or how often something is repeated.

    An index that only tells copies of a tensor apart makes no difference, and
    one that another loop begins at makes one only if that loop's index does.
    """
    found = {part.panel.loop for tensor in schedule.tensors.values() for part in _parts(tensor) if part.panel}
    found |= {name for tensor in schedule.tensors.values() for part in _parts(tensor) for name in part.rotated_by}
    for op in all_ops(schedule):
        for field_name in ("root", "to", "sender", "distance"):
            found |= variables(getattr(op, field_name, 0))
    repeats = [entry for role in schedule.roles for entry in _repeats(role.program)]
    found |= {name for one in repeats if not isinstance(one.count, Panel) for name in variables(one.count)}
    while more := {name for one in repeats if one.loop in found for name in variables(one.first)} - found:
        found |= more
    return frozenset(found)


def _parts(tensor: Tensor) -> tuple[Part, Part]:
    return tensor.rows, tensor.columns


def _repeats(program: Program) -> Iterator[Repeat]:
    for entry in program:
        if isinstance(entry, Repeat):
            yield entry
            yield from _repeats(entry.body)


FIRST, BETWEEN, LAST = 0, 1, 2
"""Where a member is down a chain."""
IterationKind = tuple[int, ...]


def folded_walk(schedule: Schedule, place: Coordinates, choices: Choices) -> Iterator[RepeatedInstance]:
    """Ops of the rank at `place`, each with a moment for each kind of its moments and how many there are."""
    return FoldedWalks(schedule, choices).of(place)


class FoldedWalks:
    """The walks of many ranks of a schedule."""

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        tensors = schedule.tensors.values()
        turned = {name for one in tensors for part in (one.rows, one.columns) for name in part.rotated_by}
        self._schedule = schedule
        self._walk = _Walk(choices, differing_loops(schedule), frozenset(turned))

    def of(self, place: Coordinates) -> Iterator[RepeatedInstance]:
        """Ops of the rank at `place`, see `folded_walk`."""
        return self._walk.through(self._schedule.program(place), place, 1)


@dataclass(frozen=True, slots=True)
class _Walk:
    """Through a program.

    Parameters
    ----------
    differing : loops whose index counts
    turned : those by whose index blocks turn
    """

    choices: Choices
    differing: frozenset[str]
    turned: frozenset[str]

    def through(self, program: Program, place: Coordinates, count: int) -> Iterator[RepeatedInstance]:
        for entry in program:
            if not isinstance(entry, Repeat):
                yield RepeatedInstance(entry, place, count)
                continue
            for index, times in self._turns(entry, place):
                yield from self.through(entry.body, place.during(entry.loop, index), count * times)

    def _turns(self, entry: Repeat, place: Coordinates) -> list[tuple[int, int]]:
        """An index for each kind of turns, and how many there are of the kind."""
        indices = entry.indices(place)
        if entry.loop not in self.differing:
            return [(indices[0], len(indices))] if indices else []
        panel = entry.count
        if isinstance(panel, Panel) and not entry.backwards and self._told_by(panel, entry):
            return list(panel_iteration_kinds(panel, place).values())
        return [(index, 1) for index in indices]

    def _told_by(self, panel: Panel, entry: Repeat) -> bool:
        """Whether only the panel's width and its owners count in the loop."""
        plain = panel.loop == entry.loop and panel.shared_over is None and entry.first == 0
        return plain and entry.loop not in self.turned and all(self._follows(op, panel) for op in entry.body)

    def _follows(self, op: Op | Repeat, panel: Panel) -> bool:
        if isinstance(op, Repeat):
            return False
        if isinstance(op, Broadcast | Reduce) and isinstance(op.root, PanelOwner):
            own = op.root.panel == panel and op.root.axis in panel.axes
            return own and self.choices.of(op.name).algorithm(collective_kind(op)) == CHAIN
        return all(panel.loop not in variables(getattr(op, name, 0)) for name in ("root", "to", "sender", "distance"))


def panel_iteration_kinds(panel: Panel, place: Coordinates) -> dict[IterationKind, tuple[int, int]]:
    """The first turn of each kind, and how many there are: by width, and place down the chains from the owners.

    >>> place = Coordinates(Grid(x=4), {"k": 13}, {"x": 1})
    >>> panel_iteration_kinds(Panel("k", 9, ("x",), "p"), place)
    {(4, 1): (0, 1), (3, 0): (1, 1), (3, 2): (2, 1), (3, 1): (3, 1)}
    """
    found: dict[IterationKind, tuple[int, int]] = {}
    for index, (width, *owners) in enumerate(_widths_and_owners(panel, place.sizes[panel.dimension], place.grid)):
        kind = (width, *(_in_chain(place, axis, owner) for axis, owner in zip(panel.axes, owners, strict=True)))
        first, times = found.get(kind, (index, 0))
        found[kind] = first, times + 1
    return found


def _in_chain(place: Coordinates, axis: Axis, owner: int) -> int:
    length = place.grid.length(axis)
    behind = (place.along[axis] - owner) % length
    return FIRST if behind == 0 else LAST if behind == length - 1 else BETWEEN


@lru_cache(256)
def _widths_and_owners(panel: Panel, size: int, grid: Grid) -> list[list[int]]:
    """Of every turn the width, and the owner along each of the panel's axes."""
    edges = panel.edges(grid, size)
    columns = [[after - before for before, after in pairwise(edges)]]
    for axis in panel.axes:
        blocks = boundaries(size, grid.length(axis))
        columns.append((np.searchsorted(blocks, edges[:-1], side="right") - 1).tolist())
    return [list(row) for row in zip(*columns, strict=True)]
