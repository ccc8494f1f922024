"""Schedules in which each pipeline stage runs one pass of each kind: the passes of the first microbatch.

If the last microbatch is smaller, the stages run its passes too.

A prediction of whole steps from the times of single passes simulates such a schedule.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from quadrille.algorithms.analysis.folded_walk import different_iterations
from quadrille.algorithms.schedule.expressions import IntExpression, Lookup
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import DrivenPasses, Pass, PassKind, Program, Repeat, repeats, walk
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.v_order import v_order
from quadrille.algorithms.training.adam import STEP
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.algorithms.training.pipeline import CHUNK, DECISION, SLOT, STAGE, Stages

Phase = Literal["setup", "before", "passes", "after"]
"""Part of a program: before the first step, and in each step before, during and after the passes of the stage."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the program of a pipeline stage: a phase or, during the passes, a pass through one chunk."""

    phase: Phase
    kind: PassKind = "F"
    chunk: int = 0
    of_last: bool = False
    """Whether the pass is one of a smaller last microbatch."""


def with_single_passes(schedule: Schedule, stages: Stages) -> Schedule:
    """The schedule with one step, in which each stage passes the first microbatch through each of its chunks.

    A smaller last microbatch follows.

    Parameters
    ----------
    schedule : schedule of training steps with several pipeline stages
    stages : stages of the pipeline
    """
    last_differs = bool(different_iterations(schedule))
    microbatches = (0, stages.microbatches - 1) if last_differs else (0,)
    return schedule.with_program(lambda program: tuple(_one_step(entry, stages, microbatches) for entry in program))


def agrees_alone(op: Op, grid: Grid) -> bool:
    """Whether an op is an agreement on the next pass along an axis with one rank; interpreters skip it."""
    return isinstance(op, AllReduce) and op.buffer == DECISION and grid.length(op.axis) == 1


def _one_step(entry: Op | Repeat, stages: Stages, microbatches: Sequence[int]) -> Op | Repeat:
    if not isinstance(entry, Repeat) or entry.loop != STEP:
        return entry
    body: list[Op | Repeat] = []
    passes = [each for each in entry.body if is_passes(each)]
    for each in entry.body:
        if not is_passes(each):
            body.append(each)
        elif each is passes[0]:
            body += _single_passes(tuple(passes), stages, microbatches)
    return replace(entry, count=1, body=tuple(body))


def is_passes(entry: Op | Repeat) -> bool:
    """Whether an entry of a step's program runs passes of a pipeline stage."""
    return isinstance(entry, DrivenPasses) or (isinstance(entry, Repeat) and entry.loop == SLOT)


def _single_passes(passes: Program, stages: Stages, microbatches: Sequence[int]) -> Program:
    """The passes of some microbatches through each chunk, one microbatch after the other."""
    slots = [each for each in (*repeats(passes), *passes) if isinstance(each, Repeat) and each.loop == SLOT]
    by_kind: dict[PassKind, Op | Repeat] = {}
    for entry in (each for slot in slots for each in slot.body):
        for kind in {each.kind for each in repeats((entry,)) if isinstance(each, Pass)}:
            by_kind.setdefault(kind, entry)
    return tuple(
        Repeat(SLOT, 1, (by_kind[kind],), first=slot)
        for microbatch in microbatches
        for kind, slot in _slots_of(stages, microbatch)
        if kind in by_kind
    )


def _slots_of(stages: Stages, microbatch: int) -> list[tuple[PassKind, IntExpression]]:
    """Kind and number of the slot in which a microbatch passes through each chunk."""
    if not stages.v_placed:
        slots = [stages.slot_of(chunk, microbatch) for chunk in range(stages.chunks)]
        return [(kind, slot) for kind in get_args(PassKind) for slot in slots]
    orders = [v_order(stages.count, stage, stages.microbatches) for stage in range(stages.count)]
    return [
        (kind, Lookup((tuple(order.index((kind, chunk, microbatch)) for order in orders),), (0, STAGE)))
        for kind, chunk, _ in v_order(stages.count, 0, 1)
    ]


def sections(schedule: Schedule, rank: int) -> Iterator[tuple[Op, Coordinates, Section]]:
    """Yields the ops of one rank in program order, with the section of its stage; passes that are skipped have none.

    Parameters
    ----------
    schedule : schedule of `with_single_passes`
    rank : number of the rank
    """
    coordinates = schedule.coordinates(rank)
    for entry in schedule.program(coordinates):
        if isinstance(entry, Repeat) and entry.loop == STEP:
            yield from _sections_of_step(entry.body, coordinates.during(STEP, 0))
        else:
            yield from ((op, place, Section("setup")) for op, place in walk((entry,), coordinates))


def _sections_of_step(body: Program, coordinates: Coordinates) -> Iterator[tuple[Op, Coordinates, Section]]:
    section = Section("before")
    for entry in body:
        if isinstance(entry, Repeat) and is_passes(entry):
            section = Section("passes", next(each.kind for each in repeats((entry,)) if isinstance(each, Pass)))
        elif section.phase == "passes":
            section = Section("after")
        for op, place in walk((entry,), coordinates):
            yield op, place, _at(section, place) if section.phase == "passes" else section


def _at(section: Section, place: Coordinates) -> Section:
    """The section of a pass with the chunk and the microbatch of an op in it."""
    return replace(section, chunk=place.variable(CHUNK), of_last=place.variable(MICROBATCH) > 0)
