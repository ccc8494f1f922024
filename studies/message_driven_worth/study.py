"""`quadrille study message-driven-worth`: the predicted gain of a message-driven pipeline over static schedules.

Each disturbance of a pipeline is simulated with each schedule:

    none        every GPU and link as the machine file says
    noise       lognormal noise of local work, sigma 0.05, 0.1 and 0.2 (`--jitter compute=0.05`)
    slow stage  the GPU of a middle stage at 80 % of its speed (`--slow`)
    slow link   the link from the GPU of a middle stage to its NIC at a few percent of its bandwidth (`--degrade`)

The table has the means over the seeds of the noise.  With one GPU a stage, all points are exact simulations with rings
of single ranks.  With more, the pipeline is walked pass by pass (`--granularity passes`), without noise of single ops.
The gain is the time of a step with 1F1B / the time with the schedule - 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.figure_style import legend_below, new_figure, styled
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.training.gpt import gpt_from_shape
from quadrille.algorithms.training.model_files import find_shape
from quadrille.experiments.output.gain_bars import draw_gain_bars
from quadrille.experiments.output.tables import duration, percent, table
from quadrille.experiments.sweep.sweep_points import OneGrid
from quadrille.experiments.sweep.sweep_result import SweepRow
from quadrille.experiments.sweep.training_point import predict_training_point
from quadrille.experiments.sweep.training_study import (
    Findings,
    StudyOptions,
    StudyPresentation,
    answer_study_points,
    write_findings,
)
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import run_as_program
from quadrille.simulator.ranks.jitter import Jitter
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.what_if import with_faults

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

BASELINE: PipelineSchedule = "1f1b"
DRIVEN: PipelineSchedule = "message-driven"
SCHEDULES: tuple[PipelineSchedule, ...] = (BASELINE, "gpipe", "interleaved", "zb-h1", DRIVEN)
QUESTION = "What does a message-driven pipeline gain under disturbances?"
"""Title of the figure."""
COLOURS = {"gpipe": "#e69f00", "interleaved": "#0072b2", "zb-h1": "#009e73", DRIVEN: "#d55e00"}
NONE, SLOW_STAGE, SLOW_LINK = "none", "slow stage", "slow link"
STAGE_SPEED = 0.8
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivenQuestion:
    """The training job and the noise.

    Parameters
    ----------
    machine, gpt : names of the machine and of the model
    stages : number of pipeline stages
    grid : axes of the GPUs of a stage and their lengths, such as "data=16,x=8"; empty for one GPU
    microbatches : number of microbatches of one sequence
    interleave : chunks of layers of a stage in the interleaved schedule
    link_percent : bandwidth that the slow link keeps [%]
    noise : sigmas of the noise of local work in percent
    seeds : number of seeds of each noise
    """

    machine: str = "perlmutter"
    gpt: str = "gpt3-13b"
    stages: int = 8
    grid: str = ""
    microbatches: int = 32
    interleave: int = 5
    link_percent: int = 4
    noise: tuple[int, ...] = (5, 10, 20)
    seeds: int = 1

    @property
    def gpus(self) -> Grid:
        """The grid of all GPUs."""
        return parse_grid(f"pipeline={self.stages}{',' if self.grid else ''}{self.grid}")

    @property
    def sequences(self) -> int:
        """Number of sequences of a step: each coordinate of data and z has its own microbatches."""
        return self.microbatches * self.gpus.data * self.gpus.z

    @property
    def sigmas(self) -> tuple[int, ...]:
        """The noise that is simulated: none where the pipeline is walked pass by pass."""
        return () if self.grid else self.noise


QUICK = DrivenQuestion(gpt="gpt3-1.3b", microbatches=8, interleave=3, noise=(20,))


def main() -> None:
    """Run the study on the default job, and write the answer to `results/`."""
    message_driven_worth(DrivenQuestion(), StudyOptions.into_folder("message-driven-worth", RESULTS, most_seconds=240))


def message_driven_worth(question: DrivenQuestion, asking: StudyOptions) -> Findings:
    """Predict every schedule under every disturbance, and print and write the results.

    Parameters
    ----------
    question : training job and noise
    asking : options of the search, and files of the results

    Raises
    ------
    InputError : an unknown model or machine; stages that the model cannot have; a file that cannot be written
    """
    asking.check()
    points = list(points_of(question, asking))
    granularity: AskedGranularity = "passes" if question.grid else "auto"
    answers = answer_study_points(points, partial(predict_training_point, granularity=granularity), asking)
    results = [(point, answer) for (point, _), answer in zip(points, answers, strict=True)]
    flags = {
        "machine": question.machine,
        "gpt": question.gpt,
        "grid": str(question.gpus),
        "batch": str(question.sequences),
        "micro_batch": "1",
        "collectives": "own",
    }
    presentation = StudyPresentation(tables, answer, partial(figure, flags=flags))
    return write_findings("message-driven-worth", flags, results, presentation, asking)


def points_of(question: DrivenQuestion, asking: StudyOptions) -> Iterator[tuple[dict[str, str], OneGrid]]:
    """The points: every disturbance with every schedule, and noise with every seed."""
    base = find_machine(question.machine, gpus=question.gpus.size)
    middle = question.gpus.rank_at({"pipeline": question.stages // 2 - 1})
    slow, narrow = f"gpu:{middle}={STAGE_SPEED}", f"gpu:{middle}-nic:{middle}={question.link_percent / 100}"
    cases = [
        (NONE, base, None),
        *((f"noise {sigma} %", base, sigma) for sigma in question.sigmas),
        (SLOW_STAGE, with_faults(base, slow=[slow]), None),
        (SLOW_LINK, with_faults(base, degrade=[narrow]), None),
    ]
    for disturbance, machine, sigma in cases:
        for schedule in SCHEDULES:
            step = step_of(question, schedule)
            for seed in range(question.seeds if sigma else 1):
                jitter = Jitter(sigma / 100, seed=seed) if sigma else None
                noisy = replace(step, execution=replace(step.execution, jitter=jitter))
                point = {"disturbance": disturbance, "schedule": schedule, "seed": str(seed)}
                yield point, OneGrid(noisy, machine, asking.most_seconds)


def step_of(question: DrivenQuestion, schedule: PipelineSchedule) -> TrainingExperiment:
    """The training step with a schedule."""
    shape = find_shape(question.gpt)
    problem = replace(
        gpt_from_shape(shape, question.sequences, dtype="bfloat16"),
        micro_batch=1,
        pipeline_schedule=schedule,
        interleave=question.interleave if schedule == "interleaved" else 1,
    )
    execution = ExecutionOptions(choices=Choices())
    return TrainingExperiment(problem, question.gpus, execution=execution, shape=shape)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The predictions under one disturbance.

    Parameters
    ----------
    name : name of the disturbance
    seconds : predicted times of a step by schedule, one for each seed [s]
    """

    name: str
    seconds: dict[str, list[float]]

    def mean(self, schedule: str) -> float | None:
        """The mean time of a step over the seeds [s]; None if no point has an answer."""
        return fmean(self.seconds[schedule]) if self.seconds.get(schedule) else None

    def gain(self, schedule: str) -> float | None:
        """The gain of a schedule over 1F1B; None if either is missing."""
        usual, step = self.mean(BASELINE), self.mean(schedule)
        return None if usual is None or step is None else usual / step - 1


