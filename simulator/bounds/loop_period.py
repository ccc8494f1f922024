"""Loop periods of the bounds walk: detects iterations that repeat, so that the walk can skip them.

Theory of operation
-------------------
Times are maxima of sums. Let every op of an iteration, on every rank, end T later
than the same op one iteration before, and let that hold in two successive
iterations. What an op waits for was then written T later too, or is older than the
loop. Of two times that are compared, the larger decides; if it advanced by T, it
decides again, and the other advanced by T as well or stayed. So the next iteration
ends T later, and so do all that follow; each row of times has a T of its own.

Ranks that do not communicate in the loop do not affect each other, so each such
component of ranks has a T of its own. Where the ops of a component do not advance
equally, but by at least a > 0 and at most b, those of the next iteration do so
again, because maxima of sums lie between the same limits. The lowest row then
advances by a and the highest by b, so both remain bounds. The typical row advances
by b, because ranks that wait for the slowest will go as slowly.

The walk then skips iterations: all times written in the loop are shifted, totals
get the sums of one iteration as often, and the last iterations are walked again,
as many as there are copies of tensors that are used in turn.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from math import inf

import numpy as np

from quadrille.algorithms.analysis.equality_labels import Ints, distinct_values
from quadrille.algorithms.passes.rewriting import is_layer_loop
from quadrille.algorithms.schedule.expressions import variables
from quadrille.algorithms.schedule.grid import AXES
from quadrille.algorithms.schedule.ops import Communication, Op
from quadrille.algorithms.schedule.parts import Coordinates, Panel
from quadrille.algorithms.schedule.program import Program, Repeat, ops, repeats
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.bounds.channels import HIGH, LOW, TYPICAL
from quadrille.simulator.bounds.group_work import ScheduleWork
from quadrille.simulator.loops.skipped_iterations import MIN_TAIL, copy_counts
from quadrille.topologies.network import Floats

SAME = 1e-12
"""Relative difference up to which advances count as equal."""
WALKED_FIRST = 4
"""Iterations that are walked at least before the first is skipped."""
SLACKS = ((2, 1e-3), (6, 1e-2), (10, inf))
"""Number of iterations of a large loop, and relative difference that its advances may have from then on; bounds widen
by no more than this difference."""
LARGE = 1 << 20
"""Spans of a loop on all ranks from which on the loop is large."""
SKIP_MULTIPLE = 2
"""The number of skipped iterations is a multiple of this, so that double buffers are in the same state."""


class RankComponents:
    """Components of ranks that do not communicate with each other in a loop.

    Parameters
    ----------
    of_rank : the component of each rank
    """

    def __init__(self, of_rank: Ints) -> None:
        self._numbers, self._of_rank = distinct_values(of_rank)
        self._order = np.argsort(self._of_rank, kind="stable")
        self._first = np.searchsorted(self._of_rank[self._order], np.arange(len(self._numbers)))

    def least(self, values: Floats) -> Floats:
        """The least value in each component [rows, components], of values of ranks [rows, ranks]."""
        least: Floats = np.minimum.reduceat(values[:, self._order], self._first, axis=1)
        return least

    def most(self, values: Floats) -> Floats:
        """The greatest value in each component [rows, components]."""
        most: Floats = np.maximum.reduceat(values[:, self._order], self._first, axis=1)
        return most

    def on_ranks(self, values: Floats) -> Floats:
        """The value of its component for each rank [rows, ranks]."""
        spread: Floats = values[:, self._of_rank]
        return spread


class LoopPeriod:
    """Period detector for one loop: compares the end times of successive iterations.

    Parameters
    ----------
    parts : components of the ranks in the loop
    large : whether iterations may be skipped that repeat only approximately, see `SLACKS`
    """

    def __init__(self, parts: RankComponents, *, large: bool = False) -> None:
        self._parts, self._large = parts, large
        self._last: list[Floats] = []
        self._own: list[Floats] = []
        self._least: Floats = np.zeros(0)
        self._most: Floats = np.zeros(0)
        self._seconds: Floats | None = None
        self._iterations = 0

    def begin(self) -> None:
        """Begins an iteration."""
        self._last, self._own = self._own, []
        self._iterations += 1

    def note(self, ends: Floats) -> None:
        """Notes when an op of the iteration ends on all ranks [3, ranks]."""
        at = len(self._own)
        self._own.append(ends)
        if at == 0:
            self._least, self._most = np.full_like(ends, np.inf), np.full_like(ends, -np.inf)
        if at < len(self._last):
            advance = ends - self._last[at]
            np.minimum(self._least, advance, out=self._least)
            np.maximum(self._most, advance, out=self._most)

    def seconds(self) -> Floats | None:
        """Seconds of an iteration on each rank, in each row, if the last two iterations advanced by it; else None."""
        before, self._seconds = self._seconds, self._advance()
        now = self._seconds
        if before is None or now is None:
            return None
        slack = self._slack() * now + 32 * np.finfo(float).eps * self._latest()
        return self._parts.on_ranks(now) if (np.abs(now - before) <= slack).all() and (now > 0).all() else None

    def _advance(self) -> Floats | None:
        """Seconds by which the ops of an iteration advanced in each component, in each row; None if they differ."""
        if len(self._own) != len(self._last) or not self._own:
            return None
        least, most = self._parts.least(self._least), self._parts.most(self._most)
        rounding = 16 * np.finfo(float).eps * self._latest()
        if (most - least <= SAME * most + rounding).all():
            return (least + most) / 2
        if (most - least > self._slack() * most + rounding).any():
            return None
        return np.stack([least[LOW], np.clip(most[TYPICAL], least[LOW], most[HIGH]), most[HIGH]])

    def _latest(self) -> Floats:
        """The latest end in each row [3, 1]."""
        latest: Floats = np.max(self._own[-1], axis=1, keepdims=True)
        return latest

    def _slack(self) -> float:
        """Relative difference that advances may have."""
        return max(SAME, *(slack for iterations, slack in SLACKS if self._large and self._iterations > iterations), 0.0)


class LoopPeriods:
    """The loops of a schedule whose iterations may be skipped.

    Loops beside sums and gathers of the overlaps `ogr` and `opg` are walked in full, since these have a pace of their
    own: the last microbatch and the updates, and the first forward pass.

    Parameters
    ----------
    allowed : whether any iterations may be skipped
    """

    def __init__(self, schedule: Schedule, schedule_work: ScheduleWork, *, allowed: bool = True) -> None:
        self._schedule_work = schedule_work
        self._allowed = allowed and len(schedule.roles) == 1
        own_pace = _OwnPace(schedule)
        for entry in schedule.roles[0].program if self._allowed else ():
            own_pace.visit_step(entry)
        self._own_pace = {id(entry) for entry in own_pace.loops}
        self._slots = copy_counts(schedule) if self._allowed else {}
        self._tails: dict[int, int] = {}
        self._grid = schedule.grid

    def period(self, entry: Repeat, coordinates: Coordinates) -> LoopPeriod:
        """A period detector for a loop."""
        body = list(ops(entry.body))
        meeting = {op.axis for op in body if isinstance(op, Communication)}
        of_rank = np.zeros(self._grid.size, dtype=np.int64)
        for axis in AXES:
            if axis not in meeting:
                of_rank = of_rank * self._grid.length(axis) + self._schedule_work.coordinates[axis]
        spans = self._grid.size * len(body) * len(entry.indices(coordinates))
        return LoopPeriod(RankComponents(of_rank), large=spans > LARGE)

    def tail(self, entry: Repeat, coordinates: Coordinates) -> int:
        """Iterations at the end of a loop that are walked in any case; all, if iterations differ or are few."""
        count = len(entry.indices(coordinates))
        if id(entry) not in self._tails:
            self._tails[id(entry)] = self._tail_length(entry, coordinates, count)
        return min(count, self._tails[id(entry)])

    def _tail_length(self, entry: Repeat, coordinates: Coordinates, count: int) -> int:
        """Iterations at the end of a loop that its double buffers need."""
        if (
            not self._allowed
            or id(entry) in self._own_pace
            or not self._repeats(entry, coordinates)
            or _longest_inside(entry, coordinates) > count
        ):
            return 1 << 62
        buffer_counts = (copies for copies in self._slots.get(entry.loop, ()) if copies < count // 2)
        return max([MIN_TAIL, *buffer_counts])

    def _repeats(self, entry: Repeat, coordinates: Coordinates) -> bool:
        """Whether the loop's index makes no difference to what an iteration before the last does."""
        needs = [self._schedule_work.needs(op) for op in ops(entry.body)]
        deciding_loops = {name for each in needs for name in each.loops}
        different = {iteration for each in needs for iteration in each.iterations}
        last = set(entry.indices(coordinates)[-1:])
        deciding_loops |= {loop for loop, index in different if loop != entry.loop or index not in last}
        return entry.loop not in deciding_loops | _deciding_loops(entry.body, deciding_loops)

    def walk(self, program: Program, coordinates: Coordinates) -> Iterator[tuple[Op, Coordinates]]:
        """The ops of a rank in program order; of loops that repeat, only the first and the last iterations."""
        for entry in program:
            if not isinstance(entry, Repeat):
                yield entry, coordinates
                continue
            indices = entry.indices(coordinates)
            walked = WALKED_FIRST + self.tail(entry, coordinates)
            for index in (
                indices if walked >= len(indices) else (*indices[:WALKED_FIRST], *indices[WALKED_FIRST - walked :])
            ):
                yield from self.walk(entry.body, coordinates.during(entry.loop, index))


