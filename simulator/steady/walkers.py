"""Which ranks follow one program, so that they are walked together, and what they are walked on."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from algorithms.formats.machine import Machine
from algorithms.parts import Place
from algorithms.schedule import Schedule
from simulator.folding.labels import Ints
from simulator.steady.nccl_collectives import Nccl
from simulator.steady.preparations import Preparations
from simulator.steady.prices import Costs
from simulator.steady.repeating_turns import Loops
from simulator.steady.together import Together
from simulator.steady.walkable import told_apart
from simulator.steady.work import Looks


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
    place: Place
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
