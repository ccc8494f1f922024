"""Gaps that are decided while the simulation runs.

Every turn of a stretch is simulated until those so far are in rhythm on all ranks.  Then the
turns that no rank has entered are left out, but for a few at the end of the stretch (`skipped_iterations.py`).
A stretch that finds no rhythm is simply never shortened, so nothing is simulated twice.

What is decided here is a guess, from when the ops of whole turns began and ended.  Whether it
was right is told by `period_window` from the spans of the whole simulation (`turns.py`); if not, the
stretch is simulated as a whole in another attempt.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from quadrille.algorithms.schedule.ops import Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.simulator.loops.restore import PERIODS, WINDOW, Times, near
from quadrille.simulator.loops.skipped_iterations import Iteration, IterationRange, SkippedIterations, shortest
from quadrille.simulator.symmetry.signatures import LoopPosition, iteration_prefix, loop_position

REMEMBERED = 64
"""Turns that are looked back on."""

PATIENCE = 6
"""Times as many turns as a stretch needs at least, after which one that is in no rhythm is not waited for."""

NO_RHYTHM = "turns of loops that were thought to repeat do not"

Ended = tuple[int, str, int, float, float, float]
"""Rank, op, instance, ready, start and end."""


class BudgetExceeded(Exception):  # noqa: N818
    """A simulation that would take too long, and need not be made; why, in words."""


@dataclass(slots=True)
class _Turns:
    """What is known of the turns of a stretch so far; of those that have ended on all ranks, their times.

    Parameters
    ----------
    ranks : how many go through it
    entered : the last turn that any of them has entered
    passed, handed, ended : by turn, how many ranks were handed all its ops, how many ops all ranks were handed, and
        those that have ended
    following : the first turn that has not ended on all ranks
    settled : whether it is decided what is left out, if anything
    """

    stretch: IterationRange
    ranks: int
    following: int
    entered: int = -1
    passed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    handed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    ended: dict[int, list[Ended]] = field(default_factory=lambda: defaultdict(list))
    times: list[Times] = field(default_factory=list)
    gap: SkippedIterations | None = None
    settled: bool = False

    def completed(self) -> bool:
        """Whether another turn has ended on all ranks; its times are added to the others."""
        turn = self.following
        if not self.handed[turn] or self.passed[turn] < self.ranks or len(self.ended[turn]) < self.handed[turn]:
            return False
        done = sorted(self.ended.pop(turn))
        times = np.array([one[3:] for one in done])
        if self.times and len(self.times[-1]) != len(times):
            self.times.clear()
        self.times = [*self.times[1 - REMEMBERED :], times]
        self.following += 1
        return True


class PeriodDetector:
    """Walks the programs of all simulated ranks, and decides what is left out of them.

    Parameters
    ----------
    iteration_ranges : that may be shortened
    ranks_with : how many of the simulated ranks have a loop
    patient : whether turns that find no rhythm may go on to their end
    """

    def __init__(
        self,
        iteration_ranges: Sequence[IterationRange] = (),
        ranks_with: Callable[[LoopPosition], int] = lambda _: 0,
        *,
        patient: bool = True,
    ) -> None:
        self._patient = patient
        self._turns: dict[LoopPosition, list[_Turns]] = defaultdict(list)
        for one in iteration_ranges:
            self._turns[one.loop].append(_Turns(one, ranks_with(one.loop), one.first))
        self._under_way: dict[LoopPosition | None, int] = defaultdict(int)
        self._last_end: dict[LoopPosition | None, float] = defaultdict(float)

    @property
    def gaps(self) -> list[SkippedIterations]:
        """What is left out."""
        return [one.gap for found in self._turns.values() for one in found if one.gap is not None]

    # Programs

    def walk(self, program: Program, place: Coordinates) -> Iterator[tuple[Op, Coordinates, Iteration | None]]:
        """Ops of one rank in program order, each with its moment; turns that are left out are passed over.

        With each op comes its turn of the loop that has a stretch, counted without those that are left out; None
        where no loop around it has one.
        """
        return self._walk(program, place, "", None, None)

    def _walk(
        self, program: Program, place: Coordinates, within: str, turn: Iteration | None, of: _Turns | None
    ) -> Iterator[tuple[Op, Coordinates, Iteration | None]]:
        for at, entry in enumerate(program):
            if not isinstance(entry, Repeat):
                if of is not None and turn is not None:
                    of.handed[turn[1]] += 1
                yield entry, place, turn
                continue
            loop = loop_position(program, at, within) if self._turns else ""
            for position, index in enumerate(entry.indices(place)):
                inner, own, number = iteration_prefix(loop, position), self._at(loop, position), position
                if own is not None and own.gap is not None:
                    if own.gap.left_out <= position < own.gap.stop:
                        continue
                    number -= own.gap.count if position >= own.gap.stop else 0
                if own is not None:
                    own.entered = max(own.entered, position)
                known = (loop, number) if loop in self._turns else turn
                yield from self._walk(entry.body, place.during(entry.loop, index), inner, known, own or of)
                if own is not None:
                    own.passed[number] += 1

    def _at(self, loop: LoopPosition, position: int) -> _Turns | None:
        """The stretch that a turn is in."""
        found = (one for one in self._turns.get(loop, ()) if one.stretch.first <= position < one.stretch.last)
        return next(found, None)

    # Ops

    def began(self, turn: Iteration | None) -> None:
        """An op of that turn begins on a rank."""
        self._under_way[turn[0] if turn is not None else None] += 1

    def ended(self, turn: Iteration | None, done: Ended) -> None:
        """It has ended.

        Raises
        ------
        BudgetExceeded : many turns have, and those that are left are not worth the wait
        """
        loop = turn[0] if turn is not None else None
        self._under_way[loop] -= 1
        self._last_end[loop] = done[-1]
        if turn is None:
            return
        own = self._at(*turn)
        if own is not None and not own.settled:
            own.ended[turn[1]].append(done)
            while own.completed():
                self._decide(own)
                self._wait(own)

    def _wait(self, own: _Turns) -> None:
        """Ends a simulation in which as much would be left out as in a rhythm, if there were one."""
        stretch, turns = own.stretch, own.following - own.stretch.first
        if self._patient or own.settled or turns < PATIENCE * (shortest(stretch).left_out - stretch.first):
            return
        if stretch.last - own.following > turns:
            raise BudgetExceeded(NO_RHYTHM)

    def _decide(self, own: _Turns) -> None:
        """Leaves turns out if those that have ended are in rhythm, and nothing else is under way."""
        stretch, first_out = own.stretch, own.entered + 1
        if stretch.last - stretch.behind - first_out <= 0:
            own.settled = True
            return
        loop = stretch.loop
        if any(count for other, count in self._under_way.items() if other != loop):
            return
        since = max((end for other, end in self._last_end.items() if other != loop), default=0.0)
        for period in PERIODS:
            count = (stretch.last - stretch.behind - first_out) // period * period
            ahead = first_out - own.following + stretch.behind - 1
            if count and _in_rhythm(own.times, period, since, ahead, own.ranks):
                stop = stretch.last - stretch.behind
                own.gap = SkippedIterations(loop, stretch.first, stop - count, stop, stretch.last)
                own.settled = True
                return


def _in_rhythm(turns: Sequence[Times], period: int, since: float, ahead: int, ranks: int) -> bool:
    """Whether turns repeat after `period` of them for long enough since then.

    Parameters
    ----------
    turns : the last ones, each with ready, start and end of all its ops
    ahead : further turns that will be simulated before the last one
    ranks : that go through them
    """
    if len(turns) <= period:
        return False
    times = np.stack(turns)
    seconds = float(np.median(times[-1] - times[-1 - period]))
    close = near(times, period, seconds, len(times), ranks)
    if seconds <= 0 or not close[-1]:
        return False
    alike = len(close) if close.all() else int(close[::-1].argmin())
    begin = max(float(times[len(close) - alike, :, 2].max()), since)
    end = float(times[-1, :, 1].min()) + ahead * seconds / period
    return end - begin >= WINDOW * seconds * (1 + 1e-9)


def iteration_count(program: Program, place: Coordinates, loop: LoopPosition) -> int:
    """How many turns the loop has on a rank that follows the program; 0 where it has no such loop.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> inner = Repeat("j", 3, ())
    >>> iteration_count((Repeat("i", 2, (inner, inner)),), Coordinates(Grid(), {}, {}), "i#0[1]/j#1")
    3
    """
    outer, _, rest = loop.partition("/")
    name, _, turn = outer.partition("[")
    for at, entry in enumerate(program):
        if isinstance(entry, Repeat) and loop_position(program, at) == name:
            indices = list(entry.indices(place))
            if not rest:
                return len(indices)
            number = int(turn.rstrip("]"))
            if number < len(indices):
                return iteration_count(entry.body, place.during(entry.loop, indices[number]), rest)
    return 0
