"""How far off are predicted steps from the performance tables of Megatron Bridge?

    quadrille study megatron-bridge megatron_bridge_performance.csv

Rows of several releases that describe one experiment share a prediction.  Nothing is fitted to a row.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.tabular import comma_separated
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import print_tables, table
from quadrille.experiments.predict.training_step import simulated_step
from quadrille.experiments.rank.work_sharing import TaskKind, WorkSharing, open_work_sharing
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.studies.known_answers import KnownAnswers
from quadrille.studies.megatron_bridge.bridge_rows import BridgeRow, BridgeStep, read_bridge
from quadrille.topologies.find_machine import find_machine, gpus_with_placement

ROWS_OF_A_JOB = 4
"""Number of rows that a process predicts before they are written."""
RESULTS = Path(__file__).resolve().parent / "results" / "rows.csv"
COLUMNS = (
    *("row", "model", "kind", "gpu", "gpus", "precision", "layout", "batch", "microbatch"),
    *("published s", "predicted s", "error %", "refused", "command"),
)


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """A row with its predicted time.

    Parameters
    ----------
    seconds : predicted time of a step [s]; None without a prediction
    refused : reason why there is none
    """

    row: BridgeRow
    seconds: float | None = None
    refused: str = ""

    @property
    def error(self) -> float | None:
        """Predicted / published - 1; None without a prediction."""
        return None if self.seconds is None else self.seconds / self.row.seconds - 1


@cache
def predicted_seconds(step: BridgeStep) -> float | str:
    """The predicted time of a step [s], or the reason why there is none."""
    try:
        experiment = step.experiment
        gpus = gpus_with_placement(step.machine, experiment.grid.size, experiment.execution.placement)
        machine = find_machine(step.machine, (), gpus=gpus)
        granularity = "passes" if step.is_pipelined else "auto"
        return simulated_step(experiment, machine, granularity=granularity).seconds  # type: ignore[arg-type]
    except QuadrilleError as error:
        return str(error)


STEPS = TaskKind(
    "step of Megatron Bridge",
    lambda step: (step.machine, step.experiment, step.is_pipelined),
    float | str,
    lambda step: shlex.join(step.command),
)
"""The predictions as tasks of a store; the name of a machine stands for its contents, which are code."""


def judge(row: BridgeRow, predict: Callable[[BridgeStep], float | str] | None = None) -> JudgedStep:
    """The row with its predicted time, or with the reason why there is none."""
    if row.step is None:
        return JudgedStep(row, refused=row.refused)
    answer = (predict or predicted_seconds)(row.step)
    return JudgedStep(row, refused=answer) if isinstance(answer, str) else JudgedStep(row, answer)


def cells(judged: JudgedStep) -> list[str]:
    """The cells of a row of the results."""
    row, columns = judged.row, judged.row.columns
    predicted = "" if judged.seconds is None else f"{judged.seconds:.4g}"
    error = "" if judged.error is None else f"{100 * judged.error:+.1f}"
    command = shlex.join(row.step.command) if row.step is not None else ""
    workload = (columns["gpu_kind"], columns["num_gpus"], columns["precision"], row.layout)
    batch = columns["global_batch"], columns["micro_batch"]
    return [
        *(row.id, columns["model"], row.kind, *workload, *batch),
        *(f"{row.seconds:.4g}", predicted, error, judged.refused, command),
    ]


def error_rows(judged: Sequence[JudgedStep], by: Callable[[BridgeRow], str]) -> list[list[str]]:
    """Mean, median and largest absolute error, and signed mean, of each part of the rows."""
    parts: dict[str, list[float]] = {}
    for step in judged:
        if step.error is not None:
            parts.setdefault(by(step.row), []).append(step.error)
    return [[name, str(len(errors)), *_spread(errors)] for name, errors in sorted(parts.items())]


def _spread(errors: Sequence[float]) -> list[str]:
    sizes = [abs(error) for error in errors]
    worst = max(errors, key=abs)
    return [f"{100 * size:.1f} %" for size in (mean(sizes), median(sizes), worst, mean(errors))]


def refused_rows(judged: Iterable[JudgedStep]) -> list[list[str]]:
    """Reasons for refusals, with the number of rows."""
    return [[reason, str(count)] for reason, count in Counter(step.refused for step in judged).most_common() if reason]


def megatron_bridge(
    file: str,
    only: str = "",
    results: Path = RESULTS,
    *,
    plot: str = "",
    jobs: int = 1,
    store: str = "",
    quiet: bool = False,
    command: Sequence[str] = (),
) -> None:
    """Predict the rows, print the tables, and write the rows.

    Parameters
    ----------
    file : the performance tables as CSV
    only : text of the model's name; then nothing is written
    plot : file of the error plot; empty: not written
    jobs : number of processes that share the rows
    store : path of the store of predictions; empty for none
    quiet : whether progress is not shown
    command : words of the command line, which go on after an interruption
    """
    Destinations(plot=plot).check({"--rows": file})
    rows = [row for row in read_bridge(Path(file)) if only.lower() in row.columns["model"].lower()]
    with open_work_sharing(quiet=quiet, jobs=jobs, store=store, command=command) as work_sharing:
        judged = list(_judged(rows, work_sharing))
        if work_sharing.store is not None:
            remark(work_sharing.store.use)
    if not only:
        results.parent.mkdir(exist_ok=True)
        schema_files.write_text(results, comma_separated(COLUMNS, map(cells, judged)))
    if plot:
        from quadrille.experiments.output.pictures import write_figure
        from quadrille.studies.megatron_bridge.figure import figure

        write_figure(figure([dict(zip(COLUMNS, cells(step), strict=True)) for step in judged]), plot)
    columns = ("rows", "mean", "median", "worst", "mean with sign")
    parts: dict[str, Callable[[BridgeRow], str]] = {
        "model": lambda row: f"{row.kind}: {row.columns['model']}",
        "kind": lambda row: row.kind,
        "GPU": lambda row: f"{row.kind}: {row.columns['gpu_kind']}",
        "precision": lambda row: row.columns["precision"],
        "release": lambda row: f"{row.kind}: {row.columns['release']}",
    }
    print_tables(
        table("steps", COLUMNS[:-2], [cells(step)[:-2] for step in judged if step.error is not None], names=7),
        *(table(f"errors by {name}", (name, *columns), error_rows(judged, by)) for name, by in parts.items()),
        table("not predicted", ("reason", "rows"), refused_rows(judged)),
    )


def _judged(rows: Sequence[BridgeRow], work_sharing: WorkSharing) -> Iterator[JudgedStep]:
    """The judged rows, in their order, a few at a time."""
    predictions = KnownAnswers(predicted_seconds, STEPS, work_sharing)
    with work_sharing.progress("predicted", "rows", sum(row.step is not None for row in rows)) as step_count:
        size = ROWS_OF_A_JOB * work_sharing.jobs
        for begin in range(0, len(rows), size):
            together = rows[begin : begin + size]
            predictions.find((row.step for row in together if row.step is not None), step_count)
            yield from (judge(row, predictions) for row in together)


def main() -> None:
    """The study of the data that the command line names; `make studies` names none, and it is left out there."""
    if sys.argv[1:]:
        megatron_bridge(sys.argv[1], "".join(sys.argv[2:3]))
    else:
        remark("megatron_bridge is left out: it needs FILE.csv, the performance tables")


if __name__ == "__main__":
    run_as_program(main)
