"""`quadrille compare` of predictions: a baseline and one or several what-ifs, in total and by cause.

The causes are those of the mean rank, whose sum is the predicted time.  The differences are from the first prediction.
"""

import shlex
from collections.abc import Iterator, Sequence
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
from quadrille.experiments.compare.problem import DEFAULT_OPTIONS, first_differences
from quadrille.experiments.explain.explanation import MeanPart, mean_seconds_by_cause
from quadrille.experiments.import_.file_kinds import is_record
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import UNKNOWN, duration, percent, print_tables, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

SCHEMA = "quadrille/predictions/1"
QUESTION = "How do the predictions differ, and why?"
SAME_TIME = 1e-9
"""Share of a time below which a difference is one of rounding."""
WHAT_IF_SIZES = ("batch", "rows", "sequence", "transposed", "capacity", "aux_loss")
"""Sizes of a workload that a what-if may change."""
REPEATED = ("scheme", "approximate")
"""Options of a record that say what its algorithm or its workload says, too."""
HASH_DIGITS = 8
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
    amount, unit : what the run computes: tokens, or rows of an MLP's batch; 0 and empty for a product
    settings : settings in which at least two predictions differ, by the name of the flag, or by the path of `--set`
    """

    file: str
    machine: str
    ranks: int
    grid: dict[str, int]
    seconds: float
    seconds_by_cause: dict[MeanPart, float]
    difference: float
    memory_bytes: int
    amount: int = 0
    unit: str = ""
    settings: dict[str, str] = {}


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
    InputError : a record that cannot be read, predictions of different jobs, or a path that cannot be written
    """
    to = Destinations(json=json, plot=figure)
    to.check({f"PREDICTED {number}": path for number, path in enumerate(paths, 1)})
    records = [load_record(path) for path in paths]
    check_same_job(paths, records)
    compared = predictions_of(paths, records)
    if json:
        schema_files.write_json(json, msgspec.structs.replace(compared, provenance=provenance(command)), SCHEMA)
    if figure:
        from quadrille.experiments.output.pictures import write_figure

        write_figure(predictions_figure(compared), figure)
    if not to.to_stdout:
        print_tables(predictions_table(compared))
        for line in summary_lines(compared):
            print(line)
    return compared


def check_same_job(paths: Sequence[str], records: Sequence[Record]) -> None:
    """Checks that all records are of the job of the first: the sizes of a product or of a model, and its passes.

    A what-if may change how the job is computed: machine, layout, precision, schedule, batch and length of sequences.

    Raises
    ------
    InputError : a record of another job; the message names what differs
    """
    first = _job(records[0])
    for path, record in zip(paths[1:], records[1:], strict=True):
        job = _job(record)
        names = {**first, **job} if first["job"] == job["job"] else {"job": ""}
        different = [
            f"{name} {first.get(name)} in {paths[0]}, {job.get(name)} in {path}"
            for name in names
            if first.get(name) != job.get(name)
        ]
        if different:
            raise InputError(
                f"predictions of different jobs: {first_differences(different)}; a what-if changes machine, layout, "
                "precision, schedule or batch of one job"
            )


def _job(record: Record) -> dict[str, object]:
    """The sizes that make the job of a record, by name."""
    ((kind, sizes),) = [
        (kind, sizes) for kind, sizes in msgspec.structs.asdict(record.workload).items() if sizes is not None
    ]
    return {"job": kind, "passes": record.passes} | {
        name: size for name, size in msgspec.structs.asdict(sizes).items() if name not in WHAT_IF_SIZES
    }


def _amount(record: Record) -> tuple[str, int] | None:
    """What a training run computes, and how many of it; None for a product."""
    gpt, mlp = record.workload.gpt, record.workload.mlp
    steps = record.options.steps if record.options.steps is not msgspec.UNSET else 1
    if gpt is not None:
        return "tokens", gpt.batch * gpt.sequence * steps
    return ("rows", mlp.rows * steps) if mlp is not None else None


def predictions_of(paths: Sequence[str], records: Sequence[Record]) -> Predictions:
    """The comparison of predicted records with the first."""
    base, amounts = records[0].seconds, [_amount(record) or ("", 0) for record in records]
    settings = differing_settings(records)
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
                amount=amount,
                unit=unit,
                settings=own,
            )
            for path, record, (unit, amount), own in zip(paths, records, amounts, settings, strict=True)
        )
    )


def differing_settings(records: Sequence[Record]) -> list[dict[str, str]]:
    """The settings of each record in which at least two records differ, beside the grid, the ranks and the machine.

    Settings of `--set` are those of the command that wrote the record. Machines of one name that differ in something
    else are named by the hashes of their contents.
    """
    every = [dict(_settings(record)) for record in records]
    if _have_one_machine(records) and not any("." in name for settings in every for name in settings):
        for settings, record in zip(every, records, strict=True):
            settings["machine's hash"] = (record.machine.sha256 or "")[:HASH_DIGITS] if record.machine else ""
    keys = [
        name
        for name in dict.fromkeys(name for settings in every for name in settings)
        if len({settings.get(name, UNKNOWN) for settings in every}) > 1
    ]
    return [{name: settings.get(name, UNKNOWN) for name in keys} for settings in every]


