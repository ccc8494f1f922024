"""Turns of a loop that only repeat are not walked: all times go on by as much as in the turns before.

Theory of operation
-------------------
Times are maxima of sums.  Let every op of a turn, on every rank, end T later than
the same op a turn before, and let that be so in two turns one after the other.  What
an op waits for was then written T later too, or it is older than the loop.  Of two
that are compared, the one that decided and moved on by T decides again: the other
moves on by T as well, or stays.  So the next turn ends T later, and so do all that
follow, each of the three rows of times by a T of its own.

Ranks that do not meet in the loop are no part of each other's turns: each such part
has a T of its own.  Where ops of a part do not move on alike, but by at least a > 0 and
at most b, those of the next turn do so again, since maxima of sums are no less and no
more than what they are made of: the lowest row goes on by a, the highest by b, and both
remain bounds.  The typical row goes on by b, since those who wait for the slowest will
go as slowly.

The walk then passes over turns: all that was written in the loop is moved on, sums
get what one turn adds as often, and the last turns are walked again, as many as there
are copies of tensors that take turns.
"""

from collections.abc import Iterator, Set
from math import inf

import numpy as np

from quadrille.algorithms.analysis.labels import Ints, distinct
from quadrille.algorithms.schedule.expressions import variables
from quadrille.algorithms.schedule.grid import AXES
from quadrille.algorithms.schedule.ops import Communication, Op
from quadrille.algorithms.schedule.parts import Coordinates, Panel
from quadrille.algorithms.schedule.program import Program, Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.bounds.channels import HIGH, LOW, TYPICAL
from quadrille.simulator.bounds.work import ScheduleWork
from quadrille.simulator.loops.skipped_iterations import MIN_TAIL, copy_counts
from quadrille.topologies.network import Floats

SAME = 1e-12
"""Steps from turn to turn that differ by less, relative, are one."""
BEFORE = 4
"""Turns that are looked at before the first is passed over, at least, and of all that are not walked for times."""
SLACKS = ((2, 1e-3), (6, 1e-2), (10, inf))
"""Of large loops, after so many turns, by what part ops may move on unlike each other: bounds lose no more."""
LARGE = 1 << 20
"""Spans of a loop on all ranks, from which on it is large."""
LEFT_OUT = 2
"""Turns that are passed over are a multiple of this, so that copies that take turns are the same ones."""


class RankComponents:
    """Ranks in parts that do not meet in a loop: each has a pace of its own.

    Parameters
    ----------
    of_rank : the part of each rank
    """

    def __init__(self, of_rank: Ints) -> None:
        self._numbers, self._of_rank = distinct(of_rank)
        self._order = np.argsort(self._of_rank, kind="stable")
        self._first = np.searchsorted(self._of_rank[self._order], np.arange(len(self._numbers)))

    def least(self, values: Floats) -> Floats:
        """Of each part [rows, parts], of values of ranks [rows, ranks]."""
        found: Floats = np.minimum.reduceat(values[:, self._order], self._first, axis=1)
        return found

    def most(self, values: Floats) -> Floats:
        """Of each part [rows, parts]."""
        found: Floats = np.maximum.reduceat(values[:, self._order], self._first, axis=1)
        return found

    def on_ranks(self, values: Floats) -> Floats:
        """Those of its part for each rank [rows, ranks]."""
        found: Floats = values[:, self._of_rank]
        return found


class LoopPeriod:
    """The turns of one loop while they are walked: whether they have come to repeat.

    Parameters
    ----------
    parts : ranks that meet in the loop, see `RankComponents`
    large : whether turns may also be passed over that do not quite repeat, see `SLACKS`
    """

    def __init__(self, parts: RankComponents, *, large: bool = False) -> None:
        self._parts, self._large = parts, large
        self._last: list[Floats] = []
        self._own: list[Floats] = []
        self._least: Floats = np.zeros(0)
        self._most: Floats = np.zeros(0)
        self._seconds: Floats | None = None
        self._turns = 0

    def begin(self) -> None:
        """A turn begins."""
        self._last, self._own = self._own, []
        self._turns += 1

    def note(self, ends: Floats) -> None:
        """An op of the turn ends on all ranks [3, ranks]."""
        at = len(self._own)
        self._own.append(ends)
        if at == 0:
            self._least, self._most = np.full_like(ends, np.inf), np.full_like(ends, -np.inf)
        if at < len(self._last):
            moved = ends - self._last[at]
            np.minimum(self._least, moved, out=self._least)
            np.maximum(self._most, moved, out=self._most)

    def seconds(self) -> Floats | None:
        """What a turn takes on each rank, in each row, once all ops of the last two have moved on by it; else None."""
        before, self._seconds = self._seconds, self._moved()
        now = self._seconds
        if before is None or now is None:
            return None
        slack = self._slack() * now + 32 * np.finfo(float).eps * self._latest()
        return self._parts.on_ranks(now) if (np.abs(now - before) <= slack).all() and (now > 0).all() else None

    def _moved(self) -> Floats | None:
        """By how much the ops of a turn moved on in each part, in each row [3, parts]; None where by unlike seconds."""
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
        found: Floats = np.max(self._own[-1], axis=1, keepdims=True)
        return found

    def _slack(self) -> float:
        """Part by which ops may move on unlike each other."""
        return max(SAME, *(slack for turns, slack in SLACKS if self._large and self._turns > turns), 0.0)


