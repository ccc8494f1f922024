"""`quadrille study which-scheme`: when 4D tensor parallelism trains a model faster than Megatron-LM's 1-D.

    1-D    Megatron-LM's layouts: tensor ranks x with sequence parallelism, pipelines, data ranks with ZeRO 1
    4D     AxoNN's layouts: z, y and x, pipelines, data ranks with ZeRO 1

Both are searched by `quadrille rank` (`quadrille.experiments.rank.ranked_layouts`) with the same batch, memory and
precision: bfloat16, all overlaps, 1F1B or interleaved stages, full recomputation or none.  Other schemes can be named.

    small batch    several GPUs share a sequence, as strong scaling ends
    large batch    each GPU has several sequences
    data hidden    what remains if the passes hide all communication of data ranks, not only a part of it
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.figure_style import (
    MUTED_COLOUR,
    PALETTE,
    legend_below,
    line_marks,
    new_figure,
    number_axis,
    styled,
)
from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.output.tables import UNKNOWN, percent, table
from quadrille.experiments.rank.ranked_layouts import MEGATRON, LayoutQuestion, fastest_layouts
from quadrille.experiments.rank.search_options import Value, pass_orders
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
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine_catalogue import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

BASE = "megatron"
DIMENSIONS = {BASE: "1-D", "optimus": "2-D", "tesseract": "2.5-D", "bian": "3-D", "4d": "4D"}
SMALL, LARGE = BATCHES = ("small", "large")
EQUAL = 0.03
"""Relative difference of two times below which they count as equal: predictions are not more accurate."""
PASSES = pass_orders(("1f1b", "interleaved"), (2,))
"""Orders of passes in a pipeline that both schemes try: 1F1B, and two chunks of layers for each stage."""
FITTING = 12
"""Number of layouts that fit and are evaluated for each scheme and recomputation."""
MOST_UNEVEN = 1024
"""Largest number of GPUs that is searched though it is no power of two: larger ones have too many grids."""
NOT_SEARCHED = "not searched"
"""Words of the reason of such numbers of GPUs."""
MOST_CAUSES = 3
"""Number of causes that a sentence names."""
OF_DATA = ("data exposed", "replica exposed")
"""Causes that are sums over data ranks."""
QUESTION = "When does 4D beat 1-D tensor parallelism?"
"""Title of the figure."""
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeQuestion:
    """The training jobs.

    Parameters
    ----------
    models : names of the models
    machines : names of the machines
    gpus : numbers of GPUs; on a machine whose nodes they do not fill, the next power of two of nodes
    sharing : number of GPUs that share a sequence of the small batch
    each : number of sequences of each GPU of the large batch
    schemes : names of the schemes, `megatron` and those that are compared with it
    stages, recompute : numbers of pipeline stages and recomputations that each scheme tries
    """

    models: tuple[str, ...] = ("llama3-70b",)
    machines: tuple[str, ...] = ("h100-superpod",)
    gpus: tuple[int, ...] = (64, 4096)
    sharing: int = 4
    each: int = 2
    schemes: tuple[str, ...] = (BASE, "4d")
    stages: tuple[int, ...] = (1, 2, 4, 8, 16)
    recompute: tuple[str, ...] = ("none", "full")

    def __post_init__(self) -> None:
        names = list(dict.fromkeys(self.schemes))
        for name in names:
            find_scheme(name)
        if BASE not in names or len(names) < 2:
            raise InputError(f"schemes {','.join(names)}: {BASE} and at least one more is accepted")
        numbers = [("gpus", count) for count in self.gpus] + [("sharing", self.sharing), ("each", self.each)]
        for name, number in numbers:
            if number < 1:
                raise InputError(f"{name} {number}: a whole number from 1 is accepted")

    def batch(self, size: str, gpus: int) -> int:
        """The number of sequences of the small or large batch on a number of GPUs."""
        return max(1, gpus // self.sharing) if size == SMALL else self.each * gpus

    @property
    def searched(self) -> dict[str, tuple[Value, ...]]:
        """The values of the options that each scheme tries; other options have the usual values of `quadrille rank`."""
        return {
            "recompute": tuple((name,) for name in self.recompute),
            "pipeline-schedule": PASSES,
        }

    def jobs(self, options: StudyOptions) -> "list[Job]":
        """The jobs: each model on each machine and number of GPUs.

        Raises
        ------
        InputError : an unknown model, machine or scheme
        """
        schemes = {name: MEGATRON if name == BASE else find_scheme(name) for name in dict.fromkeys(self.schemes)}
        jobs = []
        for gpt in self.models:
            for name in self.machines:
                for gpus in dict.fromkeys(filled_nodes(name, asked) for asked in sorted(set(self.gpus))):
                    point = {"model": gpt, "machine": name, "gpus": str(gpus)}
                    model_on_machine = {
                        "gpt": gpt,
                        "gpus": gpus,
                        "machine": find_machine(name, gpus=gpus),
                        "powers_of_two": gpus & (gpus - 1) == 0,
                    }
                    questions = {
                        (size, scheme): LayoutQuestion(
                            **model_on_machine,  # type: ignore[arg-type]
                            batch=self.batch(size, gpus),
                            scheme=schemes[scheme],
                            stages=self.stages,
                            micro_batches=None,
                            options=self.searched,
                            fitting=FITTING,
                            top=options.top,
                            most_seconds=options.most_seconds,
                        )
                        for size in BATCHES
                        for scheme in schemes
                    }
                    jobs.append(Job(point, questions))
        return jobs


@dataclass(frozen=True, slots=True)
class Job:
    """A model on a number of GPUs of a machine, with the question about each batch and scheme.

    Parameters
    ----------
    point : model, machine and number of GPUs
    questions : question by size of the batch and name of the scheme
    """

    point: dict[str, str]
    questions: dict[tuple[str, str], LayoutQuestion]

    def rows(self, answers: Sequence[SweepAnswer]) -> Iterator[tuple[dict[str, str], SweepAnswer]]:
        """The point and the answer of each question."""
        for ((size, scheme), question), answer_of_scheme in zip(self.questions.items(), answers, strict=True):
            yield {**self.point, "size": size, "batch": str(question.batch), "scheme": scheme}, answer_of_scheme


QUICK = SchemeQuestion(
    models=("llama3-8b",), machines=("h100-superpod",), gpus=(16,), stages=(1, 2), recompute=("none",)
)


def filled_nodes(name: str, gpus: int) -> int:
    """A number of GPUs that fills a power of two of a machine's nodes, or is within a node.

    >>> filled_nodes("h100-superpod", 512), filled_nodes("gb200-nvl72", 64), filled_nodes("gb200-nvl72", 512)
    (512, 64, 576)

    Parameters
    ----------
    name : name of the machine

    Raises
    ------
    InputError : an unknown machine
    """
    per_node = machine(name).node.gpus
    return gpus if gpus <= per_node else int(per_node * 2 ** ceil(log2(gpus / per_node)))


def main() -> None:
    """Run the study on the default machines, and write the answer to `results/`."""
    which_scheme(SchemeQuestion(), StudyOptions.into_folder("which-scheme", RESULTS, most_seconds=120))


def which_scheme(asked: SchemeQuestion, options: StudyOptions) -> Findings:
    """Find the best layout of every scheme for every job and batch, and print and write the results.

    Parameters
    ----------
    asked : training jobs
    options : options of the search, and files of the results

    Raises
    ------
    InputError : an unknown model, machine or scheme; a file that cannot be written; no possible layout
    """
    options.check()
    jobs = asked.jobs(options)
    answers = answer_study_groups(jobs, layouts_of, [len(job.questions) for job in jobs], options)
    rows = [row for job, of_job in zip(jobs, answers, strict=True) for row in job.rows(of_job)]
    flags = {
        "overlap": ",".join(OVERLAPS),
        "recompute": ",".join(asked.recompute),
        "zero": "1",
        "sharing": str(asked.sharing),
        "each": str(asked.each),
    }
    return write_findings("which-scheme", flags, rows, StudyPresentation(tables, answer, figure), options)


def layouts_of(job: Job) -> tuple[SweepAnswer, ...]:
    """The best layout of each question of a job; the reason for numbers of GPUs with too many grids."""
    gpus = int(job.point["gpus"])
    if gpus > MOST_UNEVEN and gpus & (gpus - 1):
        reason = f"{gpus:,} GPUs are {NOT_SEARCHED}: a power of two, or at most {MOST_UNEVEN:,} GPUs, is accepted"
        return (SweepAnswer(reason=reason),) * len(job.questions)
    return tuple(fastest_layouts(question)[0] for question in job.questions.values())


def base_of(rows: Sequence[SweepRow], row: SweepRow) -> SweepRow | None:
    """The row of Megatron-LM's 1-D layout of the same job and batch; None if it has no time."""
    point = {**row.point, "scheme": BASE}
    return next((base for base in rows if base.point == point and base.answer.seconds is not None), None)


