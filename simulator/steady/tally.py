"""What is kept of a walk: sums of every op over all ranks, spans of some ranks, and never all of both at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from algorithms.formats.record import PathPart
from algorithms.grid import Axis
from algorithms.ops import Communication, Op, kind, lane
from algorithms.timelines.op_times import OpTimes
from algorithms.timelines.spans import ALONE, COMPUTE, UNPAIRED, Span
from algorithms.timelines.turns import Turns
from simulator.folding.labels import Ints
from simulator.folding.turns import quiet
from simulator.spent import Spent
from simulator.steady.story import Story
from topologies.network import Floats

SECONDS = ("seconds", "waiting", "latency", "compute", "contention")
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

    def alone(self) -> "Instance":
        """The same, whose times keep no others in memory of which they are a row."""
        return replace(
            self, ready=self.ready.copy(), start=self.start.copy(), arrival=self.arrival.copy(), end=self.end.copy()
        )

    def of(self, ranks: Ints) -> "Instance":
        """The instance on those of the ranks that do it."""
        return self._at(np.flatnonzero(np.isin(self.ranks, ranks)))

    def _at(self, at: Ints) -> "Instance":
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

    def split(self, begin: float, seconds: float, indices: int) -> Iterator["Instance"]:
        """The ranks that start before that moment; the others so much later, their instance as many further."""
        late = self.start >= begin
        if not late.all():
            yield self._at(np.flatnonzero(~late))
        if late.any():
            found = self._at(np.flatnonzero(late))
            yield replace(
                found,
                index=found.index + indices,
                ready=found.ready + seconds,
                start=found.start + seconds,
                arrival=found.arrival + seconds,
                end=found.end + seconds,
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
            alone = self.axis is None or kind(self.op) in UNPAIRED
            group = ALONE if alone else rank - rank // stride % length * stride
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

    def copy(self) -> "_Sums":
        return replace(self, counts=self.counts.copy())

    def add(self, before: "_Sums | None", times: int) -> None:
        """Adds so many times what came since."""
        self.counts = self.counts + times * (self.counts - (0 if before is None else before.counts))
        for name in SECONDS:
            now = getattr(self, name)
            setattr(self, name, now + times * (now - (0.0 if before is None else getattr(before, name))))


@dataclass(slots=True, eq=False)
class _Moving:
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
class _Hiding:
    """What computing hides, on the ranks of one program: communication, and begin and end of what was computed.

    `covered` is the latest end of communication so far, and `covered_by` the instance that came last.
    """

    moving: list[_Moving] = field(default_factory=list)
    computing: list[tuple[int, Floats, Floats]] = field(default_factory=list)
    covered: Floats | None = None
    covered_by: int = 0

    def go_on_beside(self, times: int, seconds: float, last: int, first: int) -> None:
        """Communication from before instance `first` that is under way still is hidden by more turns like the last one.

        Parameters
        ----------
        last : instances before that turn
        """
        for moving in self.moving:
            if moving.number > first:
                continue
            for number, start, end in self.computing:
                for later in (seconds * turn for turn in range(1, times + 1) if number > last):
                    moving.exposed -= _common(moving.begin, moving.end, start + later, end + later)

    def move_on(self, seconds: float, first: int) -> None:
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
        self._hiding: dict[int, _Hiding] = {}
        self._number = 0
        self._settled: list[_Moving] = []  # since the last mark
        self.instances: list[Instance] = []
        self.turns: list[Turns] = []
        self.extrapolated: set[str] = set()

    def note(self, one: Instance, program: int) -> None:
        """An instance on the ranks of a program, in program order."""
        self._number += 1
        sums = self._ops.setdefault(
            one.op.name,
            _Sums(kind(one.op), lane(one.op), one.axis, float(one.start.min()), np.zeros(self._ranks, dtype=np.int64)),
        )
        sums.first = min(sums.first, float(one.start.min()))
        sums.counts[one.ranks] += 1
        sums.seconds += float(np.maximum(0.0, one.end - np.maximum(one.arrival, one.start)).sum())
        sums.waiting += float(np.maximum(0.0, np.minimum(one.arrival, one.end) - one.start).sum())
        latency, compute, contention = one.story.sums
        sums.latency += latency
        sums.compute += compute
        sums.contention += contention
        self._hide(one, self._hiding.setdefault(program, _Hiding()))
        self.instances.append(one.alone() if self._kept is None else one.of(self._kept))

    def mark(self) -> TallyMark:
        self._settled = []
        return TallyMark({name: sums.copy() for name, sums in self._ops.items()}, self._number, len(self.instances))

    def pass_over(
        self, times: int, seconds: float, mark: TallyMark, per_turn: Mapping[str, int], first: tuple[int, int]
    ) -> None:
        """So many turns of a loop as the one since the mark, each of so many seconds.

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
        starts = np.concatenate([one.start for one in self.instances[first[1] :]])
        end = min(float(one.start.min()) for one in last)
        begin = quiet(starts, end - seconds, end)
        self.instances[first[1] :] = [
            part
            for one in self.instances[first[1] :]
            for part in one.split(begin, times * seconds, times * per_turn.get(one.op.name, 0))
        ]
        self.turns.append(Turns(begin + times * seconds, seconds, times, dict(per_turn)))

    def _hide(self, one: Instance, hiding: _Hiding) -> None:
        """Charges each instant of communication that nothing computed hides to one op, the first in the program."""
        if lane(one.op) == COMPUTE:
            for moving in hiding.moving:
                moving.exposed -= _common(moving.begin, moving.end, one.start, one.end)
            done = [moving for moving in hiding.moving if (moving.end <= one.end).all()]
            self._settle(hiding, done)
            hiding.computing = [*hiding.computing[1 - REMEMBERED :], (self._number, one.start, one.end)]
            return
        begin = np.maximum(one.arrival, one.start)
        if hiding.covered is not None:
            begin = np.minimum(one.end, np.maximum(begin, hiding.covered))
        hiding.covered = one.end if hiding.covered is None else np.maximum(hiding.covered, one.end)
        hiding.covered_by = self._number
        moving = _Moving(self._number, one.op.name, begin, one.end, one.end - begin)
        earliest = float(begin.min())
        for _, start, end in reversed(hiding.computing):
            if float(end.max()) <= earliest:  # and so are those before it on the lane
                break
            moving.exposed -= _common(moving.begin, moving.end, start, end)
        hiding.moving.append(moving)

    def _settle(self, hiding: _Hiding, done: Sequence[_Moving]) -> None:
        for moving in done:
            self._ops[moving.name].exposed += moving.stands_for * moving.seconds
        self._settled += done
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
