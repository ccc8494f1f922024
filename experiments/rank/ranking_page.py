"""The printed form of a ranking: the simulated entries, and why the model's order differs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from msgspec import UNSET
from rich.console import Group

from quadrille.algorithms.schedule.grid import lengths_text
from quadrille.algorithms.units import format_bytes, format_bytes_per_second, format_seconds
from quadrille.experiments.output.tables import UNKNOWN, duration, percent, print_tables, table
from quadrille.experiments.rank.dense_states import dense_states_lines
from quadrille.experiments.rank.disagreements import MOSTLY_AGREE
from quadrille.experiments.rank.ranking import Entry, Ranking, SimulatedEntry, SimulatedRing

SHOWN_RINGS = 8
GRID = "grid, innermost axis last"
"""Heading of the column of grids, which is always shown."""
RECOMPUTING = 1.05
"""Ratio of the operations of the hardware to those of the model from which a table shows HFU, too."""


@dataclass(frozen=True, slots=True)
class Columns(Generic[Entry]):
    """The columns of a table: columns that name an entry, and columns of the parts of its time.

    A table leaves out columns that name the same in all rows, which `common` says once, and parts that are zero.

    Parameters
    ----------
    names : function of the cell in each column that names an entry, by heading
    parts : heading of each part of the simulated time, by its name
    model : heading of the model's time
    """

    names: Mapping[str, Callable[[Entry], str]]
    parts: Mapping[str, str]
    model: str

    def differing(self, entries: Sequence[Entry]) -> list[str]:
        """The headings of the columns that name entries, of which at least two rows differ."""
        return [
            heading
            for heading, name in self.names.items()
            if heading == GRID or len({name(entry) for entry in entries}) > 1
        ]

    def common(self, entries: Sequence[Entry]) -> str:
        """The names that all entries share, as text; empty if they share none."""
        differing = self.differing(entries)
        shared = {heading: name(entries[0]) for heading, name in self.names.items() if heading not in differing}
        return ", ".join(f"{heading} {cell}" for heading, cell in shared.items() if cell not in ("", UNKNOWN))

    def entry_names(self, entries: Sequence[Entry]) -> list[str]:
        """A name of each entry that has what the others differ in: the grid, and the cells of the differing columns."""
        differing = self.differing(entries)
        return [
            ", ".join(
                cell if heading == GRID else f"{heading} {cell}"
                for heading in sorted(differing, key=lambda heading: heading != GRID)
                if (cell := self.names[heading](entry)) not in ("", UNKNOWN)
            )
            for entry in entries
        ]

    def table(self, entries: Sequence[Entry]) -> Group:
        """The table of the entries, the fastest first."""
        headings, rows, names = self.cells(entries)
        return table("as simulated, the fastest first", headings, rows, names=names, is_narrow=True)

    def cells(self, entries: Sequence[Entry]) -> tuple[Sequence[str], list[Sequence[str]], int]:
        """The headings, the cells of each entry, the fastest first, and the number of leading columns with names."""
        differing = self.differing(entries)
        parts = [part for part in self.parts if any(round(_seconds(entry, part), 9) for entry in entries)]
        recomputes = any(
            entry.hardware_flops_per_second_per_gpu > RECOMPUTING * _model_rate(entry) for entry in entries
        )
        utilisations = ("MFU", "HFU") if recomputes else ("MFU",)
        headings = ("#", *differing, "time", self.model, *utilisations, *(self.parts[part] for part in parts), "memory")
        rows: list[Sequence[str]] = []
        for place, entry in enumerate(entries, 1):
            used = (model_utilisation(entry), hardware_utilisation(entry))[: len(utilisations)]
            rows.append(
                (
                    str(place),
                    *(self.names[heading](entry) for heading in differing),
                    duration(entry.seconds),
                    duration(entry.analytical_seconds),
                    *(percent(share, signed=False) for share in used),
                    *(duration(_seconds(entry, part)) for part in parts),
                    format_bytes(entry.memory_bytes),
                )
            )
        return headings, rows, 1 + len(differing)


def _seconds(entry: SimulatedEntry, part: str) -> float:
    """A part of the simulated time of an entry [s]."""
    seconds: float = getattr(entry, f"{part}_seconds")
    return seconds


def _model_rate(entry: SimulatedEntry) -> float:
    return entry.model_flops_per_second_per_gpu


def hardware_utilisation(entry: SimulatedEntry) -> float | None:
    """The HFU of an entry; None if no peak is known."""
    return None if entry.percent_of_peak is None else entry.percent_of_peak / 100


def model_utilisation(entry: SimulatedEntry) -> float | None:
    """The MFU of an entry: its HFU without recomputation; None if no peak is known."""
    used, hardware = hardware_utilisation(entry), entry.hardware_flops_per_second_per_gpu
    return None if used is None or not hardware else used * _model_rate(entry) / hardware


def agreement_text(tau: float | None) -> str:
    """A sentence that says whether the model and the simulation give the same order.

    >>> agreement_text(1.0), agreement_text(-0.333)
    ('the quick model ranks them the same', 'the quick model ranks them differently; simulated times decide')
    """
    if tau == 1:
        return "the quick model ranks them the same"
    differently = "differently" if tau is None or tau < MOSTLY_AGREE else "a little differently"
    return f"the quick model ranks them {differently}; simulated times decide"


def print_ranking(answer: Ranking[Entry], columns: Columns[Entry], counts: str, beside: Iterable[str] = ()) -> None:
    """Prints the simulated entries, the fastest first, and why the model's order differs.

    Parameters
    ----------
    answer : ranking
    columns : columns of the table
    counts : text with the numbers of ranked and of simulated entries, and the model
    beside : lines about entries that were left out
    """
    assert answer.workload.gpt is not None
    print(
        f"{answer.model}, batch {answer.workload.gpt.batch}, on {answer.gpus:,} GPUs of {answer.machine}, "
        f"{answer.options['collectives']}: {counts}"
    )
    if answer.bandwidths_simulated:
        print(_rings_text(answer.bandwidths_simulated, measured=answer.bandwidths_measured))
    if common := columns.common(answer.simulated):
        print(f"all: {common}")
    print()
    print_tables(columns.table(answer.simulated))
    print(agreement_text(answer.kendall_tau))
    for line in answer.why:
        print(f"- {line}")
    for line in beside:
        print(line)
    if answer.dense_states is not UNSET:
        for line in dense_states_lines(answer.simulated[0], answer.dense_states):
            print(line)
    best = answer.simulated[0]
    print(f"fastest as simulated, {format_seconds(best.seconds)} an iteration: {best.command}")


def ordered_lengths(entry: SimulatedEntry) -> str:
    """The axes longer than 1 with their lengths, the innermost axis last; expert axes, which fold, after them."""
    axes = [*reversed(entry.order), *(axis for axis in entry.grid if axis not in entry.order)]
    return lengths_text({axis: entry.grid[axis] for axis in axes})


def _rings_text(simulated: Sequence[SimulatedRing], *, measured: bool) -> str:
    """The simulated bandwidths as a line of text; `measured` says whether a table has the other bandwidths."""
    rings = [f"({ring.stride}, {ring.length}) {format_bytes_per_second(ring.bytes_per_second)}" for ring in simulated]
    more = f" and {len(rings) - SHOWN_RINGS} more; --json FILE has all" if len(rings) > SHOWN_RINGS else ""
    whose = "lacked by the table" if measured else "of the model"
    return f"bandwidths {whose}, simulated, by (stride, length): {', '.join(rings[:SHOWN_RINGS])}{more}"
