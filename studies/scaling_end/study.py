"""`quadrille study scaling-end`: the number of GPUs from which twice the GPUs shorten a training step hardly any more.

The batch stays the same. Every number of GPUs has its own best layout (`quadrille.experiments.rank.ranked_layouts`).

    efficiency   GPU seconds of a step on the fewest GPUs / GPU seconds of a step
    gain         time of a step that twice the GPUs save, as a speed-up minus 1; between two numbers of GPUs that are
                 further apart, the geometric mean
    end          first number of GPUs from which the gain is below `LEAST_GAIN`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
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
Job = tuple[str, str, str]
"""Model, machine and batch, as the flags name them."""
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingEndQuestion:
    """The training jobs.

    Parameters
    ----------
    models : names of the models
    machines : names of the machines
    gpus : numbers of GPUs, which are asked about in ascending order
    batches : numbers of sequences of a step
    """

    models: tuple[str, ...] = ("llama3-8b", "mixtral-8x7b")
    machines: tuple[str, ...] = ("h100-superpod", "perlmutter")
    gpus: tuple[int, ...] = (64, 256, 1024, 4096)
    batches: tuple[int, ...] = (64, 512)

    def points(self) -> Iterator[tuple[dict[str, str], LayoutQuestion]]:
        """The question about each model, machine, batch and number of GPUs.

        Raises
        ------
        InputError : an unknown model or machine
        """
        for gpt, name, batch in product(self.models, self.machines, sorted(set(self.batches))):
            for gpus in sorted(set(self.gpus)):
                machine = find_machine(name, gpus=gpus)
                layouts = LayoutQuestion(gpt=gpt, batch=batch, gpus=gpus, machine=machine, top=1)
                yield {"model": gpt, "machine": name, "batch": str(batch), "gpus": str(gpus)}, layouts


QUICK = ScalingEndQuestion(models=("gpt3-1.3b",), machines=("h100-superpod",), gpus=(8, 32), batches=(32,))


def main() -> None:
    """Run the study, and write the answer to `results/`."""
    scaling_end(ScalingEndQuestion(), StudyOptions.into_folder("scaling-end", RESULTS, most_seconds=None))


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
    flags = {"scheme": "megatron", "sequence-parallel": "yes", "micro-batch": "1"}
    return write_findings("scaling-end", flags, results, StudyPresentation(tables, answer, figure), options)


def best_layout_of(asked: LayoutQuestion) -> SweepAnswer:
    """The best layout of a question."""
    return fastest_layouts(asked)[0]


def job_of(row: SweepRow) -> Job:
    """The training job of a row, whatever its number of GPUs."""
    return row.point["model"], row.point["machine"], row.point["batch"]


def curves(rows: Sequence[SweepRow]) -> dict[Job, list[SweepRow]]:
    """The rows that have an answer, by job, in ascending order of GPUs."""
    by_job: dict[Job, list[SweepRow]] = {}
    for row in rows:
        curve = by_job.setdefault(job_of(row), [])
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
    """The table of the best layouts by number of GPUs, with a section for each job."""
    columns = ("model", "machine", "batch", "GPUs", *STEP_COLUMNS, "efficiency", "gain of twice", "most lost to")
    by_job = curves(rows)
    sections = []
    for job in by_job:
        own = [row for row in rows if job_of(row) == job]
        sections.append(
            [(*job, row.point["gpus"], *step_cells(row.answer), *_scaling_cells(by_job[job], row)) for row in own]
        )
    return [table("strong scaling of training jobs, predicted", columns, *sections, names=5)]


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
    """The sentences that answer the study: where each job ends, and what is lost there."""
    return [_sentence(job, curve) for job, curve in curves(rows).items()]


def _sentence(job: Job, curve: Sequence[SweepRow]) -> str:
    model, machine, batch = job
    name = f"{model} on {machine} with {int(batch):,} sequences a step"
    if not curve:
        return f"No layout of {name} can be predicted."
    end = end_of_scaling(curve)
    last = end or curve[-1]
    gpus = int(last.point["gpus"])
    where = f"ends at {gpus:,} GPUs" if end else f"goes on to {gpus:,} GPUs"
    share = percent(efficiency(curve, last), signed=False)
    facts = f"{format_seconds(last.answer.seconds or 0.0)} a step, efficiency {share}"
    lost = f", most is lost to {most_lost(curve, last)}" if last is not curve[0] else ""
    return f"Scaling of {name} {where}: {facts}{lost}."


@styled
def figure(rows: Sequence[SweepRow]) -> "Figure":
    """The time of a step by number of GPUs, and the gain of twice the GPUs by GPUs for each sequence."""
    drawing = new_figure(10, 5.2, question=QUESTION, setting="training steps with the same batch, predicted")
    left, right = drawing.subplots(1, 2)
    by_job = {job: curve for job, curve in curves(rows).items() if curve}
    seconds: list[float] = []
    shares: list[float] = []
    for number, (job, curve) in enumerate(by_job.items()):
        gpus = [int(row.point["gpus"]) for row in curve]
        seconds += (times := [row.answer.seconds or 0.0 for row in curve])
        left.plot(gpus, times, label=f"{job[0]}, {job[1]}, {int(job[2]):,} sequences", **line_marks(number))
        if end := end_of_scaling(curve):
            left.plot(int(end.point["gpus"]), end.answer.seconds, "o", ms=14, mfc="none", mec="black")
        shares += (of_sequence := [count / int(job[2]) for count in gpus[:-1]])
        right.plot(of_sequence, [100 * gain_of_doubling(*pair) for pair in pairwise(curve)], **line_marks(number))
    right.axhline(100 * LEAST_GAIN, color=MUTED_COLOUR, linestyle=":", label="end of scaling")
    right.set_ylim(0, 108)
    right.set_ylabel("gain of twice the GPUs [%]")
    scale_axis(left.yaxis, seconds, "s")
    left.set_ylabel("time of a step")
    number_axis(left.xaxis, sorted({int(row.point["gpus"]) for row in rows}))
    left.set_xlabel("GPUs; a ring marks the end of scaling")
    number_axis(right.xaxis, sorted(set(shares)))
    right.set_xlabel("GPUs for each sequence of the batch")
    legend_below(drawing)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
