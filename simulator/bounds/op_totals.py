"""What computing hides of communication: each instant that nothing hides is charged to one op."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quadrille.algorithms.analysis.labels import Ints
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import kind, lane
from quadrille.algorithms.timelines.op_times import OpTimes
from quadrille.algorithms.timelines.repeated_iterations import RepeatedIterations
from quadrille.algorithms.timelines.spans import COMPUTE
from quadrille.simulator.bounds.instances import Instance
from quadrille.simulator.loops.restore import quietest_time
from quadrille.topologies.network import Floats

REMEMBERED = 256
"""Computing ops that are kept to tell what they hide."""


@dataclass(slots=True, eq=False)
class ExposedOp:
    """A communication op that may still be hidden by what is computed later.

    Parameters
    ----------
    number : the how manieth of all instances it is
    stands_for : so many instances, itself included
    """

    number: int
    name: str
    begin: Floats
    end: Floats
    exposed: Floats
    stands_for: int = 1

    @property
    def seconds(self) -> float:
        """That nothing hides, on all ranks."""
        return float(np.maximum(0.0, self.exposed).sum())


@dataclass(slots=True, eq=False)
class ExposedTime:
    """What computing hides, on the ranks of one program: communication, and begin and end of what was computed.

    `covered` is the latest end of communication so far, and `covered_by` the instance that came last.
    """

    moving: list[ExposedOp] = field(default_factory=list)
    computing: list[tuple[int, Floats, Floats]] = field(default_factory=list)
    covered: Floats | None = None
    covered_by: int = 0

    def go_on_beside(self, times: int, seconds: Floats, last: int, first: int) -> None:
        """Communication from before instance `first` that is under way still is hidden by more turns like the last one.

        Parameters
        ----------
        last : instances before that turn
        """
        for moving in self.moving:
            if moving.number > first:
                continue
            for number, start, end in self.computing:
                turns = min(times, int(float((moving.end - start).max()) / float(seconds.min())))
                for later in (seconds * turn for turn in range(1, turns + 1) if number > last):
                    moving.exposed -= _common(moving.begin, moving.end, start + later, end + later)

    def move_on(self, seconds: Floats, first: int) -> None:
        """What came after instance `first` is later."""
        for moving in self.moving:
            if moving.number > first:
                moving.begin, moving.end = moving.begin + seconds, moving.end + seconds
        self.computing = [
            (number, start + seconds, end + seconds) if number > first else (number, start, end)
            for number, start, end in self.computing
        ]
        if self.covered is not None and self.covered_by > first:
            self.covered = self.covered + seconds

    def computes(self, number: int, one: Instance) -> list[ExposedOp]:
        """An op of the compute lane hides what is under way; gives back what no later one can hide."""
        for moving in self.moving:
            moving.exposed -= _common(moving.begin, moving.end, one.start, one.end)
        self.computing = [*self.computing[1 - REMEMBERED :], (number, one.start.copy(), one.end.copy())]
        return [moving for moving in self.moving if (moving.end <= one.end).all()]

    def communicates(self, number: int, one: Instance) -> None:
        """A communication op is under way, of which earlier ones charge their own part and computing hides some."""
        begin = np.maximum(one.arrival, one.start)
        if self.covered is not None:
            begin = np.minimum(one.end, np.maximum(begin, self.covered))
        self.covered = one.end if self.covered is None else np.maximum(self.covered, one.end)
        self.covered_by = number
        moving = ExposedOp(number, one.op.name, begin, one.end, one.end - begin)
        earliest = float(begin.min())
        for _, start, end in reversed(self.computing):
            if float(end.max()) <= earliest:  # and so are those before it on the lane
                break
            moving.exposed -= _common(moving.begin, moving.end, start, end)
        self.moving.append(moving)

    def leave(self, done: Sequence[ExposedOp]) -> None:
        """These are settled."""
        self.moving = [moving for moving in self.moving if all(moving is not one for one in done)]


def _common(begin: Floats, end: Floats, start: Floats, stop: Floats) -> Floats:
    """How long two stretches of time have in common."""
    found: Floats = np.maximum(0.0, np.minimum(end, stop) - np.maximum(begin, start))
    return found


SECONDS = ("seconds", "waiting", "latency", "compute", "contention")

SAME = 1e-12
"""Seconds of turns that differ by less, relative, are one."""


@dataclass(slots=True)
class _Sums:
    """One op over all ranks and instances [s]; `counts` are instances on the ranks of each program."""

    kind: str
    lane: str
    axis: Axis | None
    first: float
    counts: Counter[int]
    seconds: float = 0.0
    waiting: float = 0.0
    exposed: float = 0.0
    latency: float = 0.0
    compute: float = 0.0
    contention: float = 0.0

    def copy(self) -> "_Sums":
        return replace(self, counts=self.counts.copy())

    def add(self, before: "_Sums | None", times: int) -> None:
        """Adds so many times what came since."""
        for program, count in self.counts.items():
            self.counts[program] = count + times * (count - (0 if before is None else before.counts[program]))
        for name in SECONDS:
            now = getattr(self, name)
            setattr(self, name, now + times * (now - (0.0 if before is None else getattr(before, name))))


@dataclass(frozen=True, slots=True, eq=False)
class TotalsMark:
    """How far it had come: sums of every op, instances, and those that were kept."""

    ops: dict[str, _Sums]
    number: int
    instances: int


class OpTotals:
    """Sums over all ranks.

    Parameters
    ----------
    kept : ranks of which instances are kept, for spans; None for all
    """

    def __init__(self, ranks: int, kept: Ints | None = None) -> None:
        self._ranks = ranks
        self._kept = kept
        self._ops: dict[str, _Sums] = {}
        self._hiding: dict[int, ExposedTime] = {}
        self._number = 0
        self._settled: list[ExposedOp] = []  # since the last mark
        self.instances: list[Instance] = []
        self.turns: list[RepeatedIterations] = []
        self.extrapolated: set[str] = set()

    def note(self, one: Instance, program: int) -> None:
        """An instance on the ranks of a program, in program order."""
        self._number += 1
        sums = self._ops.setdefault(
            one.op.name,
            _Sums(kind(one.op), lane(one.op), one.axis, float(one.start.min()), Counter()),
        )
        sums.first = min(sums.first, float(one.start.min()))
        sums.counts[program] += 1
        sums.seconds += float(np.maximum(0.0, one.end - np.maximum(one.arrival, one.start)).sum())
        sums.waiting += float(np.maximum(0.0, np.minimum(one.arrival, one.end) - one.start).sum())
        latency, compute, contention = one.story.sums
        sums.latency += latency
        sums.compute += compute
        sums.contention += contention
        self._hide(one, self._hiding.setdefault(program, ExposedTime()))
        self.instances.append(one.alone() if self._kept is None else one.of(self._kept))

    def mark(self) -> TotalsMark:
        self._settled = []
        return TotalsMark({name: sums.copy() for name, sums in self._ops.items()}, self._number, len(self.instances))

    def pass_over(
        self, times: int, seconds: Floats, mark: TotalsMark, per_turn: Mapping[str, int], first: tuple[int, int]
    ) -> None:
        """So many turns of a loop as the one since the mark, each of so many seconds on each rank.

        Parameters
        ----------
        per_turn : instances of each op in a turn
        first : instances before the loop, and those of them that are kept
        """
        for name in per_turn:
            self._ops[name].add(mark.ops.get(name), times)
        for moving in self._settled:
            if moving.number > mark.number:
                self._ops[moving.name].exposed += times * moving.seconds
        for hiding in self._hiding.values():
            hiding.go_on_beside(times, seconds, mark.number, first[0])
            for moving in hiding.moving:
                moving.stands_for += times * (moving.number > mark.number)
            hiding.move_on(times * seconds, first[0])
        last = [one for one in self.instances[mark.instances :] if len(one.ranks)]
        if not last:
            return
        if float(np.ptp(seconds)) <= SAME * float(seconds.max()):
            self._say_once(times, float(seconds[0]), last, per_turn, first[1])
        else:
            own = [(one, _of(seconds, one.ranks)) for one in last]
            self.instances += [
                one.later(turn, by, per_turn[one.op.name]) for turn in range(1, times + 1) for one, by in own
            ]

    def _say_once(
        self, times: int, seconds: float, last: Sequence[Instance], per_turn: Mapping[str, int], first: int
    ) -> None:
        """Turns that take as long on all ranks are said once: what came since moves on, and stands for those before it.

        Parameters
        ----------
        last : instances of the last turn
        first : instances before the loop, of those that are kept
        """
        starts = np.concatenate([one.start for one in self.instances[first:]])
        end = min(float(one.start.min()) for one in last)
        begin = quietest_time(starts, end - seconds, end)
        self.instances[first:] = [
            part
            for one in self.instances[first:]
            for part in one.split(begin, times * seconds, times * per_turn.get(one.op.name, 0))
        ]
        self.turns.append(RepeatedIterations(begin + times * seconds, seconds, times, dict(per_turn)))

    def _hide(self, one: Instance, hiding: ExposedTime) -> None:
        """Charges each instant of communication that nothing computed hides to one op, the first in the program."""
        if lane(one.op) == COMPUTE:
            self._settle(hiding, hiding.computes(self._number, one))
        else:
            hiding.communicates(self._number, one)

    def _settle(self, hiding: ExposedTime, done: Sequence[ExposedOp]) -> None:
        for moving in done:
            self._ops[moving.name].exposed += moving.stands_for * moving.seconds
        self._settled += done
        hiding.leave(done)

    def times(self) -> dict[str, OpTimes]:
        """Times of every op, by name, in the order of first start."""
        for hiding in self._hiding.values():
            self._settle(hiding, hiding.moving)
        ranks = self._ranks
        return {
            name: OpTimes(
                name,
                sums.kind,
                sums.lane,
                sums.axis,
                count=max(sums.counts.values()),
                seconds=sums.seconds / ranks,
                waiting_seconds=sums.waiting / ranks,
                exposed_seconds=sums.exposed / ranks,
            )
            for name, sums in sorted(self._ops.items(), key=lambda item: item[1].first)
        }

    def spent(self) -> dict[str, dict[str, float]]:
        """Latency, compute and contention of each op, sums over all ranks."""
        return {
            name: {"latency": sums.latency, "compute": sums.compute, "contention": sums.contention}
            for name, sums in self._ops.items()
        }


class NoTotals(OpTotals):
    """Of a walk of which only the ends are asked for: keeps nothing."""

    def note(self, one: Instance, program: int) -> None:
        """An instance, which is not kept."""

    def pass_over(
        self, times: int, seconds: Floats, mark: TotalsMark, per_turn: Mapping[str, int], first: tuple[int, int]
    ) -> None:
        """Turns, which are not kept."""


def _of(seconds: Floats, ranks: Ints) -> Floats:
    """Those of some ranks, which may be all."""
    return seconds if len(ranks) == len(seconds) else seconds[ranks]
