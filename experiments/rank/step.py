"""Simulates one candidate: a training step on its grid, at a suitable granularity.

Where ops do not overlap, walking collectives as wholes gives what the exact
simulation gives, but for groups that meet on links at different times (80B on
1,024 GPUs of Perlmutter, z=512, x=2: 0.03 % more), and a step's seconds grow by
the same with every layer: a few layers are simulated, twice, and the rest
follows.  Where ops overlap, what one leaves of a link to others is known to the
exact simulation only (80B on 1,024 GPUs: 6 to 17 % more), and layers fall into
step after a while (a line through 2 and 3 layers of 24 was off by up to 50 %): all are
simulated, exactly, unless GPUs are very many.
"""

from quadrille.algorithms.formats.record import Granularity
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.predict.layer_extrapolation import FEW_LAYERS
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.predict.training_step import simulated_step as simulate_step
from quadrille.experiments.rank.question import RankQuestion

MANY_GPUS = 2048
"""GPUs above which grids are not simulated exactly, because a grid would take more than a minute."""


def simulated_step(question: RankQuestion, grid: Grid) -> TrainingStep:
    """The step of a grid as the simulator predicts it."""
    granularity = granularity_of(question)
    alike = granularity == "collective" and not question.training.execution.has_overlap
    depths = FEW_LAYERS if alike else None
    return simulate_step(question.experiment(grid), question.machine, granularity=granularity, depths=depths)


def granularity_of(question: RankQuestion) -> Granularity:
    """Granularity at which the grids of a question are simulated."""
    if question.granularity != "auto":
        return question.granularity
    if question.training.execution.choices.carriage == "nccl" or not question.training.execution.overlaps:
        return "collective"
    return "exact" if question.gpus <= MANY_GPUS else "collective"