class LoopPeriods:
    """The loops of a schedule of which turns may be passed over.

    Parameters
    ----------
    allowed : none, if not
    """

    def __init__(self, schedule: Schedule, looks: ScheduleWork, *, allowed: bool = True) -> None:
        self._looks, self._allowed = looks, allowed and len(schedule.roles) == 1
        self._slots = copy_counts(schedule) if self._allowed else {}
        self._behind: dict[int, int] = {}
        self._grid = schedule.grid

    def beat(self, entry: Repeat, place: Coordinates) -> LoopPeriod:
        """For the turns of a loop."""
        own = list(ops(entry.body))
        meeting = {op.axis for op in own if isinstance(op, Communication)}
        of_rank = np.zeros(self._grid.size, dtype=np.int64)
        for axis in AXES:
            if axis not in meeting:
                of_rank = of_rank * self._grid.length(axis) + self._looks.coordinates[axis]
        spans = self._grid.size * len(own) * len(entry.indices(place))
        return LoopPeriod(RankComponents(of_rank), large=spans > LARGE)

    def behind(self, entry: Repeat, place: Coordinates) -> int:
        """Turns at the end of a loop that are walked in any case; all, where its turns differ or are few."""
        count = len(entry.indices(place))
        if id(entry) not in self._behind:
            self._behind[id(entry)] = self._needed(entry, place, count)
        return min(count, self._behind[id(entry)])

    def _needed(self, entry: Repeat, place: Coordinates, count: int) -> int:
        if not self._allowed or not self._alike(entry) or _longest_inside(entry, place) > count:
            return 1 << 62
        few = (copies for copies in self._slots.get(entry.loop, ()) if copies < count // 2)
        return max([MIN_TAIL, *few])

    def _alike(self, entry: Repeat) -> bool:
        """Whether its index makes no difference to what is done in a turn."""
        told = {name for op in ops(entry.body) for name in self._looks.needs(op).loops}
        return entry.loop not in told | _counting(entry.body, told)

    def walk(self, program: Program, place: Coordinates) -> Iterator[tuple[Op, Coordinates]]:
        """Ops of a rank in program order, of loops that repeat only the first turns and the last."""
        for entry in program:
            if not isinstance(entry, Repeat):
                yield entry, place
                continue
            indices = entry.indices(place)
            kept = BEFORE + self.behind(entry, place)
            for index in indices if kept >= len(indices) else (*indices[:BEFORE], *indices[BEFORE - kept :]):
                yield from self.walk(entry.body, place.during(entry.loop, index))


def _longest_inside(entry: Repeat, place: Coordinates) -> int:
    """Turns of the longest loop in a loop's body."""
    found = 0
    for inner in entry.body:
        if isinstance(inner, Repeat):
            indices = entry.indices(place)
            within = place.during(entry.loop, indices[0]) if indices else place
            found = max(found, len(inner.indices(within)), _longest_inside(inner, within))
    return found


def _counting(program: Program, told: Set[str]) -> set[str]:
    """Loops by whose index it is told how often something is repeated, and with which index first where that matters.

    Parameters
    ----------
    told : loops on whose index it depends what ops of the program do
    """
    found: set[str] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            inner = _counting(entry.body, told)
            found |= inner | (set() if isinstance(entry.count, Panel) else variables(entry.count))
            if entry.loop in told | inner:
                found |= variables(entry.first)
    return found
