"""Stretches of equal turns of a loop, of which some may be left out.

Of a stretch the first turns are simulated until they are in rhythm (`period_detector.py`), and the
last ones.  Between them turns are left out, so that an op behind the gap may look for a copy
of a tensor that a turn in the gap would have written.  Whether that shows is seen from the
turns behind it, which must go on in the rhythm of those before it (`turns.py`): as many as
there are copies that take turns, after which all of them were written by turns that are there.
What follows the loop finds the copies of its last turns in any case.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from quadrille.algorithms.schedule.expressions import IntExpression, evaluate, variables
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.symmetry.signatures import LoopPosition, iteration_prefix, loop_position, outer_loops

LEAST = 4
"""Turns of a stretch that are simulated before the gap, at least."""
BEHIND = 2
"""Turns behind the gap at least."""
WORTH = 2
"""Stretches of so many times the turns that are simulated at least may be shortened."""

Iteration = tuple[LoopPosition, int]
"""Where a loop stands, and the how manieth turn of those that are simulated."""


@dataclass(frozen=True, slots=True)
class SkippedIterations:
    """A stretch of equal turns, of which some are left out.

    Parameters
    ----------
    loop : where it stands, see `signatures.py`
    first, left_out, stop, last : turns first .. left_out - 1 and stop .. last - 1 are simulated, left_out .. stop - 1
        are not
    """

    loop: LoopPosition
    first: int
    left_out: int
    stop: int
    last: int

    @property
    def count(self) -> int:
        """Turns that are left out."""
        return self.stop - self.left_out

    @property
    def simulated(self) -> int:
        """Turns that are not."""
        return self.last - self.first - self.count


@dataclass(frozen=True, slots=True)
class IterationRange:
    """Equal turns of a loop, long enough that some of them may be left out.

    Parameters
    ----------
    loop : where it stands, see `signatures.py`
    first, last : turns first .. last - 1 are equal
    behind : turns at the end that are simulated in any case
    """

    loop: LoopPosition
    first: int
    last: int
    behind: int


def iteration_ranges(
    turns: Mapping[LoopPosition, Sequence[int]], slots: Mapping[str, Sequence[int]] | None = None
) -> list[IterationRange]:
    """The stretches that are worth shortening, of the outermost loops that have some.

    >>> iteration_ranges({"i#0": [7] * 50 + [8] * 4, "i#0[0]/j#0": [9] * 99})
    [Stretch(loop='i#0', first=0, last=50, behind=2)]

    Parameters
    ----------
    turns : what is done in each turn, by loop, the outer ones first
    slots : by the name of a loop's index, how many copies of tensors it tells apart, see `copy_counts`
    """
    found: list[IterationRange] = []
    long: set[LoopPosition] = set()
    for loop, done in turns.items():
        first = 0
        if not long.isdisjoint(outer_loops(loop)):
            continue
        copies = (slots or {}).get(_name(loop), ())
        for _, alike in groupby(done):
            last = first + len(list(alike))
            behind = max([BEHIND, *(count for count in copies if count < (last - first) // WORTH)])
            if last - first >= WORTH * (LEAST + behind):
                found.append(IterationRange(loop, first, last, behind))
                long.add(loop)
            first = last
    return found


def shortest(stretch: IterationRange) -> SkippedIterations:
    """What is left out of a stretch that falls into a rhythm at once, a multiple of two turns.

    Where copies tell apart turns that are under way together, as microbatches of a pipeline, some ranks have entered
    as many turns when others end the first.

    >>> shortest(IterationRange("i#0", 0, 50, 2))
    Gap(loop='i#0', first=0, left_out=4, stop=48, last=50)
    >>> shortest(IterationRange("i#0", 0, 50, 8)).simulated
    18
    """
    apart = stretch.behind - BEHIND
    count = max(0, stretch.last - stretch.first - LEAST - apart - stretch.behind) // 2 * 2
    stop = stretch.last - stretch.behind
    return SkippedIterations(stretch.loop, stretch.first, stop - count, stop, stretch.last)


def _name(loop: LoopPosition) -> str:
    """The name of a loop's index.

    >>> _name("i#0[3]/j#1")
    'j'
    """
    return loop.rsplit("/", 1)[-1].split("#")[0]


def copy_counts(schedule: Schedule) -> dict[str, list[int]]:
    """By the name of a loop's index, the numbers of copies that it, or an index that begins at it, tells apart."""
    loops = [one for role in schedule.roles for one in _repeats(role.program)]
    begun: dict[str, set[str]] = {one.loop: {one.loop} for one in loops}
    for _ in begun:  # as often as indices can follow from one another
        for one in loops:
            for name in variables(one.first) & begun.keys():
                begun[name] |= begun[one.loop]
    copies = {one for tensor in schedule.tensors.values() for one in tensor.copies}
    counts = {
        loop: {count for name, one in copies if name == loop for count in _counts(one, schedule.grid)} for loop in begun
    }
    return {loop: sorted(set[int]().union(*(counts[name] for name in names))) for loop, names in begun.items()}


def _counts(count: IntExpression, grid: Grid) -> Iterator[int]:
    """The values that a number of copies has on the stages of a pipeline, as far as they tell it."""
    if isinstance(count, int):
        yield count
        return
    if variables(count) <= {"pipeline"}:
        for stage in range(grid.pipeline):
            yield evaluate(count, Coordinates(grid, {}, {"pipeline": stage}))


def _repeats(program: Program) -> Iterable[Repeat]:
    for entry in program:
        if isinstance(entry, Repeat):
            yield entry
            yield from _repeats(entry.body)


def walk_skipping(
    program: Program, place: Coordinates, gaps: Sequence[SkippedIterations]
) -> Iterator[tuple[Op, Coordinates, Iteration | None]]:
    """Ops of one rank in program order, each with its moment; turns that are left out are passed over.

    With each op comes its turn of the loop that has a gap, counted without those that are left out; None where no
    loop around it has one.
    """
    by_loop: dict[LoopPosition, list[SkippedIterations]] = {}
    for gap in gaps:
        by_loop.setdefault(gap.loop, []).append(gap)
    return _walk(program, place, by_loop, "", None)


def _walk(
    program: Program,
    place: Coordinates,
    gaps: Mapping[LoopPosition, Sequence[SkippedIterations]],
    within: str,
    turn: Iteration | None,
) -> Iterator[tuple[Op, Coordinates, Iteration | None]]:
    for at, entry in enumerate(program):
        if not isinstance(entry, Repeat):
            yield entry, place, turn
            continue
        loop = loop_position(program, at, within) if gaps else ""
        out = gaps.get(loop, ())
        for position, index in enumerate(entry.indices(place)):
            if any(gap.left_out <= position < gap.stop for gap in out):
                continue
            behind = sum(gap.count for gap in out if gap.stop <= position < gap.last)
            yield from _walk(
                entry.body,
                place.during(entry.loop, index),
                gaps,
                iteration_prefix(loop, position) if gaps else "",
                (loop, position - behind) if out else turn,
            )
