"""Measured seconds as a function of size: a straight line between neighbours, a constant rate beyond the ends."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class SecondsBySize:
    """Measured (bytes, seconds) pairs, by size.

    >>> curve = SecondsBySize.of([(100, 2.0), (300, 4.0)])
    >>> curve.seconds(200), curve.seconds(600), curve.seconds(0)
    (3.0, 8.0, 2.0)
    """

    sizes: tuple[float, ...]
    times: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> "SecondsBySize":
        """The curve through these points; the median where one size was measured several times."""
        by_size: dict[float, list[float]] = {}
        for size, seconds in points:
            by_size.setdefault(size, []).append(seconds)
        sizes = tuple(sorted(by_size))
        return cls(sizes, tuple(median(by_size[size]) for size in sizes))

    @classmethod
    def growing(cls, points: Iterable[tuple[float, float]]) -> "SecondsBySize":
        """The curve of what takes no less where it is larger.

        Where points say otherwise, chance made one of them long, a rank that was not woken at once, say: neighbours
        count as their median until none is above the next (pool adjacent violators; Barlow, Bartholomew, Bremner,
        Brunk, "Statistical inference under order restrictions", 1972, section 1.2, with medians for means).

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
        """Seconds of the smallest size: what a step costs before its bytes count."""
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
        """Whether the size is at most twice the largest measured; smaller ones cost what the smallest does."""
        return size <= 2 * self.sizes[-1]
