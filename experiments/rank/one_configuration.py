"""Evaluates one configuration: bytes of the fullest rank, and seconds by the closed form or by simulation.

Both take a few layers and microbatches on the ranks of one stage, and put them
together in the order of the pipeline's slots (`step_parts.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quadrille.algorithms.formats.record import Granularity
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.vocabulary import TABLE
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.predict.closed_form import Yardstick
from quadrille.experiments.predict.training_step import TrainingStep, noticed, ran_step
from quadrille.experiments.rank.bandwidths import Ring
from quadrille.experiments.rank.question import RankQuestion
from quadrille.experiments.rank.step_parts import hops_of, loops_of, parts_of, sample, stages_of
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration that trains the model.

    Parameters
    ----------
    step : training step by the closed form
    peak_bytes : memory of the fullest rank [B]
    """

    experiment: TrainingExperiment
    step: TrainingStep
    peak_bytes: int


class Evaluator:
    """Evaluates the configurations of a question; it caches the costs of hops.

    Parameters
    ----------
    rings : bandwidths that are not read off the links [B/s]
    """

    def __init__(self, question: RankQuestion, rings: Mapping[Ring, float]) -> None:
        execution, dtype, gpus = question.training.execution, question.training.dtype, question.gpus
        self.machine, self._placed = question.machine, fullest_device(question.machine, gpus)
        self._yardstick = Yardstick(question.machine, dtype, gpus, execution.choices, execution.threads, rings)

    def bandwidth(self, experiment: TrainingExperiment, axis: Axis) -> float:
        """Bandwidth of the rings of an axis [B/s]."""
        return self._yardstick.ring_link(experiment.grid, axis).bandwidth

    def first_that_fits(self, alternatives: Sequence[TrainingExperiment]) -> Configuration | int:
        """The first alternative that fits in memory, or the fewest bytes that an alternative needs."""
        least = 0
        for experiment in alternatives:
            needed = experiment_peak_bytes(experiment)
            if self._placed.fits(self.machine, needed):
                return Configuration(experiment, self._closed_form(experiment), needed)
            least = min(needed, least or needed)
        return least

    def fastest(self, alternatives: Sequence[TrainingExperiment]) -> Configuration:
        """The fastest of the rank orders, which all need the same memory; the first if several are equal."""
        seen = [(self._closed_form(experiment), experiment) for experiment in alternatives]
        step, experiment = min(seen, key=lambda pair: float(f"{pair[0].seconds:.9e}"))
        return Configuration(experiment, step, experiment_peak_bytes(experiment))

    def _closed_form(self, experiment: TrainingExperiment) -> TrainingStep:
        sampled = sample(experiment)
        schedule = sampled.applied_schedule()
        loops, priced = loops_of(schedule), list(self._yardstick.priced(schedule))
        local, moving = (
            parts_of(
                ((loops[op.name], cost) for op, _, cost in priced if isinstance(op, Communication) is moves), sampled
            )
            for moves in (False, True)
        )
        stages, hop = stages_of(experiment), self._hop(experiment)
        seconds = (local + moving).step(stages, hop) + self._exchange(experiment, schedule)
        compute, transfer = local.reporting(stages), moving.reporting(stages) + hops_of(stages) * hop
        waiting = noticed(seconds - compute - transfer, seconds)
        return TrainingStep(seconds=seconds, compute=compute, transfer=transfer, waiting=waiting, exposed_by_axis={})

    def _hop(self, experiment: TrainingExperiment) -> float:
        """Seconds that a microbatch's activations take from a stage to the next."""
        problem, grid, stream = experiment.problem, experiment.grid, experiment.scheme.stream
        if grid.pipeline == 1:
            return 0.0
        assert isinstance(problem, Gpt)
        elements = problem.tokens // stages_of(experiment).microbatches * problem.hidden
        for axis in (*stream.rows, *stream.finer, stream.columns):
            elements = -(-elements // grid.length(axis))
        size = elements * ITEM_BYTES[problem.dtype]
        return self._yardstick.hops.axis_link(grid, "pipeline", 1, size).seconds(size)

    def _exchange(self, experiment: TrainingExperiment, sampled: Schedule) -> float:
        """Seconds in which the first and the last stage exchange their parts of a shared table's gradient."""
        assert isinstance(experiment.problem, Gpt)
        if experiment.grid.pipeline == 1 or not experiment.problem.architecture.shared_table:
            return 0.0
        gradient = f"d{TABLE}"
        size = sampled.tensors[gradient].block(sampled.coordinates(0)).elements * sampled.item_bytes(gradient)
        return 2 * self._yardstick.hops.axis_link(
            experiment.grid, "pipeline", experiment.grid.pipeline - 1, size
        ).seconds(size)

    def simulated(self, experiment: TrainingExperiment, granularity: Granularity) -> TrainingStep:
        """The step of a configuration from a simulation of its sample.

        Waiting for the last member of a group belongs to no op; it is spread over all parts in proportion.
        """
        sampled = sample(experiment)
        ran = ran_step(sampled, self.machine, granularity)
        loops, stages, hop = loops_of(ran.schedule), stages_of(experiment), self._hop(experiment)

        def reporting(seconds: Mapping[str, float]) -> float:
            return parts_of(((loops[name], each) for name, each in seconds.items()), sampled).reporting(stages)

        local = {op.name: op.seconds for op in ran.every.ops if op.axis is None}
        moving = {op.name: op for op in ran.every.ops if op.axis is not None}
        exposed = {name: op.exposed_seconds for name, op in moving.items()}
        charged = parts_of(((loops[name], each) for name, each in (local | exposed).items()), sampled)
        waits = ran.every.seconds / sum((local | exposed).values())
        seconds = charged.times(waits).step(stages, hop) + self._exchange(experiment, ran.schedule)
        compute, busy = reporting(local), reporting({name: op.seconds for name, op in moving.items()})
        latency, sent = reporting(ran.latency), hops_of(stages) * hop
        hidden = noticed(busy - reporting(exposed), busy)
        by_axis: dict[Axis, float] = {
            axis: reporting({name: each for name, each in exposed.items() if moving[name].axis == axis})
            for axis in sampled.grid.lengths
            if sampled.grid.length(axis) > 1
        }
        return TrainingStep(
            seconds=seconds,
            compute=compute,
            latency=latency,
            transfer=busy - latency + sent,
            hidden=hidden,
            waiting=noticed(seconds - compute - busy - sent + hidden, seconds),
            contention=noticed(reporting({name: ran.contention.get(name, 0.0) for name in moving}), seconds),
            exposed_by_axis=by_axis | ({"pipeline": sent} if sent else {}),
            layers=stages_of(sampled).layers,
            bounded=ran.bounded,
            even=ran.even,
        )


def too_large(machine: Machine, experiment: TrainingExperiment, needed: int) -> str:
    """A message: the memory that a configuration needs and a device of the machine does not have."""
    held, least = format_bytes(machine.device.memory_bytes), format_bytes(needed)
    need = f"{experiment.scheme.name} on {experiment.grid} needs at least {least} a GPU"
    return f"{need}, and one of {machine.name} has {held}"
