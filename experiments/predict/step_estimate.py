"""`step_estimate`: the time and memory of a training step in tenths of a second, before its prediction.

The time is the closed form by which `quadrille rank` orders configurations: a few layers and microbatches, combined in
the order of the pipeline's slots, with ring bandwidths computed from the links. The memory is that of the prediction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from quadrille.algorithms.training.memory import ON_HOST, largest_memory
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.prepared_experiment import with_machine_choices
from quadrille.experiments.predict.sampled_step import closed_form_step, sample_costs
from quadrille.experiments.workloads.product_peak import check_products
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.topologies.machines.machine import Machine

KEPT = 64
"""Number of samples whose costs are kept for other numbers of stages and microbatches."""


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """The estimate of a training step of a GPT.

    Parameters
    ----------
    seconds : time of the step by the closed form [s]
    memory_bytes_by_kind : memory of the fullest rank by kind [B]
    """

    seconds: float
    memory_bytes_by_kind: Mapping[str, int]

    @property
    def device_bytes(self) -> int:
        """The memory of the fullest rank on its device [B]."""
        return sum(size for kind, size in self.memory_bytes_by_kind.items() if kind != ON_HOST)


def step_estimate(experiment: TrainingExperiment, machine: Machine) -> StepEstimate:
    """The estimate of a training step of a GPT on a machine.

    Raises
    ------
    InputError : more ranks than the machine has GPUs, or products in a precision that its GPUs lack
    """
    check_products(experiment, machine)
    experiment = with_machine_choices(experiment, machine)
    execution = experiment.execution
    model = ClosedFormModel(machine, experiment.dtype, experiment.grid.size, execution.choices, execution.threads)
    costs_of = lru_cache(KEPT)(lambda sampled: sample_costs(sampled, model))
    step = closed_form_step(experiment, costs_of, model)
    memory = largest_memory(experiment.applied_schedule(), execution.choices)
    return StepEstimate(step.seconds, {str(kind): size for kind, size in memory.items()})
