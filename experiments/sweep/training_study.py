"""The shared part of the studies of training steps: options, predictions at the study's points, and findings.

A study defines its points, its table, its figure, and the sentences of its answer.  This
module predicts the points, and prints and writes the findings: a row for each point, and
the sentences of the answer.  All numbers of the answer come from the rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date
from math import inf
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, TypeVar

import msgspec

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.passes.overlap import PRODUCT_OVERLAPS
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.tabular import TimedText
from quadrille.algorithms.training.adam import Adam, default_rate
from quadrille.algorithms.training.gpt import Gpt, gpt_from_shape
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.progress import StepCount, progress_line
from quadrille.experiments.output.tables import UNKNOWN, percent, print_tables
from quadrille.experiments.sweep.sweep import put_answers
from quadrille.experiments.sweep.sweep_points import BestGrid, Impossible, OneGrid, SweepPoint
from quadrille.experiments.sweep.sweep_result import (
    NOT_REACHED,
    SweepAnswer,
    SweepRow,
    point_text,
    sweep_rows,
)
from quadrille.experiments.tasks.answer_tasks import answer_tasks
from quadrille.experiments.tasks.task_options import TaskOptions
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import remark, remark_all
from quadrille.runtime.launching.supervise import signals_as_interrupts
from quadrille.topologies.find_machine import find_machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

StudyPoint = TypeVar("StudyPoint")
SCHEMA = "quadrille/findings/1"
WIDTH = 120
Point = tuple[dict[str, str], SweepPoint]
JOBS = 2
"""Number of processes of a study of the project."""
ALL_OVERLAPS = ",".join(PRODUCT_OVERLAPS)


class Findings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The findings of a study, which `--json` writes.

    Parameters
    ----------
    study : name of the study on the command line
    flags : flags that all points share
    rows : answers of all points
    answer : answer to the study's question, with a line for each sentence
    """

    study: str
    flags: dict[str, str]
    rows: tuple[SweepRow, ...]
    answer: str
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """The options of a study.

    Parameters
    ----------
    top : number of grids that are simulated to find the best grid
    most_seconds : processor time after which a simulation stops [s]
    jobs : number of processes that share the points
    json, plot : paths of the findings and of the figure; empty for no file
    quiet : whether progress is not shown
    command : words of the command line, for provenance
    """

    top: int = 2
    most_seconds: float = 45.0
    jobs: int = 1
    quiet: bool = False
    json: str = ""
    plot: str = ""
    command: Sequence[str] = ()

    @classmethod
    def into_folder(cls, study: str, folder: Path, *, most_seconds: int | None = 45) -> "StudyOptions":
        """The options of `make studies`: JSON with today's date, and the figure, in the folder of a study's results.

        Parameters
        ----------
        most_seconds : processor time after which a simulation stops; None for a study without this limit [s]
        """
        folder.mkdir(exist_ok=True)
        answer, figure = folder / f"{date.today()}.json", folder / "figure.png"
        command = ["quadrille", "study", study, "--jobs", str(JOBS)]
        command += [] if most_seconds is None else ["--most-seconds", str(most_seconds)]
        limit = inf if most_seconds is None else most_seconds
        return cls(jobs=JOBS, most_seconds=limit, json=str(answer), plot=str(figure), command=command)

    def search(
        self, gpt: str, batch: int, gpus: int, machine: str, *, settings: Sequence[str] = (), scheme: str = "4d"
    ) -> BestGrid | Impossible:
        """The point of a scheme's best grid, with all overlaps and full recomputation.

        Parameters
        ----------
        gpt, machine : names of the model and of the machine
        batch, gpus : number of sequences in a batch, and number of GPUs
        settings : what-if changes of the machine
        scheme : name of the scheme

        Raises
        ------
        InputError : an unknown model, scheme or machine
        """
        shape, speeds = find_shape(gpt), find_machine(machine).device.peak_flops_per_second
        dtype: DType = "bfloat16" if "bfloat16" in speeds else "float32"
        problem = gpt_from_shape(
            shape, batch, dtype=dtype, recompute="full", adam=Adam(rate=default_rate(shape.hidden))
        )
        execution = ExecutionOptions(overlaps=frozenset(PRODUCT_OVERLAPS), choices=Choices("library"))
        experiment = TrainingExperiment(problem, Grid(), find_scheme(scheme), execution, shape)
        try:
            sized = find_machine(machine, settings, gpus=gpus)
        except InputError as error:
            return Impossible(str(error))
        return BestGrid(experiment, gpus, sized, self.top, self.most_seconds)

    def check(self) -> None:
        """Checks, before any work, that the files can be written.

        Raises
        ------
        InputError : a file that cannot be written
        """
        Destinations(json=self.json, plot=self.plot).check()


