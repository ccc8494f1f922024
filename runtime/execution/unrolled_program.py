"""The unrolled program of a rank: every op instance, with the earlier instances that it waits for.

Where messages decide the order of a pipeline stage's passes, the order is known only while the program runs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from quadrille.algorithms.analysis.dependencies import Dependencies, Undecided
from quadrille.algorithms.schedule.ops import Op, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import DrivenPasses, is_driven, walk, walk_around_passes
from quadrille.algorithms.schedule.schedule import Schedule

if TYPE_CHECKING:
    from quadrille.runtime.execution.buffers import Buffers

MAX_CACHED_ENTRIES = 20_000
"""The most entries that are cached between repeats; a longer program is unrolled again in every repeat."""


@dataclass(frozen=True, slots=True)
class ProgramEntry:
    """One op instance of the unrolled program.

    Parameters
    ----------
    op : op of the schedule
    coordinates : grid coordinates of the rank and loop indices of the instance
    position : number of earlier entries of the program
    index : number of earlier instances of the op
    lane : queue in which the op runs: "compute", or an axis of the grid
    needs : positions in the program of the earlier entries that the instance waits for
    """

    op: Op
    coordinates: Coordinates
    position: int
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

    def entries(
        self, end: Callable[[int], float | None], buffers: "Buffers"
    ) -> Iterable[ProgramEntry | Undecided[int]]:
        """All entries in program order; `Undecided` where the next one depends on which of some entries ends first.

        Parameters
        ----------
        end : the time at which the entry at a position ended; None if it has not ended
        buffers : blocks of the rank's tensors, in which ranks agree on the next pass
        """
        if is_driven(self._schedule.program(self._coordinates)):
            return self._unroll(end, buffers)
        if self._cached_entries is None:
            beginning = list(islice(self._static_entries(), MAX_CACHED_ENTRIES + 1))
            self._cached_entries = beginning if len(beginning) <= MAX_CACHED_ENTRIES else []
        return self._cached_entries or self._static_entries()

    def _static_entries(self) -> Iterator[ProgramEntry]:
        numbering = _Numbering(self._schedule)
        for op, coordinates in walk(self._schedule.program(self._coordinates), self._coordinates):
            yield numbering.enter(op, coordinates)

    def _unroll(
        self, end: Callable[[int], float | None], buffers: "Buffers"
    ) -> Iterator[ProgramEntry | Undecided[int]]:
        from quadrille.algorithms.analysis.driven_passes import MessageDrivenStage
        from quadrille.runtime.execution.pass_agreement import PassAgreement

        agreement = PassAgreement(buffers, self._coordinates)
        program = self._schedule.program(self._coordinates)
        numbering = _Numbering(self._schedule)

        def end_of(entry: ProgramEntry) -> float | None:
            return end(entry.position)

        for op, coordinates in walk_around_passes(program, self._coordinates):
            if isinstance(op, DrivenPasses):
                stage = MessageDrivenStage(
                    op, coordinates, numbering.enter, lambda entry: end(entry.position), agreement
                )
                for entry in stage.walk():
                    yield (
                        Undecided([needed.position for needed in entry.tokens])
                        if isinstance(entry, Undecided)
                        else entry
                    )
            else:
                yield numbering.enter(op, coordinates)


class _Numbering:
    """Numbers the op instances of a rank in the order in which they are entered."""

    def __init__(self, schedule: Schedule) -> None:
        self._dependencies: Dependencies[int] = Dependencies(schedule)
        self._counts: dict[str, int] = {}
        self._length = 0

    def enter(self, op: Op, coordinates: Coordinates) -> ProgramEntry:
        """The entry of the next op instance."""
        index, position = self._counts.get(op.name, 0), self._length
        self._counts[op.name] = index + 1
        self._length += 1
        needs = tuple(dict.fromkeys(self._dependencies.enter(op, coordinates, position)))
        return ProgramEntry(op, coordinates, position, index, lane(op), needs)
