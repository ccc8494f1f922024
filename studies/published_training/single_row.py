"""One published row: its prediction, the command line that predicts the same time, and where the time goes."""

import shlex
from collections.abc import Sequence

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.explain.explain import explanation_tables
from quadrille.experiments.explain.explanation import explain_record
from quadrille.experiments.output.tables import percent, print_tables, table
from quadrille.experiments.predict.predict import prediction_record
from quadrille.studies.published_training.published_steps import PublishedStep, step_of
from quadrille.studies.published_training.report import JudgedTraining
from quadrille.studies.published_training.training_rows import TrainingRow


def row_numbered(rows: Sequence[TrainingRow], number: str) -> TrainingRow:
    """The row with this identifier.

    Raises
    ------
    InputError : no row has it
    """
    chosen = next((row for row in rows if row.id == number), None)
    if chosen is None:
        accepted = f"{rows[0].id} to {rows[-1].id}, see --list" if rows else "none, the file has no training rows"
        raise InputError(f"--row {number:.40}: no row of training has this id; accepted are {accepted}")
    return chosen


def show_row(judged: JudgedTraining, step: PublishedStep | None, *, explain: bool = False) -> None:
    """Print a row with its prediction, its command line and, if wanted, the causes of the time.

    Parameters
    ----------
    judged : row with its prediction and role
    step : predicted step; None if the row is not predicted
    """
    print(f"row {judged.id}: {judged.paper}, {judged.workload}, on {judged.gpus} GPUs of {judged.machine}")
    if step is None or judged.predicted is None:
        print(f"{judged.role}: {judged.reason}")
        return
    print(
        f"published {judged.published:.4g} {judged.unit}, predicted {judged.predicted:.4g} ({judged.metric}), "
        f"error {percent(judged.relative_error, signed=True)}; {judged.role}"
        f"{': ' + judged.reason if judged.reason else ''}"
    )
    print(f"time of an iteration: {format_seconds(step_of(step).seconds)}, as of")
    print(f"  {shlex.join(step.command)}")
    if explain:
        explanation = explain_record(prediction_record(step.experiment, step.model, granularity=step.granularity))
        print_tables(*explanation_tables(explanation))
        print("\n".join((*explanation.summary, *explanation.lacking)))


def show_list(rows: Sequence[JudgedTraining]) -> None:
    """Print every row with its role, without a prediction."""
    print_tables(
        table(
            "rows",
            ("id", "source", "run", "quantity", "published", "role"),
            [
                (
                    row.id,
                    row.paper,
                    row.workload,
                    f"{row.metric} [{row.unit}]",
                    f"{row.published:.4g}",
                    f"{row.role}: {row.reason}" if row.reason else row.role,
                )
                for row in rows
            ],
        )
    )
