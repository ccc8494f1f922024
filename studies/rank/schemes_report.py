"""What `quadrille rank` answers about schemes, pipelines, ZeRO and microbatches, as JSON and as a page."""

from typing import Any

import msgspec

from algorithms.formats.provenance import Provenance
from algorithms.formats.record import Granularity, Shards, Workload
from algorithms.grid import AXES
from algorithms.training.gpt import Gpt
from algorithms.units import format_bytes, format_seconds
from studies.rank.agreement import kendall_tau
from studies.rank.looking import Configuration
from studies.rank.question import Question
from studies.rank.report import CauseFound, RingSimulated, lengths_of, options_of, rings_in_words
from studies.rank.search import Found
from studies.rank.step import granularity_of
from studies.rank.why import causes_beside, in_short
from studies.tables import UNKNOWN, percent, print_tables, table
from studies.training.experiment import gpt_workload
from studies.training.figures import rates
from studies.training.step import Step

MODEL = "closed form of local work and collectives, put together by the turns of the pipeline"


class ModelledConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration by the closed form: an iteration, and bytes that the fullest rank keeps.

    Parameters
    ----------
    micro_batch : sequences at once on each coordinate of data and z
    interleave : chunks of layers of a stage
    waiting_seconds : of the mean stage, for others
    """

    scheme: str
    sequence_parallel: bool
    grid: dict[str, int]
    order: list[str]
    micro_batch: int
    zero: int
    interleave: int
    seconds: float
    compute_seconds: float
    communication_seconds: float
    waiting_seconds: float
    memory_bytes: int


class SimulatedConfiguration(ModelledConfiguration, frozen=True, kw_only=True):
    """The same as simulated: a few layers and microbatches on the ranks of a stage, put together as the closed form is.

    compute + communication - hidden + waiting are the seconds.
    """

    analytical_place: int
    analytical_seconds: float
    latency_seconds: float
    transfer_seconds: float
    hidden_seconds: float
    contention_seconds: float
    exposed_seconds_by_axis: dict[str, float]
    model_flops_per_second_per_gpu: float
    hardware_flops_per_second_per_gpu: float
    percent_of_peak: float | None
    granularity: Granularity
    layers_simulated: int
    shards: Shards


class Omitted(msgspec.Struct, frozen=True, kw_only=True):
    """Configurations that were left out for one reason, and the first of them."""

    reason: str
    configurations: int
    example: str


class SchemesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes; the file has the provenance too, stdout is the same in every run."""

    analytical: list[ModelledConfiguration]
    simulated: list[SimulatedConfiguration]
    kendall_tau: float | None
    workload: Workload
    model: str
    machine: str
    gpus: int
    analytical_model: str
    options: dict[str, str | int]
    left_out: list[Omitted]
    bandwidths_measured: bool
    bandwidths_simulated: list[RingSimulated]
    causes: list[CauseFound]
    why: list[str]
    provenance: Provenance | None = None


def answer_of(question: Question, found: Found, steps: list[Step]) -> SchemesAnswer:
    """The answer; `steps` are of the first configurations, in their order."""
    modelled = [one.step for one in found.best[: len(steps)]]
    tau = kendall_tau([step.seconds for step in modelled], [step.seconds for step in steps])
    why = causes_beside(modelled, steps)
    order = sorted(range(len(steps)), key=lambda place: (steps[place].seconds, place))
    return SchemesAnswer(
        analytical=[ModelledConfiguration(**_modelled(one, one.step)) for one in found.best],
        simulated=[_simulated(question, found.best[place], place, steps[place]) for place in order],
        kendall_tau=tau,
        workload=gpt_workload(question.problem),
        model=question.shape.name,
        machine=question.machine.name,
        gpus=question.gpus,
        analytical_model=MODEL,
        options=options_of(question),
        left_out=[
            Omitted(reason=reason, configurations=count, example=found.left_out.examples[reason])
            for reason, count in found.left_out.counts.most_common()
        ],
        bandwidths_measured=found.from_table,
        bandwidths_simulated=[
            RingSimulated(stride=stride, length=length, bytes_per_second=rate)
            for (stride, length), rate in found.bandwidths.items()
        ],
        causes=[
            CauseFound(name=one.name, seconds_least=one.least, seconds_most=one.most, kendall_tau=one.tau)
            for one in why
        ],
        why=in_short(why, tau),
    )


