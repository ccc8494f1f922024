"""`quadrille study bandwidth-or-memory`: the predicted gain of a training step by twice as much of one resource.

    network             bandwidth of every cable between nodes, and of PCIe between GPU and NIC
    NVLink              bandwidth between the GPUs of a node
    memory              bytes of a GPU's memory: layouts that store more fit
    memory bandwidth    bandwidth of a GPU's memory
    peak                flop/s of a GPU

With each resource the fastest layout is searched again. The layouts are Megatron-LM's: data and tensor ranks, the
microbatch, ZeRO 1 or 3, and full recomputation or none.  A closed form orders all that fit.  The first few of the
machine as it is, and the first with each resource, are simulated with every resource where they fit.  So no gain is
negative.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quadrille.algorithms.errors import InputError, QuadrilleError
from quadrille.algorithms.figure_style import PALETTE, legend_below, new_figure, styled
from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.algorithms.training.gpt import Gpt
from quadrille.experiments.output.tables import UNKNOWN, percent, table
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.sampled_step import closed_form_seconds
from quadrille.experiments.sweep.best_grid import RankedStep, ranked_steps, simulated_best
from quadrille.experiments.sweep.layouts import Layout
from quadrille.experiments.sweep.sweep_points import OneGrid, with_point_choices
from quadrille.experiments.sweep.sweep_result import SweepAnswer, SweepRow
from quadrille.experiments.sweep.training_study import (
    STEP_COLUMNS,
    Findings,
    StudyOptions,
    StudyPresentation,
    answer_study_groups,
    ordered_shares,
    step_cells,
    write_findings,
)
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import run_as_program
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Group

AS_IT_IS, MEMORY = "as it is", "memory"
RESOURCES: dict[str, tuple[str, ...]] = {
    AS_IT_IS: (),
    "network": ("topology.bandwidth_bytes_per_second", "topology.pcie_bandwidth_bytes_per_second"),
    "NVLink": ("topology.nvlink_bandwidth_bytes_per_second",),
    MEMORY: ("device.memory_bytes",),
    "memory bandwidth": ("device.memory_bytes_per_second",),
    "peak": ("device.peak_flops_per_second",),
}
"""Numbers of the machine that belong to each resource."""
OPTIONS: tuple[dict[str, int | str], ...] = (
    {"zero": 1, "recompute": "none"},
    {"zero": 1, "recompute": "full"},
    {"zero": 3, "recompute": "none"},
)
"""Options of the layouts that are searched, beside grids and microbatches."""
QUESTION = "Buy bandwidth or memory: what does twice as much of one resource gain?"
"""Title of the figure."""
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQuestion:
    """The training jobs.

    Parameters
    ----------
    machines, gpt : names of the machines and of the models
    gpus : number of GPUs
    each : sequences of the global batch for each GPU
    options : options of the layouts that are searched, beside grids and microbatches
    """

    machines: tuple[str, ...] = ("h100-superpod", "gb200-nvl72")
    gpt: tuple[str, ...] = ("llama2-13b", "llama3-70b")
    gpus: int = 64
    each: int = 2
    options: tuple[dict[str, int | str], ...] = OPTIONS


QUICK = ResourceQuestion(
    machines=("h100-superpod",),
    gpt=("layers=2,hidden=2048,heads=16,sequence=2048,vocabulary=4096",),
    gpus=16,
    options=OPTIONS[:1],
)


@dataclass(frozen=True, slots=True)
class SearchedStep:
    """A search of the fastest of these experiments on any grid.

    Parameters
    ----------
    experiments : training step with each of the options, on any grid
    top : number of layouts that are simulated
    most_seconds : processor time after which the simulation of a layout stops [s]
    """

    experiments: tuple[TrainingExperiment, ...]
    machine: Machine
    top: int
    most_seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    """A model on a machine, with a search for the machine as it is, and for twice each of its resources.

    Parameters
    ----------
    point : machine and model
    searches : search by resource, that of the machine as it is first
    """

    point: dict[str, str]
    searches: dict[str, SearchedStep]


def main() -> None:
    """Run the study on the default jobs, and write the answer to `results/`."""
    bandwidth_or_memory(ResourceQuestion(), StudyOptions.into_folder("bandwidth-or-memory", RESULTS))


def bandwidth_or_memory(question: ResourceQuestion, asking: StudyOptions) -> Findings:
    """Search the fastest layout with each resource doubled, and print and write the results.

    Parameters
    ----------
    question : training jobs
    asking : options of the search, and files of the results

    Raises
    ------
    InputError : an unknown model or machine; a file that cannot be written; no layout that fits
    """
    asking.check()
    jobs = list(jobs_of(question, asking))
    answers = answer_study_groups(jobs, fastest_steps, [len(job.searches) for job in jobs], asking)
    results = [
        ({**job.point, "twice": resource}, answer)
        for job, of_job in zip(jobs, answers, strict=True)
        for resource, answer in zip(job.searches, of_job, strict=True)
    ]
    flags = {
        "gpus": str(question.gpus),
        "batch": str(question.each * question.gpus),
        "scheme": "megatron",
        "overlap": ",".join(OVERLAPS),
    }
    return write_findings("bandwidth-or-memory", flags, results, StudyPresentation(tables, answer, figure), asking)


def jobs_of(question: ResourceQuestion, asking: StudyOptions) -> Iterator[Job]:
    """The jobs: every model on every machine, without resources that the machine lacks."""
    for name in question.machines:
        machines = {resource: with_twice(name, question.gpus, resource) for resource in RESOURCES}
        plain = machines[AS_IT_IS].sha256
        for gpt in question.gpt:
            layouts = (
                Layout(name=gpt, gpt=gpt, grid=f"data={question.gpus}", options=options) for options in question.options
            )
            experiments = tuple(layout.experiment(question.each * question.gpus) for layout in layouts)
            searches = {
                resource: SearchedStep(experiments, changed, asking.top, asking.most_seconds)
                for resource, changed in machines.items()
                if resource == AS_IT_IS or changed.sha256 != plain
            }
            yield Job({"machine": name, "model": gpt}, searches)


def with_twice(name: str, gpus: int, resource: str) -> Machine:
    """A named machine with twice as much of a resource.

    >>> with_twice("h100-superpod", 16, "memory").device.memory_bytes
    169887431394.0

    Parameters
    ----------
    name : name of the machine
    resource : one of `RESOURCES`

    Raises
    ------
    InputError : an unknown machine, or too many GPUs
    """
    named = machine(name)
    own = {**named.arguments(gpus), **named.optional_arguments()}
    keys = [key for key in RESOURCES[resource] if key.startswith("device.") or key.removeprefix("topology.") in own]
    return find_machine(name, [f"{key}=x2" for key in keys], gpus=gpus)


def fastest_steps(job: Job) -> tuple[SweepAnswer, ...]:
    """The fastest step of each search; the first layout of each search is a candidate of all searches."""
    ranked = {resource: ranked_layouts(search) for resource, search in job.searches.items()}
    counts = {resource: search.top if resource == AS_IT_IS else 1 for resource, search in job.searches.items()}
    firsts = [step for resource, count in counts.items() for step in ranked[resource].steps[:count]]
    candidates = tuple({step.experiment: step for step in firsts}.values())
    simulated: dict[str, dict[TrainingExperiment, SweepAnswer | str]] = {}
    for resource, search in job.searches.items():
        same_times = simulated[AS_IT_IS] if resource == MEMORY else {}
        simulated[resource] = simulated_steps(candidates, search, same_times)
    return tuple(_fastest(ranked[resource], steps) for resource, steps in simulated.items())


@dataclass(frozen=True, slots=True)
class RankedLayouts:
    """The layouts of a search that fit, the fastest by the closed form first, and the reasons why others do not."""

    steps: tuple[RankedStep, ...]
    reasons: tuple[str, ...]


def ranked_layouts(search: SearchedStep) -> RankedLayouts:
    """The layouts of a search that fit."""
    ranked: list[RankedStep] = []
    reasons: list[str] = []
    for experiment in search.experiments:
        asked = _with_choices(experiment, search.machine)
        try:
            ranked += ranked_steps(asked, asked.grid.size, search.machine)
        except InputError as error:
            reasons.append(str(error))
    return RankedLayouts(tuple(sorted(ranked, key=lambda step: step.closed_form_seconds)), tuple(reasons))


def simulated_steps(
    candidates: Iterable[RankedStep],
    search: SearchedStep,
    same_times: Mapping[TrainingExperiment, SweepAnswer | str],
) -> dict[TrainingExperiment, SweepAnswer | str]:
    """The simulated steps of the candidates that fit on the machine of a search, or the reason why there is none.

    Parameters
    ----------
    candidates : layouts, with the largest memory of a rank
    same_times : steps on a machine whose times are the same, so that they are not simulated again
    """
    steps: dict[TrainingExperiment, SweepAnswer | str] = {}
    for candidate in candidates:
        experiment, machine = candidate.experiment, search.machine
        execution, gpus = experiment.execution, experiment.grid.size
        device = fullest_device(machine, gpus, execution.placement, experiment.grid)
        if not device.fits(machine, candidate.peak_bytes):
            continue
        if experiment in same_times:
            steps[experiment] = same_times[experiment]
            continue
        model = ClosedFormModel(machine, experiment.dtype, gpus, execution.choices, execution.threads)
        own = replace(candidate, closed_form_seconds=closed_form_seconds(experiment, model))
        try:
            steps[experiment] = simulated_best([own], machine, 1, search.most_seconds)
        except QuadrilleError as error:
            steps[experiment] = str(error)
    return steps


def _fastest(ranked: RankedLayouts, steps: Mapping[TrainingExperiment, SweepAnswer | str]) -> SweepAnswer:
    """The fastest of the simulated steps; its first remark has the options of the layout."""
    answers = {experiment: step for experiment, step in steps.items() if isinstance(step, SweepAnswer)}
    if not answers:
        reasons = [*(step for step in steps.values() if isinstance(step, str)), *ranked.reasons]
        return SweepAnswer(reason=reasons[0])
    experiment, fastest = min(answers.items(), key=lambda pair: pair[1].seconds or 0.0)
    remarks = (_options_text(experiment), *fastest.remarks)
    return msgspec.structs.replace(fastest, grids=len(ranked.steps), simulated=len(answers), remarks=remarks)


def _with_choices(experiment: TrainingExperiment, on: Machine) -> TrainingExperiment:
    """The experiment with the collectives that a machine runs."""
    asked = with_point_choices(OneGrid(experiment, on)).experiment
    assert isinstance(asked, TrainingExperiment)
    return asked


def _options_text(experiment: TrainingExperiment) -> str:
    assert isinstance(experiment.problem, Gpt)
    return f"ZeRO {experiment.problem.zero}, recompute {experiment.problem.recompute}"


def gain_of(rows: Sequence[SweepRow], row: SweepRow) -> float | None:
    """The relative speed-up of a row's step over that of its machine as it is; None if one is missing."""
    base_point = {**row.point, "twice": AS_IT_IS}
    base = next((candidate.answer.seconds for candidate in rows if candidate.point == base_point), None)
    return base / row.answer.seconds - 1 if base and row.answer.seconds else None


