"""`Instance`: one execution of an op on many ranks at once, with its times, their breakdown by cause, and its totals.

An *instance* of an op is one execution in program order; an op in a loop has an instance for each iteration.  Each
attribute is an array over the ranks, so `BoundsWalk` treats thousands of ranks in one step.  `Instance.spans` turns
an instance into the spans of single ranks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from quadrille.algorithms.analysis.equality_labels import Ints, compact
from quadrille.algorithms.formats.record import PathPart
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import Communication, Op, kind, lane
from quadrille.algorithms.timelines.spans import ALONE, UNPAIRED, Span
from quadrille.simulator.ranks.time_breakdown import TimeBreakdown
from quadrille.topologies.network import Floats

ROWS = 3
"""Number of rows of times: LOW, TYPICAL and HIGH, see `channels.py`."""


@dataclass(slots=True, eq=False)
class OpTimeParts:
    """The typical time of each rank in one instance of an op, by cause [s].

    Parameters
    ----------
    latency, bandwidth, contention : time of the messages that the rank sends; if it sends none, of the messages that it
        receives [s] [ranks]
    compute : time of copies and reductions [s] [ranks]
    overhead : fixed time of the op in addition to its steps [s] [ranks]
    """

    latency: Floats
    bandwidth: Floats
    contention: Floats
    compute: Floats
    overhead: Floats
    _sums: tuple[float, ...] = field(default=(), init=False)

    @classmethod
    def of(cls, ranks: int) -> "OpTimeParts":
        """A breakdown of zero seconds for `ranks` ranks."""
        return cls(*(np.zeros(ranks) for _ in range(5)))

    @property
    def sums(self) -> tuple[float, ...]:
        """Latency with overhead, compute, and contention, summed over the ranks; computed once, after all changes."""
        if not self._sums:
            columns = self.latency + self.overhead, self.compute, self.contention
            self._sums = tuple(float(column.sum()) for column in columns)
        return self._sums

    def thin(self) -> "OpTimeParts":
        """A read-only copy that stores equal values of all ranks once."""
        return OpTimeParts(*(compact(column) for column in self.columns()))

    def columns(self) -> tuple[Floats, ...]:
        """The columns of the five causes: latency, bandwidth, contention, compute, overhead."""
        return self.latency, self.bandwidth, self.contention, self.compute, self.overhead

    def of_ranks(self, ranks: Ints) -> "OpTimeParts":
        """The breakdown of some of the ranks."""
        return OpTimeParts(*(column[ranks] for column in self.columns()))

    def set_causes(self, ranks: Ints, seconds: Floats, causes: Mapping[PathPart, float]) -> None:
        """Sets the seconds of some ranks, split as latency, bandwidth and contention are in `causes`.

        >>> parts = OpTimeParts.of(2)
        >>> parts.set_causes(np.arange(2), np.array([4.0, 2.0]), {"latency": 3.0, "bandwidth": 1.0, "contention": 0.0})
        >>> parts.latency.tolist(), parts.bandwidth.tolist()
        ([3.0, 1.5], [1.0, 0.5])
        """
        whole = sum(causes.values())
        if not whole:
            self.latency[ranks] = seconds
            return
        self.bandwidth[ranks] = seconds * (causes["bandwidth"] / whole)
        self.contention[ranks] = seconds * (causes["contention"] / whole)
        self.latency[ranks] = seconds - self.bandwidth[ranks] - self.contention[ranks]

    def set_ranks(self, ranks: Ints, parts: "OpTimeParts") -> None:
        """Sets the breakdown of some of the ranks."""
        for column, values in zip(self.columns(), parts.columns(), strict=True):
            column[ranks] = values


@dataclass(slots=True, eq=False)
class ChannelTotals:
    """Bytes over each channel, seconds in which it is in use at its typical rate, and the number of simulated messages.

    Parameters
    ----------
    bytes, seconds : bytes and seconds of each channel [channels]
    links : bytes over links that no channel of the schedule accounts for
    """

    bytes: Floats
    seconds: Floats
    links: Floats
    messages: int = 0

    @classmethod
    def none(cls, channels: int, links: int) -> "ChannelTotals":
        """Totals of zero for these numbers of channels and links."""
        return cls(np.zeros(channels), np.zeros(channels), np.zeros(links))

    def copy(self) -> "ChannelTotals":
        """A copy that does not change with later additions."""
        return ChannelTotals(self.bytes.copy(), self.seconds.copy(), self.links.copy(), self.messages)

    def add(self, before: "ChannelTotals", times: int) -> None:
        """Adds the increase since `before` another `times` times; the number of simulated messages stays."""
        self.bytes += times * (self.bytes - before.bytes)
        self.seconds += times * (self.seconds - before.seconds)
        self.links += times * (self.links - before.links)

    def add_instance(self, instance: "InstanceTotals") -> None:
        """Adds an instance of an op."""
        self.bytes[instance.channel] += instance.bytes
        self.seconds[instance.channel] += instance.seconds


@dataclass(frozen=True, slots=True, eq=False)
class InstanceTotals:
    """The time and the traffic that one instance of an op on its groups adds to the totals.

    Parameters
    ----------
    time_parts : breakdown of the time of each member
    channel : channels that are used, rising
    bytes, seconds : bytes over each of these channels, and seconds in use at the typical rate
    """

    time_parts: OpTimeParts
    channel: Ints
    bytes: Floats
    seconds: Floats
    extrapolated: bool


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """One instance of an op on some ranks, at typical rates.

    Parameters
    ----------
    index : number of the op's instances before this instance
    ranks : the ranks, rising [ranks]
    ready, start : times at which dependencies have ended, and at which the op starts [ranks] [s]
    arrival, end : times at which the last member of the group has started, and at which the op ends [ranks] [s]
    time_parts : breakdown of the time by cause
    iteration_seconds, iterations : if set, all times are `iterations * iteration_seconds` later than the arrays say;
        so instances of repeated iterations share arrays [ranks] [s]
    to_peer : distance in ranks to the other end, for a send or receive
    """

    op: Op
    index: int
    ranks: Ints
    ready: Floats
    start: Floats
    arrival: Floats
    end: Floats
    time_parts: OpTimeParts
    iteration_seconds: Floats | None = None
    iterations: int = 0
    to_peer: int = 0

    @property
    def axis(self) -> Axis | None:
        """The axis of a communication op; None for a local op."""
        return self.op.axis if isinstance(self.op, Communication) else None

    def detached(self) -> "Instance":
        """A copy with arrays of its own, so that the larger arrays behind its rows can be freed."""
        start = self.start.copy()
        return Instance(
            self.op,
            self.index,
            self.ranks,
            self.ready.copy(),
            start,
            start if self.arrival is self.start else self.arrival.copy(),
            self.end.copy(),
            self.time_parts,
            self.iteration_seconds,
            self.iterations,
            self.to_peer,
        )

    def of(self, ranks: Ints) -> "Instance":
        """The instance on the given ranks, as far as they execute it."""
        return self._at(indices_of(ranks, self.ranks))

    def _at(self, at: Ints) -> "Instance":
        return Instance(
            self.op,
            self.index,
            self.ranks[at],
            self.ready[at],
            self.start[at],
            self.arrival[at],
            self.end[at],
            self.time_parts.of_ranks(at),
            None if self.iteration_seconds is None else self.iteration_seconds[at],
            self.iterations,
            self.to_peer,
        )

    def split(self, begin: float, seconds: float, indices: int) -> Iterator["Instance"]:
        """Splits the ranks at a time: ranks that start before it, and later ranks shifted in time and index.

        Parameters
        ----------
        begin : time of the split [s]
        seconds, indices : shift of the later ranks in time [s] and in the index of the instance
        """
        late = self.start >= begin
        if not late.all():
            yield self._at(np.flatnonzero(~late))
        if late.any():
            shifted = self._at(np.flatnonzero(late))
            yield replace(
                shifted,
                index=shifted.index + indices,
                ready=shifted.ready + seconds,
                start=shifted.start + seconds,
                arrival=shifted.arrival + seconds,
                end=shifted.end + seconds,
            )

    def repeated(self, iterations: int, seconds: Floats, per_iteration: int) -> "Instance":
        """The instance of the same op `iterations` iterations later; it shares the arrays of this instance.

        Parameters
        ----------
        iterations : number of iterations
        seconds : time of an iteration on each rank [ranks] [s]
        per_iteration : instances of the op in an iteration
        """
        return replace(
            self, index=self.index + iterations * per_iteration, iteration_seconds=seconds, iterations=iterations
        )

    def delay(self, at: Ints | int) -> Floats:
        """Seconds by which the instance is later than its arrays say, at some indices of `ranks` [s]."""
        return (
            np.zeros(1) if self.iteration_seconds is None else np.asarray(self.iterations * self.iteration_seconds[at])
        )

    def spans(self, indices: Ints, stride: int = 0, length: int = 1) -> Iterator[tuple[Span, TimeBreakdown]]:
        """The spans of the ranks at these indices, each with the breakdown of its time.

        Parameters
        ----------
        indices : indices into `ranks`
        stride, length : distance in ranks between neighbours along the op's axis, and number of ranks along it
        """
        for at in indices.tolist():
            rank, delay = int(self.ranks[at]), float(self.delay(at).item())
            times = (self.ready, self.start, self.arrival, self.end)
            ready, start, arrival, end = (float(column[at]) + delay for column in times)
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
                    self.to_peer,
                ),
                self._breakdown(at, end - start),
            )

    def _breakdown(self, at: int, seconds: float) -> TimeBreakdown:
        """The breakdown of a rank's time, cut off at the length of its span; the rest of the span is waiting."""
        breakdown = TimeBreakdown(
            latency=float(self.time_parts.latency[at]), compute=float(self.time_parts.compute[at])
        )
        parts: tuple[tuple[PathPart, Floats], ...] = (
            ("compute", self.time_parts.compute),
            ("latency", self.time_parts.latency + self.time_parts.overhead),
            ("bandwidth", self.time_parts.bandwidth),
            ("contention", self.time_parts.contention),
        )
        remaining = seconds
        for name, seconds_by_rank in parts:
            part = min(remaining, float(seconds_by_rank[at]))
            breakdown.on_path(name, part)
            remaining -= part
        breakdown.on_path("waiting", remaining)
        return breakdown


def indices_of(wanted: Ints, ranks: Ints) -> Ints:
    """Indices of the wanted ranks in a rising list of ranks; ranks that are not in the list are left out.

    >>> indices_of(np.array([2, 5]), np.array([5, 7])).tolist()
    [0]
    """
    at = np.minimum(np.searchsorted(ranks, wanted), max(0, len(ranks) - 1))
    return at[ranks[at] == wanted] if len(ranks) else at[:0]
