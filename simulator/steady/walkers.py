"""Which ranks follow one program, so that they are walked together, and what they are walked on."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from algorithms.collectives.choices import Choices
from algorithms.formats.machine import Machine
from algorithms.grid import AXES, Axis
from algorithms.numbers import variables
from algorithms.ops import Collective, Receive, Send
from algorithms.parts import Panel, Place
from algorithms.program import Program, Repeat
from algorithms.schedule import Schedule, all_ops
from simulator.folding.labels import Ints
from simulator.homes import Homes
from simulator.library import LibraryTimes
from simulator.steady.nccl_collectives import Nccl
from simulator.steady.preparations import Preparations
from simulator.steady.prices import Costs
from simulator.steady.repeating_turns import Loops
from simulator.steady.together import Together
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
    everyone, chosen = np.arange(grid.size), sorted(_told_apart(schedule))
    found = []
    for at, coordinates in enumerate(product(*(range(grid.length(axis)) for axis in chosen))):
        ranks = everyone
        for axis, coordinate in zip(chosen, coordinates, strict=True):
            ranks = ranks[ranks // grid.stride(axis) % grid.length(axis) == coordinate]
        place = schedule.place(int(ranks[0]))
        found.append(Ranks(at, ranks, place, ranks if chosen else slice(None)))
    return found


def _told_apart(schedule: Schedule) -> set[Axis]:
    """Axes by whose coordinate ranks follow programs of their own."""
    found: set[Axis] = {role.axis for role in schedule.roles if role.axis is not None}
    return found.union(*(_turning(role.program) for role in schedule.roles))


def _turning(program: Program) -> set[Axis]:
    """Axes on whose coordinate it depends how often something is repeated, and from which index on."""
    found: set[Axis] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            counts = {entry.count.shared_over} if isinstance(entry.count, Panel) else variables(entry.count)
            told = (*variables(entry.first), *counts)
            found |= {axis for axis in AXES if axis in told} | _turning(entry.body)
    return found


def why_impossible(schedule: Schedule, homes: Homes, choices: Choices) -> str:
    """Why a schedule cannot be walked so on a machine, in words; empty where it can."""
    if homes.pooled or len(homes.bursts):
        return f"{homes.machine.name} is a laboratory, whose hosts share cores and whose links have token buckets"
    told_apart, library = _told_apart(schedule), LibraryTimes(homes.machine, schedule.grid, homes)
    for op in all_ops(schedule):
        if isinstance(op, Collective) and choices.of(op.name).carriage == "library" and library.are_known(op):
            return f"op {op.name!r} takes what the MPI library was measured to take, which is no sum of its messages"
        if isinstance(op, Send | Receive):
            peer = op.to if isinstance(op, Send) else op.sender
            counting = {op.axis, *(axis for axis in AXES if axis in variables(peer))} - told_apart
            if counting:
                axis = min(counting)
                return f"op {op.name!r} goes to one rank or another by the coordinate of {axis}, which no role tells"
    return ""