def _jobs(rows: Sequence[SweepRow]) -> list[tuple[str, str]]:
    """The models and machines of the rows."""
    return list(dict.fromkeys((row.point["model"], row.point["machine"]) for row in rows))


def _rows_of(rows: Sequence[SweepRow], job: tuple[str, str]) -> list[SweepRow]:
    return [row for row in rows if (row.point["model"], row.point["machine"]) == job]


def tables(rows: Sequence[SweepRow]) -> "list[Group]":
    """The table of the fastest layouts: a section for each model and machine."""
    columns = ("model", "machine", "twice", "options", *STEP_COLUMNS, "gain")
    sections = [
        [
            (
                *job,
                row.point["twice"],
                row.answer.remarks[0] if row.answer.remarks else UNKNOWN,
                *step_cells(row.answer),
                UNKNOWN if row.point["twice"] == AS_IT_IS else percent(gain_of(rows, row)),
            )
            for row in _rows_of(rows, job)
        ]
        for job in _jobs(rows)
    ]
    return [table("the fastest layout with twice as much of one resource, predicted", columns, *sections, names=5)]


def answer(rows: Sequence[SweepRow]) -> list[str]:
    """The sentences that answer the study: the gain of each resource, the largest first."""
    sentences = []
    for job in _jobs(rows):
        gains = {
            row.point["twice"]: gain
            for row in _rows_of(rows, job)
            if row.point["twice"] != AS_IT_IS and (gain := gain_of(rows, row)) is not None
        }
        if gains:
            sentences.append(f"{job[0]} on {job[1]}: {ordered_shares(gains, largest_first=True)}.")
    return sentences


