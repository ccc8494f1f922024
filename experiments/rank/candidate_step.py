"""The simulation of a candidate grid, as `quadrille simulate` predicts it."""

from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.predict.training_step import simulated_step as simulate_step
from quadrille.experiments.rank.rank_question import RankQuestion


def simulated_step(question: RankQuestion, grid: Grid) -> TrainingStep:
    """The simulated training step of a question on a grid."""
    return simulate_step(question.experiment(grid), question.machine, granularity=question.granularity)
