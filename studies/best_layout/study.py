"""`quadrille study best-layout`: the predicted best layouts of Llama 3 70B, Mixtral 8x7B and DeepSeek-V3.

Each model is asked about on 512 H100 and on eight full racks of GB200 NVL72. `quadrille rank` finds the best and the
second layout, with a small search space (`quadrille.experiments.rank.ranked_layouts`). The third layout is data
parallelism alone: all GPUs along data, with ZeRO 3 and full recomputation. An NVLink domain of NVL72 has 72 GPUs, and
512 is no multiple of 72, so 576 GPUs are asked about there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.figure_style import PALETTE, legend_below, new_figure, scale_axis, styled
from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.output.tables import UNKNOWN, percent, table
from quadrille.experiments.rank.ranked_layouts import LayoutQuestion, fastest_layouts, sharded_data_layout
from quadrille.experiments.sweep.sweep_result import SweepAnswer, SweepRow
from quadrille.experiments.sweep.training_study import (
    STEP_COLUMNS,
    Findings,
    StudyOptions,
    StudyPresentation,
    answer_study_groups,
    grid_text,
    largest_cause,
    seconds_by_cause,
    step_cells,
    write_findings,
)
from quadrille.runtime.host.console import run_as_program
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.find_machine import find_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Group

BEST, SECOND, DATA_ALONE = LAYOUTS = ("best", "second", "data parallel alone")
STAGES = {"deepseek-v3": (8, 16)}
"""Numbers of pipeline stages that are tried for large models; the others are tried with `USUAL_STAGES`."""
USUAL_STAGES = (1, 2, 4, 8)
QUESTION = "Which layout is the best, and how far are the second and data parallelism alone behind?"
"""Title of the figure."""
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class BestLayoutQuestion:
    """The training jobs.

    Parameters
    ----------
    models : names of the models
    machines : names of the machines
    gpus : number of GPUs of each machine
    each : number of sequences per GPU of the global batch
    """

    models: tuple[str, ...] = ("llama3-70b", "mixtral-8x7b", "deepseek-v3")
    machines: tuple[str, ...] = ("h100-superpod", "gb200-nvl72")
    gpus: tuple[int, ...] = (512, 576)
    each: int = 2

    def __post_init__(self) -> None:
        if len(self.gpus) != len(self.machines):
            counts = ",".join(map(str, self.gpus))
            raise InputError(f"gpus {counts}: a number for each of {len(self.machines)} machines is accepted")

    def layout_questions(self, most_seconds: float) -> Iterator[tuple[dict[str, str], LayoutQuestion]]:
        """The question about each model on each machine.

        Parameters
        ----------
        most_seconds : processor time after which the search of a job's layouts, or the simulation along data, stops [s]

        Raises
        ------
        InputError : an unknown model or machine
        """
        for name, gpus in zip(self.machines, self.gpus, strict=True):
            for gpt in self.models:
                yield (
                    {"model": gpt, "machine": name, "gpus": str(gpus)},
                    LayoutQuestion(
                        gpt=gpt,
                        batch=self.each * gpus,
                        gpus=gpus,
                        machine=find_machine(name, gpus=gpus),
                        stages=STAGES.get(gpt, USUAL_STAGES),
                        powers_of_two=gpus & (gpus - 1) == 0,
                        most_seconds=most_seconds,
                    ),
                )


QUICK = BestLayoutQuestion(models=("llama3-8b",), machines=("h100-superpod",), gpus=(64,))


def main() -> None:
    """Run the study, and write the answer to `results/`."""
    best_layout(BestLayoutQuestion(), StudyOptions.into_folder("best-layout", RESULTS))


def best_layout(asked: BestLayoutQuestion, options: StudyOptions) -> Findings:
    """Rank the layouts of every model on every machine, and print and write the results.

    Parameters
    ----------
    asked : training jobs
    options : processes, and files of the results

    Raises
    ------
    InputError : an unknown model or machine; a file that cannot be written; no possible layout
    """
    options.check()
    points = list(asked.layout_questions(options.most_seconds))
    questions, counts = [question for _, question in points], [len(LAYOUTS)] * len(points)
    ranked = answer_study_groups(questions, layouts_of, counts, options)
    rows = [
        ({**point, "layout": layout}, step)
        for (point, _), steps in zip(points, ranked, strict=True)
        for layout, step in zip(LAYOUTS, steps, strict=True)
    ]
    flags = {
        "scheme": "megatron",
        "sequence-parallel": "yes",
        "overlap": ",".join(OVERLAPS),
        "each": str(asked.each),
    }
    return write_findings("best-layout", flags, rows, StudyPresentation(tables, answer, figure), options)


def layouts_of(asked: LayoutQuestion) -> tuple[SweepAnswer, SweepAnswer, SweepAnswer]:
    """The best layout, the second one, and data parallelism alone."""
    best, *more = fastest_layouts(asked)
    second = more[0] if more else SweepAnswer(reason=best.reason or "only one layout fits in memory")
    return best, second, sharded_data_layout(asked)


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The table of the layouts, with a section for each model on a machine."""
    grid, microbatch, step, _, *more = STEP_COLUMNS
    chosen = (grid, microbatch, "recompute")
    columns = ("model", "layout", *chosen, step, "MFU", *more, "behind", "most lost to")
    sections = [[_cells(group, row) for row in group] for group in groups_of(rows)]
    return [table("layouts of training jobs, predicted", columns, *sections, names=3, is_narrow=True), *notes(rows)]


