"""What is kept of a walk: sums of every op over all ranks, spans of some ranks, and never all of both at once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quadrille.algorithms.analysis.labels import Ints
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import kind, lane
from quadrille.algorithms.timelines.op_times import OpTimes
from quadrille.algorithms.timelines.repeated_iterations import RepeatedIterations
from quadrille.algorithms.timelines.spans import COMPUTE
from quadrille.simulator.bounds.hidden import Hiding, Moving
from quadrille.simulator.bounds.instances import Instance
from quadrille.simulator.loops.restore import quiet
from quadrille.topologies.network import Floats

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
class TallyMark:
    """How far it had come: sums of every op, instances, and those that were kept."""

    ops: dict[str, _Sums]
    number: int
    instances: int


class Tally:
    """Sums over all ranks.

    Parameters
    ----------
    kept : ranks of which instances are kept, for spans; None for all
    """

    def __init__(self, ranks: int, kept: Ints | None = None) -> None:
        self._ranks = ranks
        self._kept = kept
        self._ops: dict[str, _Sums] = {}
        self._hiding: dict[int, Hiding] = {}
        self._number = 0
        self._settled: list[Moving] = []  # since the last mark
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
        self._hide(one, self._hiding.setdefault(program, Hiding()))
        self.instances.append(one.alone() if self._kept is None else one.of(self._kept))

    def mark(self) -> TallyMark:
        self._settled = []
        return TallyMark({name: sums.copy() for name, sums in self._ops.items()}, self._number, len(self.instances))

    def pass_over(
        self, times: int, seconds: Floats, mark: TallyMark, per_turn: Mapping[str, int], first: tuple[int, int]
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
        begin = quiet(starts, end - seconds, end)
        self.instances[first:] = [
            part
            for one in self.instances[first:]
            for part in one.split(begin, times * seconds, times * per_turn.get(one.op.name, 0))
        ]
        self.turns.append(RepeatedIterations(begin + times * seconds, seconds, times, dict(per_turn)))

    def _hide(self, one: Instance, hiding: Hiding) -> None:
        """Charges each instant of communication that nothing computed hides to one op, the first in the program."""
        if lane(one.op) == COMPUTE:
            self._settle(hiding, hiding.computes(self._number, one))
        else:
            hiding.communicates(self._number, one)

    def _settle(self, hiding: Hiding, done: Sequence[Moving]) -> None:
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


class Untold(Tally):
    """Of a walk of which only the ends are asked for: keeps nothing."""

    def note(self, one: Instance, program: int) -> None:
        """An instance, which is not kept."""

    def pass_over(
        self, times: int, seconds: Floats, mark: TallyMark, per_turn: Mapping[str, int], first: tuple[int, int]
    ) -> None:
        """Turns, which are not kept."""


def _of(seconds: Floats, ranks: Ints) -> Floats:
    """Those of some ranks, which may be all."""
    return seconds if len(ranks) == len(seconds) else seconds[ranks]
