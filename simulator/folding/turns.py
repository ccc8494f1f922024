"""Folding over time: turns of a loop that are known from those before.

Theory of operation
-------------------
Where many turns in a row do the same on all ranks, most of them are left out
at first (`plan`), and the shorter loop is simulated.  If the simulation has
fallen into a rhythm there, whole periods are put in (`rhythm`), and what comes
after is later by as much.

When is that exact?  The future follows from the state: what is under way, how far
it is, and the rest of the program.  Take a window of time in which every rank
that has the loop is inside it, nothing else is under way, and each span of a turn is that
of P turns before, T seconds later, on every rank.  Then what happens in the
window is the same T seconds later, so the state at its end is the state one
period before, but for the number of turns that are left.  From that state the
longer loop goes on for as many periods as were left out, and then as the shorter
one did.  The window must be three periods long, so that what was under way when
it began has ended long before.  Where there is no such window (ranks that drift
apart for long), more turns are simulated, at last all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from algorithms.ops import Op
from algorithms.parts import Place
from algorithms.schedule import Program, Repeat
from algorithms.timeline import Span, Turns
from simulator.folding.looks import Loop, in_turn, loop_in, outer_loops

KEPT = (8, 32)
"""Turns of a stretch that are simulated, in one attempt after the other; at last all."""
WORTH = 3
"""Stretches of so many times the turns that are simulated are shortened; a vain attempt then costs a third."""
PERIODS = (1, 2, 3, 4, 6)
MULTIPLE = 12
"""Of turns that are left out: of every period, and of every number of copies of a tensor up to four."""
WINDOW = 3
"""Periods that the window must last."""
SAME = 1e-12
"""Periods that differ by less, relative, are one."""

Turn = tuple[Loop, int]
"""Where a loop stands, and the how manieth turn of those that are simulated or left out."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of equal turns, of which the last ones are left out.

    Parameters
    ----------
    loop : where it stands, see `looks.py`
    first, left_out, stop : turns first .. left_out - 1 are simulated, left_out .. stop - 1 are not
    """

    loop: Loop
    first: int
    left_out: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.left_out


def plan(turns: Mapping[Loop, Sequence[int]], kept: Mapping[Turn, int]) -> list[Gap]:
    """What is left out at first: turns of the outermost loops that are long enough.

    >>> plan({"i#0": [7] * 50 + [8] * 4, "i#0[0]/j#0": [9] * 99}, {})
    [Gap(loop='i#0', first=0, left_out=14, stop=50)]

    Parameters
    ----------
    turns : what is done in each turn, by loop, the outer ones first
    kept : turns that must be simulated of the stretch that begins at one, where it is not `KEPT[0]`
    """
    found: list[Gap] = []
    shortened: set[Loop] = set()
    for loop, done in turns.items():
        first = 0
        if not shortened.isdisjoint(outer_loops(loop)):
            continue
        for _, alike in groupby(done):
            stop = first + len(list(alike))
            simulated = kept.get((loop, first), KEPT[0])
            count = (stop - first - simulated) // MULTIPLE * MULTIPLE
            if count > 0 and stop - first >= WORTH * simulated:
                found.append(Gap(loop, first, stop - count, stop))
                shortened.add(loop)
            first = stop
    return found


def walk_without(program: Program, place: Place, gaps: Sequence[Gap]) -> Iterator[tuple[Op, Place, Turn | None]]:
    """Ops of one rank in program order, each with its moment; turns that are left out are passed over.

    With each op comes its turn of the loop that has a gap; None where no loop around it has one.
    """
    by_loop: dict[Loop, list[Gap]] = {}
    for gap in gaps:
        by_loop.setdefault(gap.loop, []).append(gap)
    return _walk(program, place, by_loop, "", None)


def _walk(
    program: Program, place: Place, gaps: Mapping[Loop, Sequence[Gap]], within: str, turn: Turn | None
) -> Iterator[tuple[Op, Place, Turn | None]]:
    for at, entry in enumerate(program):
        if not isinstance(entry, Repeat):
            yield entry, place, turn
            continue
        loop = loop_in(program, at, within) if gaps else ""
        out = gaps.get(loop, ())
        for number, index in enumerate(entry.indices(place)):
            if not any(gap.left_out <= number < gap.stop for gap in out):
                yield from _walk(
                    entry.body,
                    place.during(entry.loop, index),
                    gaps,
                    in_turn(loop, number) if gaps else "",
                    (loop, number) if out else turn,
                )


@dataclass(frozen=True, slots=True)
class Rhythm:
    """What repeats before a gap.

    Parameters
    ----------
    begin, end : the window in which everything comes again after `seconds` and `turns` turns
    cut : the moment within it, a period before its end, at which whole periods are put in
    """

    gap: Gap
    begin: float
    end: float
    cut: float
    seconds: float
    turns: int

    @property
    def times(self) -> int:
        """Periods that were left out."""
        return self.gap.count // self.turns


def rhythm(gap: Gap, spans: Sequence[Span], turn_of: Sequence[Turn | None]) -> Rhythm | None:
    """The rhythm into which the turns before a gap fall; None where they do not.

    Parameters
    ----------
    turn_of : the turn that each span belongs to
    """
    times, inside = _times(gap, spans, turn_of)
    if times is None:
        return None
    for period in PERIODS:
        found = _window(times, period)
        if found is None:
            continue
        begin, end, seconds = found
        if end - begin < WINDOW * seconds * (1 + 1e-9) or gap.count % period:
            continue
        others = (span for span, own in zip(spans, inside, strict=True) if not own)
        if any(span.start < end and span.end > begin for span in others):
            continue
        starts = times[:, :, 1].ravel()
        return Rhythm(gap, begin, end, _quiet(starts, end - 1.5 * seconds, end - seconds), seconds, period)
    return None


def _times(
    gap: Gap, spans: Sequence[Span], turn_of: Sequence[Turn | None]
) -> tuple[NDArray[np.float64] | None, list[bool]]:
    """Ready, start and end of each op of each rank in each turn [turns, ops, 3], if all turns have the same ops."""
    turns: list[list[tuple[int, str, int, Span]]] = [[] for _ in range(gap.left_out - gap.first)]
    inside = []
    for span, turn in zip(spans, turn_of, strict=True):
        own = turn is not None and turn[0] == gap.loop and gap.first <= turn[1] < gap.left_out
        inside.append(own)
        if own and turn is not None:
            turns[turn[1] - gap.first].append((span.rank, span.op, span.index, span))
    ordered = [sorted(done, key=lambda entry: entry[:3]) for done in turns]
    names = {tuple(entry[:2] for entry in done) for done in ordered}
    if len(names) != 1 or not ordered[0]:
        return None, inside
    return np.array([[(s.ready, s.start, s.end) for *_, s in done] for done in ordered]), inside


def _window(times: NDArray[np.float64], period: int) -> tuple[float, float, float] | None:
    """When the turns repeat after `period` of them on every rank: from, until, and the seconds of a period."""
    if len(times) <= period:
        return None
    steps = times[period:] - times[:-period]
    middle = len(steps) // 2
    seconds = float(np.median(steps[middle]))
    near = np.abs(steps - seconds).max(axis=(1, 2)) <= SAME * seconds + 16 * np.finfo(float).eps * times.max()
    if seconds <= 0 or not near[middle]:
        return None
    first = last = middle
    while first > 0 and near[first - 1]:
        first -= 1
    while last + 1 < len(near) and near[last + 1]:
        last += 1
    return float(times[first, :, 2].max()), float(times[last + period, :, 1].min()), seconds


def _quiet(starts: NDArray[np.float64], begin: float, end: float) -> float:
    """The middle of the longest time between `begin` and `end` in which nothing starts."""
    edges = np.unique(np.concatenate([[begin, end], starts[(starts > begin) & (starts < end)]]))
    longest = int(np.argmax(np.diff(edges)))
    return float(edges[longest] + edges[longest + 1]) / 2


def put_in(rhythms: Sequence[Rhythm], spans: Sequence[Span], turn_of: Sequence[Turn | None]) -> "Told":
    """The spans as they are with all turns; those of periods that were left out are said once.

    Parameters
    ----------
    spans : of the shorter loops
    """
    times = np.array([(span.ready, span.start, span.arrival, span.end) for span in spans]).reshape(-1, 4)
    ready, starts, ops = times[:, 0].copy(), times[:, 1].copy(), np.array([span.op for span in spans])
    indices = np.array([span.index for span in spans], dtype=np.int64)
    weights = np.ones(len(spans), dtype=np.int64)
    turns: list[Turns] = []
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
        turns.append(Turns(one.cut + shift, one.seconds, one.times, per_turn))
    return Told(times, indices, weights, tuple(reversed(turns)))


@dataclass(frozen=True, slots=True, eq=False)
class Told:
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
    turns: tuple[Turns, ...]
