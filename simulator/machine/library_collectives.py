"""Seconds of the MPI library's own collectives, from the measured rows of the machine file.

A member's time counts from when the last member of its group has arrived.  Two times were measured: of the first
collective of a run, and of a collective that follows another, whose members may be out of step
(`runtime/measuring/library_collectives.py`).  The library's steps are unknown, so its collectives take no links or
cores here.  Groups of equal shape that communicate at the same time, as along an axis, were measured so.

Broadcasts and reductions are measured with rotating roots, as a step's share of a round, and are predicted so: a
member that has sent goes on.  Between two ranks they are messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from quadrille.algorithms.analysis.equality_labels import value_labels
from quadrille.algorithms.analysis.traffic import Traffic
from quadrille.algorithms.formats.measured_rows import LibraryRow
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import ROOTED, Calls, Collective, CollectiveKind, collective_kind
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.machine.seconds_by_size import SecondsBySize
from quadrille.topologies.machines.machine import Machine

MEASURED, IDENTIFIED = "(measured)", "(one message)"
"""Words after the library's name in the label of a prediction."""
ONE_MESSAGE = tuple((kind, 2) for kind in ROOTED)
"""Kinds and group sizes that leave a library no choice, so its use of links is known."""


@dataclass(frozen=True, slots=True)
class LibraryTime:
    """Seconds of a member in a collective, from when the last member has arrived.

    Parameters
    ----------
    latency : part of the seconds that the smallest measured buffer takes, too; 0 if one size was measured [s]
    extrapolated : whether the collective is beyond what was measured
    label : what was measured, for a record
    """

    seconds: float
    latency: float
    extrapolated: bool
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured seconds of a collective by its size, for one kind and size of group.

    Parameters
    ----------
    exact : whether the measured groups have the same layout and use the same calls
    label : what was measured, for a record
    """

    by_size: SecondsBySize
    exact: bool
    label: str


class LibraryTimes:
    """Seconds of the library's collectives on one grid and machine."""

    def __init__(self, machine: Machine, grid: Grid, placement: RankPlacement) -> None:
        part = machine.host if placement.used_endpoints == 1 else machine.network
        self._rows = part.library if part is not None else ()
        self._grid = grid
        self._kinds: dict[tuple[CollectiveKind, int], tuple[int, ...]] = {}
        self._curves: dict[tuple[CollectiveKind, int, int, Calls | None, int, bool], Curve | None] = {}

    def is_one_message(self, op: Collective) -> bool:
        """Whether the library's steps are known; only for machines whose library was measured."""
        return bool(self._rows) and self._groups(op) in ONE_MESSAGE

    def are_known(self, op: Collective) -> bool:
        """Whether collectives of this kind and group size were measured."""
        return bool(self._rows_of(op))

    def member_kinds(self, op: Collective) -> tuple[int, ...]:
        """A number for each member of the op's groups, equal for members that end together at every size.

        Empty if all members end together.
        """
        groups = self._groups(op)
        if groups not in self._kinds:
            by_member = list(zip(*(row.shares for row in self._rows_of(op)), strict=True))
            self._kinds[groups] = tuple(value_labels(by_member).tolist()) if len(set(by_member)) > 1 else ()
        return self._kinds[groups]

    def seconds(
        self, op: Collective, moved: Traffic, calls: Calls | None, member: int, *, first: bool
    ) -> LibraryTime | None:
        """Seconds of a member; None if no such collective was measured.

        Extrapolated are larger buffers, groups whose members have another stride, other numbers of ranks, and MPI calls
        that were not measured, which are assumed to take as long as the measured calls.

        Parameters
        ----------
        calls : MPI calls that the collective uses, if its kind has two
        first : whether it is the first collective of the run
        """
        curve = self._curve(op, calls, member, first=first)
        if curve is None:
            return None
        size = moved.edges[-1] * moved.item_bytes
        seconds, is_measured = curve.by_size.seconds(size), curve.exact and curve.by_size.covers(size)
        latency = min(seconds, curve.by_size.least) if len(curve.by_size.sizes) > 1 else 0.0
        return LibraryTime(seconds, latency, not is_measured, curve.label)

    def _groups(self, op: Collective) -> tuple[CollectiveKind, int]:
        """The kind of a collective, and the size of its groups."""
        return collective_kind(op), self._grid.length(op.axis)

    def _rows_of(self, op: Collective) -> list[LibraryRow]:
        """Measured rows of the kind and group size of a collective."""
        groups = self._groups(op)
        return [row for row in self._rows if (row.kind, row.ranks) == groups]

    def _curve(self, op: Collective, calls: Calls | None, member: int, *, first: bool) -> Curve | None:
        kinds, shape = self.member_kinds(op), (*self._groups(op), self._grid.stride(op.axis))
        member = kinds.index(kinds[member]) if kinds else 0  # members that end together share one curve
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
    """The curve of the measured groups that are most similar; None if no measured group has this size.

    Parameters
    ----------
    members : size of the group
    apart : stride of the group's ranks
    of : number of ranks in the run
    calls : MPI calls of a kind that has two; if only the other calls were measured, they are used
    member : coordinate of the member
    first : whether the collective is the first of a run; else it follows another, if that was measured
    """
    of_size = [row for row in rows if (row.kind, row.ranks) == (kind, members)]
    if not of_size:
        return None
    of_calls = [row for row in of_size if row.called == calls]
    chosen, label = (of_calls, MEASURED) if of_calls else (of_size, f"(as {of_size[0].called} calls)")
    nearest = min((abs(row.world_size - of), abs(row.stride - apart)) for row in chosen)
    points = (
        (row.bytes, seconds_of(row, member, first=first))
        for row in chosen
        if (abs(row.world_size - of), abs(row.stride - apart)) == nearest
    )
    return Curve(SecondsBySize.of(points), bool(of_calls) and nearest == (0, 0), label)


def seconds_of(row: LibraryRow, member: int, *, first: bool) -> float:
    """Seconds of a member of the first collective of a run, or of a following one if it was measured.

    For following collectives the mean end is known; a member is assumed to be ahead of it as in the first.
    """
    if first or row.following is None:
        return row.seconds * row.shares[member]
    return row.following * row.shares[member] / mean(row.shares)
