"""Classes of ranks around the root of a broadcast or reduce: ranks at the same distance from the root do the same work.

A *panel* is the columns or rows that SUMMA broadcasts at once; a *chain* is the pipelined algorithm, in which each
member forwards pieces to the next member. The distance is counted around the group. If another coordinate determines
the root (a diagonal), ranks at one distance do the same. If the root moves from iteration to iteration, as the owners
of SUMMA's panels do, every rank is at every distance in some iteration, and equivalent ranks do the same work in
different iterations. Let block r be the panels that coordinate r owns.

- If the blocks of all coordinates have panels of the same widths, a rank at r does with the panels of block s what a
  rank at r + 1 does with those of s + 1.  Both do the same in total, as sums over s equal sums over s + 1.
- Along a chain, a member forwards all panels except those of the next coordinate's block, for which it is the last
  member.  So it sends as much as another member whose next block is as long.  It receives panels of the same widths if
  each width has two owners.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.lowered_collective import CollectiveAlgorithm
from quadrille.algorithms.schedule.expressions import Affine, IntExpression, PanelOwner
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.parts import Panel, boundaries

DISTANCE_ONLY: tuple[CollectiveAlgorithm, ...] = ("pipelined", "binomial", "double_binary_tree")
"""Algorithms in which the distance from the root alone determines a member's steps."""
CHAIN: CollectiveAlgorithm = "pipelined"


@dataclass(frozen=True, slots=True)
class RootDistanceRule:
    """The rule of a rank's distance around its group from the root, which another coordinate determines.

    The root is the member at factor · (coordinate along `other_axis`) + offset.

    Parameters
    ----------
    axis : axis of the group
    other_axis : axis whose coordinate determines the root
    factor, offset : the root's coordinate as a linear function of the other coordinate
    starts : distances at which a new class begins; None if each distance is a class of its own
    """

    axis: Axis
    other_axis: Axis
    factor: int
    offset: int
    starts: frozenset[int] | None = None

    def classes(self, grid: Grid) -> NDArray[np.int64]:
        """Returns the number of the class of every rank [ranks].

        >>> RootDistanceRule("x", "z", -1, 0, frozenset({0, 1, 2})).classes(Grid(z=3, x=3)).tolist()
        [0, 1, 2, 1, 2, 0, 2, 0, 1]
        """
        own, reference = (_coordinates(grid, axis) for axis in (self.axis, self.other_axis))
        distance = (own - self.factor * reference - self.offset) % grid.length(self.axis)
        return distance if self.starts is None else np.searchsorted(sorted(self.starts), distance, side="right") - 1


def _coordinates(grid: Grid, axis: Axis) -> NDArray[np.int64]:
    coordinates: NDArray[np.int64] = np.arange(grid.size) // grid.stride(axis) % grid.length(axis)
    return coordinates


def chain_starts(length: int) -> frozenset[int]:
    """Returns the distances from the root at which classes of chain members begin: root, between, last."""
    return frozenset({0, 1, length - 1})


def root_distance(
    root: IntExpression, axis: Axis, length: int, algorithm: CollectiveAlgorithm
) -> RootDistanceRule | None:
    """The rule that gives each rank's distance from a root which another coordinate determines.

    None if the root is not of that form; then the caller takes every coordinate as a class of its own.

    Parameters
    ----------
    root : coordinate of the root along `axis`
    axis : axis of the group
    length : number of members
    algorithm : algorithm of the collective
    """
    if not isinstance(root, Affine) or algorithm not in DISTANCE_ONLY or root.modulo not in (None, axis):
        return None
    other_axis = next((candidate for candidate in Grid().order if candidate == root.variable), None)
    if other_axis is None or other_axis == axis:
        return None
    starts = chain_starts(length) if algorithm == CHAIN else None
    return RootDistanceRule(axis, other_axis, root.factor, root.offset, starts)


def owners_are_equivalent(owner: PanelOwner, size: int, grid: Grid, algorithm: CollectiveAlgorithm) -> bool:
    """Whether coordinates whose next blocks are equally long do the same work over all iterations of a panel loop.

    Parameters
    ----------
    owner : root of the collective in each iteration
    size : length of the panel's dimension [elements]
    grid : grid of ranks
    algorithm : algorithm of the collective
    """
    panel, axis = owner.panel, owner.axis
    if panel.shared_over is not None or axis not in panel.axes or algorithm not in DISTANCE_ONLY:
        return False
    blocks = list(widths_by_owner(panel, axis, size, grid))
    if all(block == blocks[0] for block in blocks):
        return True
    owners = {width: sum(width in block for block in blocks) for block in blocks for width in block}
    return algorithm == CHAIN and min(owners.values()) > 1


def widths_by_owner(panel: Panel, axis: Axis, size: int, grid: Grid) -> Iterator[tuple[int, ...]]:
    """Yields the sorted widths of the panels that each coordinate owns [elements].

    Parameters
    ----------
    panel : panels of a dimension
    axis : axis that cuts the dimension
    size : length of the dimension [elements]
    grid : grid of ranks

    >>> list(widths_by_owner(Panel("k", 8, ("x", "z"), "p"), "x", 12, Grid(x=3, z=2)))
    [(4,), (2, 2), (4,)]
    """
    edges = panel.edges(grid, size)
    for start, stop in pairwise(boundaries(size, grid.length(axis))):
        yield tuple(sorted(last - first for first, last in pairwise(edges) if start <= first < stop))
