"""Evaluates one configuration: bytes of the fullest rank, and seconds by the closed form or by simulation.

Both take a sample of the step (`quadrille.experiments.predict.sampled_step`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quadrille.algorithms.formats.record import Granularity
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.sampled_step import closed_form_step, sampled_step
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.bandwidths import Ring
from quadrille.experiments.rank.question import RankQuestion
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
        self._closed_form_model = ClosedFormModel(
            question.machine, dtype, gpus, execution.choices, execution.threads, rings
        )

    def bandwidth(self, experiment: TrainingExperiment, axis: Axis) -> float:
        """Bandwidth of the rings of an axis [B/s]."""
        return self._closed_form_model.ring_link(experiment.grid, axis).bandwidth

    def first_that_fits(self, alternatives: Sequence[TrainingExperiment]) -> Configuration | int:
        """The first alternative that fits in memory, or the fewest bytes that an alternative needs."""
        least = 0
        for experiment in alternatives:
            needed = experiment_peak_bytes(experiment)
            if self._placed.fits(self.machine, needed):
                return Configuration(experiment, closed_form_step(experiment, self._closed_form_model), needed)
            least = min(needed, least or needed)
        return least

    def fastest(self, alternatives: Sequence[TrainingExperiment]) -> Configuration:
        """The fastest of the rank orders, which all need the same memory; the first if several are equal."""
        seen = [(closed_form_step(experiment, self._closed_form_model), experiment) for experiment in alternatives]
        step, experiment = min(seen, key=lambda pair: float(f"{pair[0].seconds:.9e}"))
        return Configuration(experiment, step, experiment_peak_bytes(experiment))

    def simulated(self, experiment: TrainingExperiment, granularity: Granularity) -> TrainingStep:
        """The step of a configuration from a simulation of its sample."""
        return sampled_step(experiment, self.machine, granularity, self._closed_form_model)


def too_large(machine: Machine, experiment: TrainingExperiment, needed: int) -> str:
    """A message: the memory that a configuration needs and a device of the machine does not have."""
    held, least = format_bytes(machine.device.memory_bytes), format_bytes(needed)
    need = f"{experiment.scheme.name} on {experiment.grid} needs at least {least} a GPU"
    return f"{need}, and one of {machine.name} has {held}"
