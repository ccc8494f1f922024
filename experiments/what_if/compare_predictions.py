"""`quadrille compare` of predictions: a baseline and one or several what-ifs, in total and by cause.

The causes are those of the mean rank, whose sum is the predicted time.  The differences are from the first prediction.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.input_files import is_file
from quadrille.algorithms.formats.record import Record, load_record
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.grid import lengths_text
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.explain.explanation import MeanPart, mean_seconds_by_cause
from quadrille.experiments.import_.file_kinds import is_record
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import UNKNOWN, milliseconds, percent, print_tables, table
from quadrille.runtime.host.console import remark

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

SCHEMA = "quadrille/predictions/1"
QUESTION = "How do the predictions differ, and why?"
SAME_TIME = 1e-9
"""Share of a time below which a difference is one of rounding."""
OWN_MEASUREMENT = "one measured record goes with one prediction"


class ComparedPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction that is compared with the first.

    Parameters
    ----------
    file : path of the record
    seconds : predicted time [s]
    seconds_by_cause : time of the mean rank by cause [s], whose sum is `seconds`
    difference : seconds / seconds of the first prediction - 1
    memory_bytes : memory of the rank that keeps most [B]
    """

    file: str
    machine: str
    ranks: int
    grid: dict[str, int]
    seconds: float
    seconds_by_cause: dict[MeanPart, float]
    difference: float
    memory_bytes: int


class Predictions(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of predictions that `--json` writes."""

    predictions: tuple[ComparedPrediction, ...]
    provenance: Provenance | None = None


def are_predictions(paths: Sequence[str]) -> bool:
    """Whether all of two or more paths are predicted records."""
    if len(paths) < 2 or not all(is_file(path) and is_record(path) for path in paths):
        return False
    kinds = [load_record(path).kind for path in paths]
    if len(kinds) > 2 and set(kinds) == {"predicted", "measured"}:
        measured = paths[kinds.index("measured")]
        raise InputError(f"{measured} is measured: {OWN_MEASUREMENT}; several predictions are compared without it")
    return set(kinds) == {"predicted"}


def compare_predictions(
    paths: Sequence[str], *, json: str = "", figure: str = "", command: Sequence[str] = ()
) -> Predictions:
    """Prints the comparison of predicted records with the first of them, and writes the requested files.

    Parameters
    ----------
    paths : paths of two or more predicted records, the baseline first
    json : path of the JSON file; `-` for stdout, which then has nothing else
    figure : path of the figure
    command : words of the command line, for provenance

    Raises
    ------
    InputError : a record that cannot be read, or a path that cannot be written
    """
    to = Destinations(json=json, plot=figure)
    to.check({f"PREDICTED {number}": path for number, path in enumerate(paths, 1)})
    records = [load_record(path) for path in paths]
    compared = predictions_of(paths, records)
    if json:
        schema_files.write_json(json, msgspec.structs.replace(compared, provenance=provenance(command)), SCHEMA)
    if figure:
        from quadrille.experiments.output.pictures import write_figure

        write_figure(predictions_figure(compared), figure)
    if any(record.workload != records[0].workload for record in records):
        remark("the predictions are of different workloads")
    if not to.to_stdout:
        print_tables(predictions_table(compared))
        for line in summary_lines(compared):
            print(line)
    return compared


def predictions_of(paths: Sequence[str], records: Sequence[Record]) -> Predictions:
    """The comparison of predicted records with the first."""
    base = records[0].seconds
    return Predictions(
        predictions=tuple(
            ComparedPrediction(
                file=path,
                machine=record.machine.name if record.machine else "",
                ranks=record.ranks,
                grid={axis: length for axis, length in record.grid.items() if length > 1},
                seconds=record.seconds,
                seconds_by_cause=mean_seconds_by_cause(record.ops, record.seconds, predicted=True),
                difference=record.seconds / base - 1 if base else 0.0,
                memory_bytes=record.peak_bytes_per_rank_max,
            )
            for path, record in zip(paths, records, strict=True)
        )
    )


def predictions_table(compared: Predictions) -> "Group":
    """The table of predictions: a column for each, and the difference from the first behind every other."""
    predictions = compared.predictions
    first = predictions[0]
    columns = ["", first.file]
    for what_if in predictions[1:]:
        columns += [what_if.file, "difference"]
    texts = [
        ("machine", *(prediction.machine or UNKNOWN for prediction in predictions)),
        ("ranks", *(str(prediction.ranks) for prediction in predictions)),
        ("grid", *(lengths_text(prediction.grid) for prediction in predictions)),
        ("memory of a rank", *(format_bytes(prediction.memory_bytes) for prediction in predictions)),
    ]
    total = [_amount_cells("total", [prediction.seconds for prediction in predictions], first.seconds)]
    causes = [
        _amount_cells(cause, [prediction.seconds_by_cause.get(cause, 0.0) for prediction in predictions], first.seconds)
        for cause in first.seconds_by_cause
    ]
    spaced = [[name, cells[0], *(text for cell in cells[1:] for text in (cell, ""))] for name, *cells in texts]
    return table(
        "Predictions, and their differences from the first as shares of its total", columns, total, causes, spaced
    )


def _amount_cells(name: str, amounts: Sequence[float], total: float) -> list[str]:
    cells = [name, milliseconds(amounts[0])]
    for amount in amounts[1:]:
        cells += [milliseconds(amount), percent((amount - amounts[0]) / total if total else None)]
    return cells


def summary_lines(compared: Predictions) -> list[str]:
    """A sentence for each what-if: how much faster or slower it is, and the cause that changes most."""
    first, *what_ifs = compared.predictions
    lines = []
    for what_if in what_ifs:
        share = time_share(what_if.difference)
        if not share:
            lines.append(f"{what_if.file} takes the same time as {first.file}")
            continue
        changes = {
            cause: what_if.seconds_by_cause.get(cause, 0.0) - seconds
            for cause, seconds in first.seconds_by_cause.items()
        }
        cause = max(changes, key=lambda name: abs(changes[name]))
        change = f"{'+' if changes[cause] > 0 else '-'}{format_seconds(abs(changes[cause]))}"
        lines.append(f"{what_if.file} takes {share} than {first.file}; the largest change is {cause}: {change}")
    return lines


def time_share(difference: float) -> str:
    """How much more or less time a prediction takes than the first, as text; empty if the times are the same.

    >>> time_share(0.25), time_share(-0.1), time_share(1e-13)
    ('25 % more time', '10 % less time', '')

    Parameters
    ----------
    difference : difference of the times, as a share of the first
    """
    if abs(difference) < SAME_TIME:
        return ""
    return f"{abs(100 * difference):.3g} % {'less' if difference < 0 else 'more'} time"


def predictions_figure(compared: Predictions) -> "Figure":
    """The figure of compared predictions: a bar of the time by cause for each, the baseline on top."""
    from quadrille.experiments.explain.explanation_figure import Stack, stacks_figure

    stacks = [
        Stack(Path(prediction.file).stem, {str(cause): amount for cause, amount in prediction.seconds_by_cause.items()})
        for prediction in compared.predictions
    ]
    machines = ", ".join(dict.fromkeys(prediction.machine for prediction in compared.predictions))
    return stacks_figure(stacks, [], question=QUESTION, setting=f"time of the mean rank, predicted, on {machines}")
