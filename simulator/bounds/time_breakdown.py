"""What the time of an op goes into on each rank, and what it sends over each channel."""

from dataclasses import dataclass, field

import numpy as np

from quadrille.algorithms.analysis.labels import Ints
from quadrille.simulator.bounds.distinct import thin
from quadrille.topologies.network import Floats

ROWS = 3


@dataclass(slots=True, eq=False)
class Story:
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
    def of(cls, ranks: int) -> "Story":
        return cls(*(np.zeros(ranks) for _ in range(5)))

    @property
    def sums(self) -> tuple[float, ...]:
        """Of latency, compute and contention over the ranks; asked for once a story has been told."""
        if not self._sums:
            self._sums = tuple(float(told.sum()) for told in (self.latency, self.compute, self.contention))
        return self._sums

    def thin(self) -> "Story":
        """The same, where ranks are alike kept once; not to be written to."""
        return Story(*(thin(told) for told in self.columns()))

    def columns(self) -> tuple[Floats, ...]:
        return self.latency, self.bandwidth, self.contention, self.compute, self.overhead

    def of_ranks(self, ranks: Ints) -> "Story":
        """The story of some of the ranks."""
        return Story(*(told[ranks] for told in self.columns()))

    def put(self, ranks: Ints, other: "Story") -> None:
        """Says what some of the ranks did."""
        for told, spent in zip(self.columns(), other.columns(), strict=True):
            told[ranks] = spent


@dataclass(slots=True, eq=False)
class Carried:
    """What went over each channel: bytes, and seconds under way at the typical rate; messages that were looked at.

    `links` are bytes over links that no channel of the schedule tells of.
    """

    bytes: Floats
    seconds: Floats
    links: Floats
    messages: int = 0

    @classmethod
    def none(cls, channels: int, links: int) -> "Carried":
        return cls(np.zeros(channels), np.zeros(channels), np.zeros(links))

    def copy(self) -> "Carried":
        return Carried(self.bytes.copy(), self.seconds.copy(), self.links.copy(), self.messages)

    def add(self, before: "Carried", times: int) -> None:
        """Adds so many times what came since; messages are only those that were looked at."""
        self.bytes += times * (self.bytes - before.bytes)
        self.seconds += times * (self.seconds - before.seconds)
        self.links += times * (self.links - before.links)

    def take(self, told: "InstanceStory") -> None:
        """Adds an instance of an op."""
        self.bytes[told.channel] += told.bytes
        self.seconds[told.channel] += told.seconds


@dataclass(frozen=True, slots=True, eq=False)
class InstanceStory:
    """What an instance of an op comes to on its groups, whenever its members begin.

    Parameters
    ----------
    story : of each member
    channel : those that are used, rising
    bytes, seconds : that go over each of them, and are under way at the typical rate
    """

    story: Story
    channel: Ints
    bytes: Floats
    seconds: Floats
    extrapolated: bool
