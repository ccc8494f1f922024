"""The unrolled program of a rank: every op instance, with the earlier instances that it waits for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.schedule.ops import Op, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule

MAX_CACHED_ENTRIES = 20_000
"""The most entries that are cached between repeats; a longer program is unrolled again in every repeat."""


@dataclass(frozen=True, slots=True)
class ProgramEntry:
    """One op instance of the unrolled program.

    Parameters
    ----------
    op : op of the schedule
    coordinates : grid coordinates of the rank and loop indices of the instance
    index : number of earlier instances of the op
    lane : queue in which the op runs: "compute", or an axis of the grid
    needs : positions in the program of the earlier entries that the instance waits for
    """

    op: Op
    coordinates: Coordinates
    index: int
    lane: str
    needs: tuple[int, ...]


class UnrolledProgram:
    """The op instances of one rank in program order, with all loops unrolled. They are cached unless there are many.

    Parameters
    ----------
    schedule : schedule with the programs of all ranks
    coordinates : grid coordinates of the rank
    """

    def __init__(self, schedule: Schedule, coordinates: Coordinates) -> None:
        self._schedule = schedule
        self._coordinates = coordinates
        self._cached_entries: list[ProgramEntry] | None = None

    def entries(self) -> Iterable[ProgramEntry]:
        """All entries in program order."""
        if self._cached_entries is None:
            beginning = list(islice(self._unroll(), MAX_CACHED_ENTRIES + 1))
            self._cached_entries = beginning if len(beginning) <= MAX_CACHED_ENTRIES else []
        return self._cached_entries or self._unroll()

    def _unroll(self) -> Iterator[ProgramEntry]:
        program = self._schedule.program(self._coordinates)
        dependencies: Dependencies[int] = Dependencies(self._schedule)
        counts: dict[str, int] = {}
        for position, (op, coordinates) in enumerate(walk(program, self._coordinates)):
            index = counts.get(op.name, 0)
            counts[op.name] = index + 1
            needs = tuple(dict.fromkeys(dependencies.enter(op, coordinates, position)))
            yield ProgramEntry(op, coordinates, index, lane(op), needs)