@styled
def figure(rows: Sequence[SweepRow]) -> "Figure":
    """The bar chart of the gains, with a group of bars for each model and machine."""
    jobs = _jobs(rows)
    resources = [resource for resource in RESOURCES if resource != AS_IT_IS]
    drawing = new_figure(8, 4.6, question=QUESTION, setting="the fastest layout with each, predicted")
    axis = drawing.subplots()
    width = 0.8 / len(resources)
    for index, resource in enumerate(resources):
        own = {(row.point["model"], row.point["machine"]): row for row in rows if row.point["twice"] == resource}
        gains = {job: gain for job in jobs if job in own and (gain := gain_of(rows, own[job])) is not None}
        places = [place + width * (index - (len(resources) - 1) / 2) for place in range(len(jobs))]
        heights = [100 * gains.get(job, 0.0) for job in jobs]
        axis.bar(places, heights, width=width, color=PALETTE[index], label=resource)
        for place, job in zip(places, jobs, strict=True):
            if job not in gains:
                why = "not predicted" if job in own else "the machine has none"
                axis.text(place, 0, f" {why}", rotation=90, ha="center", va="bottom", fontsize=7, color=PALETTE[index])
    axis.set_xticks(range(len(jobs)), ["\n".join(job) for job in jobs])
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_ylabel("faster by [%]")
    axis.grid(visible=False, axis="x")
    legend_below(drawing)
    return drawing


if __name__ == "__main__":
    run_as_program(main)
