"""Whether a training step with a pipeline is so long that only a walk through its passes predicts it quickly."""

from collections import Counter
from typing import TYPE_CHECKING

from quadrille.algorithms.training.single_passes import sections, with_single_passes
from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.simulator.ranks.lane_simulation import OP_WALL_SECONDS

if TYPE_CHECKING:
    from quadrille.simulator.simulate import Limits

BOUNDS_OP_WALL_SECONDS = 3e-4
"""Wall time of one op of one stage in the bounds of collective granularity, which walk all ranks twice [s]."""
LONG_BOUNDS_SECONDS = 5.0
"""Longest expected wall time of bounds that `auto` starts where it may go by passes [s]."""


def passes_are_quicker(prepared: PreparedExperiment, limits: "Limits") -> bool:
    """Whether passes are supported, and those of one rank of each stage take longer to simulate than `auto` allows.

    Static schedules that the exact simulation knows are left to it, because it skips microbatches that repeat.  With
    noise, it simulates all ranks and all microbatches.  The bounds of NCCL's collectives walk every microbatch.
    """
    experiment, schedule = prepared.experiment, prepared.simulated_schedule
    if not isinstance(experiment, TrainingExperiment) or experiment.stages.count == 1:
        return False
    choices = experiment.execution.choices
    jitter = experiment.execution.jitter
    has_noise = jitter is not None and jitter.draws
    if not schedule.driven and choices.implementation != "nccl" and not has_noise:
        return False
    from quadrille.experiments.predict.pass_prediction import unsupported_passes

    if unsupported_passes(experiment):
        return False
    stages, single = experiment.stages, with_single_passes(schedule, experiment.stages)
    ranks = [schedule.grid.rank_at({"pipeline": stage}) for stage in range(stages.count)]
    phases = Counter(section.phase for rank in ranks for _, _, section in sections(single, rank) if not section.of_last)
    simulated = phases["passes"] * (schedule.grid.size // stages.count if has_noise else 1)
    walked = simulated * stages.microbatches
    if choices.implementation == "nccl" and not schedule.driven and not has_noise:
        return walked * BOUNDS_OP_WALL_SECONDS > min(LONG_BOUNDS_SECONDS, limits.long_seconds)
    return walked * OP_WALL_SECONDS > limits.long_seconds
