"""Restores skipped loop iterations: computes spans, timeline and loads as if every iteration had been simulated.

Theory of operation
-------------------
Equal iterations are simulated until they are periodic, and most others are skipped
(`skipped_iterations.py`, `period_detector.py`).  If the iterations after the skipped ones continue
the period, whole periods are inserted (`period_window`), and everything later is shifted.

When is that exact?  The future follows from the state: what is running, how far it is, and the
rest of the program.  Take a window of time in which every rank that has the loop is inside it,
nothing else is running, and each span of an iteration equals the span P iterations before,
T seconds later, on every rank.  Then everything in the window repeats after T seconds, so the state
at its end is the state one period before, except for the number of iterations that are left.  From
that state the longer loop goes on for the skipped periods, and then as the shorter loop did; so the
skipped iterations may lie anywhere among iterations of one period.  The window must last three
periods, so that whatever was running when it began has ended long before.  If there is no such
window (ranks that drift apart for long), all iterations are simulated.

How exact?  A period is known to `SAME` of itself plus the rounding of a clock to which the ops of an
iteration are added one by one.  Everything after the loop is off by that error times the number of
skipped periods, about 1e-11 s for a hundred layers.  Most schedules carry this error along unchanged.
Where groups that are out of step share links, it grows: for the data-parallel sums of a 320B model on
4,096 GPUs of Frontier it grows tenfold every few milliseconds, up to 5e-4 of the makespan.  A device
overhead that differs by 1e-8 of itself changes a simulation of every iteration as much, so the model
itself is not more precise there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.timelines.spans import RepeatedIterations, Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.simulator.loops.period_detector import PERIODS, WINDOW, Times, repeats_after
from quadrille.simulator.loops.skipped_iterations import Iteration, SkippedIterations

Loads = Sequence[tuple[float, float]]
"""Units served and seconds of use of every resource."""


@dataclass(frozen=True, slots=True)
class PeriodWindow:
    """The window of time around skipped iterations in which everything repeats.

    Parameters
    ----------
    begin, end : limits of the window, in which everything repeats after `seconds` and `iterations` iterations [s]
    cut : time in the window, one period before its end, at which whole periods are inserted [s]
    """

    skipped: SkippedIterations
    begin: float
    end: float
    cut: float
    seconds: float
    iterations: int

    @property
    def periods(self) -> int:
        """Number of skipped periods."""
        return self.skipped.count // self.iterations


def period_window(
    skipped: SkippedIterations, spans: Sequence[Span], iteration_of: Sequence[Iteration | None]
) -> PeriodWindow | None:
    """The window in which the iterations around the skipped ones are periodic; None if there is none.

    The last iteration after the skipped ones need not repeat.

    Parameters
    ----------
    iteration_of : iteration of each span
    """
    times, inside = _times(skipped, spans, iteration_of)
    if times is None:
        return None
    ranks = len({span.rank for span, own in zip(spans, inside, strict=True) if own})
    others = [span for span, own in zip(spans, inside, strict=True) if not own]
    for period in PERIODS:
        window = _window(times, period, skipped.skip_start - skipped.first, ranks)
        if window is None or skipped.count % period:
            continue
        begin, end, seconds = window
        begin, end = _longest_free(begin, end, others)
        if end - begin >= WINDOW * seconds * (1 + 1e-9):
            starts = times[:, :, 1].ravel()
            return PeriodWindow(
                skipped, begin, end, quietest_time(starts, end - 1.5 * seconds, end - seconds), seconds, period
            )
    return None


def _longest_free(begin: float, end: float, others: Sequence[Span]) -> tuple[float, float]:
    """The longest part of a window in which no other span runs; an empty window ends where it begins."""
    edges = sorted((span.start, span.end) for span in others if span.start < end and span.end > begin)
    longest, free = (begin, begin), begin
    for start, stop in [*edges, (end, end)]:
        longest = max(longest, (free, start), key=lambda part: part[1] - part[0])
        free = max(free, stop)
    return longest


def _times(
    skipped: SkippedIterations, spans: Sequence[Span], iteration_of: Sequence[Iteration | None]
) -> tuple[Times | None, list[bool]]:
    """Ready, start and end of each op in each iteration [iterations, ops, 3], if all iterations have the same ops."""
    iterations: list[list[tuple[int, str, int, Span]]] = [[] for _ in range(skipped.simulated)]
    inside = []
    stop = skipped.first + skipped.simulated
    for span, iteration in zip(spans, iteration_of, strict=True):
        own = iteration is not None and iteration[0] == skipped.loop and skipped.first <= iteration[1] < stop
        inside.append(own)
        if own and iteration is not None:
            iterations[iteration[1] - skipped.first].append((span.rank, span.op, span.index, span))
    ordered = [sorted(ops, key=lambda entry: entry[:3]) for ops in iterations]
    names = {tuple(entry[:2] for entry in ops) for ops in ordered}
    if len(names) != 1 or not ordered[0]:
        return None, inside
    return np.array([[(s.ready, s.start, s.end) for *_, s in ops] for ops in ordered]), inside


def _window(times: NDArray[np.float64], period: int, before: int, ranks: int) -> tuple[float, float, float] | None:
    """Begin and end of the time in which iterations repeat after `period` ones on every rank; seconds of a period.

    All iterations after the skipped ones must repeat, except the last.  In those, an op may become ready at another
    time than with all iterations, if its inputs were ready long before it starts.

    Parameters
    ----------
    before : number of iterations before the skipped ones
    ranks : number of ranks that have ops in an iteration
    """
    middle = max(0, before - 1 - period)
    if len(times) <= middle + period:
        return None
    steps = times[period:] - times[:-period]
    seconds = float(np.median(steps[middle]))
    close = repeats_after(times, period, seconds, before, ranks)
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


def quietest_time(starts: NDArray[np.float64], begin: float, end: float) -> float:
    """Middle of the longest interval between `begin` and `end` in which nothing starts [s]."""
    edges = np.unique(np.concatenate([[begin, end], starts[(starts > begin) & (starts < end)]]))
    longest = int(np.argmax(np.diff(edges)))
    return float(edges[longest] + edges[longest + 1]) / 2


@dataclass(frozen=True, slots=True, eq=False)
class RestoredSpans:
    """Spans with all iterations.

    Parameters
    ----------
    times : ready, start, arrival and end [spans, 4]
    indices : index of each span among those of its op and rank
    weights : number of instances that each span stands for
    repeated : the run-length encoded iterations
    """

    times: NDArray[np.float64]
    indices: NDArray[np.int64]
    weights: NDArray[np.int64]
    repeated: tuple[RepeatedIterations, ...]


def restore(
    windows: Sequence[PeriodWindow], spans: Sequence[Span], iteration_of: Sequence[Iteration | None]
) -> RestoredSpans:
    """The spans of a simulation of all iterations; the skipped periods are run-length encoded.

    Parameters
    ----------
    spans : spans of the shortened loops
    iteration_of : iteration of each span
    """
    times = np.array([(span.ready, span.start, span.arrival, span.end) for span in spans]).reshape(-1, 4)
    ready, starts, ops = times[:, 0].copy(), times[:, 1].copy(), np.array([span.op for span in spans])
    indices = np.array([span.index for span in spans], dtype=np.int64)
    weights = np.ones(len(spans), dtype=np.int64)
    repeated: list[RepeatedIterations] = []
    for window in sorted(windows, key=lambda window: -window.cut):
        loop, cut, periods = window.skipped.loop, window.cut, window.periods
        own = np.array([iteration is not None and iteration[0] == loop for iteration in iteration_of])
        block = own & (starts >= cut) & (starts < cut + window.seconds)
        later, shift = starts >= cut, periods * window.seconds
        times[later, 1:] += shift
        times[later & (own | (ready >= cut)), 0] += shift  # what was ready before the loop stays so
        per_period = {}
        for op in np.unique(ops[block]).tolist():
            ranks = [spans[position].rank for position in np.flatnonzero(block & (ops == op)).tolist()]
            per_period[op] = len(ranks) // len(set(ranks))
            indices[later & (ops == op)] += periods * per_period[op]
        weights[block] += periods
        repeated = [replace(after, start=after.start + shift) for after in repeated]
        repeated.append(RepeatedIterations(cut + shift, window.seconds, periods, per_period))
    return RestoredSpans(times, indices, weights, tuple(reversed(repeated)))


def restored_timeline(short: Timeline, restored: RestoredSpans) -> Timeline:
    """The timeline with all iterations; its spans are in the order of the shortened one's."""
    if not restored.repeated:
        return short
    rows = zip(short.spans, restored.times.tolist(), restored.indices.tolist(), strict=True)
    spans = tuple(span.at(times[0], times[1], times[2], times[3], index) for span, times, index in rows)
    return replace(short, spans=spans, repeated=restored.repeated)