def saving(rows: Sequence[SweepRow], row: SweepRow) -> float | None:
    """The share of 1-D's time that a layout saves; negative if it is slower; None if a time is missing."""
    base = base_of(rows, row)
    if base is None or row.answer.seconds is None:
        return None
    return 1 - row.answer.seconds / (base.answer.seconds or 1.0)


def saved_by_cause(rows: Sequence[SweepRow], row: SweepRow) -> dict[str, float]:
    """The time that a layout saves of 1-D's, by cause, as shares of 1-D's time; the sum is `saving`."""
    base = base_of(rows, row)
    if base is None or row.answer.seconds is None:
        return {}
    own, of_base = seconds_by_cause(row.answer), seconds_by_cause(base.answer)
    return {
        cause: (of_base.get(cause, 0.0) - own.get(cause, 0.0)) / (base.answer.seconds or 1.0)
        for cause in dict.fromkeys((*of_base, *own))
    }


def saving_with_data_hidden(rows: Sequence[SweepRow], row: SweepRow) -> float | None:
    """The share of 1-D's time that a layout saves if both hide all communication of data ranks; None without a time."""
    base = base_of(rows, row)
    if base is None or row.answer.seconds is None:
        return None
    return 1 - _without_data(row.answer) / _without_data(base.answer)


