"""`PeriodDetector`: decides, while the exact simulation runs, which loop iterations are skipped.

Every iteration of a range of equal iterations is simulated until the iterations so far are periodic on
all ranks.  Then the iterations that no rank has begun are skipped, except a few at the end of the range
(`skipped_iterations.py`).  A range without a period is never shortened, so nothing is simulated twice.

The decision is a guess, from the times of the ops of whole iterations.  `restore.period_window` checks it
with the spans of the whole simulation; if it was wrong, the range is simulated completely in another attempt.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.schedule.ops import Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import DrivenPasses, Program, Repeat
from quadrille.simulator.loops.skipped_iterations import Iteration, IterationRange, SkippedIterations, most_skipped
from quadrille.simulator.symmetry.signatures import LoopPosition, iteration_prefix, loop_position
from quadrille.simulator.work_budget import BudgetExceeded

PERIODS = (1, 2, 3, 4, 6, 8, 10, 12)
"""Candidate lengths of a period [iterations]."""
WINDOW = 3
"""Number of periods that the window of equal iterations must last."""
SAME = 1e-12
"""Relative difference up to which periods are equal."""
ROUNDINGS = 16
"""Rounding errors of a clock within one op, in units in the last coordinates."""
MAX_COMPARED = 64
"""Largest number of iterations that are compared with each other."""
PATIENCE = 6
"""A range without a period is given up after this many times the iterations that it needs at least."""
NO_PERIOD = "iterations of loops that were expected to be periodic are not"

Times = NDArray[np.float64]
"""Ready, start and end of each op of each rank in each iteration [iterations, ops, 3]."""
OpTimes = tuple[int, str, int, float, float, float]
"""Rank, op, index, ready, start and end of one op."""


@dataclass(slots=True)
class _RangeProgress:
    """Progress of a range of equal iterations, and the op times of iterations that ended on all ranks.

    Parameters
    ----------
    ranks : number of ranks that run the range
    begun : the last iteration that any rank has begun
    ranks_done, issued, ended : by iteration: number of ranks to which all ops were issued; number of ops issued on all
        ranks; ops that have ended
    next_iteration : the first iteration that has not ended on all ranks
    times : op times of the iterations that have ended on all ranks, at most MAX_COMPARED
    skipped : the skipped iterations, None if there are none
    settled : whether the decision about skipped iterations is final
    """

    iterations: IterationRange
    ranks: int
    next_iteration: int
    begun: int = -1
    ranks_done: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    issued: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    ended: dict[int, list[OpTimes]] = field(default_factory=lambda: defaultdict(list))
    times: list[Times] = field(default_factory=list)
    skipped: SkippedIterations | None = None
    settled: bool = False

    def take_iteration(self) -> bool:
        """Whether the next iteration has ended on all ranks; if so, its times are added."""
        number = self.next_iteration
        issued = self.issued[number]
        if not issued or self.ranks_done[number] < self.ranks or len(self.ended[number]) < issued:
            return False
        times = np.array([op_times[3:] for op_times in sorted(self.ended.pop(number))])
        if self.times and len(self.times[-1]) != len(times):
            self.times.clear()
        self.times = [*self.times[1 - MAX_COMPARED :], times]
        self.next_iteration += 1
        return True


class PeriodDetector:
    """Walks the programs of all simulated ranks and decides which iterations are skipped.

    Parameters
    ----------
    iteration_ranges : ranges that may be shortened
    ranks_with : number of simulated ranks that have a loop
    patient : whether ranges without a period are simulated to their end
    """

    def __init__(
        self,
        iteration_ranges: Sequence[IterationRange] = (),
        ranks_with: Callable[[LoopPosition], int] = lambda _: 0,
        *,
        patient: bool = True,
    ) -> None:
        self._patient = patient
        self._ranges: dict[LoopPosition, list[_RangeProgress]] = defaultdict(list)
        for iterations in iteration_ranges:
            progress = _RangeProgress(iterations, ranks_with(iterations.loop), iterations.first)
            self._ranges[iterations.loop].append(progress)
        self._running: dict[LoopPosition | None, int] = defaultdict(int)
        self._last_end: dict[LoopPosition | None, float] = defaultdict(float)

    @property
    def skipped(self) -> list[SkippedIterations]:
        """The skipped iterations so far."""
        return [progress.skipped for ranges in self._ranges.values() for progress in ranges if progress.skipped]

    # Programs

    def walk(
        self, program: Program, coordinates: Coordinates
    ) -> Iterator[tuple[Op | DrivenPasses, Coordinates, Iteration | None]]:
        """Ops of one rank in program order with their coordinates; skipped iterations are left out.

        Each op comes with its iteration of the loop that has a range, numbered without skipped iterations; None if
        no loop around the op has a range.  The passes of a step come as a whole if messages drive them.
        """
        return self._walk(program, coordinates, "", None, None)

    def _walk(
        self,
        program: Program,
        coordinates: Coordinates,
        within: str,
        iteration: Iteration | None,
        outer: _RangeProgress | None,
    ) -> Iterator[tuple[Op | DrivenPasses, Coordinates, Iteration | None]]:
        for at, entry in enumerate(program):
            if not isinstance(entry, Repeat) or isinstance(entry, DrivenPasses):
                if outer is not None and iteration is not None:
                    outer.issued[iteration[1]] += 1
                yield entry, coordinates, iteration
                continue
            loop = loop_position(program, at, within) if self._ranges else ""
            for position, index in enumerate(entry.indices(coordinates)):
                inner, own, number = iteration_prefix(loop, position), self._range_of(loop, position), position
                if own is not None and own.skipped is not None:
                    if own.skipped.skip_start <= position < own.skipped.skip_stop:
                        continue
                    number -= own.skipped.count if position >= own.skipped.skip_stop else 0
                if own is not None:
                    own.begun = max(own.begun, position)
                around = (loop, number) if loop in self._ranges else iteration
                yield from self._walk(entry.body, coordinates.during(entry.loop, index), inner, around, own or outer)
                if own is not None:
                    own.ranks_done[number] += 1

    def _range_of(self, loop: LoopPosition, position: int) -> _RangeProgress | None:
        """The range that an iteration is in."""
        for progress in self._ranges.get(loop, ()):
            if progress.iterations.first <= position < progress.iterations.stop:
                return progress
        return None

    # Ops

    def op_began(self, iteration: Iteration | None) -> None:
        """Note that an op of an iteration begins on a rank."""
        self._running[iteration[0] if iteration is not None else None] += 1

    def op_ended(self, iteration: Iteration | None, op_times: OpTimes) -> None:
        """Note that an op of an iteration has ended on a rank; may decide to skip iterations.

        Raises
        ------
        BudgetExceeded : no period after many iterations, and many iterations are left
        """
        loop = iteration[0] if iteration is not None else None
        self._running[loop] -= 1
        self._last_end[loop] = op_times[-1]
        if iteration is None:
            return
        own = self._range_of(*iteration)
        if own is not None and not own.settled:
            own.ended[iteration[1]].append(op_times)
            while own.take_iteration():
                self._decide(own)
                self._check_budget(own)

    def _check_budget(self, own: _RangeProgress) -> None:
        """Abort a simulation whose range should be periodic by now and is not."""
        iterations, done = own.iterations, own.next_iteration - own.iterations.first
        needed = most_skipped(iterations).skip_start - iterations.first
        if self._patient or own.settled or done < PATIENCE * needed:
            return
        if iterations.stop - own.next_iteration > done:
            raise BudgetExceeded(NO_PERIOD)

    def _decide(self, own: _RangeProgress) -> None:
        """Skip iterations if the iterations so far are periodic and nothing else is running."""
        iterations, skip_start = own.iterations, own.begun + 1
        skip_stop = iterations.stop - iterations.tail
        if skip_stop - skip_start <= 0:
            own.settled = True
            return
        loop = iterations.loop
        if any(count for other_loop, count in self._running.items() if other_loop != loop):
            return
        since = max((end for other_loop, end in self._last_end.items() if other_loop != loop), default=0.0)
        for period in PERIODS:
            count = (skip_stop - skip_start) // period * period
            ahead = skip_start - own.next_iteration + iterations.tail - 1
            if count and _is_periodic(own.times, period, since, ahead, own.ranks):
                own.skipped = SkippedIterations(loop, iterations.first, skip_stop - count, skip_stop, iterations.stop)
                own.settled = True
                return


def _is_periodic(iterations: Sequence[Times], period: int, since: float, ahead: int, ranks: int) -> bool:
    """Whether the last iterations repeat with this period, for long enough after `since`.

    Parameters
    ----------
    iterations : op times of the last iterations
    period : iterations
    since : time at which all other ops have ended [s]
    ahead : further iterations that will be simulated before the last one
    ranks : number of ranks that run the iterations
    """
    if len(iterations) <= period:
        return False
    times = np.stack(iterations)
    seconds = float(np.median(times[-1] - times[-1 - period]))
    close = repeats_after(times, period, seconds, len(times), ranks)
    if seconds <= 0 or not close[-1]:
        return False
    equal = len(close) if close.all() else int(close[::-1].argmin())
    begin = max(float(times[len(close) - equal, :, 2].max()), since)
    end = float(times[-1, :, 1].min()) + ahead * seconds / period
    return end - begin >= WINDOW * seconds * (1 + 1e-9)


def repeats_after(times: Times, period: int, seconds: float, before: int, ranks: int) -> NDArray[np.bool_]:
    """Whether each iteration equals the iteration `period` iterations before, `seconds` later.

    Each end of an op may round the rank's clock by a unit in the last coordinates.  The ops of many layers may all
    round it in the same direction, which adds up to more than `SAME` in long iterations.

    Parameters
    ----------
    before : number of iterations before the skipped ones; in later iterations, ready times do not count
    ranks : number of ranks that have ops in an iteration
    """
    off = np.abs(times[period:] - times[:-period] - seconds)
    off[max(0, before - period) :, :, 0] = 0.0
    roundings = ROUNDINGS + period * times.shape[1] / ranks
    slack = SAME * seconds + roundings * np.finfo(float).eps * times.max()
    return np.asarray(off.max(axis=(1, 2)) <= slack)


def iteration_count(program: Program, coordinates: Coordinates, loop: LoopPosition) -> int:
    """Number of iterations of a loop on a rank that runs the program; 0 if it has no such loop.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> inner = Repeat("j", 3, ())
    >>> iteration_count((Repeat("i", 2, (inner, inner)),), Coordinates(Grid(), {}, {}), "i#0[1]/j#1")
    3
    """
    outer, _, rest = loop.partition("/")
    name, _, outer_number = outer.partition("[")
    for at, entry in enumerate(program):
        if isinstance(entry, Repeat) and loop_position(program, at) == name:
            indices = list(entry.indices(coordinates))
            if not rest:
                return len(indices)
            number = int(outer_number.rstrip("]"))
            if number < len(indices):
                return iteration_count(entry.body, coordinates.during(entry.loop, indices[number]), rest)
    return 0
