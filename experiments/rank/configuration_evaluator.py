"""`Evaluator`: the largest memory of a rank, and the step time by closed form or simulation, of a configuration.

Both times come from a sample of the step (`quadrille.experiments.predict.sampled_step`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import Axis
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.sampled_step import closed_form_step, sample_costs, sampled_step
from quadrille.experiments.predict.training_step import TrainingStep, simulated_ops, simulated_step
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ring_bandwidths import Ring
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.no_grid import TooLarge
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.ranks.host_links import host_memory_shortage

SIMULATIONS_KEPT = 4
"""Number of simulated samples that are kept for further orders of passes."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration that fits in memory.

    Parameters
    ----------
    experiment : training step with its grid, scheme and microbatch
    step : training step by the closed form
    peak_bytes : largest memory of a rank [B]
    """

    experiment: TrainingExperiment
    step: TrainingStep
    peak_bytes: int


def speed_key(step: TrainingStep) -> tuple[float, float]:
    """A sort key of a step: its time, then its communication, of which overlap may hide less than the closed form says.

    Times that differ by rounding errors are equal.
    """
    return float(f"{step.seconds:.9e}"), float(f"{step.latency + step.transfer:.9e}")


class Evaluator:
    """Evaluates the configurations of a question; it caches the costs of hops and of samples.

    Parameters
    ----------
    rings : bandwidth of rings by stride and length [B/s]; other bandwidths are computed from the links
    """

    def __init__(self, question: RankQuestion, rings: Mapping[Ring, float]) -> None:
        execution, dtype, gpus = question.training.execution, question.training.dtype, question.gpus
        self.machine, self._placed = question.machine, fullest_device(question.machine, gpus)
        self._closed_form_model = ClosedFormModel(
            question.machine, dtype, gpus, execution.choices, execution.threads, rings
        )
        self._costs_of = cache(lambda sampled: sample_costs(sampled, self._closed_form_model))
        self._ops_of = lru_cache(SIMULATIONS_KEPT)(
            lambda sampled, granularity: simulated_ops(sampled, self.machine, granularity)
        )

    def bandwidth(self, experiment: TrainingExperiment, axis: Axis) -> float:
        """Bandwidth of the rings of an axis [B/s]."""
        return self._closed_form_model.ring_link(experiment.grid, axis).bandwidth

    def first_fitting(self, alternatives: Sequence[TrainingExperiment]) -> Configuration | TooLarge:
        """The first alternative that fits in memory, or the alternative that needs the least memory."""
        too_large: list[TooLarge] = []
        for experiment in alternatives:
            needed = experiment_peak_bytes(experiment)
            if not self._placed.fits(self.machine, needed):
                too_large.append(TooLarge(experiment, needed))
            elif shortage := self._host_shortage(experiment):
                too_large.append(TooLarge(experiment, needed, host_shortage=shortage))
            else:
                return Configuration(experiment, self._step(experiment), needed)
        return min(too_large, key=lambda step: step.order)

    def _host_shortage(self, experiment: TrainingExperiment) -> str:
        """The bytes of an offloaded optimizer that the memory of a host does not hold, as text; empty if it does."""
        link = self.machine.host_link
        if experiment.problem.offload is None or link is None:
            return ""
        schedule, placement = experiment.applied_schedule(), place_ranks(self.machine, experiment.grid.size)
        return host_memory_shortage(schedule, placement, link, experiment.execution.choices)

    def fastest(self, alternatives: Sequence[TrainingExperiment]) -> Configuration:
        """The fastest of the alternatives, which differ in rank order only; the first if several are equal."""
        evaluated = [(self._step(experiment), experiment) for experiment in alternatives]
        step, experiment = min(evaluated, key=lambda pair: speed_key(pair[0]))
        return Configuration(experiment, step, experiment_peak_bytes(experiment))

    def simulated(self, experiment: TrainingExperiment, granularity: AskedGranularity) -> TrainingStep:
        """The training step of a configuration: simulated, or of a pipeline, from a simulation of its sample."""
        if experiment.grid.pipeline == 1:
            return simulated_step(experiment, self.machine, granularity=granularity)
        return sampled_step(experiment, lambda sampled: self._ops_of(sampled, granularity), self._closed_form_model)

    def simulated_in_full(self, experiment: TrainingExperiment, granularity: AskedGranularity) -> TrainingStep:
        """The training step of a configuration, simulated with all its layers and microbatches, as `simulate` does."""
        return simulated_step(experiment, self.machine, granularity=granularity)

    def _step(self, experiment: TrainingExperiment) -> TrainingStep:
        return closed_form_step(experiment, self._costs_of, self._closed_form_model)
