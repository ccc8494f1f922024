"""Turns of a loop that only repeat are not walked: all times go on by as much as in the turns before.

Theory of operation
-------------------
Times are maxima of sums.  Let every op of a turn, on every rank, end T later than
the same op a turn before, and let that be so in two turns one after the other.  What
an op waits for was then written T later too, or it is older than the loop.  Of two
that are compared, the one that decided and moved on by T decides again: the other
moves on by T as well, or stays.  So the next turn ends T later, and so do all that
follow, each of the three rows of times by a T of its own.

The walk then passes over turns: all that was written in the loop is moved on, sums
get what one turn adds as often, and the last turns are walked again, as many as there
are copies of tensors that take turns.
"""

from collections.abc import Iterator

import numpy as np

from algorithms.numbers import variables
from algorithms.ops import Op
from algorithms.parts import Panel, Place
from algorithms.schedule import Program, Repeat, Schedule, ops
from simulator.folding.gaps import BEHIND, slots_of
from simulator.steady.work import Looks
from topologies.network import Floats

SAME = 1e-12
"""Steps from turn to turn that differ by less, relative, are one."""
BEFORE = 4
"""Turns that are looked at before the first is passed over, at least, and of all that are not walked for times."""
LEFT_OUT = 2
"""Turns that are passed over are a multiple of this, so that copies that take turns are the same ones."""


class Loops:
    """The loops of a schedule of which turns may be passed over.

    Parameters
    ----------
    allowed : none, if not
    """

    def __init__(self, schedule: Schedule, looks: Looks, *, allowed: bool = True) -> None:
        self._looks, self._allowed = looks, allowed and len(schedule.roles) == 1
        self._slots = slots_of(schedule) if self._allowed else {}
        self._behind: dict[int, int] = {}

    def behind(self, entry: Repeat, place: Place) -> int:
        """Turns at the end of a loop that are walked in any case; all, where its turns differ or are few."""
        count = len(entry.indices(place))
        if id(entry) not in self._behind:
            self._behind[id(entry)] = self._needed(entry, place, count)
        return min(count, self._behind[id(entry)])

    def _needed(self, entry: Repeat, place: Place, count: int) -> int:
        if not self._allowed or not self._alike(entry) or _longest_inside(entry, place) > count:
            return 1 << 62
        few = (copies for copies in self._slots.get(entry.loop, ()) if copies < count // 2)
        return max([BEHIND, *few])

    def _alike(self, entry: Repeat) -> bool:
        """Whether its index makes no difference to what is done in a turn."""
        told = {name for op in ops(entry.body) for name in self._looks.needs(op).loops}
        return entry.loop not in told | _counting(entry.body)

    def walk(self, program: Program, place: Place) -> Iterator[tuple[Op, Place]]:
        """Ops of a rank in program order, of loops that repeat only the first turns and the last."""
        for entry in program:
            if not isinstance(entry, Repeat):
                yield entry, place
                continue
            indices = entry.indices(place)
            kept = BEFORE + self.behind(entry, place)
            for index in indices if kept >= len(indices) else (*indices[:BEFORE], *indices[BEFORE - kept :]):
                yield from self.walk(entry.body, place.during(entry.loop, index))


def _longest_inside(entry: Repeat, place: Place) -> int:
    """Turns of the longest loop in a loop's body."""
    found = 0
    for inner in entry.body:
        if isinstance(inner, Repeat):
            indices = entry.indices(place)
            within = place.during(entry.loop, indices[0]) if indices else place
            found = max(found, len(inner.indices(within)), _longest_inside(inner, within))
    return found


def _counting(program: Program) -> set[str]:
    """Loops by whose index it is told how often something is repeated, and with which index first."""
    found: set[str] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            counts = set() if isinstance(entry.count, Panel) else variables(entry.count)
            found |= counts | variables(entry.first) | _counting(entry.body)
    return found


class Beat:
    """The turns of one loop while they are walked: whether they have come to repeat."""

    def __init__(self) -> None:
        self._last: list[Floats] = []
        self._own: list[Floats] = []
        self._least: Floats = np.zeros(0)
        self._most: Floats = np.zeros(0)
        self._seconds: Floats | None = None

    def begin(self) -> None:
        """A turn begins."""
        self._last, self._own = self._own, []
        self._least, self._most = np.full(3, np.inf), np.full(3, -np.inf)

    def note(self, ends: Floats) -> None:
        """An op of the turn ends on all ranks [3, ranks]."""
        at = len(self._own)
        self._own.append(ends)
        if at < len(self._last):
            moved = ends - self._last[at]
            self._least = np.minimum(self._least, moved.min(axis=1))
            self._most = np.maximum(self._most, moved.max(axis=1))

    def seconds(self) -> Floats | None:
        """What a turn takes, in each row, once all ops of the last two have moved on by it; else None."""
        alike = len(self._own) == len(self._last) and bool(self._own)
        if alike:
            latest = np.max(self._own[-1], axis=1)
            alike = bool((self._most - self._least <= SAME * self._most + 16 * np.finfo(float).eps * latest).all())
        before, now = self._seconds, (self._least + self._most) / 2 if alike else None
        self._seconds = now
        if before is None or now is None:
            return None
        slack = SAME * now + 32 * np.finfo(float).eps * np.max(self._own[-1], axis=1)
        return now if (np.abs(now - before) <= slack).all() and (now > 0).all() else None
