"""`Evaluator`: the largest memory of a rank, and the step time by closed form or simulation, of a configuration.

Both times come from a sample of the step (`quadrille.experiments.predict.sampled_step`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from sys import maxsize

from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.sampled_step import closed_form_bound, closed_form_step, sample_costs, sampled_step
from quadrille.experiments.predict.training_step import TrainingStep, simulated_ops, simulated_step
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ring_bandwidths import Ring
from quadrille.experiments.tasks.task_digest import task_digest
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.no_grid import TooLarge
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes, schedule_peak_bytes
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
    experiments : all configurations; where the smallest microbatch of a grid does not fit, its others do not either
    """

    def __init__(
        self, question: RankQuestion, rings: Mapping[Ring, float], experiments: Iterable[TrainingExperiment] = ()
    ) -> None:
        execution, dtype, gpus = question.training.execution, question.training.dtype, question.gpus
        self.machine, self._placed = question.machine, fullest_device(question.machine, gpus)
        self._closed_form_model = ClosedFormModel(
            question.machine, dtype, gpus, execution.choices, execution.threads, rings
        )
        self._costs_of = cache(lambda sampled: sample_costs(sampled, self._closed_form_model))
        self._ops_of = lru_cache(SIMULATIONS_KEPT)(
            lambda sampled, granularity: simulated_ops(sampled, self.machine, granularity)
        )
        self._rings = rings
        self._smallest = _smallest_microbatches(experiments)
        self._needed_by = cache(self._needed_alone)
        self._has_fitted = False

    @cached_property
    def rings_digest(self) -> str:
        """The hash of the bandwidths of rings, which decide closed-form times."""
        return task_digest("rings", self._rings).hex()

    def smallest(self, experiment: TrainingExperiment) -> TrainingExperiment:
        """The configuration with the smallest microbatch of all that differ in it alone."""
        return self._smallest.get(_without_microbatch(experiment), experiment)

    def bandwidth(self, experiment: TrainingExperiment, axis: Axis) -> float:
        """Bandwidth of the rings of an axis [B/s]."""
        return self._closed_form_model.ring_link(experiment.grid, axis).bandwidth

    def first_fitting(self, alternatives: Sequence[TrainingExperiment]) -> Configuration | TooLarge:
        """The first alternative that fits in memory, or the alternative that needs the least memory.

        Alternatives have ever smaller microbatches, so where one does not fit, none before it does: the first is tried,
        then the last, then those between by halves.
        """
        last, fitting = len(alternatives) - 1, dict[int, int]()
        too_large: list[TooLarge] = []

        def fits(place: int) -> bool:
            result = self._needed(alternatives[place])
            if isinstance(result, TooLarge):
                too_large.append(result)
            else:
                fitting[place] = result
            return place in fitting

        if not fits(0):
            if last == 0 or not fits(last):
                return min(too_large, key=lambda step: step.order)
            bisect_left(range(last), True, lo=1, key=fits)
        first = min(fitting)
        return Configuration(alternatives[first], self._step(alternatives[first]), fitting[first])

    def _needed(self, experiment: TrainingExperiment) -> int | TooLarge:
        """The largest memory of a rank [B], or what does not suffice for it or for a smaller microbatch.

        Until a configuration fits, the smallest microbatch is tried first, which tells of all.
        """
        smallest = self.smallest(experiment)
        result = self._needed_by(experiment if self._has_fitted else smallest)
        if isinstance(result, TooLarge):
            return self._needed_by(smallest) if isinstance(self._needed_by(smallest), TooLarge) else result
        self._has_fitted = True
        return self._needed_by(experiment)

    def _needed_alone(self, experiment: TrainingExperiment) -> int | TooLarge:
        """The largest memory of a rank [B], or what does not suffice for it."""
        schedule = experiment.applied_schedule()
        needed = schedule_peak_bytes(schedule, experiment.execution.choices)
        if not self._placed.fits(self.machine, needed):
            return TooLarge(experiment, needed)
        if shortage := self._host_shortage(experiment, schedule):
            return TooLarge(experiment, needed, host_shortage=shortage)
        return needed

    def _host_shortage(self, experiment: TrainingExperiment, schedule: Schedule) -> str:
        """The bytes of an offloaded optimizer that the memory of a host does not hold, as text; empty if it does."""
        link = self.machine.host_link
        if experiment.problem.offload is None or link is None:
            return ""
        placement = place_ranks(self.machine, experiment.grid.size)
        return host_memory_shortage(schedule, placement, link, experiment.execution.choices)

    def fastest(self, alternatives: Sequence[TrainingExperiment]) -> Configuration:
        """The fastest of the alternatives, which differ in rank order only; the first if several are equal."""
        evaluated = [(self._step(experiment), experiment) for experiment in alternatives]
        step, experiment = min(evaluated, key=lambda pair: speed_key(pair[0]))
        return Configuration(experiment, step, experiment_peak_bytes(experiment))

    def modelled(self, alternatives: Sequence[TrainingExperiment]) -> TrainingStep:
        """The training step of the first alternative by the closed form."""
        return self._step(alternatives[0])

    def least_seconds(self, alternatives: Sequence[TrainingExperiment]) -> float:
        """A lower bound of the closed-form time of the first alternative [s]."""
        return float(f"{closed_form_bound(alternatives[0], self._costs_of):.9e}")

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


def _without_microbatch(experiment: TrainingExperiment) -> TrainingExperiment:
    """The configuration without its microbatch: equal for configurations that differ in it alone."""
    return replace(experiment, problem=replace(experiment.problem, micro_batch=None))


def _smallest_microbatches(experiments: Iterable[TrainingExperiment]) -> dict[TrainingExperiment, TrainingExperiment]:
    """The configuration with the smallest microbatch, by the configuration without one."""
    smallest: dict[TrainingExperiment, TrainingExperiment] = {}
    for experiment in experiments:
        least = smallest.setdefault(_without_microbatch(experiment), experiment)
        if (experiment.problem.micro_batch or maxsize) < (least.problem.micro_batch or maxsize):
            smallest[_without_microbatch(experiment)] = experiment
    return smallest
