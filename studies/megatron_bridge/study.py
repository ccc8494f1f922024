"""How far off are predicted steps from the performance tables of Megatron Bridge?

    quadrille study megatron-bridge megatron_bridge_performance.csv

Rows of several releases that describe one experiment share a prediction.  Nothing is fitted to a row.
"""

import csv
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, median

from quadrille.algorithms.errors import QuadrilleError
from quadrille.experiments.output.tables import print_tables, table
from quadrille.experiments.predict.training_step import simulated_step
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.studies.megatron_bridge.bridge_rows import BridgeRow, BridgeStep, read_bridge
from quadrille.topologies.find_machine import find_machine, gpus_with_placement

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


def judge(row: BridgeRow) -> JudgedStep:
    """The row with its predicted time, or with the reason why there is none."""
    if row.step is None:
        return JudgedStep(row, refused=row.refused)
    answer = predicted_seconds(row.step)
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


def megatron_bridge(file: str, only: str = "", results: Path = RESULTS) -> None:
    """Predict the rows, print the tables, and write the rows.

    Parameters
    ----------
    file : the performance tables as CSV
    only : text of the model's name; then nothing is written
    """
    rows = [row for row in read_bridge(Path(file)) if only.lower() in row.columns["model"].lower()]
    judged = list(_written(rows, None if only else results))
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


def _written(rows: Iterable[BridgeRow], results: Path | None) -> Iterator[JudgedStep]:
    """The judged rows, each written as soon as it is known."""
    if results is None:
        yield from map(judge, rows)
        return
    results.parent.mkdir(exist_ok=True)
    with results.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            judged = judge(row)
            writer.writerow(cells(judged))
            out.flush()
            yield judged


def main() -> None:
    """The study of the data that the command line names; `make studies` names none, and it is left out there."""
    if sys.argv[1:]:
        megatron_bridge(sys.argv[1], "".join(sys.argv[2:3]))
    else:
        remark("megatron_bridge is left out: it needs FILE.csv, the performance tables")


if __name__ == "__main__":
    run_as_program(main)
