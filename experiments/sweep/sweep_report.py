"""The output of a sweep: a printed table, CSV and JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.tabular import comma_separated
from quadrille.algorithms.units import format_bytes, format_bytes_per_second
from quadrille.experiments.output.tables import UNKNOWN, duration, percent, table
from quadrille.experiments.sweep.sweep_result import SCHEMA, Sweep, SweepAnswer, SweepRow

if TYPE_CHECKING:
    from rich.console import Group

MOST_ROWS = 1000
"""Largest number of printed rows; files have all rows."""
MOST_REASONS = 12


def sweep_table(sweep: Sweep) -> "Group":
    """The table of a sweep: a row for each point; a number in brackets is that of the reason in `reason_lines`."""
    if sweep.of_collectives:
        return _collective_table(sweep)
    keys = list(sweep.varied)
    columns_shown = _derived_columns(sweep)
    columns = [*short_keys(keys).values(), *columns_shown]
    columns += ["time", *_speedup_column(sweep), "communication", "memory", ""]
    numbers = {reason: number for number, reason in enumerate(reasons(sweep), 1)}
    rows = [
        _cells(row, numbers, columns_shown, compared=sweep.baseline is not None) for row in sweep.points[:MOST_ROWS]
    ]
    return table(_title(sweep), columns, rows, names=len(keys) + len(columns_shown))


def _speedup_column(sweep: Sweep) -> list[str]:
    """The column of speed-ups; none for a search of some points, which has no baseline."""
    return [] if sweep.baseline is None else ["speed-up"]


def _derived_columns(sweep: Sweep) -> list[str]:
    """The columns of values that differ between points but are no varied keys."""
    derived = {
        "ranks": "gpus" not in sweep.varied,
        "best grid": sweep.best_grid,
        "grid": not sweep.best_grid and "gpus" in sweep.varied,
        "order found": any(row.answer.order_found for row in sweep.points),
    }
    return [name for name, is_told in derived.items() if is_told]


def _collective_table(sweep: Sweep) -> "Group":
    """The table of a sweep of collectives."""
    keys = list(sweep.varied)
    with_ranks = "gpus" not in keys
    columns = [*short_keys(keys).values(), *(["ranks"] if with_ranks else []), "algorithm", "time"]
    columns += _speedup_column(sweep)
    columns += ["bus bandwidth", "latency", "contention", "busiest link", "used", ""]
    numbers = {reason: number for number, reason in enumerate(reasons(sweep), 1)}
    compared = sweep.baseline is not None
    rows = [
        _collective_cells(row, numbers, with_ranks=with_ranks, compared=compared) for row in sweep.points[:MOST_ROWS]
    ]
    return table(_title(sweep), columns, rows, names=len(keys) + with_ranks + 1)


def reasons(sweep: Sweep) -> list[str]:
    """The reasons why points of the table have no answer, each reason once, in the order of the rows."""
    texts = (row.answer.reason for row in sweep.points[:MOST_ROWS])
    return list(dict.fromkeys(reason for reason in texts if reason is not None))


def reason_lines(sweep: Sweep) -> Iterator[str]:
    """The reasons why points have no answer, with their numbers in the table.

    >>> from quadrille.experiments.sweep.sweep_result import sweep_rows
    >>> rows, _ = sweep_rows([({}, SweepAnswer(reason="8 ranks: too few GPUs")), ({}, SweepAnswer(seconds=1))])
    >>> list(reason_lines(Sweep(flags={}, varied={}, best_grid=False, points=rows)))
    ['[1] 8 ranks: too few GPUs']
    """
    all_reasons = reasons(sweep)
    yield from (f"[{number}] {reason}" for number, reason in enumerate(all_reasons[:MOST_REASONS], 1))
    if len(all_reasons) > MOST_REASONS:
        yield f"{len(all_reasons) - MOST_REASONS} more reasons: --csv FILE has them all"


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """A short name for each key: the end of its path, if no other key has the same end.

    >>> short_keys(["set:device.memory_bytes", "gpus", "set:topology.gpus"])
    {'set:device.memory_bytes': 'memory_bytes', 'gpus': 'gpus', 'set:topology.gpus': 'set:topology.gpus'}
    """
    short = {key: key.rpartition(".")[2] for key in keys}
    return {key: end if end == key or list(short.values()).count(end) == 1 else key for key, end in short.items()}


def _title(sweep: Sweep) -> str:
    count = len(sweep.points)
    return sweep.heading + (f"; the first {MOST_ROWS} rows" if count > MOST_ROWS else "")


def _cells(row: SweepRow, numbers: Mapping[str, int], columns_shown: Sequence[str], *, compared: bool) -> Sequence[str]:
    answer = row.answer
    size = answer.peak_bytes_per_rank_max
    derived = {"ranks": answer.ranks, "best grid": answer.grid, "grid": answer.grid, "order found": answer.order_found}
    return (
        *row.point.values(),
        *(str(derived[name] or UNKNOWN) for name in columns_shown),
        duration(answer.seconds),
        *_speedup_cell(row, compared=compared),
        percent(answer.communication_share, signed=False),
        UNKNOWN if size is None else format_bytes(size),
        _note(answer, numbers),
    )


def _collective_cells(row: SweepRow, numbers: Mapping[str, int], *, with_ranks: bool, compared: bool) -> Sequence[str]:
    answer, collective = row.answer, row.answer.collective
    rate = collective.bus_bandwidth if collective else None
    parts = collective.seconds_by_part if collective else {}
    return (
        *row.point.values(),
        *((str(answer.ranks or UNKNOWN),) if with_ranks else ()),
        collective.algorithm if collective else UNKNOWN,
        duration(answer.seconds),
        *_speedup_cell(row, compared=compared),
        UNKNOWN if rate is None else format_bytes_per_second(rate),
        duration(parts.get("latency")),
        duration(parts.get("contention")),
        (collective.bottleneck if collective else "") or UNKNOWN,
        percent(collective.bottleneck_utilisation if collective else None, signed=False),
        _note(answer, numbers),
    )


def _speedup_cell(row: SweepRow, *, compared: bool) -> tuple[str, ...]:
    """The cell under `_speedup_column`."""
    text = UNKNOWN if row.speedup is None else f"{row.speedup:.3g}"
    return (text,) if compared else ()


def _note(answer: SweepAnswer, numbers: Mapping[str, int]) -> str:
    if answer.reason is not None:
        return f"[{numbers[answer.reason]}]"
    return "does not fit in memory" if answer.fits is False else ""


def csv_text(sweep: Sweep) -> str:
    """The CSV of a sweep: a line for each row with its keys and results; times in seconds, sizes in bytes."""
    return comma_separated(sweep.columns, (row.values() for row in sweep.rows()))


def write_files(sweep: Sweep, json: str, csv: str) -> None:
    """Writes the CSV and the JSON of a sweep; an empty path means no file, and a failure leaves no partial file."""
    if csv:
        schema_files.write_text(csv, csv_text(sweep))
    if json:
        schema_files.write_json(json, sweep, SCHEMA)
