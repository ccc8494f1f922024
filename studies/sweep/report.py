"""What a sweep found, and how it is shown: table, CSV, JSON."""

import csv as comma_separated
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from algorithms import files
from algorithms.grid import DEFAULT_ORDER, Axis, Grid
from algorithms.provenance import Provenance
from algorithms.units import format_bytes
from studies.tables import UNKNOWN, milliseconds, percent, table

if TYPE_CHECKING:
    from rich.console import Group

SCHEMA = "quadrille/sweep/1"
RESULTS = (
    "ranks",
    "grid_lengths",
    "seconds",
    "speedup",
    "compute_seconds",
    "exposed_seconds",
    "waiting_seconds",
    "communication_share",
    "flops_per_second_per_gpu",
    "bytes_sent_per_rank_max",
    "peak_bytes_per_rank_max",
    "fits",
    "extrapolated",
    "reason",
)
"""Columns of the CSV after those of the keys that were varied."""
MOST_ROWS = 1000
"""Rows printed; files hold all."""
MOST_REASONS = 12

Count = Annotated[int, Meta(gt=0)]
Amount = Annotated[float, Meta(ge=0)]
Bytes = Annotated[int, Meta(ge=0)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was found at a point, or the reason why nothing was; seconds by part are of the mean rank.

    Parameters
    ----------
    exposed_seconds : communication while the rank's compute lane is idle
    waiting_seconds : for the last member of a group to arrive, as far as nothing else is done meanwhile
    communication_share : both together over the makespan
    fits : whether the memory of a device, or of a host with all its ranks, is enough
    grids : how many grids were compared by their closed form, and `simulated` how many then were
    reason : why the point cannot be, or was not reached
    """

    ranks: Count | None = None
    grid_lengths: dict[Axis, Count] | None = None
    seconds: Amount | None = None
    compute_seconds: Amount | None = None
    exposed_seconds: Amount | None = None
    waiting_seconds: Amount | None = None
    communication_share: Amount | None = None
    flops_per_second_per_gpu: Amount | None = None
    bytes_sent_per_rank_max: Bytes | None = None
    peak_bytes_per_rank_max: Bytes | None = None
    fits: bool | None = None
    extrapolated: bool | None = None
    grids: Count | None = None
    simulated: Count | None = None
    reason: str | None = None
    remarks: tuple[str, ...] = ()


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One point: the value of every key that was varied, what was found, and how much faster than the baseline."""

    point: dict[str, str]
    answer: Answer
    speedup: Amount | None = None


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every point of a sweep.

    Parameters
    ----------
    flags : what all points have in common, as typed
    varied : the values of every key
    baseline : place of the row that speed-ups compare with: the first that has an answer
    """

    flags: dict[str, str | tuple[str, ...]]
    varied: dict[str, tuple[str, ...]]
    best_grid: bool
    rows: tuple[Row, ...]
    baseline: Annotated[int, Meta(ge=0)] | None = None
    provenance: Provenance | None = None


def rows_of(found: Sequence[tuple[Mapping[str, str], Answer]]) -> tuple[tuple[Row, ...], int | None]:
    """The rows with their speed-ups, and the place of the baseline.

    >>> answers = (Answer(reason="too few GPUs"), Answer(seconds=4), Answer(seconds=1))
    >>> rows, baseline = rows_of([({}, answer) for answer in answers])
    >>> [row.speedup for row in rows], baseline
    ([None, 1.0, 4.0], 1)
    """
    baseline = next((place for place, (_, answer) in enumerate(found) if answer.seconds), None)
    base = found[baseline][1].seconds if baseline is not None else None

    def speedup(answer: Answer) -> float | None:
        return base / answer.seconds if base and answer.seconds else None

    return tuple(Row(point=dict(point), answer=answer, speedup=speedup(answer)) for point, answer in found), baseline


def sweep_table(found: Sweep) -> "Group":
    """A row for each point, the value of every key first; a number in brackets stands for one of `reasons`."""
    keys = list(found.varied)
    counted, chosen = "gpus" not in keys, found.best_grid or "gpus" in keys
    columns = [*short_keys(keys).values(), *(["ranks"] if counted else [])]
    columns += (["best grid" if found.best_grid else "grid"] if chosen else []) + ["time", "speed-up"]
    columns += ["communication", "memory", ""]
    numbers = {reason: number for number, reason in enumerate(reasons(found), 1)}
    rows = [_cells(row, numbers, counted=counted, chosen=chosen) for row in found.rows[:MOST_ROWS]]
    names = len(keys) + counted + chosen
    return table(_title(found), columns, rows, names=names)


def reasons(found: Sweep) -> list[str]:
    """Why points of the table have no answer, each once, in the order of the first."""
    given = (row.answer.reason for row in found.rows[:MOST_ROWS])
    return list(dict.fromkeys(reason for reason in given if reason is not None))


def reason_lines(found: Sweep) -> Iterator[str]:
    """The reasons under their numbers in the table.

    >>> rows, _ = rows_of([({}, Answer(reason="8 ranks: too few GPUs")), ({}, Answer(seconds=1))])
    >>> list(reason_lines(Sweep(flags={}, varied={}, best_grid=False, rows=rows)))
    ['[1] 8 ranks: too few GPUs']
    """
    every = reasons(found)
    yield from (f"[{number}] {reason}" for number, reason in enumerate(every[:MOST_REASONS], 1))
    if len(every) > MOST_REASONS:
        yield f"{len(every) - MOST_REASONS} more reasons: --csv FILE has them all"


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """What each key is called where there is little room: the end of its path, if no other has the same.

    >>> short_keys(["set:device.memory_bytes", "gpus", "set:topology.gpus"])
    {'set:device.memory_bytes': 'memory_bytes', 'gpus': 'gpus', 'set:topology.gpus': 'set:topology.gpus'}
    """
    short = {key: key.rpartition(".")[2] for key in keys}
    return {key: end if end == key or list(short.values()).count(end) == 1 else key for key, end in short.items()}


def _title(found: Sweep) -> str:
    count = len(found.rows)
    text = f"{count} point{'s' if count > 1 else ''}, predicted"
    if found.baseline is not None:
        point = ", ".join(f"{key}={value}" for key, value in found.rows[found.baseline].point.items())
        text += f"; speed-up over {point}"
    return text + (f"; the first {MOST_ROWS} rows" if count > MOST_ROWS else "")


def _cells(row: Row, numbers: Mapping[str, int], *, counted: bool, chosen: bool) -> Sequence[str]:
    answer = row.answer
    size = answer.peak_bytes_per_rank_max
    return (
        *row.point.values(),
        *((str(answer.ranks or UNKNOWN),) if counted else ()),
        *((_grid(answer) or UNKNOWN,) if chosen else ()),
        milliseconds(answer.seconds),
        UNKNOWN if row.speedup is None else f"{row.speedup:.3g}",
        percent(answer.communication_share, signed=False),
        UNKNOWN if size is None else format_bytes(size),
        _note(answer, numbers),
    )


def _note(answer: Answer, numbers: Mapping[str, int]) -> str:
    if answer.reason is not None:
        return f"[{numbers[answer.reason]}]"
    return "does not fit in memory" if answer.fits is False else ""


def _grid(answer: Answer) -> str:
    return "" if answer.grid_lengths is None else str(Grid(**answer.grid_lengths, order=DEFAULT_ORDER))


def csv_text(found: Sweep) -> str:
    """Every row as a line under the keys and the results; times in seconds, sizes in bytes."""
    text = StringIO()
    writer = comma_separated.writer(text, lineterminator="\n")
    writer.writerow([*found.varied, *RESULTS])
    writer.writerows([*row.point.values(), *_values(row)] for row in found.rows)
    return text.getvalue()


def _values(row: Row) -> Iterator[object]:
    for column in RESULTS:
        value = row.speedup if column == "speedup" else getattr(row.answer, column)
        if column == "grid_lengths":
            yield _grid(row.answer)
        elif isinstance(value, bool):
            yield str(value).lower()
        else:
            yield "" if value is None else value


def write_files(found: Sweep, json: str, csv: str) -> None:
    """Writes the rows as CSV and as JSON, where asked for, each whole or not at all."""
    if csv:
        files.write_text(csv, csv_text(found))
    if json:
        files.write_json(json, found, SCHEMA)
