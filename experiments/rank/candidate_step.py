"""The simulation of a candidate grid: a training step, at exact or collective granularity.

If ops do not overlap, collective granularity gives the exact time, except for groups that
share links at different times (80B on 1,024 GPUs of Perlmutter, z=512, x=2: 0.03 % more).
Every layer then adds the same time, so two simulations of few layers determine the step.

If ops overlap, only the exact simulation knows the bandwidth that overlapping collectives
leave to each other (80B on 1,024 GPUs: 6 to 17 % more), and layers add the same time only
after several layers (extrapolation from 2 and 3 layers of 24 was off by up to 50 %).  All
layers are therefore simulated exactly, up to `MANY_GPUS` GPUs.
"""

from quadrille.algorithms.formats.record import Granularity
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.predict.layer_extrapolation import FEW_LAYERS
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.predict.training_step import simulated_step as simulate_step
from quadrille.experiments.rank.rank_question import RankQuestion

MANY_GPUS = 2048
"""Number of GPUs above which grids are not simulated exactly, because a grid would take more than a minute."""


def simulated_step(question: RankQuestion, grid: Grid) -> TrainingStep:
    """The simulated training step of a question on a grid."""
    granularity = granularity_of(question)
    layers_are_equal = granularity == "collective" and not question.training.execution.has_overlap
    depths = FEW_LAYERS if layers_are_equal else None
    return simulate_step(question.experiment(grid), question.machine, granularity=granularity, depths=depths)


def granularity_of(question: RankQuestion, many_gpus: int = MANY_GPUS) -> Granularity:
    """The granularity at which the grids of a question are simulated."""
    if question.granularity != "auto":
        return question.granularity
    if question.training.execution.choices.implementation == "nccl" or not question.training.execution.overlaps:
        return "collective"
    return "exact" if question.gpus <= many_gpus else "collective"
