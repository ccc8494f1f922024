"""What a sweep predicts at one point: an experiment on its grid, the best of all grids, or a collective."""

from dataclasses import dataclass
from math import inf

from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True)
class OneGrid:
    """An experiment on its own grid.

    Parameters
    ----------
    most_seconds : processor time after which the simulation is given up [s]
    """

    experiment: Experiment
    machine: Machine
    most_seconds: float = inf


@dataclass(frozen=True, slots=True)
class BestGrid:
    """An experiment on the fastest of all grids of so many GPUs.

    Parameters
    ----------
    experiment : the experiment on any grid
    top : how many grids are simulated, the first by the closed form
    most_seconds : processor time after which the simulation of a grid is given up [s]
    """

    experiment: Experiment
    gpus: int
    machine: Machine
    top: int = 3
    most_seconds: float = inf


@dataclass(frozen=True, slots=True)
class OneCollective:
    """A collective on a machine."""

    question: CollectiveQuestion
    machine: Machine


@dataclass(frozen=True, slots=True)
class Impossible:
    """A point that cannot be, and why."""

    reason: str


SweepPoint = OneGrid | BestGrid | OneCollective | Impossible
