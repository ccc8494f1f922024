"""One candidate simulated: a training step on its grid, and where its time goes.

Where ops do not overlap, walking collectives as wholes gives what the exact
simulation gives, but for groups that meet on links at different times (80B on
1,024 GPUs of Perlmutter, z=512, x=2: 0.03 % more), and a step's seconds grow by
the same with every layer: a few layers are simulated, twice, and the rest
follows.  Where ops overlap, what one leaves of a link to others is known to the
exact simulation only (80B on 1,024 GPUs: 6 to 17 % more), and layers fall into
step after a while (a line through 4 and 6 layers is off by up to 1.2 %): all are
simulated, exactly, unless GPUs are very many.

Shards are those of the grid where all are of one size, else of the mean size.
"""

from dataclasses import dataclass, replace
from typing import Literal

from algorithms.costs.volumes import flops
from algorithms.grid import AXES, Grid
from studies.rank.question import Question

Granularity = Literal["exact", "collective"]
FEW = (2, 3)
"""Layers that are simulated in place of more."""
MANY_GPUS = 2048
"""GPUs above which grids are not simulated exactly: one would take a minute and more."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Step:
    """A simulated training step; seconds are of the mean rank and add up.

        seconds = compute + latency + transfer - hidden + waiting

    Parameters
    ----------
    compute : the compute lane is busy
    latency : of the steps of communication
    transfer : the rest of communication: bytes that move, and what is added up on the way
    hidden : communication that runs beside the compute lane
    waiting : all else: for the last member of a group, and between ops
    contention : seconds of transfer that sharing links adds
    efficiency : of the compute lane of rank 0, by the flop of its products, of the device's peak; None without
    layers : that were simulated
    """

    seconds: float
    compute: float
    latency: float
    transfer: float
    hidden: float
    waiting: float
    contention: float
    exposed_by_axis: dict[str, float]
    efficiency: float | None = None
    granularity: Granularity = "exact"
    layers: int = 1


def simulated_step(question: Question, grid: Grid) -> Step:
    """The step of a grid as the simulator predicts it."""
    granularity = _granularity(question)
    layers = question.shape.layers
    if granularity == "exact" or layers <= max(FEW):
        return _rated(_simulated(question, grid, layers, granularity), question, grid)
    few, more = (_simulated(question, grid, count, granularity) for count in FEW)
    return _rated(_continued(few, more, (layers - FEW[0]) / (FEW[1] - FEW[0])), question, grid)


def _granularity(question: Question) -> Granularity:
    if question.granularity != "auto":
        return question.granularity
    if question.choices.carriage == "nccl" or not question.overlaps:
        return "collective"
    return "exact" if question.gpus <= MANY_GPUS else "collective"


def _simulated(question: Question, grid: Grid, layers: int, granularity: Granularity) -> Step:
    from simulator.folding.even_shards import even_bound, evenly
    from simulator.simulate import simulate

    schedule = question.schedule(grid, layers)
    if even_bound(schedule, question.choices):
        schedule = evenly(schedule)
    ran = simulate(schedule, question.machine, choices=question.choices, granularity=granularity)
    times = ran.op_times().values()
    moving = [one for one in times if one.axis is not None]
    compute = sum(one.seconds for one in times if one.axis is None)
    busy, exposed = sum(one.seconds for one in moving), sum(one.exposed_seconds for one in moving)
    latency = sum(ran.parts[one.name]["latency"] for one in moving)
    hidden = _noticed(busy - exposed, busy)
    makespan = ran.timeline.makespan
    return Step(
        seconds=makespan,
        compute=compute,
        latency=latency,
        transfer=busy - latency,
        hidden=hidden,
        waiting=_noticed(makespan - compute - busy + hidden, makespan),
        contention=_noticed(sum(ran.contention[one.name] for one in moving), makespan),
        exposed_by_axis={
            axis: sum(one.exposed_seconds for one in moving if one.axis == axis)
            for axis in AXES
            if grid.length(axis) > 1
        },
        granularity=granularity,
        layers=layers,
    )


def _continued(few: Step, more: Step, times: float) -> Step:
    """The step that is `times` as far from `few` as `more` is.

    >>> one = Step(1.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0, {"x": 0.5})
    >>> _continued(one, Step(1.75, 1.0, 0.0, 0.75, 0.0, 0.0, 0.0, {"x": 0.75}), 10.0).seconds
    8.5
    """

    def straight(low: float, high: float) -> float:
        return low + times * (high - low)

    return Step(
        seconds=straight(few.seconds, more.seconds),
        compute=straight(few.compute, more.compute),
        latency=straight(few.latency, more.latency),
        transfer=straight(few.transfer, more.transfer),
        hidden=straight(few.hidden, more.hidden),
        waiting=straight(few.waiting, more.waiting),
        contention=straight(few.contention, more.contention),
        exposed_by_axis={
            axis: straight(seconds, more.exposed_by_axis[axis]) for axis, seconds in few.exposed_by_axis.items()
        },
        granularity=more.granularity,
        layers=more.layers,
    )


def _rated(step: Step, question: Question, grid: Grid) -> Step:
    """The step with its efficiency, where the device's peak is known."""
    peak = question.machine.device.peak_flops_per_second.get(question.precision.dtype)
    if not (peak and step.compute):
        return step
    schedule = question.schedule(grid)
    return replace(step, efficiency=flops(schedule, schedule.place(0)) / step.compute / peak)


def _noticed(seconds: float, of: float) -> float:
    """Seconds, but none where they are only rounding.

    >>> _noticed(1e-14, of=2.0), _noticed(0.5, of=2.0)
    (0.0, 0.5)
    """
    return seconds if seconds > ROUNDING * of else 0.0
