"""`quadrille study scaling-end`: the number of GPUs from which twice the GPUs shorten a training step hardly any more.

The batch stays the same. Every number of GPUs has its own best layout (`quadrille.experiments.rank.ranked_layouts`).

    efficiency   GPU seconds of a step on the fewest GPUs / GPU seconds of a step
    gain         time of a step that twice the GPUs save, as a speed-up minus 1; between two numbers of GPUs that are
                 further apart, the geometric mean
    end          first number of GPUs from which the gain is below `LEAST_GAIN`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import (
    MUTED_COLOUR,
    legend_below,
    line_marks,
    new_figure,
    number_axis,
    scale_axis,
    styled,
)
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.output.tables import UNKNOWN, percent, table
from quadrille.experiments.rank.ranked_layouts import LayoutQuestion, fastest_layouts
from quadrille.experiments.sweep.sweep_result import SweepAnswer, SweepRow
from quadrille.experiments.sweep.training_study import (
    STEP_COLUMNS,
    Findings,
    StudyOptions,
    StudyPresentation,
    answer_study_points,
    seconds_by_cause,
    step_cells,
    write_findings,
)
from quadrille.runtime.host.console import run_as_program
from quadrille.topologies.find_machine import find_machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

LEAST_GAIN = 0.2
"""Gain of twice the GPUs below which strong scaling has ended; ideal scaling has 1."""
QUESTION = "Where does strong scaling end?"
"""Title of the figure."""
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingEndQuestion:
    """The training jobs.

    Parameters
    ----------
    models : names of the models
    machines : names of the machines
    gpus : numbers of GPUs, which are asked about in ascending order
    batch : number of sequences of a step
    """

    models: tuple[str, ...] = ("llama3-8b", "mixtral-8x7b")
    machines: tuple[str, ...] = ("h100-superpod",)
    gpus: tuple[int, ...] = (32, 128, 512, 2048)
    batch: int = 512

    def points(self) -> Iterator[tuple[dict[str, str], LayoutQuestion]]:
        """The question about each model on each machine and number of GPUs.

        Raises
        ------
        InputError : an unknown model or machine
        """
        for gpt in self.models:
            for name in self.machines:
                for gpus in sorted(set(self.gpus)):
                    machine = find_machine(name, gpus=gpus)
                    layouts = LayoutQuestion(gpt=gpt, batch=self.batch, gpus=gpus, machine=machine, top=1)
                    yield {"model": gpt, "machine": name, "gpus": str(gpus)}, layouts


QUICK = ScalingEndQuestion(models=("gpt3-1.3b",), machines=("h100-superpod",), gpus=(8, 32), batch=32)


def main() -> None:
    """Run the study, and write the answer to `results/`."""
    scaling_end(ScalingEndQuestion(), StudyOptions.into_folder("scaling-end", RESULTS, jobs=2, most_seconds=None))


def scaling_end(asked: ScalingEndQuestion, options: StudyOptions) -> Findings:
    """Find the best layout on every number of GPUs, and print and write the results.

    Parameters
    ----------
    asked : training jobs
    options : processes, and files of the results

    Raises
    ------
    InputError : an unknown model or machine; a file that cannot be written; no possible layout
    """
    options.check()
    points = list(asked.points())
    answers = answer_study_points(points, best_layout_of, options)
    results = [(point, step) for (point, _), step in zip(points, answers, strict=True)]
    flags = {"scheme": "megatron", "sequence-parallel": "yes", "micro-batch": "1", "batch": str(asked.batch)}
    return write_findings("scaling-end", flags, results, StudyPresentation(tables, answer, figure), options)


def best_layout_of(asked: LayoutQuestion) -> SweepAnswer:
    """The best layout of a question."""
    return fastest_layouts(asked)[0]


def curves(rows: Sequence[SweepRow]) -> dict[tuple[str, str], list[SweepRow]]:
    """The rows that have an answer, by model and machine, in ascending order of GPUs."""
    by_job: dict[tuple[str, str], list[SweepRow]] = {}
    for row in rows:
        curve = by_job.setdefault((row.point["model"], row.point["machine"]), [])
        if row.answer.seconds is not None:
            curve.append(row)
    return by_job


def gpu_seconds(row: SweepRow) -> float:
    """The time of a step times the number of GPUs [s]."""
    assert row.answer.seconds is not None
    return row.answer.seconds * int(row.point["gpus"])


def efficiency(curve: Sequence[SweepRow], row: SweepRow) -> float:
    """The GPU seconds of a step on the fewest GPUs over those of a row."""
    return gpu_seconds(curve[0]) / gpu_seconds(row)


def gain_of_doubling(fewer: SweepRow, more: SweepRow) -> float:
    """The speed-up by twice the GPUs, minus 1: the geometric mean between two numbers of GPUs.

    >>> rows = [SweepRow(point={"gpus": gpus}, answer=SweepAnswer(seconds=s)) for gpus, s in (("8", 4.0), ("32", 1.0))]
    >>> gain_of_doubling(*rows)
    1.0
    """
    doublings = log2(int(more.point["gpus"]) / int(fewer.point["gpus"]))
    ratio: float = (more.answer.seconds or 0.0) / (fewer.answer.seconds or 1.0)
    return float((1 / ratio) ** (1 / doublings) - 1)


def end_of_scaling(curve: Sequence[SweepRow]) -> SweepRow | None:
    """The first row from which twice the GPUs gain less than `LEAST_GAIN`; None if there is none."""
    return next((fewer for fewer, more in pairwise(curve) if gain_of_doubling(fewer, more) < LEAST_GAIN), None)


def losses(curve: Sequence[SweepRow], row: SweepRow) -> dict[str, float]:
    """The GPU seconds that a step takes beyond those on the fewest GPUs, by cause, as shares of the step.

    Computing is slower where products are small, or where stages and ranks compute more than their share. The sum is
    1 - `efficiency`.
    """
    first, own = _gpu_seconds_by_cause(curve[0]), _gpu_seconds_by_cause(row)
    return {
        cause: (own.get(cause, 0.0) - first.get(cause, 0.0)) / gpu_seconds(row)
        for cause in dict.fromkeys((*first, *own))
    }


def _gpu_seconds_by_cause(row: SweepRow) -> dict[str, float]:
    """The GPU seconds of a step by cause."""
    gpus = int(row.point["gpus"])
    return {cause: gpus * seconds for cause, seconds in seconds_by_cause(row.answer).items()}


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The table of the best layouts by number of GPUs, with a section for each model on a machine."""
    columns = ("model", "machine", "GPUs", *STEP_COLUMNS, "efficiency", "gain of twice", "most lost to")
    by_job = curves(rows)
    sections = []
    for job in by_job:
        own = [row for row in rows if (row.point["model"], row.point["machine"]) == job]
        sections.append(
            [(*job, row.point["gpus"], *step_cells(row.answer), *_scaling_cells(by_job[job], row)) for row in own]
        )
    return [table("strong scaling of training jobs, predicted", columns, *sections, names=4)]


