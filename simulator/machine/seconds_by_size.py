"""Measured seconds by message size: interpolated curves, and the seconds of transfers from a machine file."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from quadrille.algorithms.formats.measured_rows import TransferRow
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.machines.machine import Machine

SAME_ENDPOINT_TOUCHES = 2
"""Bytes of memory read and written for each byte between ranks of one host."""


@dataclass(frozen=True, slots=True)
class SecondsBySize:
    """Measured seconds by bytes: linear between measured sizes, a constant rate beyond the largest.

    >>> curve = SecondsBySize.of([(100, 2.0), (300, 4.0)])
    >>> curve.seconds(200), curve.seconds(600), curve.seconds(0)
    (3.0, 8.0, 2.0)
    """

    sizes: tuple[float, ...]
    times: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> "SecondsBySize":
        """The curve through these points; the median if a size was measured several times."""
        by_size: dict[float, list[float]] = {}
        for size, seconds in points:
            by_size.setdefault(size, []).append(seconds)
        sizes = tuple(sorted(by_size))
        return cls(sizes, tuple(median(by_size[size]) for size in sizes))

    @classmethod
    def growing(cls, points: Iterable[tuple[float, float]]) -> "SecondsBySize":
        """The curve of work that takes no less time if it is larger.

        If points contradict that, chance made one of them long, such as a rank that woke up late.  Neighbours are then
        replaced by their median until no point is above the next (pool adjacent violators; Barlow, Bartholomew,
        Bremner, Brunk, "Statistical inference under order restrictions", 1972, section 1.2, with medians for means).

        >>> SecondsBySize.growing([(8, 3.7), (64, 0.7), (512, 0.8), (4096, 9.0)]).times
        (0.8, 0.8, 0.8, 9.0)
        """
        by_size = cls.of(points)
        pools: list[list[float]] = []
        for seconds in by_size.times:
            pools.append([seconds])
            while len(pools) > 1 and median(pools[-2]) > median(pools[-1]):
                last = pools.pop()
                pools[-1] += last
        return cls(by_size.sizes, tuple(median(pool) for pool in pools for _ in pool))

    @property
    def least(self) -> float:
        """Seconds of the smallest size, which is the latency of a step."""
        return self.times[0]

    def seconds(self, size: float) -> float:
        """Seconds for `size` bytes."""
        if size <= self.sizes[0]:
            return self.times[0]
        if size >= self.sizes[-1]:
            return self.times[-1] * size / self.sizes[-1]
        above = bisect_left(self.sizes, size)
        low, high = self.sizes[above - 1], self.sizes[above]
        share = (size - low) / (high - low)
        return self.times[above - 1] + share * (self.times[above] - self.times[above - 1])

    def covers(self, size: float) -> bool:
        """Whether the size is at most twice the largest measured size; smaller sizes cost as much as the smallest."""
        return size <= 2 * self.sizes[-1]


@dataclass(frozen=True, slots=True)
class TransferSeconds:
    """Seconds of a transfer by its bytes, as one step of a pattern.

    >>> TransferSeconds(latency=1e-6, bandwidth=1e9).moving(1000)
    1e-06

    Parameters
    ----------
    latency : seconds before bytes move [s]
    measured : latency and movement together, None if nothing was measured
    bandwidth : bandwidth if nothing was measured [B/s]
    by_route : whether only the route is known, whose latency counts then
    takes_a_core : whether the transfer needs a core, so that computation slows it; false if it was measured with more
        ranks than cores
    """

    latency: float
    measured: SecondsBySize | None = None
    bandwidth: float = inf
    by_route: bool = False
    takes_a_core: bool = True

    def moving(self, size: float) -> float:
        """Seconds after the latency, without contention."""
        if self.measured is None:
            return size / self.bandwidth
        return max(0.0, self.measured.seconds(size) - self.measured.least)

    def touching(self, size: float) -> float:
        """Memory traffic of the host while bytes move [B/s]."""
        if self.measured is None:
            return SAME_ENDPOINT_TOUCHES * self.bandwidth
        moving = self.moving(size)
        return SAME_ENDPOINT_TOUCHES * size / moving if moving else 0.0

    def covers(self, size: float) -> bool:
        """Whether the size is not much larger than the measured sizes."""
        return self.measured is None or self.measured.covers(size)


class TransferTable:
    """Seconds of the transfers of a run, from the rows of a machine file.

    The rows are chosen by the number of participants: ranks on a host, or endpoints with ranks on the network.
    """

    def __init__(self, machine: Machine, placement: RankPlacement) -> None:
        self._machine, self._placement = machine, placement
        self._cache: dict[tuple[str, str, int, int], TransferSeconds] = {}

    def within(self, pattern: str, rank: int) -> TransferSeconds:
        """Transfer from this rank to another rank of its host."""
        cores, neighbours = self._placement.cores(self._placement.endpoint(rank)), self._placement.neighbours(rank)
        key = ("host", pattern, neighbours, cores)
        if key not in self._cache:
            self._cache[key] = self._within(pattern, neighbours, cores)
        return self._cache[key]

    def _within(self, pattern: str, neighbours: int, cores: int) -> TransferSeconds:
        host, device = self._machine.host, self._machine.device
        rows = rows_for(host.transfer if host is not None else (), pattern, neighbours, cores)
        if rows is None:
            return TransferSeconds(
                device.overhead_seconds, bandwidth=device.memory_bytes_per_second / SAME_ENDPOINT_TOUCHES
            )
        measured, ranks = rows
        return TransferSeconds(measured.least, measured, takes_a_core=ranks <= cores)

    def across(self, pattern: str) -> TransferSeconds:
        """Transfer between endpoints; limited by its route only if nothing was measured."""
        endpoints = self._placement.used_endpoints, self._placement.net.endpoint_count
        key = ("network", pattern, *endpoints)
        if key not in self._cache:
            network = self._machine.network
            rows = rows_for(network.transfer if network is not None else (), pattern, *endpoints)
            self._cache[key] = (
                TransferSeconds(0.0, by_route=True) if rows is None else TransferSeconds(rows[0].least, rows[0])
            )
        return self._cache[key]


def rows_for(
    rows: Sequence[TransferRow], pattern: str, participants: int, most: int
) -> tuple[SecondsBySize, int] | None:
    """Curve of the rows of this or the most similar pattern, and their number of ranks, nearest to the participants.

    Rows of more ranks than `most` (cores or hosts) are used only if there are no others, as for the ranks of one GPU.
    An exchange of two ranks sends and receives at once, as a shift of two ranks does, which was measured.
    """
    if not rows:
        return None
    patterns_of_two = {row.pattern for row in rows if row.ranks == participants == 2}
    if pattern == "exchange" and pattern not in patterns_of_two and "shift" in patterns_of_two:
        pattern = "shift"
    measured = {row.pattern for row in rows}
    nearest = next(p for p in (pattern, "shift", "exchange", "one_way") if p in measured)
    counts = {row.ranks for row in rows if row.pattern == nearest}
    ranks = min(counts, key=lambda count: (count > most, abs(count - participants), count))
    points = ((row.bytes, row.seconds) for row in rows if row.pattern == nearest and row.ranks == ranks)
    return SecondsBySize.growing(points), ranks
