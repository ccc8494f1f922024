"""Kendall's rank correlation coefficient tau, which says how well two orders of the same items agree."""

from collections.abc import Sequence
from math import sqrt

import numpy as np


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b: 1 for the same order, -1 for the reverse; None if all values of a sequence are equal.

    >>> kendall_tau([1, 2, 3, 4], [10, 30, 20, 40]), kendall_tau([1, 1], [2, 3])
    (0.6666666666666666, None)

    Source: Kendall, "The treatment of ties in ranking problems", Biometrika 33, 1945.
    """
    signs = [np.sign(np.subtract.outer(values, values)) for values in map(np.asarray, (first, second))]
    pairs = [int(np.abs(sign).sum()) for sign in signs]
    if not all(pairs):
        return None
    return float((signs[0] * signs[1]).sum() / sqrt(pairs[0] * pairs[1]))