def _have_one_machine(records: Sequence[Record]) -> bool:
    """Whether all records name one machine, with as many ranks and without faults, which hashes have, too."""
    machines = {record.machine.name if record.machine else "" for record in records}
    has_faults = any(record.machine and record.machine.faults for record in records)
    return len(machines) == 1 and len({record.ranks for record in records}) == 1 and not has_faults


def _settings(record: Record) -> Iterator[tuple[str, str]]:
    """The settings of a record as flags would give them, by name; those of defaults, too."""
    sizes = record.workload.gpt or record.workload.mlp
    for name in ("batch", "rows", "sequence"):
        if hasattr(sizes, name):
            yield name, f"{getattr(sizes, name):,}"
    yield from (("dtype", record.dtype), ("algorithm", record.algorithm), ("order", ",".join(record.order)))
    options = DEFAULT_OPTIONS | msgspec.to_builtins(record.options)
    yield from ((name.replace("_", "-"), _text(value)) for name, value in options.items() if name not in REPEATED)
    if record.simulation is not None:
        yield from (("granularity", record.simulation.granularity), ("shards", record.simulation.shards))
    if record.machine is not None:
        faults = record.machine.faults
        yield from (("routing", record.machine.routing), ("placement", record.machine.placement))
        yield "fail", ",".join(faults.fail) if faults else ""
        yield "degrade", _text(faults.degrade) if faults else ""
        yield "slow", _text(faults.slow) if faults else ""
    yield from _machine_settings(record)


def _machine_settings(record: Record) -> Iterator[tuple[str, str]]:
    """The paths and values of `--set` in the command that wrote a record; values of one path in their order."""
    words = shlex.split(record.provenance.command) if record.provenance is not None else []
    values: dict[str, list[str]] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        setting = following if word == "--set" else word.removeprefix("--set=") if word.startswith("--set=") else ""
        path, is_setting, value = setting.partition("=")
        if is_setting:
            values.setdefault(path, []).append(value)
    yield from ((path, ", ".join(texts)) for path, texts in values.items())


def _text(value: object) -> str:
    """A value of a record as a flag would have it.

    >>> _text(["oar", "ors"]), _text({"gpu:5": 0.8}), _text(True), _text(None)
    ('oar,ors', 'gpu:5=0.8', 'yes', '')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ",".join(f"{key}={share:g}" for key, share in value.items())
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return "" if value is None else str(value)


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
    texts += setting_rows(predictions)
    if have_different_amounts(compared):
        texts.append((f"{first.unit}/s", *(f"{rate(prediction):,.0f}" for prediction in predictions)))
    total = [_amount_cells("total", [prediction.seconds for prediction in predictions], first.seconds)]
    causes = [
        _amount_cells(cause, [prediction.seconds_by_cause.get(cause, 0.0) for prediction in predictions], first.seconds)
        for cause in first.seconds_by_cause
    ]
    spaced = [[name, cells[0], *(text for cell in cells[1:] for text in (cell, ""))] for name, *cells in texts]
    return table(
        "Predictions, and their differences from the first as shares of its total", columns, total, causes, spaced
    )


def setting_rows(predictions: Sequence[ComparedPrediction]) -> list[tuple[str, ...]]:
    """The rows of a table with the settings in which predictions differ: the name, and the value of each prediction."""
    return [
        (name, *(prediction.settings[name] or UNKNOWN for prediction in predictions))
        for name in predictions[0].settings
    ]


def have_different_amounts(compared: Predictions) -> bool:
    """Whether the predictions are of different batches, so that their rates count and not their times."""
    return len({prediction.amount for prediction in compared.predictions}) > 1


def rate(prediction: ComparedPrediction) -> float:
    """Tokens or rows for each second; 0 for a product and for a run of no time."""
    return prediction.amount / prediction.seconds if prediction.seconds else 0.0


def _amount_cells(name: str, amounts: Sequence[float], total: float) -> list[str]:
    cells = [name, duration(amounts[0])]
    for amount in amounts[1:]:
        cells += [duration(amount), percent((amount - amounts[0]) / total if total else None)]
    return cells


def summary_lines(compared: Predictions) -> list[str]:
    """A sentence for each what-if: how much faster or slower it is, and the cause that changes most."""
    first, *what_ifs = compared.predictions
    lines = []
    for what_if in what_ifs:
        if what_if.amount != first.amount:
            change = percent(rate(what_if) / rate(first) - 1 if rate(first) else None)
            lines.append(f"{what_if.file} is of another batch than {first.file}: {change} {first.unit}/s")
            continue
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
