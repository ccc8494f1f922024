"""What is kept of a walk: sums of every op over all ranks, spans of some ranks, and never all of both at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from algorithms.grid import Axis
from algorithms.ops import Communication, Op, kind, lane
from algorithms.record import PathPart
from algorithms.timeline import COMPUTE, OpTimes, Span
from simulator.folding.labels import Ints
from simulator.members import Spent
from simulator.steady.passing import Story
from topologies.network import Floats

REMEMBERED = 256
"""Computing ops that are kept to tell what they hide."""


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """One instance of an op on some ranks, at typical rates.

    Parameters
    ----------
    ranks : rising
    """

    op: Op
    index: int
    ranks: Ints
    ready: Floats
    start: Floats
    arrival: Floats
    end: Floats
    story: Story

    @property
    def axis(self) -> Axis | None:
        return self.op.axis if isinstance(self.op, Communication) else None

    def of(self, ranks: Ints) -> "Instance":
        """The instance on those of the ranks that do it."""
        at = np.flatnonzero(np.isin(self.ranks, ranks))
        return Instance(
            self.op,
            self.index,
            self.ranks[at],
            self.ready[at],
            self.start[at],
            self.arrival[at],
            self.end[at],
            self.story.of_ranks(at),
        )

    def spans(self, wanted: Ints, stride: int = 0, length: int = 1) -> Iterator[tuple[Span, Spent]]:
        """The spans of those of the wanted ranks that do it, each with what its time went into.

        Parameters
        ----------
        stride, length : of the op's axis
        """
        for at in np.flatnonzero(np.isin(self.ranks, wanted)).tolist():
            rank = int(self.ranks[at])
            ready, start, arrival, end = (float(one[at]) for one in (self.ready, self.start, self.arrival, self.end))
            group = rank - rank // stride % length * stride if self.axis is not None else -1
            yield (
                Span(
                    rank,
                    self.op.name,
                    kind(self.op),
                    lane(self.op),
                    ready,
                    start,
                    arrival,
                    end,
                    self.axis,
                    self.index,
                    group,
                ),
                self._spent(at, end - start),
            )

    def _spent(self, at: int, seconds: float) -> Spent:
        """The story of a rank, as far as its time goes; what is left is waiting for others."""
        spent = Spent(latency=float(self.story.latency[at]), compute=float(self.story.compute[at]))
        parts: tuple[tuple[PathPart, Floats], ...] = (
            ("compute", self.story.compute),
            ("latency", self.story.latency + self.story.overhead),
            ("bandwidth", self.story.bandwidth),
            ("contention", self.story.contention),
        )
        left = seconds
        for name, told in parts:
            taken = min(left, float(told[at]))
            spent.on_path(name, taken)
            left -= taken
        spent.on_path("waiting", left)
        return spent


@dataclass(slots=True)
class _Sums:
    """One op over all ranks and instances [s]."""

    kind: str
    lane: str
    axis: Axis | None
    first: float
    counts: Ints
    seconds: float = 0.0
    waiting: float = 0.0
    exposed: float = 0.0
    latency: float = 0.0
    compute: float = 0.0
    contention: float = 0.0


@dataclass(slots=True, eq=False)
class _Moving:
    """A communication op that may still be hidden by what is computed later."""

    name: str
    begin: Floats
    end: Floats
    exposed: Floats


@dataclass(slots=True, eq=False)
class _Hiding:
    """What computing hides, on the ranks of one program."""

    moving: list[_Moving] = field(default_factory=list)
    computing: list[tuple[Floats, Floats]] = field(default_factory=list)
    covered: Floats | None = None


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
        self._hiding: dict[int, _Hiding] = {}
        self.instances: list[Instance] = []
        self.extrapolated: set[str] = set()

    def note(self, one: Instance, program: int) -> None:
        """An instance on the ranks of a program, in program order."""
        sums = self._ops.setdefault(
            one.op.name,
            _Sums(kind(one.op), lane(one.op), one.axis, float(one.start.min()), np.zeros(self._ranks, dtype=np.int64)),
        )
        sums.first = min(sums.first, float(one.start.min()))
        sums.counts[one.ranks] += 1
        sums.seconds += float(np.maximum(0.0, one.end - np.maximum(one.arrival, one.start)).sum())
        sums.waiting += float(np.maximum(0.0, np.minimum(one.arrival, one.end) - one.start).sum())
        sums.latency += float(one.story.latency.sum())
        sums.compute += float(one.story.compute.sum())
        sums.contention += float(one.story.contention.sum())
        self._hide(one, self._hiding.setdefault(program, _Hiding()))
        self.instances.append(one if self._kept is None else one.of(self._kept))

    def _hide(self, one: Instance, hiding: _Hiding) -> None:
        """Charges each instant of communication that nothing computed hides to one op."""
        if lane(one.op) == COMPUTE:
            for moving in hiding.moving:
                moving.exposed -= _common(moving.begin, moving.end, one.start, one.end)
            done = [moving for moving in hiding.moving if (moving.end <= one.end).all()]
            self._settle(hiding, done)
            hiding.computing = [*hiding.computing[1 - REMEMBERED :], (one.start, one.end)]
            return
        begin = np.maximum(one.arrival, one.start)
        if hiding.covered is not None:
            begin = np.minimum(one.end, np.maximum(begin, hiding.covered))
        hiding.covered = one.end if hiding.covered is None else np.maximum(hiding.covered, one.end)
        moving = _Moving(one.op.name, begin, one.end, one.end - begin)
        for start, end in hiding.computing:
            moving.exposed -= _common(moving.begin, moving.end, start, end)
        hiding.moving.append(moving)

    def _settle(self, hiding: _Hiding, done: Sequence[_Moving]) -> None:
        for moving in done:
            self._ops[moving.name].exposed += float(np.maximum(0.0, moving.exposed).sum())
        hiding.moving = [moving for moving in hiding.moving if all(moving is not one for one in done)]

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
                count=int(sums.counts.max()),
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


def _common(begin: Floats, end: Floats, start: Floats, stop: Floats) -> Floats:
    """How long two stretches of time have in common."""
    found: Floats = np.maximum(0.0, np.minimum(end, stop) - np.maximum(begin, start))
    return found
