"""Folded walk: the ops of a rank's program, with equivalent loop iterations visited once and counted.

Byte, flop and buffer counts are equal in most iterations of a loop.  Only loops whose index changes a size, a peer or a
trip count are visited iteration by iteration.  In SUMMA's panel loops, iterations of one kind are visited once: the
kind is the panel width and, along a broadcast chain, whether the rank is the root, the last member or between.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from quadrille.algorithms.analysis.coordinate_dependence import Kind, OpKinds, TensorDependences
from quadrille.algorithms.analysis.root_distances import CHAIN
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.expressions import PanelOwner, variables
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Broadcast, Op, Reduce, collective_kind
from quadrille.algorithms.schedule.parts import Coordinates, Panel, Part, boundaries
from quadrille.algorithms.schedule.program import Program, Repeat, repeats
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import Tensor


@dataclass(frozen=True, slots=True)
class RepeatedInstance:
    """An op at given coordinates that stands for `count` equivalent instances."""

    op: Op
    coordinates: Coordinates
    count: int


def differing_loops(schedule: Schedule) -> frozenset[str]:
    """Returns the loops whose index changes a size, a peer, a root or a trip count.

    An index that only selects copies of a tensor makes no difference.  An index at which another loop starts makes a
    difference only if that loop's index does.  A loop in which single iterations differ is none of them.
    """
    loops = {part.panel.loop for tensor in schedule.tensors.values() for part in _parts(tensor) if part.panel}
    loops |= {name for tensor in schedule.tensors.values() for part in _parts(tensor) for name in part.rotated_by}
    for name, tensor in schedule.tensors.items():
        if tensor.buckets is not None:
            loops |= {tensor.buckets[0]} & schedule.cached(TensorDependences).of(name).loops
    for op in all_ops(schedule):
        for field_name in ("root", "to", "sender", "distance"):
            loops |= variables(getattr(op, field_name, 0))
    entries = [entry for role in schedule.roles for entry in repeats(role.program)]
    loops |= {name for repeat in entries if not isinstance(repeat.count, Panel) for name in variables(repeat.count)}
    deciding = loops | {loop for loop, _ in different_iterations(schedule)}
    while (
        further := {name for repeat in entries if repeat.loop in deciding for name in variables(repeat.first)}
        - deciding
    ):
        loops |= further
        deciding |= further
    return frozenset(loops)


def different_iterations(schedule: Schedule) -> frozenset[tuple[str, int]]:
    """Returns loop and index of each iteration in which tensors have other sizes than in all others of the loop."""
    parts = (part for tensor in schedule.tensors.values() for part in _parts(tensor))
    return frozenset(part.in_iteration[:2] for part in parts if part.in_iteration is not None)


def _parts(tensor: Tensor) -> tuple[Part, Part]:
    return tensor.rows, tensor.columns


FIRST, BETWEEN, LAST = 0, 1, 2
"""Position of a member in a broadcast chain."""
IterationKind = tuple[int, ...]


def folded_walks(schedule: Schedule, choices: Choices) -> "FoldedWalks":
    """The folded walks of a schedule, computed once; only panel loops depend on the choices of collectives."""
    has_panels = any(isinstance(entry.count, Panel) for role in schedule.roles for entry in repeats(role.program))
    return schedule.cached(FoldedWalks, choices if has_panels else Choices())


class FoldedWalks:
    """Folded walks of the ranks of a schedule.

    Parameters
    ----------
    schedule : the schedule
    choices : implementation and algorithms of its collectives
    """

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        tensors = schedule.tensors.values()
        rotated = {name for tensor in tensors for part in (tensor.rows, tensor.columns) for name in part.rotated_by}
        self._schedule = schedule
        different = different_iterations(schedule)
        self._walk = _Walk(choices, differing_loops(schedule), different, frozenset(rotated))

        self._kinds = schedule.cached(OpKinds)
        self._instances: dict[tuple[tuple[Axis, int], ...], tuple[RepeatedInstance, ...]] = {}

    def of(self, coordinates: Coordinates) -> tuple[RepeatedInstance, ...]:
        """The ops of the rank at the coordinates, once for each kind of coordinates of the op, with its count.

        The slots of an interleaved pipeline repeat the same few kinds thousands of times.
        """
        key = tuple(coordinates.along.items())
        if key not in self._instances:
            self._instances[key] = self._merged(coordinates)
        return self._instances[key]

    def _merged(self, coordinates: Coordinates) -> tuple[RepeatedInstance, ...]:
        firsts: dict[tuple[int, Kind], RepeatedInstance] = {}
        counts: dict[tuple[int, Kind], int] = {}
        for instance in self._walk.through(self._schedule.program(coordinates), coordinates, 1):
            kind = id(instance.op), self._kinds.of(instance.op, instance.coordinates)
            firsts.setdefault(kind, instance)
            counts[kind] = counts.get(kind, 0) + instance.count
        return tuple(replace(instance, count=counts[kind]) for kind, instance in firsts.items())


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk through a program that visits equivalent iterations once.

    Parameters
    ----------
    choices : algorithms of the collectives
    differing : loops whose iterations are not all equivalent
    different : loop and index of single iterations that differ from all others of the loop
    rotated : loops whose index rotates blocks
    """

    choices: Choices
    differing: frozenset[str]
    different: frozenset[tuple[str, int]]
    rotated: frozenset[str]

    def through(self, program: Program, coordinates: Coordinates, count: int) -> Iterator[RepeatedInstance]:
        for entry in program:
            if not isinstance(entry, Repeat):
                yield RepeatedInstance(entry, coordinates, count)
                continue
            for index, times in self._iteration_kinds(entry, coordinates):
                yield from self.through(entry.body, coordinates.during(entry.loop, index), count * times)

    def _iteration_kinds(self, entry: Repeat, coordinates: Coordinates) -> list[tuple[int, int]]:
        """Returns an index for each kind of iteration, and the number of iterations of the kind."""
        indices = entry.indices(coordinates)
        if entry.loop not in self.differing:
            singles = [index for loop, index in self.different if loop == entry.loop and index in indices]
            equal = next((index for index in indices if index not in singles), None)
            kinds = [] if equal is None else [(equal, len(indices) - len(singles))]
            return [*kinds, *((index, 1) for index in singles)]
        panel = entry.count
        if isinstance(panel, Panel) and not entry.backwards and self._is_plain_panel_loop(panel, entry):
            return list(panel_iteration_kinds(panel, coordinates).values())
        return [(index, 1) for index in indices]

    def _is_plain_panel_loop(self, panel: Panel, entry: Repeat) -> bool:
        """Whether only the panel's width and owners matter in the loop."""
        plain = panel.loop == entry.loop and panel.shared_over is None and entry.first == 0
        return (
            plain
            and entry.loop not in self.rotated
            and all(self._depends_on_panel_only(op, panel) for op in entry.body)
        )

    def _depends_on_panel_only(self, op: Op | Repeat, panel: Panel) -> bool:
        if isinstance(op, Repeat):
            return False
        if isinstance(op, Broadcast | Reduce) and isinstance(op.root, PanelOwner):
            own = op.root.panel == panel and op.root.axis in panel.axes
            return own and self.choices.of(op.name).algorithm(collective_kind(op)) == CHAIN
        return all(panel.loop not in variables(getattr(op, name, 0)) for name in ("root", "to", "sender", "distance"))


