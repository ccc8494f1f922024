"""Folding over time: turns of a loop that are known from those before.

Theory of operation
-------------------
Where many turns in a row do the same on all ranks, they are simulated until they are in
a rhythm, and most others are left out (`skipped_iterations.py`, `period_detector.py`).  If those behind the gap go
on in the same rhythm, whole periods are put in (`period_window`), and what comes after is later by
as much.

When is that exact?  The future follows from the state: what is under way, how far
it is, and the rest of the program.  Take a window of time in which every rank
that has the loop is inside it, nothing else is under way, and each span of a turn is that
of P turns before, T seconds later, on every rank.  Then what happens in the
window is the same T seconds later, so the state at its end is the state one
period before, but for the number of turns that are left.  From that state the
longer loop goes on for as many periods as were left out, and then as the shorter
one did: the gap may lie anywhere among turns of one rhythm.  The window must be three
periods long, so that what was under way when it began has ended long before.  Where
there is no such window (ranks that drift apart for long), all turns are simulated.

How exact?  A period is known to `SAME` of itself and to what rounding may do to a clock to which the
ops of a turn are added one by one, and what comes after the loop is off by as
many of these as periods were left out, some 1e-11 s for a hundred layers.  Most of what follows
carries that along as it is.  Where groups that are out of step share links it grows: on
320B's sums over data, on 4,096 GPUs of Frontier, tenfold every few milliseconds, up to 5e-4 of
the makespan, and a device overhead that differs by 1e-8 of itself does the same to a simulation
of every turn.  There the model itself says no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.timelines.spans import RepeatedIterations, Span
from quadrille.simulator.loops.skipped_iterations import Iteration, SkippedIterations

PERIODS = (1, 2, 3, 4, 6, 8, 10, 12)
WINDOW = 3
"""Periods that the window must last."""
SAME = 1e-12
"""Periods that differ by less, relative, are one."""
ROUNDINGS = 16
"""Of a clock within one op, in units in the last place."""
Times = NDArray[np.float64]
"""Ready, start and end of each op of each rank in each turn [turns, ops, 3]."""


@dataclass(frozen=True, slots=True)
class PeriodWindow:
    """What repeats around a gap.

    Parameters
    ----------
    begin, end : the window in which everything comes again after `seconds` and `turns` turns
    cut : the moment within it, a period before its end, at which whole periods are put in
    """

    gap: SkippedIterations
    begin: float
    end: float
    cut: float
    seconds: float
    turns: int

    @property
    def times(self) -> int:
        """Periods that were left out."""
        return self.gap.count // self.turns


def period_window(
    gap: SkippedIterations, spans: Sequence[Span], turn_of: Sequence[Iteration | None]
) -> PeriodWindow | None:
    """The rhythm into which the turns around a gap fall; None where they do not, all but the last one behind it.

    Parameters
    ----------
    turn_of : the turn that each span belongs to
    """
    times, inside = _times(gap, spans, turn_of)
    if times is None:
        return None
    ranks = len({span.rank for span, own in zip(spans, inside, strict=True) if own})
    others = [span for span, own in zip(spans, inside, strict=True) if not own]
    for period in PERIODS:
        found = _window(times, period, gap.left_out - gap.first, ranks)
        if found is None or gap.count % period:
            continue
        begin, end, seconds = found
        begin, end = _alone(begin, end, others)
        if end - begin >= WINDOW * seconds * (1 + 1e-9):
            starts = times[:, :, 1].ravel()
            return PeriodWindow(gap, begin, end, quiet(starts, end - 1.5 * seconds, end - seconds), seconds, period)
    return None


def _alone(begin: float, end: float, others: Sequence[Span]) -> tuple[float, float]:
    """The longest part of a window in which none of the other spans is under way; empty ones end as they begin."""
    edges = sorted((span.start, span.end) for span in others if span.start < end and span.end > begin)
    longest, free = (begin, begin), begin
    for start, stop in [*edges, (end, end)]:
        longest = max(longest, (free, start), key=lambda part: part[1] - part[0])
        free = max(free, stop)
    return longest


def _times(
    gap: SkippedIterations, spans: Sequence[Span], turn_of: Sequence[Iteration | None]
) -> tuple[NDArray[np.float64] | None, list[bool]]:
    """Ready, start and end of each op of each rank in each turn [turns, ops, 3], if all turns have the same ops."""
    turns: list[list[tuple[int, str, int, Span]]] = [[] for _ in range(gap.simulated)]
    inside = []
    for span, turn in zip(spans, turn_of, strict=True):
        own = turn is not None and turn[0] == gap.loop and gap.first <= turn[1] < gap.first + gap.simulated
        inside.append(own)
        if own and turn is not None:
            turns[turn[1] - gap.first].append((span.rank, span.op, span.index, span))
    ordered = [sorted(done, key=lambda entry: entry[:3]) for done in turns]
    names = {tuple(entry[:2] for entry in done) for done in ordered}
    if len(names) != 1 or not ordered[0]:
        return None, inside
    return np.array([[(s.ready, s.start, s.end) for *_, s in done] for done in ordered]), inside


def _window(times: NDArray[np.float64], period: int, before: int, ranks: int) -> tuple[float, float, float] | None:
    """When the turns repeat after `period` of them on every rank: from, until, and the seconds of a period.

    All but the last one must do so behind the gap.  There an op may be ready at another time than with all turns, if
    what it needs was done long before it starts.

    Parameters
    ----------
    before : turns before the gap
    ranks : that have the ops of a turn
    """
    middle = max(0, before - 1 - period)
    if len(times) <= middle + period:
        return None
    steps = times[period:] - times[:-period]
    seconds = float(np.median(steps[middle]))
    close = near(times, period, seconds, before, ranks)
    if seconds <= 0 or not close[middle]:
        return None
    first = last = middle
    while first > 0 and close[first - 1]:
        first -= 1
    while last + 1 < len(close) and close[last + 1]:
        last += 1
    if last + period < len(times) - 2:
        return None
    return float(times[first, :, 2].max()), float(times[last + period, :, 1].min()), seconds


def near(times: Times, period: int, seconds: float, before: int, ranks: int) -> NDArray[np.bool_]:
    """Whether a turn is the one `period` turns before it, `seconds` later, for each turn that has one before it.

    Each op that a rank ends may round its clock by a unit in the last place, and where the ops of a turn are those of
    many layers they all round it to the same side: of long turns that adds up to more than `SAME`.

    Parameters
    ----------
    before : turns before the gap; behind it, when an op is ready does not count
    ranks : that have the ops of a turn
    """
    off = np.abs(times[period:] - times[:-period] - seconds)
    off[max(0, before - period) :, :, 0] = 0.0
    roundings = ROUNDINGS + period * times.shape[1] / ranks
    slack = SAME * seconds + roundings * np.finfo(float).eps * times.max()
    return np.asarray(off.max(axis=(1, 2)) <= slack)


def quiet(starts: NDArray[np.float64], begin: float, end: float) -> float:
    """The middle of the longest time between `begin` and `end` in which nothing starts."""
    edges = np.unique(np.concatenate([[begin, end], starts[(starts > begin) & (starts < end)]]))
    longest = int(np.argmax(np.diff(edges)))
    return float(edges[longest] + edges[longest + 1]) / 2


def restore(
    rhythms: Sequence[PeriodWindow], spans: Sequence[Span], turn_of: Sequence[Iteration | None]
) -> "SpansWithTurns":
    """The spans as they are with all turns; those of periods that were left out are said once.

    Parameters
    ----------
    spans : of the shorter loops
    """
    times = np.array([(span.ready, span.start, span.arrival, span.end) for span in spans]).reshape(-1, 4)
    ready, starts, ops = times[:, 0].copy(), times[:, 1].copy(), np.array([span.op for span in spans])
    indices = np.array([span.index for span in spans], dtype=np.int64)
    weights = np.ones(len(spans), dtype=np.int64)
    turns: list[RepeatedIterations] = []
    for one in sorted(rhythms, key=lambda found: -found.cut):
        own = np.array([turn is not None and turn[0] == one.gap.loop for turn in turn_of])
        block = own & (starts >= one.cut) & (starts < one.cut + one.seconds)
        later, shift = starts >= one.cut, one.times * one.seconds
        times[later, 1:] += shift
        times[later & (own | (ready >= one.cut)), 0] += shift  # what was ready before the loop still is
        per_turn = {}
        for op in np.unique(ops[block]).tolist():
            doing = [spans[place].rank for place in np.flatnonzero(block & (ops == op)).tolist()]
            per_turn[op] = len(doing) // len(set(doing))
            indices[later & (ops == op)] += one.times * per_turn[op]
        weights[block] += one.times
        turns = [replace(after, start=after.start + shift) for after in turns]
        turns.append(RepeatedIterations(one.cut + shift, one.seconds, one.times, per_turn))
    return SpansWithTurns(times, indices, weights, tuple(reversed(turns)))


@dataclass(frozen=True, slots=True, eq=False)
class SpansWithTurns:
    """Spans with all turns.

    Parameters
    ----------
    times : ready, start, arrival and end [spans, 4]
    indices : of each span
    weights : instances that each span stands for
    turns : how those that are said once are to be told
    """

    times: NDArray[np.float64]
    indices: NDArray[np.int64]
    weights: NDArray[np.int64]
    turns: tuple[RepeatedIterations, ...]
