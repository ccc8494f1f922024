"""What the time of an op goes into on each rank, and what it sends over each channel."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from quadrille.algorithms.analysis.labels import Ints, thin
from quadrille.algorithms.formats.record import PathPart
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import Communication, Op, kind, lane
from quadrille.algorithms.timelines.spans import ALONE, UNPAIRED, Span
from quadrille.simulator.ranks.time_breakdown import TimeBreakdown
from quadrille.topologies.network import Floats

ROWS = 3


@dataclass(slots=True, eq=False)
class TimeParts:
    """What the time of each rank went into, typically [s].

    Parameters
    ----------
    latency, bandwidth, contention : of the messages that it sends, or else gets
    compute : copies and additions
    overhead : what the op costs beside its steps
    """

    latency: Floats
    bandwidth: Floats
    contention: Floats
    compute: Floats
    overhead: Floats
    _sums: tuple[float, ...] = field(default=(), init=False)

    @classmethod
    def of(cls, ranks: int) -> "TimeParts":
        return cls(*(np.zeros(ranks) for _ in range(5)))

    @property
    def sums(self) -> tuple[float, ...]:
        """Of latency, compute and contention over the ranks; asked for once a story has been told."""
        if not self._sums:
            self._sums = tuple(float(told.sum()) for told in (self.latency, self.compute, self.contention))
        return self._sums

    def thin(self) -> "TimeParts":
        """The same, where ranks are alike kept once; not to be written to."""
        return TimeParts(*(thin(told) for told in self.columns()))

    def columns(self) -> tuple[Floats, ...]:
        return self.latency, self.bandwidth, self.contention, self.compute, self.overhead

    def of_ranks(self, ranks: Ints) -> "TimeParts":
        """The story of some of the ranks."""
        return TimeParts(*(told[ranks] for told in self.columns()))

    def put(self, ranks: Ints, other: "TimeParts") -> None:
        """Says what some of the ranks did."""
        for told, spent in zip(self.columns(), other.columns(), strict=True):
            told[ranks] = spent


@dataclass(slots=True, eq=False)
class ChannelTotals:
    """What went over each channel: bytes, and seconds under way at the typical rate; messages that were looked at.

    `links` are bytes over links that no channel of the schedule tells of.
    """

    bytes: Floats
    seconds: Floats
    links: Floats
    messages: int = 0

    @classmethod
    def none(cls, channels: int, links: int) -> "ChannelTotals":
        return cls(np.zeros(channels), np.zeros(channels), np.zeros(links))

    def copy(self) -> "ChannelTotals":
        return ChannelTotals(self.bytes.copy(), self.seconds.copy(), self.links.copy(), self.messages)

    def add(self, before: "ChannelTotals", times: int) -> None:
        """Adds so many times what came since; messages are only those that were looked at."""
        self.bytes += times * (self.bytes - before.bytes)
        self.seconds += times * (self.seconds - before.seconds)
        self.links += times * (self.links - before.links)

    def take(self, told: "InstanceTotals") -> None:
        """Adds an instance of an op."""
        self.bytes[told.channel] += told.bytes
        self.seconds[told.channel] += told.seconds


@dataclass(frozen=True, slots=True, eq=False)
class InstanceTotals:
    """What an instance of an op comes to on its groups, whenever its members begin.

    Parameters
    ----------
    story : of each member
    channel : those that are used, rising
    bytes, seconds : that go over each of them, and are under way at the typical rate
    """

    story: TimeParts
    channel: Ints
    bytes: Floats
    seconds: Floats
    extrapolated: bool


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """One instance of an op on some ranks, at typical rates.

    Parameters
    ----------
    ranks : rising
    by, turns : it comes so many times so many seconds later than its times say, on each of the ranks
    """

    op: Op
    index: int
    ranks: Ints
    ready: Floats
    start: Floats
    arrival: Floats
    end: Floats
    story: TimeParts
    by: Floats | None = None
    turns: int = 0

    @property
    def axis(self) -> Axis | None:
        return self.op.axis if isinstance(self.op, Communication) else None

    def alone(self) -> "Instance":
        """The same, whose times keep no others in memory of which they are a row."""
        return replace(
            self, ready=self.ready.copy(), start=self.start.copy(), arrival=self.arrival.copy(), end=self.end.copy()
        )

    def of(self, ranks: Ints) -> "Instance":
        """The instance on those of the rising ranks that do it."""
        return self._at(places_of(ranks, self.ranks))

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
            None if self.by is None else self.by[at],
            self.turns,
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

    def later(self, turns: int, by: Floats, per_turn: int) -> "Instance":
        """The one so many turns later, in each of which there are so many of the op; it keeps no times of its own."""
        return replace(self, index=self.index + turns * per_turn, by=by, turns=turns)

    def moved(self, at: Ints | int) -> Floats:
        """How much later than its times say it comes on some of the ranks."""
        return np.zeros(1) if self.by is None else np.asarray(self.turns * self.by[at])

    def spans(self, places: Ints, stride: int = 0, length: int = 1) -> Iterator[tuple[Span, TimeBreakdown]]:
        """The spans of the ranks at these places among its own, each with what its time went into.

        Parameters
        ----------
        stride, length : of the op's axis
        """
        for at in places.tolist():
            rank, later = int(self.ranks[at]), float(self.moved(at).item())
            times = (self.ready, self.start, self.arrival, self.end)
            ready, start, arrival, end = (float(one[at]) + later for one in times)
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

    def _spent(self, at: int, seconds: float) -> TimeBreakdown:
        """The story of a rank, as far as its time goes; what is left is waiting for others."""
        spent = TimeBreakdown(latency=float(self.story.latency[at]), compute=float(self.story.compute[at]))
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


def places_of(wanted: Ints, ranks: Ints) -> Ints:
    """Where the wanted ones of some rising ranks are among them.

    >>> places_of(np.array([2, 5]), np.array([5, 7])).tolist()
    [0]
    """
    at = np.minimum(np.searchsorted(ranks, wanted), max(0, len(ranks) - 1))
    return at[ranks[at] == wanted] if len(ranks) else at[:0]