def notes(rows: Sequence[SweepRow]) -> "list[Group]":
    """The lines below the table: its jobs' machines with their NVLink domains, and the mark of collective steps."""
    from rich.console import Group
    from rich.text import Text

    machines = dict.fromkeys((row.point["machine"], int(row.point["gpus"])) for row in rows)
    lines = [domains_text(name, gpus) for name, gpus in machines]
    if any(row.answer.trained is not None and row.answer.trained.bounded for row in rows):
        lines.append("*: simulated op by op, each collective as a whole (--granularity collective)")
    return [Group(Text("\n".join(lines)))]


def domains_text(name: str, gpus: int) -> str:
    """The number of NVLink domains, or nodes, that a number of GPUs of a machine fills.

    >>> domains_text("gb200-nvl72", 576)
    'gb200-nvl72: 576 GPUs are 8 domains of 72; 512 is no multiple of 72'
    >>> domains_text("h100-superpod", 512)
    'h100-superpod: 512 GPUs are 64 domains of 8'
    """
    per_domain = network_of(find_machine(name, gpus=gpus)).per_node
    if gpus % per_domain:
        return f"{name}: {gpus:,} GPUs are no multiple of a domain of {per_domain}"
    text = f"{name}: {gpus:,} GPUs are {_domains(gpus // per_domain)} of {per_domain}"
    return text + (f"; 512 is no multiple of {per_domain}" if 512 % per_domain else "")


def groups_of(rows: Sequence[SweepRow]) -> list[list[SweepRow]]:
    """The rows of each model on each machine, in the order of the layouts."""
    by_job: dict[tuple[str, str], list[SweepRow]] = {}
    for row in rows:
        by_job.setdefault((row.point["model"], row.point["machine"]), []).append(row)
    return list(by_job.values())


def _cells(group: Sequence[SweepRow], row: SweepRow) -> tuple[str, ...]:
    """The cells of a row, with its distance from the best and what is lost most."""
    point, trained = row.point, row.answer.trained
    behind = behind_best(group, row)
    far = "" if behind is None or row.point["layout"] == BEST else percent(behind)
    grid, microbatch, step, _, *more = step_cells(row.answer)
    job = {BEST: point["model"], SECOND: f"{int(point['gpus']):,} {point['machine']}"}
    return (
        job.get(point["layout"], ""),
        point["layout"],
        grid,
        microbatch,
        trained.recompute if trained else UNKNOWN,
        step,
        percent(model_utilisation(row), signed=False),
        *more,
        far,
        loss_text(row),
    )


def _domains(count: int) -> str:
    return "1 domain" if count == 1 else f"{count:,} domains"


def model_utilisation(row: SweepRow) -> float | None:
    """The MFU of a layout; None if no peak is known."""
    share = row.answer.trained.model_percent_of_peak if row.answer.trained else None
    return None if share is None else share / 100


def behind_best(group: Sequence[SweepRow], row: SweepRow) -> float | None:
    """The share by which a layout takes longer than the best of its group; None if one of the two is missing."""
    best, own = group[0].answer.seconds, row.answer.seconds
    return own / best - 1 if best and own else None