def _scaling_cells(curve: Sequence[SweepRow], row: SweepRow) -> tuple[str, str, str]:
    """The efficiency of a row, the gain of twice the GPUs, and what is lost most."""
    if row not in curve:
        return (UNKNOWN, UNKNOWN, (row.answer.reason or "")[:80])
    place = curve.index(row)
    gain = percent(gain_of_doubling(row, curve[place + 1])) if place + 1 < len(curve) else UNKNOWN
    return percent(efficiency(curve, row), signed=False), gain, most_lost(curve, row) if place else ""


def most_lost(curve: Sequence[SweepRow], row: SweepRow) -> str:
    """The largest loss of a step in words."""
    cause, share = max(losses(curve, row).items(), key=lambda loss: loss[1])
    return f"{cause} {percent(share, signed=False)}"


def answer(rows: Sequence[SweepRow]) -> list[str]:
    """The sentences that answer the study: the end for each model on each machine, and what is lost there."""
    return [_sentence(job, curve) for job, curve in curves(rows).items()]


def _sentence(job: tuple[str, str], curve: Sequence[SweepRow]) -> str:
    model, machine = job
    if not curve:
        return f"No layout of {model} on {machine} was found."
    end, last = end_of_scaling(curve), curve[-1]
    least = percent(LEAST_GAIN, signed=False)
    if end is None:
        where = f"Strong scaling of {model} on {machine} goes on to {int(last.point['gpus']):,} GPUs"
    else:
        where = f"Strong scaling of {model} on {machine} ends at {int(end.point['gpus']):,} GPUs"
    facts = ", ".join(
        f"{format_seconds(row.answer.seconds or 0.0)} on {int(row.point['gpus']):,} "
        f"({percent(efficiency(curve, row), signed=False)})"
        for row in curve
    )
    lost = f"; most is lost to {most_lost(curve, last)} on {int(last.point['gpus']):,} GPUs" if len(curve) > 1 else ""
    return f"{where}, by a gain of {least}: {facts}{lost}."


@styled
def figure(rows: Sequence[SweepRow]) -> "Figure":
    """The time and the efficiency by number of GPUs, a line for each model on a machine."""
    drawing = new_figure(9, 4.4, question=QUESTION, setting="a training step with the same batch, predicted")
    left, right = drawing.subplots(1, 2)
    by_job = {job: curve for job, curve in curves(rows).items() if curve}
    drawn: list[float] = []
    for number, (job, curve) in enumerate(by_job.items()):
        counts = [int(row.point["gpus"]) for row in curve]
        seconds = [row.answer.seconds or 0.0 for row in curve]
        left.plot(counts, seconds, label=", ".join(job), **line_marks(number))
        right.plot(counts, [100 * efficiency(curve, row) for row in curve], **line_marks(number))
        if end := end_of_scaling(curve):
            left.plot(int(end.point["gpus"]), end.answer.seconds, "o", ms=14, mfc="none", mec="black", label="end")
        drawn += seconds
    right.axhline(100, color=MUTED_COLOUR, linestyle=":")
    right.set_ylim(0, 108)
    right.set_ylabel("efficiency [%]")
    scale_axis(left.yaxis, drawn, "s")
    left.set_ylabel("time of a step")
    for axes in (left, right):
        number_axis(axes.xaxis, sorted({int(row.point["gpus"]) for row in rows}))
        axes.set_xlabel("GPUs")
    legend_below(drawing)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
