"""How long the MPI library's collectives take, where the machine file has them measured.

All members of a group end so long after the last of them has come, the first of a run after another time
than those that follow it, whose members may be out of step (`runtime/measuring/library_chains.py`).  What it is
made of is not known, so it takes nothing of links or cores; groups of the same shape that run at the same time,
as those along an axis do, were measured so.

Broadcasts and reductions are measured by roots that turn, a step's share of a round, and so
they are predicted: a member that has sent goes on.  Between two they are messages.
"""

from collections.abc import Sequence

from algorithms.formats.machine import LibraryRow, Machine
from algorithms.grid import Grid
from algorithms.ops import Collective, collective_kind
from algorithms.traffic import Traffic
from simulator.homes import Homes
from simulator.interpolation import SecondsBySize

MEASURED, IDENTIFIED = "library (measured)", "library (one message)"
ROOTED = ("broadcast", "reduce")
ONE_MESSAGE = tuple((kind, 2) for kind in ROOTED)
"""Kinds and groups that leave a library nothing to choose: what they share links with is known then."""


class LibraryTimes:
    """Those of one grid on one machine."""

    def __init__(self, machine: Machine, grid: Grid, homes: Homes) -> None:
        part = machine.host if homes.used_places == 1 else machine.network
        self._rows = part.library if part is not None else ()
        self._grid = grid
        self._curves: dict[tuple[str, int, int, bool], tuple[SecondsBySize, bool] | None] = {}

    def is_one_message(self, op: Collective) -> bool:
        """Whether what the library does is known; said of machines only whose library was looked at."""
        return bool(self._rows) and (collective_kind(op), self._grid.length(op.axis)) in ONE_MESSAGE

    def are_known(self, op: Collective) -> bool:
        """Whether groups of its kind and size were measured."""
        return self._curve(op, first=True) is not None

    def seconds(self, op: Collective, moved: Traffic, *, first: bool) -> tuple[float, bool] | None:
        """Seconds, and whether that is beyond what was measured; None where nothing is known of its like.

        Beyond are larger buffers, groups whose members lie further apart or closer, and other numbers of ranks in all.

        Parameters
        ----------
        first : whether it is the first of the run
        """
        found = self._curve(op, first=first)
        if found is None:
            return None
        curve, alike = found
        size = moved.edges[-1] * moved.item_bytes
        return curve.seconds(size), not (alike and curve.covers(size))

    def _curve(self, op: Collective, *, first: bool) -> tuple[SecondsBySize, bool] | None:
        shape = collective_kind(op), self._grid.length(op.axis), self._grid.stride(op.axis)
        if (*shape, first) not in self._curves:
            self._curves[*shape, first] = curve_of(self._rows, *shape, of=self._grid.size, first=first)
        return self._curves[*shape, first]


def curve_of(
    rows: Sequence[LibraryRow], kind: str, members: int, apart: int, *, of: int, first: bool = True
) -> tuple[SecondsBySize, bool] | None:
    """Seconds by size in groups of so many members that lie most like these, and whether they lie as these do.

    None where no group had so many.

    Parameters
    ----------
    first : of a run; else of those that follow, where they were measured
    """
    found = [row for row in rows if (row.kind, row.ranks) == (kind, members)]
    if not found:
        return None
    nearest = min((abs(row.of - of), abs(row.apart - apart)) for row in found)
    points = (
        (row.bytes, row.taken(first=first)) for row in found if (abs(row.of - of), abs(row.apart - apart)) == nearest
    )
    return SecondsBySize.of(points), nearest == (0, 0)