def _without_data(step: SweepAnswer) -> float:
    """The time of a step without the exposed communication of data ranks [s]."""
    return sum(seconds for cause, seconds in seconds_by_cause(step).items() if cause not in OF_DATA)


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The table of the best layouts: a section for each job, a row for each batch and scheme."""
    columns = (
        "model",
        "machine",
        "GPUs",
        "batch",
        "scheme",
        *STEP_COLUMNS,
        "recompute",
        "saves",
        "data hidden",
        "most lost to",
    )
    jobs = dict.fromkeys(_job(row) for row in rows)
    sections = [[_cells(rows, row) for row in rows if _job(row) == job] for job in jobs]
    return [table("the best layout of each scheme, predicted", columns, *sections, names=5)]


def _job(row: SweepRow) -> tuple[str, ...]:
    return row.point["model"], row.point["machine"], row.point["gpus"]


def _cells(rows: Sequence[SweepRow], row: SweepRow) -> tuple[str, ...]:
    point, step = row.point, row.answer
    savings = (None, None) if point["scheme"] == BASE else (saving(rows, row), saving_with_data_hidden(rows, row))
    lost = (step.reason or "")[:80] if step.seconds is None else largest_cause(step)
    return (
        *_job(row),
        point["batch"],
        scheme_label(point["scheme"]),
        *step_cells(step),
        step.trained.recompute if step.trained else UNKNOWN,
        *(percent(saved) for saved in savings),
        lost,
    )


def scheme_label(scheme: str) -> str:
    """The dimensions and the name of a scheme as text.

    >>> scheme_label("bian")
    '3-D (bian)'
    """
    return f"{DIMENSIONS[scheme]} ({scheme})"


def answer(rows: Sequence[SweepRow]) -> list[str]:
    """The sentences that answer the study: when each scheme is faster than 1-D, by how much, and why."""
    curves = dict.fromkeys((*_job(row)[:2], row.point["size"], row.point["scheme"]) for row in rows)
    sentences = [_sentence(rows, curve) for curve in curves if curve[-1] != BASE]
    return [sentence for sentence in sentences if sentence]


def curve_rows(rows: Sequence[SweepRow], curve: tuple[str, ...]) -> list[SweepRow]:
    """The rows of a model, a machine, a size of the batch and a scheme that have a saving."""
    return [
        row
        for row in rows
        if (*_job(row)[:2], row.point["size"], row.point["scheme"]) == curve and saving(rows, row) is not None
    ]


def _sentence(rows: Sequence[SweepRow], curve: tuple[str, ...]) -> str:
    """When a scheme is faster than 1-D for a model, a machine and a size of the batch, and why; empty if unknown."""
    model, name, _, scheme = curve
    own = curve_rows(rows, curve)
    if not own:
        return ""
    savings = [(row, saving(rows, row) or 0.0) for row in own]
    times = {
        "faster": [f"{percent(share, signed=False)} on {_gpus(row)}" for row, share in savings if share >= EQUAL],
        "slower": [f"{percent(-share, signed=False)} on {_gpus(row)}" for row, share in savings if share <= -EQUAL],
    }
    parts = [f"{word} by {', '.join(texts)}" for word, texts in times.items() if texts]
    equal = [_gpus(row) for row, share in savings if abs(share) < EQUAL]
    parts += [f"equal on {', '.join(equal)}"] if equal else []
    per_gpu = int(own[0].point["batch"]) / int(own[0].point["gpus"])
    job = f"On {name} with {per_gpu:g} sequences for each GPU"
    text = f"{job}, {scheme_label(scheme)} trains {model} {'; '.join(parts)} GPUs."
    decisive, share = max(savings, key=lambda pair: abs(pair[1]))
    return text if abs(share) < EQUAL else f"{text} {_why(rows, decisive)}"


def _gpus(row: SweepRow) -> str:
    return f"{int(row.point['gpus']):,}"


def _why(rows: Sequence[SweepRow], row: SweepRow) -> str:
    """The causes by which a layout differs most from 1-D, as shares of 1-D's time, and what hidden sums would leave."""
    base = base_of(rows, row)
    assert base is not None
    causes = sorted(saved_by_cause(rows, row).items(), key=lambda cause: -abs(cause[1]))[:MOST_CAUSES]
    shares = ", ".join(f"{percent(-share)} {cause}" for cause, share in causes)
    left = percent(saving_with_data_hidden(rows, row))
    return (
        f"On {_gpus(row)} GPUs {grid_text(row.answer)} has, in shares of the time on {grid_text(base.answer)}, "
        f"{shares}; with all sums over data hidden it saves {left}."
    )


