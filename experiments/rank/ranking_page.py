"""A ranking for a person: both orders side by side, and why they differ."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from quadrille.algorithms.units import format_bytes, format_bytes_per_second, format_seconds
from quadrille.experiments.output.tables import UNKNOWN, percent, print_tables, table
from quadrille.experiments.rank.answer import Entry, Ranking, RingSimulated, SimulatedEntry
from quadrille.experiments.rank.disagreements import MOSTLY

SHOWN_RINGS = 8


@dataclass(frozen=True, slots=True)
class Columns(Generic[Entry]):
    """The columns of a table: those that name an entry, and the parts of its seconds."""

    names: Mapping[str, Callable[[Entry], str]]
    parts: tuple[str, ...]

    @property
    def titles(self) -> tuple[str, ...]:
        return ("place", *self.names, "model", "place", "simulated", "of peak", *self.parts, "memory")

    def row(self, entry: Entry, place: int) -> tuple[str, ...]:
        """The cells of an entry; `place` is its place by simulated time, from 1."""
        return (
            str(entry.analytical_place),
            *(name(entry) for name in self.names.values()),
            format_seconds(entry.analytical_seconds),
            str(place),
            format_seconds(entry.seconds),
            percent(None if entry.percent_of_peak is None else entry.percent_of_peak / 100, signed=False),
            *(format_seconds(getattr(entry, f"{part}_seconds")) for part in self.parts),
            format_bytes(entry.memory_bytes),
        )


def order_verdict(tau: float | None) -> str:
    """Whether the analytical model and the simulation give the same order, and which of them decides.

    >>> order_verdict(1.0), order_verdict(-0.333)
    ('the quick model ranks them the same', 'the quick model ranks them differently; simulated times decide')
    """
    if tau == 1:
        return "the quick model ranks them the same"
    differently = "differently" if tau is None or tau < MOSTLY else "a little differently"
    return f"the quick model ranks them {differently}; simulated times decide"


def print_ranking(
    answer: Ranking[Entry], columns: Columns[Entry], looked_at: str, again: str, beside: Iterable[str] = ()
) -> None:
    """Prints both orders side by side, and why they differ.

    Parameters
    ----------
    looked_at : a line: how many entries were ranked, by which model, and how many of them were simulated
    again : command that simulates the fastest entry
    beside : lines about entries that were left out
    """
    assert answer.workload.gpt is not None
    print(
        f"{answer.model}, batch {answer.workload.gpt.batch}, on {answer.gpus:,} GPUs of {answer.machine}: {looked_at}"
    )
    if answer.bandwidths_simulated:
        print(_rings_in_words(answer.bandwidths_simulated, measured=answer.bandwidths_measured))
    print()
    places = sorted(enumerate(answer.simulated, 1), key=lambda ranked: ranked[1].analytical_place)
    rows = [columns.row(entry, place) for place, entry in places]
    print_tables(table("by the model and as simulated", columns.titles, rows, names=1 + len(columns.names)))
    print(order_verdict(answer.kendall_tau))
    for line in answer.why:
        print(f"- {line}")
    for line in beside:
        print(line)
    print(f"fastest as simulated, {format_seconds(answer.simulated[0].seconds)} an iteration: {again}")


def lengths_of(grid: Mapping[str, int]) -> str:
    """The lengths as `--grid` takes them.

    >>> lengths_of({"data": 1, "z": 4, "y": 1, "x": 2}), lengths_of({"x": 1})
    ('z=4,x=2', 'x=1')
    """
    return ",".join(f"{axis}={length}" for axis, length in grid.items() if length > 1) or "x=1"


def shown_lengths(row: SimulatedEntry) -> str:
    return lengths_of(row.grid)


def shown_order(row: SimulatedEntry) -> str:
    """The axes longer than 1, the fastest first."""
    return ",".join(axis for axis in row.order if row.grid[axis] > 1) or UNKNOWN


def _rings_in_words(simulated: Sequence[RingSimulated], *, measured: bool) -> str:
    """The simulated bandwidths in words; `measured` says whether a table has the others."""
    rings = [f"({ring.stride}, {ring.length}) {format_bytes_per_second(ring.bytes_per_second)}" for ring in simulated]
    more = f" and {len(rings) - SHOWN_RINGS} more; --json FILE has all" if len(rings) > SHOWN_RINGS else ""
    whose = "lacked by the table" if measured else "of the model"
    return f"bandwidths {whose}, simulated, by (stride, length): {', '.join(rings[:SHOWN_RINGS])}{more}"
