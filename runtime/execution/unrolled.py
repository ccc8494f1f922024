"""The unrolled program of a rank: every op instance, with the earlier instances that it waits for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.schedule.ops import Op, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule

ENTRIES_KEPT = 20_000
"""Most entries that are kept between repeats; a longer program is unrolled again in every repeat."""


@dataclass(frozen=True, slots=True)
class ProgramEntry:
    """One op instance of the unrolled program.

    Parameters
    ----------
    needs : positions of the earlier entries that it waits for
    """

    op: Op
    place: Coordinates
    index: int
    lane: str
    needs: tuple[int, ...]


class UnrolledProgram:
    """The unrolled program at some coordinates. It is cached unless it is long."""

    def __init__(self, schedule: Schedule, place: Coordinates) -> None:
        self._schedule = schedule
        self._place = place
        self._kept: list[ProgramEntry] | None = None

    def entries(self) -> Iterable[ProgramEntry]:
        """All entries in program order."""
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
