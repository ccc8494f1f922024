"""Small questions of `quadrille rank`, with their search spaces and answers."""

from functools import cache

from quadrille.cli.parsing.flags import RankFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.ranking import parse_question, parse_space
from quadrille.experiments.predict import training_step
from quadrille.experiments.rank.rank import ranking

ON = MachineFlags(machine="perlmutter")
SIZES = {"gpt": "layers=4,hidden=1024,heads=8,sequence=512,vocabulary=6400", "batch": "4", "gpus": "2"}
WORDS = ["--gpt", SIZES["gpt"], "--batch", "4", "--gpus", "2", "--machine", "perlmutter"]


def flags(**more):
    """The flags of a question that searches nothing beside the grid, unless `more` says so."""
    return RankFlags(**(SIZES | {"search": "none"} | more))


def question(**more):
    return parse_question(flags(**more), ON)


def space(**more):
    return parse_space(flags(**more))


@cache
def ranked(**more):
    """The answer to a question, which several tests look at."""
    return ranking(question(**more), space(**more))


def simulated_step(asked, grid):
    """The simulated training step of a question on a grid."""
    return training_step.simulated_step(asked.experiment(grid), asked.machine, granularity=asked.granularity)
