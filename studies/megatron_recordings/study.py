"""How far off is the accounting of Megatron-LM's memory, and which causes does it need?

    python -m quadrille.studies.megatron_recordings.study FOLDER          memory
    python -m quadrille.studies.megatron_recordings.study FOLDER times    times of steps that kernels bound

FOLDER holds `megatron_golden*.csv` with `megatron_golden_history_args.jsonl.gz`, and `simumax_b200_steps.csv`.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.tabular import comma_separated
from quadrille.algorithms.training.megatron_memory import ALL_CAUSES, MegatronMemory, MemoryCauses
from quadrille.algorithms.training.megatron_step import MegatronStep
from quadrille.experiments.output.tables import print_tables, table
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.studies.megatron_recordings.recordings import Recording, golden_recordings, simumax_recordings
from quadrille.studies.megatron_recordings.step_times import KERNELS, error_rows, step_times, time_rows

RESULTS = Path(__file__).resolve().parent / "results"
COLUMNS = ("rows", "steps", "median", "90th percentile", "worst")
GB = 1e9


@dataclass(frozen=True, slots=True)
class Judged:
    """A recording with its predicted peak [B]."""

    recording: Recording
    predicted: float

    @property
    def error(self) -> float:
        """Predicted / recorded - 1."""
        return self.predicted / self.recording.peak_bytes - 1


def predicted_peak(recording: Recording, step: MegatronStep, causes: MemoryCauses = ALL_CAUSES) -> float:
    """The predicted peak of the last stage, or of the fullest stage if the row says so [B]."""
    stages = range(step.pipeline) if recording.all_stages else (-1,)
    return max(MegatronMemory(step, stage, recording.gpu, causes).peak for stage in stages)


def judged(recordings: Iterable[Recording], causes: MemoryCauses = ALL_CAUSES) -> list[Judged]:
    """The recordings that are not refused, with their predictions."""
    return [
        Judged(row, predicted_peak(row, row.step, causes))
        for row in recordings
        if row.step is not None and not row.refused
    ]


def spread_cells(rows: Sequence[Judged]) -> list[str]:
    """The cells of a table: number of rows and of distinct steps, and sizes of errors."""
    sizes = sorted(abs(row.error) for row in rows)
    if not sizes:
        return ["0", "0", "", "", ""]
    steps = len({(row.recording.step, row.recording.gpu) for row in rows})
    shown = median(sizes), float(np.quantile(sizes, 0.9)), sizes[-1]
    return [str(len(sizes)), str(steps), *(f"{100 * size:.2f} %" for size in shown)]


def accuracy_rows(recordings: Sequence[Recording]) -> list[list[str]]:
    """A row of the table for each source and half."""
    rows = judged(recordings)
    sources = list(dict.fromkeys(row.recording.source for row in rows))
    return [
        [
            source,
            half,
            *spread_cells([row for row in rows if (row.recording.source, row.recording.half) == (source, half)]),
        ]
        for source in sources
        for half in ("learnt", "judged")
    ]


def cause_rows(recordings: Sequence[Recording]) -> list[list[str]]:
    """Errors with all causes, and without each one."""
    without = [
        (f"without {field.name.replace('_', ' ')}", replace(ALL_CAUSES, **{field.name: False}))
        for field in fields(MemoryCauses)
    ]
    return [
        [name, half, *spread_cells([row for row in judged(recordings, causes) if row.recording.half == half])]
        for name, causes in [("all causes", ALL_CAUSES), *without]
        for half in ("learnt", "judged")
    ]


def refused_rows(recordings: Iterable[Recording]) -> list[list[str]]:
    """Reasons for refusals, with the number of rows."""
    reasons = Counter(row.refused for row in recordings if row.refused)
    return [[reason, str(count)] for reason, count in reasons.most_common()]


def write_results(recordings: Iterable[Recording], path: Path) -> None:
    """Write a line for each recording, with its prediction or the reason of its refusal."""
    path.parent.mkdir(exist_ok=True)
    columns = ("source", "recording", "half", "gpu", "recorded GB", "predicted GB", "error %", "refused")
    schema_files.write_text(path, comma_separated(columns, map(_result_cells, recordings)))


def _result_cells(row: Recording) -> tuple[str, ...]:
    """The cells of a recording in the file of results."""
    predicted = predicted_peak(row, row.step) if row.step is not None and not row.refused else 0.0
    shown = (f"{predicted / GB:.3f}", f"{100 * (predicted / row.peak_bytes - 1):.2f}") if predicted else ("", "")
    return row.source, row.id, row.half, row.gpu, f"{row.peak_bytes / GB:.3f}", *shown, row.refused


def print_times(recordings: Sequence[Recording]) -> None:
    """Print the tables of times, and write the rows."""
    times = list(step_times(recordings))
    rows, columns = list(time_rows(times)), ("step", "gpu", "recordings", "recorded s", *KERNELS, "no prediction")
    spread = ("gpu", "kernels", "steps", "mean", "median", "worst", "mean with sign")
    print_tables(
        table("seconds of a step", columns, rows, names=2),
        table("errors of times", spread, list(error_rows(times)), names=2),
    )
    schema_files.write_text(RESULTS / "times.csv", comma_separated(columns, rows))


def megatron_recordings(folder: str = "", asked: str = "memory") -> None:
    """Print the tables, and write the rows.

    Parameters
    ----------
    asked : memory or times

    Raises
    ------
    InputError : no folder, or a file is missing
    """
    if not Path(folder).is_dir() or not folder:
        raise InputError(f"folder {folder!r}: a folder with megatron_golden.csv and simumax_b200_steps.csv is accepted")
    if asked not in ("memory", "times"):
        raise InputError(f"{asked!r:.40}: memory or times is accepted")
    golden, simumax = golden_recordings(Path(folder)), simumax_recordings(Path(folder))
    if asked == "times":
        print_times([*golden, *simumax])
        return
    print_tables(
        table("peak of allocated memory", ("source", "half", *COLUMNS), accuracy_rows([*golden, *simumax]), names=2),
        table("causes, Megatron-LM's recordings", ("causes", "half", *COLUMNS), cause_rows(golden), names=2),
        table("causes, SimuMax", ("causes", "half", *COLUMNS), cause_rows(simumax), names=2),
        table("refused", ("reason", "rows"), refused_rows([*golden, *simumax])),
    )
    write_results([*golden, *simumax], RESULTS / "memory.csv")


def main() -> None:
    """The study of the data that the command line names; `make studies` names none, and it is left out there."""
    if sys.argv[1:]:
        megatron_recordings(*sys.argv[1:])
    else:
        remark("megatron_recordings is left out: it needs FOLDER, the recordings")


if __name__ == "__main__":
    run_as_program(main)
