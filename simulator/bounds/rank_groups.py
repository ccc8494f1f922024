"""Which ranks follow one program, so that they are walked together, and what they are walked on."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from quadrille.algorithms.analysis.labels import Ints
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.bounds.concurrency import Together
from quadrille.simulator.bounds.loop_period import Loops
from quadrille.simulator.bounds.nccl_collectives import Nccl
from quadrille.simulator.bounds.op_inputs import Preparations
from quadrille.simulator.bounds.prices import Costs
from quadrille.simulator.bounds.supported import told_apart
from quadrille.simulator.bounds.work import Looks
from quadrille.topologies.machines.machine import Machine


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """What is walked, on what."""

    schedule: Schedule
    machine: Machine
    looks: Looks
    costs: Costs
    busy: Together
    loops: Loops
    prepared: Preparations
    nccl: Nccl | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The ranks of one program, rising, and the place of one of them; `at` where they are among all."""

    number: int
    ranks: Ints
    place: Coordinates
    at: Ints | slice

    @property
    def everyone(self) -> bool:
        return isinstance(self.at, slice)


def programs(schedule: Schedule) -> list[Ranks]:
    """Ranks that follow one program for the same number of turns, together."""
    grid = schedule.grid
    everyone, chosen = np.arange(grid.size), sorted(told_apart(schedule))
    found = []
    for at, coordinates in enumerate(product(*(range(grid.length(axis)) for axis in chosen))):
        ranks = everyone
        for axis, coordinate in zip(chosen, coordinates, strict=True):
            ranks = ranks[ranks // grid.stride(axis) % grid.length(axis) == coordinate]
        place = schedule.place(int(ranks[0]))
        found.append(Ranks(at, ranks, place, ranks if chosen else slice(None)))
    return found
