"""A rank's program op by op, each with the earlier ones that it waits for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.schedule.ops import Op, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule

ENTRIES_KEPT = 20_000
"""Ops of a program that are kept unrolled from one repeat to the next; a longer program is walked each time."""


@dataclass(frozen=True, slots=True)
class ProgramEntry:
    """One instance of an op as it stands in the unrolled program; `needs` are positions of earlier entries."""

    op: Op
    place: Coordinates
    index: int
    lane: str
    needs: tuple[int, ...]


class UnrolledProgram:
    """The unrolled program of the rank at a place; kept for the next time unless it is long."""

    def __init__(self, schedule: Schedule, place: Coordinates) -> None:
        self._schedule = schedule
        self._place = place
        self._kept: list[ProgramEntry] | None = None

    def entries(self) -> Iterable[ProgramEntry]:
        if self._kept is None:
            beginning = list(islice(self._follow(), ENTRIES_KEPT + 1))
            self._kept = beginning if len(beginning) <= ENTRIES_KEPT else []
        return self._kept or self._follow()

    def _follow(self) -> Iterator[ProgramEntry]:
        program = self._schedule.program(self._place)
        dependencies: Dependencies[int] = Dependencies(self._schedule)
        counts: dict[str, int] = {}
        for position, (op, moment) in enumerate(walk(program, self._place)):
            index = counts.get(op.name, 0)
            counts[op.name] = index + 1
            needs = tuple(dict.fromkeys(dependencies.enter(op, moment, position)))
            yield ProgramEntry(op, moment, index, lane(op), needs)
