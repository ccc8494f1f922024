"""What a study of training steps found: a row for each point it asked about, and its answer in one paragraph.

A study says which points it asks about, how its table and its figure look, and
how the answer is worded from the rows; here points are asked about, and all is
shown and written.  The wording has no number of its own: all come out of the rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, TypeVar

import msgspec

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.training.adam import Adam, default_rate
from quadrille.algorithms.training.gpt import Gpt, gpt_from_shape
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.output.tables import UNKNOWN, percent, print_tables
from quadrille.experiments.sweep.outcomes import SweepAnswer, SweepRow, rows_of
from quadrille.experiments.sweep.points import BestGrid, Impossible, OneGrid, SweepPoint
from quadrille.experiments.sweep.sweep import NOT_REACHED, answered, with_progress
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import remark, remark_all
from quadrille.topologies.find_machine import find_machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

Asked = TypeVar("Asked")
SCHEMA = "quadrille/findings/1"
WIDTH = 120
Point = tuple[dict[str, str], SweepPoint]
ALL_OVERLAPS = ",".join(OVERLAPS)


class Findings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `--json` writes.

    Parameters
    ----------
    study : its name on the command line
    flags : what all points have in common
    answer : in words
    """

    study: str
    flags: dict[str, str]
    rows: tuple[SweepRow, ...]
    answer: str
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a study is asked, besides its question.

    Parameters
    ----------
    top : grids simulated where the best one is looked for
    most_seconds : processor time after which a simulation is given up
    jobs : processes that share the points
    json, plot : files, empty where none is asked for
    quiet : whether progress is not shown
    command : the words of the command line, for provenance
    """

    top: int = 2
    most_seconds: float = 45.0
    jobs: int = 1
    quiet: bool = False
    json: str = ""
    plot: str = ""
    command: Sequence[str] = ()

    @classmethod
    def into_folder(cls, study: str, folder: Path, *, jobs: int = 1, most_seconds: int = 45) -> "Asking":
        """As `make studies` asks: JSON of today and the figure into the folder of a study's results."""
        folder.mkdir(exist_ok=True)
        answer, figure = folder / f"{date.today()}.json", folder / "figure.png"
        command = ["quadrille", "study", study, "--jobs", str(jobs), "--most-seconds", str(most_seconds)]
        return cls(jobs=jobs, most_seconds=most_seconds, json=str(answer), plot=str(figure), command=command)

    def search(
        self, gpt: str, batch: int, gpus: int, machine: str, *, settings: Sequence[str] = (), scheme: str = "4d"
    ) -> BestGrid | Impossible:
        """The best grid of a scheme, with all overlaps and full recomputation.

        Parameters
        ----------
        gpt, machine : names
        settings : what-if changes of the machine

        Raises
        ------
        InputError : an unknown model, scheme or machine
        """
        shape, speeds = find_shape(gpt), find_machine(machine).device.peak_flops_per_second
        dtype: DType = "bfloat16" if "bfloat16" in speeds else "float32"
        problem = gpt_from_shape(
            shape, batch, dtype=dtype, recompute="full", adam=Adam(rate=default_rate(shape.hidden))
        )
        execution = ExecutionOptions(overlaps=frozenset(OVERLAPS), choices=Choices("library"))
        experiment = TrainingExperiment(problem, Grid(), find_scheme(scheme), execution, shape)
        try:
            sized = find_machine(machine, settings, gpus=gpus)
        except InputError as error:
            return Impossible(str(error))
        return BestGrid(experiment, gpus, sized, self.top, self.most_seconds)

    def check(self) -> None:
        """Refuse, before anything runs, what could not be written.

        Raises
        ------
        InputError : a file that cannot be written
        """
        Destinations(json=self.json, plot=self.plot).check()


@dataclass(frozen=True, slots=True)
class Shown:
    """How a study shows its rows: tables, the answer in words, and the figure."""

    tables: Callable[[Sequence[SweepRow]], "Sequence[Group]"]
    answer: Callable[[Sequence[SweepRow]], str]
    figure: Callable[[Sequence[SweepRow]], "Figure"]


