"""What `quadrille rank` answers, as JSON and as a page."""

import msgspec

from algorithms.costs.axonn_gpt import MODELLED, Form
from algorithms.formats.provenance import Provenance
from algorithms.grid import Grid
from algorithms.units import format_bytes, format_bytes_per_second, format_seconds
from studies.rank.agreement import kendall_tau
from studies.rank.analytical import Ranked
from studies.rank.question import Question
from studies.rank.step import Granularity, Step
from studies.rank.why import causes, in_words
from studies.tables import UNKNOWN, print_tables, table

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
    """A grid as it was simulated; `analytical_place` is its place among all that fit, from 1.

    compute + latency + transfer - hidden + waiting are the seconds.  Of `granularity`
    collective, the layers that were simulated stand for all.
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
    share_of_peak: float | None
    memory_bytes: int
    granularity: Granularity
    layers_simulated: int


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
    workload: dict[str, dict[str, int]]
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
    shape = question.shape
    sizes = {name: getattr(shape, name) for name in ("layers", "hidden", "heads", "sequence", "vocabulary")}
    return RankAnswer(
        analytical=[_modelled(found, place) for place in range(len(found))],
        simulated=[_simulated(found, place, steps[place]) for place in order],
        kendall_tau=tau,
        workload={"gpt": {**sizes, "batch": question.batch}},
        model=shape.name,
        machine=question.machine.name,
        gpus=question.gpus,
        form=question.form,
        options=_options(question),
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
        why=in_words(why, tau, steps, question.choices),
    )


def _options(question: Question) -> dict[str, str | int]:
    return {
        "dtype": question.precision.dtype,
        "overlap": ",".join(sorted(question.overlaps)) or "none",
        "recompute": question.recompute,
        "gathered": question.gathered,
        "gradient_bytes": question.precision.gradient_bytes,
        "collectives": str(question.choices),
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


def _simulated(found: Ranked, place: int, step: Step) -> SimulatedGrid:
    lengths, order = _named(found.candidates.grid(place))
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
        exposed_seconds_by_axis=step.exposed_by_axis,
        share_of_peak=step.efficiency,
        memory_bytes=int(found.peak_bytes[place]),
        granularity=step.granularity,
        layers_simulated=step.layers,
    )


# A page

COLUMNS = (
    "grid",
    "order",
    "model",
    "place",
    "simulated",
    "compute",
    "latency",
    "transfer",
    "hidden",
    "waiting",
    "memory",
)
"""Of the table, after the place by the model."""


def print_answer(answer: RankAnswer) -> None:
    """Prints both orders side by side, and why they differ."""
    print(
        f"{answer.model}, batch {answer.workload['gpt']['batch']}, on {answer.gpus:,} GPUs of {answer.machine}: "
        f"{len(answer.analytical):,} grids with a rank order fit in memory, {answer.without_memory:,} do not; "
        f"the best {len(answer.simulated)} by the {answer.form} form of the model are simulated"
    )
    if answer.bandwidths_simulated:
        print(_rings(answer))
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
    best = answer.simulated[0]
    print(
        f"fastest as simulated: --grid {_lengths(best)} --order {','.join(best.order)}, {format_seconds(best.seconds)}"
    )


def _row(one: SimulatedGrid, place: int) -> tuple[str, ...]:
    seconds = (one.compute_seconds, one.latency_seconds, one.transfer_seconds, one.hidden_seconds, one.waiting_seconds)
    return (
        _lengths(one),
        _order(one) or UNKNOWN,
        format_seconds(one.analytical_seconds),
        str(place),
        format_seconds(one.seconds),
        *map(format_seconds, seconds),
        format_bytes(one.memory_bytes),
    )


def _lengths(one: SimulatedGrid) -> str:
    return ",".join(f"{axis}={length}" for axis, length in one.grid.items() if length > 1) or "x=1"


def _order(one: SimulatedGrid) -> str:
    """The axes longer than 1, the fastest first."""
    return ",".join(axis for axis in one.order if one.grid[axis] > 1)


def _rings(answer: RankAnswer) -> str:
    rings = [
        f"({one.stride}, {one.length}) {format_bytes_per_second(one.bytes_per_second)}"
        for one in answer.bandwidths_simulated
    ]
    more = f" and {len(rings) - SHOWN_RINGS} more" if len(rings) > SHOWN_RINGS else ""
    whose = "lacked by the table" if answer.bandwidths_measured else "of the model"
    return f"bandwidths {whose}, simulated, by (stride, length): {', '.join(rings[:SHOWN_RINGS])}{more}"