@dataclass(slots=True)
class _OwnPace:
    """The loops beside sums and gathers over data that no iteration waits for, in program order.

    Parameters
    ----------
    loops : these loops so far
    sums : whether sums may be in flight: to the end of the step
    gathers : whether gathers may be in flight: to the first backward pass, before which all weights are used
    """

    schedule: Schedule
    loops: list[Repeat] = field(default_factory=list)
    sums: bool = False
    gathers: bool = False

    def visit_step(self, entry: Op | Repeat) -> None:
        """Adds the loops of a step, at the end of which all sums and gathers have ended."""
        self.sums = self.gathers = False
        self.visit(entry.body if isinstance(entry, Repeat) else (entry,))

    def visit(self, program: Program) -> None:
        """Adds the loops of a program in a step."""
        for entry in program:
            marks = {op.overlap for op in ops((entry,)) if isinstance(op, Communication) and op.concurrent}
            if isinstance(entry, Repeat):
                self._visit_loop(entry, marked=bool(marks & {"ogr", "opg"}))
            self.sums, self.gathers = self.sums or "ogr" in marks, self.gathers or "opg" in marks

    def _visit_loop(self, entry: Repeat, *, marked: bool) -> None:
        self.gathers = self.gathers and not entry.backwards
        if not self.sums and (entry.count == 1 or not (marked or is_layer_loop(self.schedule, entry))):
            self.visit(entry.body)
        elif self.sums or marked or self.gathers:
            self.loops += repeats((entry,))


def _longest_inside(entry: Repeat, coordinates: Coordinates) -> int:
    """Iterations of the longest loop in a loop's body."""
    longest = 0
    for inner in entry.body:
        if isinstance(inner, Repeat):
            indices = entry.indices(coordinates)
            within = coordinates.during(entry.loop, indices[0]) if indices else coordinates
            longest = max(longest, len(inner.indices(within)), _longest_inside(inner, within))
    return longest


def _deciding_loops(program: Program, dependent: Set[str]) -> set[str]:
    """Loops whose index decides how often, or from which index on, an inner loop runs.

    Parameters
    ----------
    dependent : loops on whose index the ops of the program depend
    """
    deciding: set[str] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            inner = _deciding_loops(entry.body, dependent)
            deciding |= inner | (set() if isinstance(entry.count, Panel) else variables(entry.count))
            if entry.loop in dependent | inner:
                deciding |= variables(entry.first)
    return deciding
