"""The kinds of points of a sweep: an experiment on its own grid, an experiment on its best grid, or a collective."""

from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from quadrille.algorithms.tabular import ShortRepr
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.predict.prepared_experiment import with_machine_choices
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True, repr=False)
class OneGrid(ShortRepr):
    """A point that is an experiment on its own grid.

    Parameters
    ----------
    most_seconds : processor time after which the simulation stops [s]
    """

    experiment: Experiment
    machine: Machine
    most_seconds: float = inf


@dataclass(frozen=True, slots=True, repr=False)
class BestGrid(ShortRepr):
    """A point that is an experiment on the fastest of all grids of a number of GPUs.

    Parameters
    ----------
    experiment : experiment on any grid
    gpus : number of GPUs
    top : number of grids that are simulated: the first by the closed form
    most_seconds : processor time after which the simulation of a grid stops [s]
    """

    experiment: Experiment
    gpus: int
    machine: Machine
    top: int = 3
    most_seconds: float = inf


@dataclass(frozen=True, slots=True, repr=False)
class OneCollective(ShortRepr):
    """A point that is a collective on a machine."""

    question: CollectiveQuestion
    machine: Machine


@dataclass(frozen=True, slots=True)
class Impossible:
    """A point that is not possible, and the reason."""

    reason: str


SweepPoint = OneGrid | BestGrid | OneCollective | Impossible
OfExperiment = TypeVar("OfExperiment", OneGrid, BestGrid)


def with_point_choices(point: OfExperiment) -> OfExperiment:
    """The point with the collectives of its machine, if its experiment names none."""
    return replace(point, experiment=with_machine_choices(point.experiment, point.machine))
