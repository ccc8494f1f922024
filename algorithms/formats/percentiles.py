"""Percentiles of repeated measurements: the median, the 5th and the 95th percentile, and the relative spread."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LOW, HIGH = 5, 95


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The 5th percentile, the median and the 95th percentile of one quantity, in its unit."""

    low: float
    median: float
    high: float

    @property
    def spread(self) -> float:
        """Half the distance from the 5th to the 95th percentile, over the median; 0 where the median is 0.

        >>> Percentiles(low=0.75, median=1.0, high=1.5).spread
        0.375
        """
        return (self.high - self.low) / 2 / self.median if self.median > 0 else 0.0


def percentiles(values: Sequence[float]) -> Percentiles:
    """Returns the percentiles of at least one value.

    >>> percentiles([2.0, 3.0, 1.0])
    Percentiles(low=1.1, median=2.0, high=2.9)
    """
    low, middle, high = (float(value) for value in np.percentile(values, (LOW, 50, HIGH)))
    return Percentiles(low, middle, high)


def spread(values: Sequence[float]) -> float:
    """Returns the spread of at least one value.

    >>> round(spread([2.0, 3.0, 1.0]), 3)
    0.45
    """
    return percentiles(values).spread