def loss_text(row: SweepRow) -> str:
    """What most of a layout's time is lost to; that it is too large; or the reason if it has no time."""
    step = row.answer
    if step.seconds is None or step.trained is None:
        return step.reason or ""
    return largest_cause(step) if step.fits else "does not fit"


def answer(rows: Sequence[SweepRow]) -> list[str]:
    """The sentences that answer the study: a sentence for each model on each machine."""
    return [_sentence(group) for group in groups_of(rows)]


def _sentence(group: Sequence[SweepRow]) -> str:
    """The best layout of a model on a machine, what is lost most, and how far the others are behind."""
    best = group[0]
    job = f"{best.point['model']} on {int(best.point['gpus']):,} GPUs of {best.point['machine']}"
    step = best.answer
    if step.seconds is None:
        return f"No layout of {job} was found."
    others = "; ".join(_other(group, row) for row in group[1:])
    facts = f"{format_seconds(step.seconds)}, {loss_text(best)}, {format_bytes(step.peak_bytes_per_rank_max or 0)}"
    return f"The best layout of {job} is {grid_text(step)}: {facts}; {others}."


def _other(group: Sequence[SweepRow], row: SweepRow) -> str:
    """How far a layout is behind the best, and what is lost most."""
    behind, name = behind_best(group, row), row.point["layout"]
    if behind is None:
        return f"{name} has no time"
    if not row.answer.fits:
        return f"{name} does not fit in memory ({format_bytes(row.answer.peak_bytes_per_rank_max or 0)})"
    return f"{name} is {grid_text(row.answer)}, {percent(behind)} ({loss_text(row)})"


@styled
def figure(rows: Sequence[SweepRow]) -> "Figure":
    """The bars of each layout's time by cause: computing, exposed communication by axis, waiting."""
    groups = groups_of(rows)
    drawing = new_figure(9.5, 4.5 + 2.5 * (len(groups) > 3), question=QUESTION, setting="a training step, predicted")
    panels = drawing.subplots(-(-len(groups) // 3), min(3, len(groups)), squeeze=False)
    for panel, group in zip(panels.flat, groups, strict=False):
        _draw_group(panel, group)
    for unused in panels.flat[len(groups) :]:
        unused.set_visible(False)
    legend_below(drawing)
    return drawing


def _draw_group(panel: "Axes", group: Sequence[SweepRow]) -> None:
    """The bars of one model on one machine."""
    timed = [row for row in group if row.answer.seconds is not None]
    heights = [0.0] * len(timed)
    for cause, colour in CAUSES.items():
        seconds = [causes(row)[cause] for row in timed]
        if any(seconds):
            panel.bar(range(len(timed)), seconds, bottom=heights, color=colour, label=cause)
        heights = [below + more for below, more in zip(heights, seconds, strict=True)]
    for place, row in enumerate(timed):
        if not row.answer.fits:
            panel.text(place, heights[place], "does not fit", ha="center", va="bottom", fontsize=7)
    point = group[0].point
    panel.set_title(f"{point['model']}, {int(point['gpus']):,} GPUs\n{point['machine']}", fontsize=9)
    names = ["\n".join([row.point["layout"], *grid_text(row.answer).split(",")]) for row in timed]
    panel.set_xticks(range(len(timed)), names, fontsize=8)
    panel.grid(visible=False, axis="x")
    scale_axis(panel.yaxis, heights, "s", logarithmic=False)


CAUSES = {"compute": PALETTE[0], "tensor": PALETTE[1], "data": PALETTE[2], "experts": PALETTE[3], "waiting": PALETTE[4]}
"""Colour of each cause in the figure."""
CAUSE_OF_AXIS = {"x": "tensor", "data": "data", "replica": "data", "expert": "experts", "expert_tensor": "experts"}
"""Cause of the exposed communication along an axis; that of a pipeline counts as waiting."""


def causes(row: SweepRow) -> dict[str, float]:
    """The time of a step by cause [s]; the causes add up to the time of the step."""
    parts = dict.fromkeys(CAUSES, 0.0)
    for cause, seconds in seconds_by_cause(row.answer).items():
        axis = cause.removesuffix(" exposed")
        parts["compute" if cause == "computing" else CAUSE_OF_AXIS.get(axis, "waiting")] += seconds
    return parts


if __name__ == "__main__":
    run_as_program(main)