def panel_iteration_kinds(panel: Panel, coordinates: Coordinates) -> dict[IterationKind, tuple[int, int]]:
    """Returns the first iteration of each kind and the number of its kind, by panel width and position along the
    owners' chains.

    >>> coordinates = Coordinates(Grid(x=4), {"k": 13}, {"x": 1})
    >>> panel_iteration_kinds(Panel("k", 9, ("x",), "p"), coordinates)
    {(4, 1): (0, 1), (3, 0): (1, 1), (3, 2): (2, 1), (3, 1): (3, 1)}
    """
    kinds: dict[IterationKind, tuple[int, int]] = {}
    for index, (width, *owners) in enumerate(
        _widths_and_owners(panel, coordinates.sizes[panel.dimension], coordinates.grid)
    ):
        kind = (
            width,
            *(_chain_position(coordinates, axis, owner) for axis, owner in zip(panel.axes, owners, strict=True)),
        )
        first, times = kinds.get(kind, (index, 0))
        kinds[kind] = first, times + 1
    return kinds


def _chain_position(coordinates: Coordinates, axis: Axis, owner: int) -> int:
    length = coordinates.grid.length(axis)
    behind = (coordinates.along[axis] - owner) % length
    return FIRST if behind == 0 else LAST if behind == length - 1 else BETWEEN


@lru_cache(256)
def _widths_and_owners(panel: Panel, size: int, grid: Grid) -> list[list[int]]:
    """Returns the width and the owner along each axis of every panel."""
    edges = panel.edges(grid, size)
    columns = [[after - before for before, after in pairwise(edges)]]
    for axis in panel.axes:
        blocks = boundaries(size, grid.length(axis))
        columns.append((np.searchsorted(blocks, edges[:-1], side="right") - 1).tolist())
    return [list(row) for row in zip(*columns, strict=True)]
