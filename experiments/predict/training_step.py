"""`TrainingStep`: the simulated time of one training iteration by cause.

The step is simulated as `quadrille simulate` does: with all layers, at the same granularity, with the same shards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from quadrille.algorithms.analysis.volumes import total_flops
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.op_times import HOST_KINDS, OpTimes
from quadrille.algorithms.training.gpt import Gpt
from quadrille.experiments.predict.collectives_choice import choose_collectives
from quadrille.experiments.workloads.peak_share import peak_share
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import IterationTimes, exposed_seconds_by_axis, iteration_times
from quadrille.topologies.machines.machine import Machine

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """The time of one iteration of training, by cause; the times of the mean rank add up.

        seconds = compute + latency + transfer - hidden + waiting

    Parameters
    ----------
    seconds : time of an iteration, without the setup before the first iteration [s]
    compute : time in which the compute lane is busy [s]
    latency : latency of the steps of communication [s]
    transfer : other time of communication, and time of copies and work for the host [s]
    hidden : part of `latency` and `transfer` that overlaps the compute lane or other communication [s]
    waiting : all other time: waiting for the last member of a group, and idle time between ops [s]
    contention : part of `transfer` that is caused by shared links [s]
    exposed_seconds_by_axis : time of communication while the compute lane is idle, by axis [s]
    product_flops : operations of the matrix products of the mean rank [flop]
    layers : largest number of layers that were simulated
    bounded : whether the simulation computed bounds, so that the time is not exact
    even : whether shards had the mean size
    """

    seconds: float
    compute: float
    latency: float = 0.0
    transfer: float
    hidden: float = 0.0
    waiting: float = 0.0
    contention: float = 0.0
    exposed_seconds_by_axis: dict[Axis, float]
    product_flops: float = 0.0
    layers: int = 1
    bounded: bool = False
    even: bool = False

    @property
    def exposed(self) -> float:
        """Time of communication of all axes while the compute lane is idle [s]."""
        return sum(self.exposed_seconds_by_axis.values())

    def compute_efficiency(self, peak_flops_per_second: float | None) -> float | None:
        """The share of the device's peak rate that products reach while the rank computes; None if it is unknown."""
        return peak_share(self.product_flops / self.compute, peak_flops_per_second) if self.compute else None


def simulated_step(
    experiment: TrainingExperiment,
    machine: Machine,
    *,
    granularity: AskedGranularity = "auto",
) -> TrainingStep:
    """The simulated time of a training step.

    Parameters
    ----------
    granularity : exact, collective, or auto for a simulation of at most a few seconds

    Raises
    ------
    InputError : an invalid grid or machine
    """
    return _simulated_step(experiment, machine, granularity)


def with_layers(experiment: TrainingExperiment, layers: int) -> TrainingExperiment:
    """The experiment with another number of layers."""
    assert isinstance(experiment.problem, Gpt)
    return replace(experiment, problem=replace(experiment.problem, layers=layers))


@dataclass(frozen=True, slots=True)
class SimulatedOps:
    """A simulated step, op by op.

    Parameters
    ----------
    schedule : schedule with exact shards
    every : times of the ops of an iteration, means over ranks
    latency, contention : time of each op that is latency of its steps, and time that shared links add [s]
    bounded, even : as in `TrainingStep`
    """

    schedule: Schedule
    every: IterationTimes[OpTimes]
    latency: Mapping[str, float]
    contention: Mapping[str, float]
    bounded: bool
    even: bool


def simulated_ops(experiment: TrainingExperiment, machine: Machine, granularity: AskedGranularity) -> SimulatedOps:
    """The step, simulated with all its layers."""
    from quadrille.experiments.predict.prepared_experiment import prepare
    from quadrille.experiments.predict.prepared_prediction import predict_prepared

    prepared = prepare(experiment, machine)
    schedule, even = prepared.schedule, prepared.shards == "even"
    if prepared.experiment.execution.choices.auto:
        chosen, _ = choose_collectives(prepared.experiment, prepared.simulated_schedule, machine, prepared.nodes)
        prepared = replace(prepared, experiment=chosen)
    simulation = predict_prepared(prepared, granularity)
    every = iteration_times(experiment, schedule, simulation.timeline.makespan, simulation.op_times().values())
    latency = {op.name: simulation.parts[op.name]["latency"] for op in every.ops if is_beside_compute(op)}
    return SimulatedOps(schedule, every, latency, simulation.contention, simulation.bound is not None, even)


def is_beside_compute(op: OpTimes) -> bool:
    """Whether an op is communication or work for the host, whose exposed time counts and not its whole time."""
    return op.axis is not None or op.kind in HOST_KINDS


def _simulated_step(experiment: TrainingExperiment, machine: Machine, granularity: AskedGranularity) -> TrainingStep:
    simulation = simulated_ops(experiment, machine, granularity)
    every = simulation.every
    communication_ops = [op for op in every.ops if is_beside_compute(op)]
    compute = every.mean(op.seconds for op in every.ops if not is_beside_compute(op))
    busy, exposed = (
        every.mean(op.seconds for op in communication_ops),
        every.mean(op.exposed_seconds for op in communication_ops),
    )
    latency = every.mean(simulation.latency[op.name] for op in communication_ops)
    hidden = without_rounding_error(busy - exposed, busy)
    return TrainingStep(
        seconds=every.seconds,
        compute=compute,
        latency=latency,
        transfer=busy - latency,
        hidden=hidden,
        waiting=without_rounding_error(every.seconds - compute - busy + hidden, every.seconds),
        contention=without_rounding_error(
            every.mean(simulation.contention.get(op.name, 0.0) for op in communication_ops), every.seconds
        ),
        exposed_seconds_by_axis={
            axis: op / every.steps for axis, op in exposed_seconds_by_axis(experiment, every.ops).items()
        },
        product_flops=every.mean(
            [total_flops(simulation.schedule, experiment.execution.choices) / simulation.schedule.grid.size]
        ),
        layers=experiment.problem.layers,
        bounded=simulation.bounded,
        even=simulation.even,
    )


def without_rounding_error(seconds: float, of: float) -> float:
    """The time [s], or 0 if it is a rounding error relative to the time `of` [s].

    >>> without_rounding_error(1e-14, of=2.0), without_rounding_error(0.5, of=2.0)
    (0.0, 0.5)
    """
    return seconds if seconds > ROUNDING * of else 0.0