def restored_loads(
    loads: Loads, snapshots: Mapping[Iteration, tuple[float, Loads]], windows: Sequence[PeriodWindow]
) -> list[tuple[float, float]]:
    """Units served and seconds of use of every resource, in all iterations together.

    Parameters
    ----------
    loads : at the end of the simulation
    snapshots : time [s] and loads at one time in each simulated iteration
    """
    restored = list(loads)
    for window in windows:
        before, after = _loads_of_a_period(window, snapshots)
        for resource, (early, late) in enumerate(zip(before, after, strict=False)):
            units, busy = restored[resource]
            restored[resource] = (
                units + window.periods * (late[0] - early[0]),
                busy + window.periods * (late[1] - early[1]),
            )
    return restored


def _loads_of_a_period(window: PeriodWindow, snapshots: Mapping[Iteration, tuple[float, Loads]]) -> tuple[Loads, Loads]:
    """Loads at two times within the window, one period apart."""
    skipped = window.skipped
    for number in range(skipped.first, skipped.first + skipped.simulated - window.iterations):
        begin, before = snapshots[skipped.loop, number]
        end, after = snapshots[skipped.loop, number + window.iterations]
        if begin >= window.begin and end <= window.end:
            return before, after
    raise AssertionError("a window of three periods contains two snapshots one period apart")
