"""The printed form of a ranking: both orders side by side, and why they differ."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from msgspec import UNSET

from quadrille.algorithms.schedule.grid import lengths_text
from quadrille.algorithms.units import format_bytes, format_bytes_per_second, format_seconds
from quadrille.experiments.output.tables import UNKNOWN, percent, print_tables, table
from quadrille.experiments.rank.dense_states import dense_states_lines
from quadrille.experiments.rank.disagreements import MOSTLY_AGREE
from quadrille.experiments.rank.ranking import Entry, Ranking, SimulatedEntry, SimulatedRing

SHOWN_RINGS = 8


@dataclass(frozen=True, slots=True)
class Columns(Generic[Entry]):
    """The columns of a table: columns that name an entry, and columns of the parts of its time.

    Parameters
    ----------
    names : function of the cell in each column that names an entry, by heading
    parts : names of the parts of the simulated time
    model : heading of the model's time
    """

    names: Mapping[str, Callable[[Entry], str]]
    parts: tuple[str, ...]
    model: str

    @property
    def titles(self) -> tuple[str, ...]:
        simulated = ("place simulated", "time simulated", "MFU", "HFU", *self.parts)
        return ("place by model", *self.names, self.model, *simulated, "memory")

    def row(self, entry: Entry, place: int) -> tuple[str, ...]:
        """The cells of an entry; `place` is its position by simulated time, from 1."""
        return (
            str(entry.analytical_place),
            *(name(entry) for name in self.names.values()),
            format_seconds(entry.analytical_seconds),
            str(place),
            format_seconds(entry.seconds),
            percent(_model_utilisation(entry), signed=False),
            percent(None if entry.percent_of_peak is None else entry.percent_of_peak / 100, signed=False),
            *(format_seconds(getattr(entry, f"{part}_seconds")) for part in self.parts),
            format_bytes(entry.memory_bytes),
        )


def _model_utilisation(entry: SimulatedEntry) -> float | None:
    """The MFU of an entry: its HFU without recomputation; None if no peak is known."""
    model, hardware = entry.model_flops_per_second_per_gpu, entry.hardware_flops_per_second_per_gpu
    if entry.percent_of_peak is None or not hardware:
        return None
    return entry.percent_of_peak / 100 * model / hardware


def agreement_text(tau: float | None) -> str:
    """A sentence that says whether the model and the simulation give the same order.

    >>> agreement_text(1.0), agreement_text(-0.333)
    ('the quick model ranks them the same', 'the quick model ranks them differently; simulated times decide')
    """
    if tau == 1:
        return "the quick model ranks them the same"
    differently = "differently" if tau is None or tau < MOSTLY_AGREE else "a little differently"
    return f"the quick model ranks them {differently}; simulated times decide"


def print_ranking(
    answer: Ranking[Entry], columns: Columns[Entry], looked_at: str, again: str, beside: Iterable[str] = ()
) -> None:
    """Prints both orders side by side, and why they differ.

    Parameters
    ----------
    answer : ranking
    columns : columns of the table
    looked_at : line with the numbers of ranked and of simulated entries, and the model
    again : command that simulates the fastest entry
    beside : lines about entries that were left out
    """
    assert answer.workload.gpt is not None
    print(
        f"{answer.model}, batch {answer.workload.gpt.batch}, on {answer.gpus:,} GPUs of {answer.machine}, "
        f"{answer.options['collectives']}: {looked_at}"
    )
    if answer.bandwidths_simulated:
        print(_rings_text(answer.bandwidths_simulated, measured=answer.bandwidths_measured))
    print()
    places = sorted(enumerate(answer.simulated, 1), key=lambda ranked: ranked[1].analytical_place)
    rows = [columns.row(entry, place) for place, entry in places]
    print_tables(table("by the model and as simulated", columns.titles, rows, names=1 + len(columns.names)))
    print(agreement_text(answer.kendall_tau))
    for line in answer.why:
        print(f"- {line}")
    for line in beside:
        print(line)
    if answer.dense_states is not UNSET:
        for line in dense_states_lines(answer.simulated[0], answer.dense_states):
            print(line)
    print(f"fastest as simulated, {format_seconds(answer.simulated[0].seconds)} an iteration: {again}")


def shown_lengths(row: SimulatedEntry) -> str:
    return lengths_text(row.grid)


def shown_order(row: SimulatedEntry) -> str:
    """The axes longer than 1, the innermost first."""
    return ",".join(axis for axis in row.order if row.grid[axis] > 1) or UNKNOWN


def _rings_text(simulated: Sequence[SimulatedRing], *, measured: bool) -> str:
    """The simulated bandwidths as a line of text; `measured` says whether a table has the other bandwidths."""
    rings = [f"({ring.stride}, {ring.length}) {format_bytes_per_second(ring.bytes_per_second)}" for ring in simulated]
    more = f" and {len(rings) - SHOWN_RINGS} more; --json FILE has all" if len(rings) > SHOWN_RINGS else ""
    whose = "lacked by the table" if measured else "of the model"
    return f"bandwidths {whose}, simulated, by (stride, length): {', '.join(rings[:SHOWN_RINGS])}{more}"
