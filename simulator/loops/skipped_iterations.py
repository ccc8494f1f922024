"""Ranges of equal loop iterations, and the iterations in them that need not be simulated.

The first iterations of a range are simulated until they are periodic (`period_detector.py`), and
the last ones are simulated too.  The iterations between are skipped, so an op after them may look
for a copy of a tensor that a skipped iteration would have written.  The iterations after the skipped
ones show whether that matters: they must continue the period (`restore.py`).  They are at least as
many as there are copies of a tensor, so later iterations read copies that simulated iterations wrote.
Ops after the loop read copies that the last iterations wrote.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from quadrille.algorithms.schedule.expressions import IntExpression, evaluate, variables
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, Repeat, repeats
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.symmetry.signatures import LoopPosition, iteration_prefix, loop_position, outer_loops

MIN_HEAD = 4
"""Smallest number of iterations that are simulated before skipped ones."""
MIN_TAIL = 2
"""Smallest number of iterations that are simulated after skipped ones."""
MIN_RATIO = 2
"""A range is shortened if it has at least this many times the iterations that must be simulated."""

Iteration = tuple[LoopPosition, int]
"""The position of a loop in the program, and the index of an iteration among the simulated ones."""


@dataclass(frozen=True, slots=True)
class SkippedIterations:
    """Iterations of a loop that are not simulated, within a range of equal iterations.

    Parameters
    ----------
    loop : position of the loop in the program, see `signatures.py`
    first, skip_start, skip_stop, stop : iterations first .. skip_start - 1 and skip_stop .. stop - 1 are simulated,
        skip_start .. skip_stop - 1 are not
    """

    loop: LoopPosition
    first: int
    skip_start: int
    skip_stop: int
    stop: int

    @property
    def count(self) -> int:
        """Number of skipped iterations."""
        return self.skip_stop - self.skip_start

    @property
    def simulated(self) -> int:
        """Number of simulated iterations of the range."""
        return self.stop - self.first - self.count


@dataclass(frozen=True, slots=True)
class IterationRange:
    """Equal iterations of a loop, enough that some of them may be skipped.

    Parameters
    ----------
    loop : position of the loop in the program, see `signatures.py`
    first, stop : iterations first .. stop - 1 are equal
    tail : number of iterations at the end that are always simulated
    """

    loop: LoopPosition
    first: int
    stop: int
    tail: int


def iteration_ranges(
    iterations: Mapping[LoopPosition, Sequence[int]], copies: Mapping[str, Sequence[int]] | None = None
) -> list[IterationRange]:
    """The ranges of equal iterations that are long enough to be shortened, of the outermost loops that have such
    ranges.

    >>> iteration_ranges({"i#0": [7] * 50 + [8] * 4, "i#0[0]/j#0": [9] * 99})
    [IterationRange(loop='i#0', first=0, stop=50, tail=2)]

    Parameters
    ----------
    iterations : signature of each iteration of each loop, outer loops first
    copies : numbers of tensor copies by the name of a loop's index, see `copy_counts`
    """
    ranges: list[IterationRange] = []
    shortened: set[LoopPosition] = set()
    for loop, signatures in iterations.items():
        first = 0
        if not shortened.isdisjoint(outer_loops(loop)):
            continue
        loop_copies = (copies or {}).get(_name(loop), ())
        for _, equal in groupby(signatures):
            stop = first + len(list(equal))
            tail = max([MIN_TAIL, *(count for count in loop_copies if count < (stop - first) // MIN_RATIO)])
            if stop - first >= MIN_RATIO * (MIN_HEAD + tail):
                ranges.append(IterationRange(loop, first, stop, tail))
                shortened.add(loop)
            first = stop
    return ranges


def most_skipped(iterations: IterationRange) -> SkippedIterations:
    """The skipped iterations of a range that is periodic at once, a multiple of two.

    If copies distinguish iterations that run at the same time, such as microbatches of a pipeline, some ranks
    have begun as many iterations when others end the first.

    >>> most_skipped(IterationRange("i#0", 0, 50, 2))
    SkippedIterations(loop='i#0', first=0, skip_start=4, skip_stop=48, stop=50)
    >>> most_skipped(IterationRange("i#0", 0, 50, 8)).simulated
    18
    """
    in_flight = iterations.tail - MIN_TAIL
    count = max(0, iterations.stop - iterations.first - MIN_HEAD - in_flight - iterations.tail) // 2 * 2
    skip_stop = iterations.stop - iterations.tail
    return SkippedIterations(iterations.loop, iterations.first, skip_stop - count, skip_stop, iterations.stop)


def _name(loop: LoopPosition) -> str:
    """Name of a loop's index.

    >>> _name("i#0[3]/j#1")
    'j'
    """
    return loop.rsplit("/", 1)[-1].split("#")[0]


def copy_counts(schedule: Schedule) -> dict[str, list[int]]:
    """Numbers of tensor copies that a loop index, or an index derived from it, distinguishes, by name of the index."""
    loops = [loop for role in schedule.roles for loop in repeats(role.program)]
    derived: dict[str, set[str]] = {loop.loop: {loop.loop} for loop in loops}
    for _ in derived:  # as often as indices can derive from one another
        for loop in loops:
            for name in variables(loop.first) & derived.keys():
                derived[name] |= derived[loop.loop]
    copies = {entry for tensor in schedule.tensors.values() for entry in tensor.copies}
    counts = {
        index: {value for name, count in copies if name == index for value in _counts(count, schedule.grid)}
        for index in derived
    }
    return {index: sorted(set[int]().union(*(counts[name] for name in names))) for index, names in derived.items()}


def _counts(count: IntExpression, grid: Grid) -> Iterator[int]:
    """Values of a number of copies on the stages of a pipeline, if it depends on the stage only."""
    if isinstance(count, int):
        yield count
        return
    if variables(count) <= {"pipeline"}:
        for stage in range(grid.pipeline):
            yield evaluate(count, Coordinates(grid, {}, {"pipeline": stage}))


def walk_skipping(
    program: Program, coordinates: Coordinates, skipped_ranges: Sequence[SkippedIterations]
) -> Iterator[tuple[Op, Coordinates, Iteration | None]]:
    """Ops of one rank in program order with their coordinates; skipped iterations are left out.

    Each op comes with its iteration of the loop that has skipped iterations, numbered without them; None if no loop
    around the op has any.
    """
    by_loop: dict[LoopPosition, list[SkippedIterations]] = {}
    for skipped in skipped_ranges:
        by_loop.setdefault(skipped.loop, []).append(skipped)
    return _walk(program, coordinates, by_loop, "", None)


def _walk(
    program: Program,
    coordinates: Coordinates,
    skipped_ranges: Mapping[LoopPosition, Sequence[SkippedIterations]],
    within: str,
    iteration: Iteration | None,
) -> Iterator[tuple[Op, Coordinates, Iteration | None]]:
    for at, entry in enumerate(program):
        if not isinstance(entry, Repeat):
            yield entry, coordinates, iteration
            continue
        loop = loop_position(program, at, within) if skipped_ranges else ""
        of_loop = skipped_ranges.get(loop, ())
        for position, index in enumerate(entry.indices(coordinates)):
            if any(skipped.skip_start <= position < skipped.skip_stop for skipped in of_loop):
                continue
            before = sum(skipped.count for skipped in of_loop if skipped.skip_stop <= position < skipped.stop)
            yield from _walk(
                entry.body,
                coordinates.during(entry.loop, index),
                skipped_ranges,
                iteration_prefix(loop, position) if skipped_ranges else "",
                (loop, position - before) if of_loop else iteration,
            )