@dataclass(frozen=True, slots=True)
class StudyPresentation:
    """The functions that present the rows of a study: as tables, as the answer's sentences, and as a figure."""

    tables: Callable[[Sequence[SweepRow]], "Sequence[Group]"]
    answer: Callable[[Sequence[SweepRow]], Sequence[str]]
    figure: Callable[[Sequence[SweepRow]], "Figure"]


def answer_study_points(
    points: Sequence[tuple[dict[str, str], StudyPoint]],
    question: Callable[[StudyPoint], SweepAnswer],
    options: StudyOptions,
) -> list[SweepAnswer]:
    """The answers at all points of a study, in order; points not reached before Ctrl-C or TERM have `NOT_REACHED`."""
    answers = [NOT_REACHED] * len(points)
    try:
        put_answers(
            answers,
            (study_point for _, study_point in points),
            question,
            TaskOptions(jobs=options.jobs),
            quiet=options.quiet,
        )
    except KeyboardInterrupt:
        remark("interrupted; the answer is of the points that were reached")
    return answers


def answer_study_groups(
    jobs: Sequence[StudyPoint],
    question: Callable[[StudyPoint], tuple[SweepAnswer, ...]],
    counts: Sequence[int],
    options: StudyOptions,
) -> list[tuple[SweepAnswer, ...]]:
    """The answers about each job of a study, in order; jobs not reached before Ctrl-C or TERM have `NOT_REACHED`.

    Parameters
    ----------
    question : function that gives the answers about a job
    counts : number of answers about each job
    """
    answers: list[tuple[SweepAnswer, ...]] = [(NOT_REACHED,) * count for count in counts]
    workers = TaskOptions(jobs=options.jobs).workers(question, len(jobs))
    step_count = StepCount("ranked", "jobs", len(jobs))
    progress = progress_line(step_count.words, share=step_count.share, shown=not options.quiet)
    try:
        with signals_as_interrupts(), progress, closing(answer_tasks(jobs, workers, None)) as answered:
            for number, of_job in answered:
                answers[number] = of_job
                step_count.done += 1
    except KeyboardInterrupt:
        remark("interrupted; the answer is of the jobs that were reached")
    return answers


def point_on_best_grid(
    search: BestGrid | Impossible, answer: SweepAnswer, order: tuple[Axis, ...] | None = None
) -> OneGrid | Impossible:
    """The experiment of a best-grid point, fixed to the grid and microbatch of its answer.

    Parameters
    ----------
    search : best-grid point
    answer : answer at the point
    order : another rank order, innermost axis first; None for the same order
    """
    if isinstance(search, Impossible):
        return search
    assert answer.grid_lengths is not None
    assert answer.trained is not None
    assert isinstance(search.experiment, TrainingExperiment)
    assert isinstance(search.experiment.problem, Gpt)
    problem = replace(search.experiment.problem, micro_batch=answer.trained.micro_batch)
    grid = Grid(**answer.grid_lengths, order=order or search.experiment.grid.order)
    return OneGrid(replace(search.experiment, problem=problem, grid=grid), search.machine, search.most_seconds)


def write_findings(
    study: str,
    flags: Mapping[str, str],
    answers: Iterable[tuple[dict[str, str], SweepAnswer]],
    presentation: StudyPresentation,
    options: StudyOptions,
) -> Findings:
    """The findings of a study, after they are printed and written to the requested files.

    Parameters
    ----------
    study : name of the study on the command line
    flags : flags that all points share
    answers : values of the varied keys at every point, and the answer

    Raises
    ------
    InputError : no point has an answer
    """
    rows, baseline = sweep_rows(list(answers))
    if baseline is None:
        raise InputError(f"{study}: none of the {len(rows)} points can be; the first: {rows[0].answer.reason}")
    findings = Findings(
        study=study,
        flags=dict(flags),
        rows=rows,
        answer="\n".join(presentation.answer(rows)),
        provenance=provenance(options.command),
    )
    if options.json:
        schema_files.write_json(options.json, findings, SCHEMA)
    if options.plot:
        from quadrille.experiments.output.pictures import write_figure

        write_figure(presentation.figure(rows), options.plot)
    if options.json != schema_files.STDOUT:
        print_tables(*presentation.tables(rows))
        for sentence in findings.answer.splitlines():
            print(fill(sentence, WIDTH))
    remark_all(excluded_lines(rows))
    return findings