def disturbances_in(rows: Sequence[SweepRow]) -> list[Disturbance]:
    """The disturbances of the rows, in the order of the rows."""
    by_name: dict[str, Disturbance] = {}
    for row in rows:
        name = row.point["disturbance"]
        disturbance = by_name.setdefault(name, Disturbance(name, {}))
        if row.answer.seconds is not None:
            disturbance.seconds.setdefault(row.point["schedule"], []).append(row.answer.seconds)
    return list(by_name.values())


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The table of the steps: a row for each disturbance, a column for each schedule."""
    gains = [schedule for schedule in SCHEDULES if schedule != BASELINE]
    columns = ("disturbance", *SCHEDULES, *(f"gain of {schedule}" for schedule in gains))
    cells = [
        (
            disturbance.name,
            *(duration(disturbance.mean(schedule)) for schedule in SCHEDULES),
            *(percent(disturbance.gain(schedule)) for schedule in gains),
        )
        for disturbance in disturbances_in(rows)
    ]
    return [table("time of a step by schedule, and gain over 1F1B, predicted", columns, cells, names=1)]


def answer(rows: Sequence[SweepRow]) -> list[str]:
    """The sentences that answer the study: the gain of messages under each disturbance, and the fastest schedules."""
    disturbances = [disturbance for disturbance in disturbances_in(rows) if disturbance.gain(DRIVEN) is not None]
    if not disturbances:
        return ["No disturbance was simulated with 1F1B and with a message-driven pipeline."]
    gains = ", ".join(f"{disturbance.name} {percent(disturbance.gain(DRIVEN))}" for disturbance in disturbances)
    largest = max(disturbances, key=lambda disturbance: disturbance.gain(DRIVEN) or 0.0)
    fastest = sum(
        min((disturbance.mean(schedule) or float("inf"), schedule) for schedule in SCHEDULES)[1] == DRIVEN
        for disturbance in disturbances
    )
    return [
        f"Gain of a message-driven pipeline over 1F1B: {gains}.",
        f"It gains most with: {largest.name}.",
        f"It is the fastest schedule under {fastest} of {len(disturbances)} disturbances.",
    ]


@styled
def figure(rows: Sequence[SweepRow], flags: Mapping[str, str]) -> "Figure":
    """The bar chart of the gains, with a group of bars for each disturbance.

    Parameters
    ----------
    rows : predicted rows
    flags : flags that all points share, for the title
    """
    disturbances = disturbances_in(rows)
    job = f"a training step of {flags['gpt']} on {flags['machine']}, {flags['grid']}, {flags['batch']} sequences"
    drawing = new_figure(max(7.0, 1.3 * len(disturbances) + 2), 4.8, question=QUESTION, setting=f"{job}, predicted")
    axis = drawing.subplots()
    gains = {schedule: [disturbance.gain(schedule) for disturbance in disturbances] for schedule in COLOURS}
    draw_gain_bars(axis, [disturbance.name for disturbance in disturbances], gains, COLOURS)
    axis.set(xlabel="disturbance", ylabel="gain over 1F1B [%]")
    legend_below(drawing)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
