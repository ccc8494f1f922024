"""A training step simulated: some of its layers or all, and where the time of one iteration goes.

How many layers stand for all is said in `quadrille.experiments.predict.depths`.

Shards are those of the grid where all are of one size, else of the mean size, unless the
experiment says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quadrille.algorithms.analysis.volumes import flops
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.op_times import OpTimes
from quadrille.algorithms.training.gpt import Gpt
from quadrille.experiments.predict.collectives_choice import with_chosen
from quadrille.experiments.predict.depths import Depths, straight
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import Iterations, exposed_by_axis, iterations
from quadrille.topologies.machines.machine import Machine

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One iteration of training; seconds are of the mean rank and add up.

        seconds = compute + latency + transfer - hidden + waiting

    Parameters
    ----------
    seconds : of an iteration, without what happens once before the first
    compute : the compute lane is busy
    latency : of the steps of communication
    transfer : the rest of communication: bytes that move, and what is added up on the way
    hidden : communication that runs beside the compute lane
    waiting : all else: for the last member of a group, and between ops
    contention : seconds of transfer that sharing links adds
    exposed_by_axis : communication while the compute lane is idle
    product_flops : of the products of the first rank
    layers : the most that were simulated
    bounded : whether the simulation was one of whole collectives, which is not exact
    even : whether shards were given the mean size
    """

    seconds: float
    compute: float
    latency: float = 0.0
    transfer: float
    hidden: float = 0.0
    waiting: float = 0.0
    contention: float = 0.0
    exposed_by_axis: dict[Axis, float]
    product_flops: float = 0.0
    layers: int = 1
    bounded: bool = False
    even: bool = False

    @property
    def exposed(self) -> float:
        """Communication of all axes while the compute lane is idle."""
        return sum(self.exposed_by_axis.values())

    def compute_efficiency(self, peak_flops_per_second: float | None) -> float | None:
        """The share of the device's peak that its products reach while the compute lane is busy."""
        if not (peak_flops_per_second and self.compute):
            return None
        return self.product_flops / self.compute / peak_flops_per_second


def simulated_step(
    experiment: TrainingExperiment,
    machine: Machine,
    *,
    granularity: AskedGranularity = "auto",
    depths: Depths | None = None,
) -> TrainingStep:
    """The step as the simulator predicts it.

    Parameters
    ----------
    depths : layers that are simulated in place of all, of one step of a GPT that is deeper and has no pipeline

    Raises
    ------
    InputError : a grid or a machine that cannot be
    """
    problem = experiment.problem
    if depths is None or not isinstance(problem, Gpt) or problem.steps > 1 or experiment.grid.pipeline > 1:
        return _simulated(experiment, machine, granularity)
    few, more = depths
    if problem.layers <= more:
        return _simulated(experiment, machine, granularity)
    second = _simulated(of_layers(experiment, more), machine, granularity)
    first = _simulated(of_layers(experiment, few), machine, "collective" if second.bounded else "exact")
    return continued(first, second, problem.layers)


def of_layers(experiment: TrainingExperiment, layers: int) -> TrainingExperiment:
    """The same with so many layers."""
    assert isinstance(experiment.problem, Gpt)
    return replace(experiment, problem=replace(experiment.problem, layers=layers))


def continued(few: TrainingStep, more: TrainingStep, layers: int) -> TrainingStep:
    """The step of so many layers, straight on from those that were simulated; what would be exposed for less than no
    time is hidden.

    >>> one, other = (
    ...     TrainingStep(seconds=seconds, compute=seconds, transfer=0.0, exposed_by_axis={"x": seconds}, layers=layers)
    ...     for seconds, layers in ((1.0, 2), (1.75, 3))
    ... )
    >>> found = continued(one, other, 12)
    >>> found.seconds, found.compute, found.exposed_by_axis, found.layers
    (8.5, 8.5, {'x': 8.5}, 3)
    """
    depths = few.layers, more.layers
    added: dict[str, Any] = {
        name: straight(getattr(few, name), getattr(more, name), depths, layers)
        for name in ("seconds", "compute", "latency", "transfer", "hidden", "waiting", "contention", "product_flops")
    }
    exposed = {
        axis: max(0.0, straight(seconds, more.exposed_by_axis[axis], depths, layers))
        for axis, seconds in few.exposed_by_axis.items()
    }
    bounded, even = few.bounded or more.bounded, few.even or more.even
    return replace(more, **added, exposed_by_axis=exposed, bounded=bounded, even=even)


@dataclass(frozen=True, slots=True)
class SimulatedOps:
    """A step that was simulated, op by op.

    Parameters
    ----------
    schedule : as it was written, shards exact
    every : times of the ops of an iteration, means over ranks
    latency, contention : seconds of an op that are of its steps, and that sharing links adds
    bounded, even : as of `TrainingStep`
    """

    schedule: Schedule
    every: Iterations[OpTimes]
    latency: Mapping[str, float]
    contention: Mapping[str, float]
    bounded: bool
    even: bool


def ran_step(experiment: TrainingExperiment, machine: Machine, granularity: AskedGranularity) -> SimulatedOps:
    """The step simulated in full."""
    from quadrille.experiments.predict.prepared import prepare
    from quadrille.simulator.simulate import simulate
    from quadrille.simulator.symmetry.even_shards import even_bound, with_even_shards

    prepared = prepare(experiment, machine)
    chosen, schedule = prepared.experiment, prepared.schedule
    even = chosen.execution.shards != "exact" and even_bound(schedule, chosen.execution.choices) > 0
    simulated = with_even_shards(schedule) if even else schedule
    if chosen.execution.choices.auto:
        chosen, _ = with_chosen(chosen, simulated, machine, prepared.nodes)
    ran = simulate(
        simulated,
        machine,
        choices=chosen.execution.choices,
        threads=chosen.execution.threads,
        placement=chosen.execution.placement,
        granularity=granularity,
    )
    every = iterations(experiment, schedule, ran.timeline.makespan, ran.op_times().values())
    latency = {one.name: ran.parts[one.name]["latency"] for one in every.ops if one.axis is not None}
    return SimulatedOps(schedule, every, latency, ran.contention, ran.bound is not None, even)


def _simulated(experiment: TrainingExperiment, machine: Machine, granularity: AskedGranularity) -> TrainingStep:
    ran = ran_step(experiment, machine, granularity)
    found = ran.every
    moving = [one for one in found.ops if one.axis is not None]
    compute = found.mean(one.seconds for one in found.ops if one.axis is None)
    busy, exposed = found.mean(one.seconds for one in moving), found.mean(one.exposed_seconds for one in moving)
    latency = found.mean(ran.latency[one.name] for one in moving)
    hidden = noticed(busy - exposed, busy)
    return TrainingStep(
        seconds=found.seconds,
        compute=compute,
        latency=latency,
        transfer=busy - latency,
        hidden=hidden,
        waiting=noticed(found.seconds - compute - busy + hidden, found.seconds),
        contention=noticed(found.mean(ran.contention.get(one.name, 0.0) for one in moving), found.seconds),
        exposed_by_axis={axis: one / found.steps for axis, one in exposed_by_axis(experiment, found.ops).items()},
        product_flops=flops(ran.schedule, ran.schedule.coordinates(0)) / found.steps,
        layers=experiment.problem.layers,
        bounded=ran.bounded,
        even=ran.even,
    )


def noticed(seconds: float, of: float) -> float:
    """Seconds, but none where they are only rounding.

    >>> noticed(1e-14, of=2.0), noticed(0.5, of=2.0)
    (0.0, 0.5)
    """
    return seconds if seconds > ROUNDING * of else 0.0
