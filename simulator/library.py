"""How long the MPI library's collectives take, where the machine file has them measured.

All members of a group end so long after the last of them has come.  What it is made of is not
known, so it takes nothing of links or cores; groups of the same shape that run at the same
time, as those along an axis do, were measured so.
"""

from collections.abc import Sequence

from algorithms.formats.machine import LibraryRow, Machine
from algorithms.grid import Grid
from algorithms.ops import Collective, collective_kind
from algorithms.traffic import Traffic
from simulator.homes import Homes
from simulator.interpolation import SecondsBySize

MEASURED, IDENTIFIED = "library (measured)", "library (one message)"
ONE_MESSAGE = (("broadcast", 2), ("reduce", 2))
"""Kinds and groups that leave a library nothing to choose: what they share links with is known then."""


class LibraryTimes:
    """Those of one grid on one machine."""

    def __init__(self, machine: Machine, grid: Grid, homes: Homes) -> None:
        part = machine.host if homes.used_places == 1 else machine.network
        self._rows = part.library if part is not None else ()
        self._grid = grid
        self._curves: dict[tuple[str, int, int], SecondsBySize | None] = {}

    def is_one_message(self, op: Collective) -> bool:
        """Whether what the library does is known; said of machines only whose library was looked at."""
        return bool(self._rows) and (collective_kind(op), self._grid.length(op.axis)) in ONE_MESSAGE

    def seconds(self, op: Collective, moved: Traffic) -> tuple[float, bool] | None:
        """Seconds, and whether the buffer is larger than what was measured; None where nothing is known of its like."""
        key = collective_kind(op), self._grid.length(op.axis), self._grid.stride(op.axis)
        if key not in self._curves:
            self._curves[key] = curve_of(self._rows, *key, of=self._grid.size)
        curve = self._curves[key]
        if curve is None:
            return None
        size = moved.edges[-1] * moved.item_bytes
        return curve.seconds(size), not curve.covers(size)


def curve_of(rows: Sequence[LibraryRow], kind: str, members: int, apart: int, *, of: int) -> SecondsBySize | None:
    """Seconds by size in groups of so many members that lie most like these; None where no group had so many."""
    found = [row for row in rows if (row.kind, row.ranks) == (kind, members)]
    if not found:
        return None
    nearest = min((abs(row.of - of), abs(row.apart - apart)) for row in found)
    return SecondsBySize.of(
        (row.bytes, row.seconds) for row in found if (abs(row.of - of), abs(row.apart - apart)) == nearest
    )
