"""How long the MPI library's collectives take, where the machine file has them measured.

A member's time counts from when the last member of its group has come.  Two times were measured: of the first
collective of a run, and of one that follows another, whose members may be out of step
(`runtime/measuring/chained_library_calls.py`).  What it is made of is not known, so it takes nothing of links or cores;
groups of the same shape that run at the same time, as those along an axis do, were measured so.

Broadcasts and reductions are measured by roots that turn, a step's share of a round, and so
they are predicted: a member that has sent goes on.  Between two they are messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from quadrille.algorithms.analysis.labels import numbered
from quadrille.algorithms.analysis.traffic import Traffic
from quadrille.algorithms.formats.measured_rows import LibraryRow
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import ROOTED, Calls, Collective, CollectiveKind, collective_kind
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.machine.seconds_by_size import SecondsBySize
from quadrille.topologies.machines.machine import Machine

MEASURED, IDENTIFIED = "(measured)", "(one message)"
"""What a prediction says behind the word for the library."""
ONE_MESSAGE = tuple((kind, 2) for kind in ROOTED)
"""Kinds and groups that leave a library nothing to choose: what they share links with is known then."""


@dataclass(frozen=True, slots=True)
class LibraryTime:
    """How long a member is in a collective, from when the last one has come.

    Parameters
    ----------
    extrapolated : whether that is beyond what was measured
    told : of what it was measured, for a record
    """

    seconds: float
    extrapolated: bool
    told: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by size, whether groups lay as these do and went by the same calls, and what a record says of it."""

    by_size: SecondsBySize
    alike: bool
    told: str


class LibraryTimes:
    """Those of one grid on one machine."""

    def __init__(self, machine: Machine, grid: Grid, placement: RankPlacement) -> None:
        part = machine.host if placement.used_places == 1 else machine.network
        self._rows = part.library if part is not None else ()
        self._grid = grid
        self._kinds: dict[tuple[CollectiveKind, int], tuple[int, ...]] = {}
        self._curves: dict[tuple[CollectiveKind, int, int, Calls | None, int, bool], Curve | None] = {}

    def is_one_message(self, op: Collective) -> bool:
        """Whether what the library does is known; said of machines only whose library was looked at."""
        return bool(self._rows) and self._groups(op) in ONE_MESSAGE

    def are_known(self, op: Collective) -> bool:
        """Whether groups of its kind and size were measured."""
        return bool(self._rows_of(op))

    def kinds_of_members(self, op: Collective) -> tuple[int, ...]:
        """A number for each member of its groups, the same for those that end together, whatever its size.

        Empty where all do.
        """
        groups = self._groups(op)
        if groups not in self._kinds:
            by_member = list(zip(*(row.shares for row in self._rows_of(op)), strict=True))
            self._kinds[groups] = tuple(numbered(by_member).tolist()) if len(set(by_member)) > 1 else ()
        return self._kinds[groups]

    def seconds(
        self, op: Collective, moved: Traffic, calls: Calls | None, member: int, *, first: bool
    ) -> LibraryTime | None:
        """What it takes a member; None where nothing is known of its like.

        Beyond what was measured are larger buffers, groups whose members lie further apart or closer, other numbers of
        ranks in all, and calls of MPI that were not measured, which are taken to last as the other ones.

        Parameters
        ----------
        calls : MPI's by which it goes, of a kind that has two
        first : whether it is the first of the run
        """
        found = self._curve(op, calls, member, first=first)
        if found is None:
            return None
        size = moved.edges[-1] * moved.item_bytes
        return LibraryTime(found.by_size.seconds(size), not (found.alike and found.by_size.covers(size)), found.told)

    def _groups(self, op: Collective) -> tuple[CollectiveKind, int]:
        """Its kind, and how many members its groups have."""
        return collective_kind(op), self._grid.length(op.axis)

    def _rows_of(self, op: Collective) -> list[LibraryRow]:
        """What was measured of groups of its kind and size."""
        groups = self._groups(op)
        return [row for row in self._rows if (row.kind, row.ranks) == groups]

    def _curve(self, op: Collective, calls: Calls | None, member: int, *, first: bool) -> Curve | None:
        kinds, shape = self.kinds_of_members(op), (*self._groups(op), self._grid.stride(op.axis))
        member = kinds.index(kinds[member]) if kinds else 0  # one for all that end together
        key = (*shape, calls, member, first)
        if key not in self._curves:
            self._curves[key] = curve_of(
                self._rows, *shape, of=self._grid.size, calls=calls, member=member, first=first
            )
        return self._curves[key]


def curve_of(
    rows: Sequence[LibraryRow],
    kind: CollectiveKind,
    members: int,
    apart: int,
    *,
    of: int,
    calls: Calls | None = None,
    member: int,
    first: bool = True,
) -> Curve | None:
    """Seconds by size in groups of so many members that lie most like these.

    None where no group had so many.

    Parameters
    ----------
    calls : MPI's, of a kind that has two; where only the other ones were measured, these stand for them
    member : whose seconds they are, by its coordinate
    first : of a run; else of those that follow, where they were measured
    """
    known = [row for row in rows if (row.kind, row.ranks) == (kind, members)]
    if not known:
        return None
    of_calls = [row for row in known if row.called == calls]
    found, told = (of_calls, MEASURED) if of_calls else (known, f"(as {known[0].called} calls)")
    nearest = min((abs(row.of - of), abs(row.apart - apart)) for row in found)
    points = (
        (row.bytes, seconds_of(row, member, first=first))
        for row in found
        if (abs(row.of - of), abs(row.apart - apart)) == nearest
    )
    return Curve(SecondsBySize.of(points), bool(of_calls) and nearest == (0, 0), told)


def seconds_of(row: LibraryRow, member: int, *, first: bool) -> float:
    """Seconds of a member of the first collective of a run, or of one that follows, as far as that was measured.

    Of those that follow the mean end is known; whoever was ahead of it in the first is taken to be so again.
    """
    if first or row.following is None:
        return row.seconds * row.shares[member]
    return row.following * row.shares[member] / mean(row.shares)