def _modelled(one: Configuration, step: Step) -> dict[str, Any]:
    experiment, problem = one.experiment, one.experiment.problem
    assert isinstance(problem, Gpt)
    return {
        "scheme": experiment.scheme.name,
        "sequence_parallel": experiment.sequence_parallel,
        "grid": {axis: experiment.grid.length(axis) for axis in AXES},
        "order": list(experiment.grid.order),
        "micro_batch": problem.micro_batch,
        "zero": problem.zero,
        "interleave": problem.interleave,
        "seconds": step.seconds,
        "compute_seconds": step.compute,
        "communication_seconds": step.latency + step.transfer,
        "waiting_seconds": step.waiting,
        "memory_bytes": one.peak_bytes,
    }


def _simulated(question: Question, one: Configuration, place: int, step: Step) -> SimulatedConfiguration:
    rated = rates(one.experiment, step.seconds, question.machine)
    return SimulatedConfiguration(
        **_modelled(one, step),
        analytical_place=place + 1,
        analytical_seconds=one.step.seconds,
        latency_seconds=step.latency,
        transfer_seconds=step.transfer,
        hidden_seconds=step.hidden,
        contention_seconds=step.contention,
        exposed_seconds_by_axis={str(axis): seconds for axis, seconds in step.exposed_by_axis.items()},
        model_flops_per_second_per_gpu=rated.model_flops_per_second_per_gpu,
        hardware_flops_per_second_per_gpu=rated.hardware_flops_per_second_per_gpu,
        percent_of_peak=rated.percent_of_peak,
        granularity=granularity_of(question),
        layers_simulated=step.layers,
        shards="even" if step.even else "exact",
    )


# A page

COLUMNS = (
    "scheme",
    "grid",
    "order",
    "how",
    "model",
    "place",
    "simulated",
    "of peak",
    "compute",
    "communication",
    "hidden",
    "waiting",
    "memory",
)
"""Of the table, after the place by the model."""


def print_answer(answer: SchemesAnswer, again: str) -> None:
    """Prints both orders side by side, why they differ, and what was left out.

    Parameters
    ----------
    again : the command that simulates the fastest configuration in full
    """
    assert answer.workload.gpt is not None
    print(
        f"{answer.model}, batch {answer.workload.gpt.batch}, on {answer.gpus:,} GPUs of {answer.machine}: "
        f"{len(answer.analytical):,} configurations that fit in memory are ranked by the {answer.analytical_model}; "
        f"the best {len(answer.simulated)} are simulated"
    )
    if answer.bandwidths_simulated:
        print(rings_in_words(answer.bandwidths_simulated, measured=answer.bandwidths_measured))
    print()
    fastest = {id(one): place for place, one in enumerate(answer.simulated, 1)}
    rows = [
        (str(one.analytical_place), *_row(one, fastest[id(one)]))
        for one in sorted(answer.simulated, key=lambda one: one.analytical_place)
    ]
    print_tables(table("by the model and as simulated", ("place", *COLUMNS), rows, names=5))
    tau = UNKNOWN if answer.kendall_tau is None else f"{answer.kendall_tau:.3f}"
    print(f"Kendall's tau of both orders: {tau}")
    for line in answer.why:
        print(f"- {line}")
    for one in answer.left_out:
        print(f"left out: {one.configurations:,} by {one.reason} (the first: {one.example})")
    print(f"fastest as simulated, {format_seconds(answer.simulated[0].seconds)} an iteration: {again}")


def _row(one: SimulatedConfiguration, place: int) -> tuple[str, ...]:
    seconds = (one.compute_seconds, one.communication_seconds, one.hidden_seconds, one.waiting_seconds)
    return (
        one.scheme + (", rows scattered" if one.sequence_parallel else ""),
        lengths_of(one.grid),
        ",".join(axis for axis in one.order if one.grid[axis] > 1) or UNKNOWN,
        _how(one),
        format_seconds(one.analytical_seconds),
        str(place),
        format_seconds(one.seconds),
        percent(None if one.percent_of_peak is None else one.percent_of_peak / 100, signed=False),
        *map(format_seconds, seconds),
        format_bytes(one.memory_bytes),
    )


def _how(one: SimulatedConfiguration) -> str:
    """Microbatch, chunks and ZeRO, as flags name them."""
    words = [f"micro-batch {one.micro_batch}"]
    words += [f"interleave {one.interleave}"] if one.interleave > 1 else []
    words += [f"zero {one.zero}"] if one.zero else []
    return ", ".join(words)