@styled
def figure(rows: Sequence[SweepRow]) -> "Figure":
    """The speed of each scheme against 1-D by number of GPUs, with a panel for each model on a machine."""
    jobs = list(dict.fromkeys(_job(row)[:2] for row in rows))
    schemes = [scheme for scheme in dict.fromkeys(row.point["scheme"] for row in rows) if scheme != BASE]
    setting = "against 1-D's best layout with the same batch, predicted"
    drawing = new_figure(max(5.0, 3.4 * len(jobs)), 4.2, question=QUESTION, setting=setting)
    panels = drawing.subplots(1, len(jobs), sharey=True, squeeze=False)[0]
    for panel, (model, name) in zip(panels, jobs, strict=True):
        own = [row for row in rows if _job(row)[:2] == (model, name)]
        for number, (scheme, size) in enumerate((scheme, size) for scheme in schemes for size in BATCHES):
            curve = curve_rows(rows, (model, name, size, scheme))
            speeds = [1 / (1 - (saving(rows, row) or 0.0)) for row in curve]
            hidden = [1 / (1 - (saving_with_data_hidden(rows, row) or 0.0)) for row in curve]
            counts = [int(row.point["gpus"]) for row in curve]
            label = f"{scheme_label(scheme)}, {size} batch"
            (line,) = panel.plot(counts, speeds, label=label, **line_marks(number))
            panel.plot(counts, hidden, ":", color=line.get_color(), label=f"{label}, sums over data hidden")
        for row in own:
            if row.point["scheme"] != BASE and saving(rows, row) is None:
                word = "not searched" if NOT_SEARCHED in (row.answer.reason or "") else "no layout"
                panel.text(int(row.point["gpus"]), 1, word, ha="right", va="bottom", fontsize=7)
        panel.axhline(1, color=MUTED_COLOUR, linestyle=":")
        panel.axhspan(1 - EQUAL, 1 + EQUAL, color=PALETTE[6], alpha=0.15, label="equal within 3 %")
        panel.set_title(f"{model}\n{name}", fontsize=9)
        number_axis(panel.xaxis, sorted({int(row.point["gpus"]) for row in own}))
        panel.set_xlabel("GPUs")
    panels[0].set_ylabel("time of 1-D / time of the scheme")
    legend_below(drawing)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
