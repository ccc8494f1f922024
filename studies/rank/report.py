"""What `quadrille rank` answers, as JSON and as a page."""

from collections.abc import Mapping, Sequence

import msgspec

from algorithms.costs.axonn_gpt import MODELLED, Form
from algorithms.formats.provenance import Provenance
from algorithms.formats.record import Granularity, Shards, Workload
from algorithms.grid import Grid
from algorithms.units import format_bytes, format_bytes_per_second, format_seconds
from studies.rank.agreement import kendall_tau
from studies.rank.analytical import Ranked
from studies.rank.question import Question
from studies.rank.step import granularity_of
from studies.rank.why import causes, in_words
from studies.tables import UNKNOWN, percent, print_tables, table
from studies.training.experiment import gpt_workload
from studies.training.figures import rates
from studies.training.step import Step

SCHEMA = "quadrille/rank/1"
SHOWN_RINGS = 8


class ModelledGrid(msgspec.Struct, frozen=True, kw_only=True):
    """A grid by the analytical model: seconds of communication, and bytes that its fullest rank keeps."""

    grid: dict[str, int]
    order: list[str]
    seconds: float
    seconds_by_axis: dict[str, float]
    memory_bytes: int


class SimulatedGrid(msgspec.Struct, frozen=True, kw_only=True):
    """A grid as it was simulated: one iteration of training on it.

    compute + latency + transfer - hidden + waiting are the seconds.  Of `granularity`
    collective, the layers that were simulated stand for all.

    Parameters
    ----------
    seconds : of an iteration, without what happens once before the first: `seconds_per_iteration` of a record
    analytical_place : its place among all that fit, from 1
    model_flops_per_second_per_gpu, hardware_flops_per_second_per_gpu, percent_of_peak : as of a record
        (`studies.training.figures` has the formulas)
    compute_efficiency : share of the peak that products reach while the compute lane of the first rank is busy
    shards : whether all were given the mean size, as `--shards` says
    """

    grid: dict[str, int]
    order: list[str]
    seconds: float
    analytical_place: int
    analytical_seconds: float
    compute_seconds: float
    latency_seconds: float
    transfer_seconds: float
    hidden_seconds: float
    waiting_seconds: float
    contention_seconds: float
    exposed_seconds_by_axis: dict[str, float]
    model_flops_per_second_per_gpu: float
    hardware_flops_per_second_per_gpu: float
    percent_of_peak: float | None
    compute_efficiency: float | None
    memory_bytes: int
    granularity: Granularity
    layers_simulated: int
    shards: Shards


class CauseFound(msgspec.Struct, frozen=True, kw_only=True):
    """What the model leaves out: the seconds that it adds, and Kendall's tau with it."""

    name: str
    seconds_least: float
    seconds_most: float
    kendall_tau: float | None


class RingSimulated(msgspec.Struct, frozen=True, kw_only=True):
    """Rings of `length` ranks, `stride` apart, whose bandwidth no table has."""

    stride: int
    length: int
    bytes_per_second: float


class RankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes; the file has the provenance too, stdout is the same in every run."""

    analytical: list[ModelledGrid]
    simulated: list[SimulatedGrid]
    kendall_tau: float | None
    workload: Workload
    model: str
    machine: str
    gpus: int
    form: Form
    options: dict[str, str | int]
    without_memory: int
    bandwidths_measured: bool
    bandwidths_simulated: list[RingSimulated]
    causes: list[CauseFound]
    why: list[str]
    provenance: Provenance | None = None


def answer_of(question: Question, found: Ranked, steps: list[Step]) -> RankAnswer:
    """The answer; `steps` are of the first candidates, in their order."""
    modelled = [float(one) for one in found.seconds[: len(steps)]]
    tau = kendall_tau(modelled, [step.seconds for step in steps])
    why = causes(modelled, steps)
    order = sorted(range(len(steps)), key=lambda place: (steps[place].seconds, place))
    return RankAnswer(
        analytical=[_modelled(found, place) for place in range(len(found))],
        simulated=[_simulated(question, found, place, steps[place]) for place in order],
        kendall_tau=tau,
        workload=gpt_workload(question.problem),
        model=question.shape.name,
        machine=question.machine.name,
        gpus=question.gpus,
        form=question.form,
        options=options_of(question),
        without_memory=found.without,
        bandwidths_measured=found.from_table,
        bandwidths_simulated=[
            RingSimulated(stride=stride, length=length, bytes_per_second=rate)
            for (stride, length), rate in found.bandwidths.items()
        ],
        causes=[
            CauseFound(name=one.name, seconds_least=one.least, seconds_most=one.most, kendall_tau=one.tau)
            for one in why
        ],
        why=in_words(why, tau, steps, question.training.manner.choices, question.peak_flops_per_second),
    )


def options_of(question: Question) -> dict[str, str | int]:
    """What was chosen, whatever the grid."""
    training, problem = question.training, question.problem
    return {
        "dtype": training.dtype,
        "overlap": ",".join(sorted(training.manner.overlaps)) or "none",
        "recompute": problem.recompute,
        "gathered": problem.gathered,
        "gradient_bytes": problem.gradient_bytes,
        "collectives": str(training.manner.choices),
    }


def _named(grid: Grid) -> tuple[dict[str, int], list[str]]:
    """Lengths, and the axes of the model from the fastest to the slowest."""
    return {axis: grid.length(axis) for axis in MODELLED}, [axis for axis in grid.order if axis in MODELLED]


def _modelled(found: Ranked, place: int) -> ModelledGrid:
    lengths, order = _named(found.candidates.grid(place))
    return ModelledGrid(
        grid=lengths,
        order=order,
        seconds=float(found.seconds[place]),
        seconds_by_axis={axis: float(seconds[place]) for axis, seconds in found.by_axis.items() if lengths[axis] > 1},
        memory_bytes=int(found.peak_bytes[place]),
    )


def _simulated(question: Question, found: Ranked, place: int, step: Step) -> SimulatedGrid:
    grid = found.candidates.grid(place)
    lengths, order = _named(grid)
    rated = rates(question.experiment(grid), step.seconds, question.machine)
    return SimulatedGrid(
        grid=lengths,
        order=order,
        seconds=step.seconds,
        analytical_place=place + 1,
        analytical_seconds=float(found.seconds[place]),
        compute_seconds=step.compute,
        latency_seconds=step.latency,
        transfer_seconds=step.transfer,
        hidden_seconds=step.hidden,
        waiting_seconds=step.waiting,
        contention_seconds=step.contention,
        exposed_seconds_by_axis={str(axis): seconds for axis, seconds in step.exposed_by_axis.items()},
        model_flops_per_second_per_gpu=rated.model_flops_per_second_per_gpu,
        hardware_flops_per_second_per_gpu=rated.hardware_flops_per_second_per_gpu,
        percent_of_peak=rated.percent_of_peak,
        compute_efficiency=step.compute_efficiency(question.peak_flops_per_second),
        memory_bytes=int(found.peak_bytes[place]),
        granularity=granularity_of(question),
        layers_simulated=step.layers,
        shards="even" if step.even else "exact",
    )


# A page

COLUMNS = (
    "grid",
    "order",
    "model",
    "place",
    "simulated",
    "of peak",
    "compute",
    "latency",
    "transfer",
    "hidden",
    "waiting",
    "memory",
)
"""Of the table, after the place by the model."""


def print_answer(answer: RankAnswer, again: str) -> None:
    """Prints both orders side by side, and why they differ.

    Parameters
    ----------
    again : the command that simulates the fastest grid
    """
    assert answer.workload.gpt is not None
    print(
        f"{answer.model}, batch {answer.workload.gpt.batch}, on {answer.gpus:,} GPUs of {answer.machine}: "
        f"{len(answer.analytical):,} grids with a rank order fit in memory, {answer.without_memory:,} do not; "
        f"the best {len(answer.simulated)} by the {answer.form} form of the model are simulated"
    )
    if answer.bandwidths_simulated:
        print(rings_in_words(answer.bandwidths_simulated, measured=answer.bandwidths_measured))
    print()
    fastest = {id(one): place for place, one in enumerate(answer.simulated, 1)}
    rows = [
        (str(one.analytical_place), *_row(one, fastest[id(one)]))
        for one in sorted(answer.simulated, key=lambda one: one.analytical_place)
    ]
    print_tables(table("by the model and as simulated", ("place", *COLUMNS), rows, names=3))
    tau = UNKNOWN if answer.kendall_tau is None else f"{answer.kendall_tau:.3f}"
    print(f"Kendall's tau of both orders: {tau}")
    for line in answer.why:
        print(f"- {line}")
    print(f"fastest as simulated, {format_seconds(answer.simulated[0].seconds)} an iteration: {again}")


def _row(one: SimulatedGrid, place: int) -> tuple[str, ...]:
    seconds = (one.compute_seconds, one.latency_seconds, one.transfer_seconds, one.hidden_seconds, one.waiting_seconds)
    return (
        lengths_of(one.grid),
        _order(one) or UNKNOWN,
        format_seconds(one.analytical_seconds),
        str(place),
        format_seconds(one.seconds),
        percent(None if one.percent_of_peak is None else one.percent_of_peak / 100, signed=False),
        *map(format_seconds, seconds),
        format_bytes(one.memory_bytes),
    )


def lengths_of(grid: Mapping[str, int]) -> str:
    """The lengths as `--grid` takes them.

    >>> lengths_of({"data": 1, "z": 4, "y": 1, "x": 2}), lengths_of({"x": 1})
    ('z=4,x=2', 'x=1')
    """
    return ",".join(f"{axis}={length}" for axis, length in grid.items() if length > 1) or "x=1"


def _order(one: SimulatedGrid) -> str:
    """The axes longer than 1, the fastest first."""
    return ",".join(axis for axis in one.order if one.grid[axis] > 1)


def rings_in_words(simulated: Sequence[RingSimulated], *, measured: bool) -> str:
    """The bandwidths that were simulated; `measured` where a table has others."""
    rings = [f"({one.stride}, {one.length}) {format_bytes_per_second(one.bytes_per_second)}" for one in simulated]
    more = f" and {len(rings) - SHOWN_RINGS} more" if len(rings) > SHOWN_RINGS else ""
    whose = "lacked by the table" if measured else "of the model"
    return f"bandwidths {whose}, simulated, by (stride, length): {', '.join(rings[:SHOWN_RINGS])}{more}"
