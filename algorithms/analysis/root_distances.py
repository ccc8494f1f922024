"""How far ranks are from the roots of their collectives, and who does the same in another turn of a loop.

A broadcast or reduce moves bytes by the distance from its root, counted around
the group.  Where the root is told by another coordinate (a diagonal), ranks at
one distance do the same.  Where it moves from turn to turn, as owners of SUMMA's
panels do, every rank is at every distance in some turn.

What a rank sends then, in all turns together.  Let a block of the coordinate r
be the panels that r owns.

- If the blocks of all coordinates have panels of the same widths, a rank at r
  does with the panels of block s what the one at r + 1 does with those of s + 1.
  Both do the same in all turns together, as sums over s are sums over s + 1.
- Down a chain a member passes on all panels but those of which it is the last
  member, which are the block of the next coordinate.  So it sends as much as
  another whose next coordinate has a block of the same length; and it receives
  panels of the same widths if each width has two owners, since it misses those
  of one of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.lowered import Name
from quadrille.algorithms.schedule.expressions import Affine, IntExpression, PanelOwner
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.parts import Panel, boundaries

AROUND: tuple[Name, ...] = ("pipelined", "binomial", "double_binary_tree")
"""Algorithms whose members do the same at the same distance from the root."""
CHAIN: Name = "pipelined"


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance around the group along `axis` from the member at factor · (coordinate along `other_axis`) + offset.

    Parameters
    ----------
    starts : distances at which another kind begins; None where each is a kind of its own
    """

    axis: Axis
    other_axis: Axis
    factor: int
    offset: int
    starts: frozenset[int] | None = None

    def kinds(self, grid: Grid) -> NDArray[np.int64]:
        """The kind of every rank.

        >>> Distance("x", "z", -1, 0, frozenset({0, 1, 2})).kinds(Grid(z=3, x=3)).tolist()
        [0, 1, 2, 1, 2, 0, 2, 0, 1]
        """
        own, other = (_coordinates(grid, axis) for axis in (self.axis, self.other_axis))
        distance = (own - self.factor * other - self.offset) % grid.length(self.axis)
        return distance if self.starts is None else np.searchsorted(sorted(self.starts), distance, side="right") - 1


def _coordinates(grid: Grid, axis: Axis) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.arange(grid.size) // grid.stride(axis) % grid.length(axis)
    return found


def chain_kinds(length: int) -> frozenset[int]:
    """Where the kinds of members of a chain begin, by distance from the root: the root, those between, the last."""
    return frozenset({0, 1, length - 1})


def from_root(root: IntExpression, axis: Axis, length: int, algorithm: Name) -> Distance | None:
    """What tells the members of rooted collectives apart by another coordinate; None where it is not that."""
    if not isinstance(root, Affine) or algorithm not in AROUND or root.modulo not in (None, axis):
        return None
    of = next((other for other in Grid().order if other == root.variable), None)
    if of is None or of == axis:
        return None
    return Distance(axis, of, root.factor, root.offset, chain_kinds(length) if algorithm == CHAIN else None)


def owners_alike(owner: PanelOwner, size: int, grid: Grid, algorithm: Name) -> bool:
    """Whether all turns of a panel come to the same on coordinates whose next block is as long, see above.

    Parameters
    ----------
    size : of the panel's dimension
    """
    panel, axis = owner.panel, owner.axis
    if panel.shared_over is not None or axis not in panel.axes or algorithm not in AROUND:
        return False
    blocks = list(widths_by_owner(panel, axis, size, grid))
    if all(one == blocks[0] for one in blocks):
        return True
    owners = {width: sum(width in one for one in blocks) for one in blocks for width in one}
    return algorithm == CHAIN and min(owners.values()) > 1


def widths_by_owner(panel: Panel, axis: Axis, size: int, grid: Grid) -> Iterator[tuple[int, ...]]:
    """The widths of the panels that each coordinate owns, rising.

    >>> list(widths_by_owner(Panel("k", 8, ("x", "z"), "p"), "x", 12, Grid(x=3, z=2)))
    [(4,), (2, 2), (4,)]
    """
    edges = panel.edges(grid, size)
    for start, stop in pairwise(boundaries(size, grid.length(axis))):
        yield tuple(sorted(last - first for first, last in pairwise(edges) if start <= first < stop))