def asked_at(
    points: Sequence[tuple[dict[str, str], Asked]], question: Callable[[Asked], SweepAnswer], asking: Asking
) -> list[SweepAnswer]:
    """The answers at all points, in their order; after Ctrl-C, those that were reached."""
    answers = [NOT_REACHED] * len(points)
    try:
        reached = answered([question_point for _, question_point in points], question, asking.jobs)
        for place, answer in with_progress(reached, len(points), quiet=asking.quiet):
            answers[place] = answer
    except KeyboardInterrupt:
        remark("interrupted; the answer is of the points that were reached")
    return answers


def on_grid(
    search: BestGrid | Impossible, answer: SweepAnswer, order: tuple[Axis, ...] | None = None
) -> OneGrid | Impossible:
    """The experiment of a search on the grid that was found, with its microbatch.

    Parameters
    ----------
    order : another order of the axes in ranks, the fastest first
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


def conclude(
    study: str,
    flags: Mapping[str, str],
    answers: Iterable[tuple[dict[str, str], SweepAnswer]],
    shown: Shown,
    asking: Asking,
) -> Findings:
    """The findings, written and shown as asked.

    Raises
    ------
    InputError : no point has an answer
    """
    rows, baseline = rows_of(list(answers))
    if baseline is None:
        raise InputError(f"{study}: none of the {len(rows)} points can be; the first: {rows[0].answer.reason}")
    findings = Findings(
        study=study, flags=dict(flags), rows=rows, answer=shown.answer(rows), provenance=provenance(asking.command)
    )
    if asking.json:
        schema_files.write_json(asking.json, findings, SCHEMA)
    if asking.plot:
        from quadrille.experiments.output.pictures import write_figure

        write_figure(shown.figure(rows), asking.plot)
    if asking.json != schema_files.STDOUT:
        print_tables(*shown.tables(rows))
        print(fill(findings.answer, WIDTH))
    remark_all(left_out(rows))
    return findings


def left_out(rows: Sequence[SweepRow]) -> list[str]:
    """Which points have no answer or lack a candidate, and why; each reason once."""
    said: dict[str, list[str]] = {}
    for row in rows:
        reasons = (
            [row.answer.reason]
            if row.answer.reason
            else [remark for remark in row.answer.remarks if "left out" in remark]
        )
        for reason in reasons:
            said.setdefault(reason, []).append(named(row.point))
    return [
        f"{points[0]}{f' and {len(points) - 1} more points, which --json FILE names' if points[1:] else ''}: {reason}"
        for reason, points in said.items()
    ]


def named(point: Mapping[str, str]) -> str:
    """A point in words.

    >>> named({"scheme": "4d", "gpus": "8"})
    'scheme 4d, gpus 8'
    """
    return ", ".join(f"{key} {value}" for key, value in point.items())


# Cells of tables, alike in all studies

STEP_COLUMNS = ("grid", "microbatch", "step", "of peak", "exposed", "memory")


def step_cells(answer: SweepAnswer) -> tuple[str, ...]:
    """Under `STEP_COLUMNS`: grid, microbatch, seconds of a step, share of peak, share exposed, memory."""
    trained = answer.trained
    if answer.seconds is None or trained is None:
        return (UNKNOWN,) * len(STEP_COLUMNS)
    size = answer.peak_bytes_per_rank_max
    return (
        grid_words(answer),
        str(trained.micro_batch or "all"),
        format_seconds(answer.seconds) + ("*" if trained.bounded else ""),
        percent(trained.percent_of_peak / 100 if trained.percent_of_peak is not None else None, signed=False),
        percent((answer.exposed_seconds or 0.0) / answer.seconds, signed=False),
        UNKNOWN if size is None else format_bytes(size),
    )


def grid_words(answer: SweepAnswer) -> str:
    """The grid of an answer.

    >>> grid_words(SweepAnswer(grid_lengths={"data": 2, "x": 4}))
    'data=2,x=4'
    """
    return answer.grid or UNKNOWN


def times(ratio: float) -> str:
    """How many times as fast, in words.

    >>> times(1.234), times(1.0), times(12.3)
    ('1.23 times', '1.00 times', '12.3 times')
    """
    return f"{ratio:.3g} times" if ratio >= 10 else f"{ratio:.2f} times"