def excluded_lines(rows: Sequence[SweepRow]) -> list[str]:
    """A line for each reason why points have no answer or lack a candidate, with the first of these points."""
    points_by_reason: dict[str, list[str]] = {}
    for row in rows:
        reasons = (
            [row.answer.reason]
            if row.answer.reason
            else [remark for remark in row.answer.remarks if "left out" in remark]
        )
        for reason in reasons:
            points_by_reason.setdefault(reason, []).append(point_text(row.point))
    return [
        f"{points[0]}{f' and {len(points) - 1} more points, which --json FILE names' if points[1:] else ''}: {reason}"
        for reason, points in points_by_reason.items()
    ]


# Cells of tables, alike in all studies

STEP_COLUMNS = ("grid", "MBS", "step", "HFU", "exposed", "memory")
"""Columns of a training step; MBS is the micro-batch size, the sequences of a microbatch on each rank of data and z."""


def step_cells(answer: SweepAnswer) -> tuple[str, ...]:
    """The cells of an answer under `STEP_COLUMNS`."""
    trained = answer.trained
    if answer.seconds is None or trained is None:
        return (UNKNOWN,) * len(STEP_COLUMNS)
    size = answer.peak_bytes_per_rank_max
    return (
        grid_text(answer),
        str(trained.micro_batch or "all"),
        TimedText(answer.seconds, "*" if trained.bounded else ""),
        percent(trained.percent_of_peak / 100 if trained.percent_of_peak is not None else None, signed=False),
        percent((answer.exposed_seconds or 0.0) / answer.seconds, signed=False),
        UNKNOWN if size is None else format_bytes(size),
    )


def seconds_by_cause(answer: SweepAnswer) -> dict[str, float]:
    """The time of a step by cause [s]: computing, exposed communication along each axis, and waiting.

    Waiting is all the time in which a mean rank neither computes nor communicates, so the causes add up to the step.

    >>> from quadrille.experiments.sweep.sweep_result import TrainingResult
    >>> trained = TrainingResult(
    ...     scheme="4d", order=("x",), model_flops_per_second_per_gpu=1, hardware_flops_per_second_per_gpu=1,
    ...     layers_simulated=1, exposed_seconds_by_axis={"x": 0.5},
    ... )
    >>> seconds_by_cause(SweepAnswer(seconds=4, compute_seconds=3, trained=trained))
    {'computing': 3, 'x exposed': 0.5, 'waiting': 0.5}
    """
    assert answer.seconds is not None
    assert answer.trained is not None
    causes = {"computing": min(answer.compute_seconds or 0.0, answer.seconds)}
    causes |= {f"{axis} exposed": seconds for axis, seconds in answer.trained.exposed_seconds_by_axis.items()}
    causes["waiting"] = max(0.0, answer.seconds - sum(causes.values()))
    return causes


def largest_cause(answer: SweepAnswer) -> str:
    """The cause that takes most of a step beside its computing, and its share, as text."""
    causes = seconds_by_cause(answer)
    del causes["computing"]
    cause, most = max(causes.items(), key=lambda entry: entry[1])
    return f"{cause} {percent(most / (answer.seconds or 1.0), signed=False)}"


def ordered_shares(shares: Mapping[str, float], *, largest_first: bool = False) -> str:
    """Relative differences by name as text, the smallest first.

    >>> ordered_shares({"tensor": 0.2, "data": 0.1}), ordered_shares({"a": 0.0, "b": 0.5}, largest_first=True)
    ('data +10.0 %, tensor +20.0 %', 'b +50.0 %, a +0.0 %')
    """
    sign = -1 if largest_first else 1
    return ", ".join(f"{name} {percent(share)}" for name, share in sorted(shares.items(), key=lambda of: sign * of[1]))


def grid_text(answer: SweepAnswer) -> str:
    """The grid of an answer as text; `-` if there is none.

    >>> grid_text(SweepAnswer(grid_lengths={"data": 2, "x": 4}))
    'data=2,x=4'
    """
    return answer.grid or UNKNOWN


def ratio_text(ratio: float) -> str:
    """A ratio of speeds as text.

    >>> ratio_text(1.234), ratio_text(1.0), ratio_text(12.3)
    ('1.23 times', '1.00 times', '12.3 times')
    """
    return f"{ratio:.3g} times" if ratio >= 10 else f"{ratio:.2f} times"
