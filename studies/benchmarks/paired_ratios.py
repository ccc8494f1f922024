"""The median ratio of paired measurements, with its bootstrap confidence interval."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios of pairs, and its 95 % bootstrap interval."""

    median: float
    low: float
    high: float


def ratio_of_pairs(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The median of ours / theirs over the pairs, with its interval by the percentile bootstrap.

    Parameters
    ----------
    ours, theirs : times of each pair, measured one after the other [s]

    >>> ratio_of_pairs([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    Ratio(median=0.5, low=0.5, high=0.5)
    """
    ratios = np.array(ours) / np.array(theirs)
    random = np.random.default_rng(0)
    medians = np.median(random.choice(ratios, (RESAMPLES, len(ratios))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return Ratio(float(np.median(ratios)), float(low), float(high))
