"""Values of which there are few kinds: each kind once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints
from quadrille.topologies.network import Floats


def distinct(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """Each value once, rising, and which of them each is; of many that are all alike without sorting.

    >>> distinct(np.array([3.0, 3.0]))
    (array([3.]), array([0, 0]))
    """
    if len(values) and (values == values[0]).all():
        return values[:1], np.zeros(len(values), dtype=np.int64)
    found, which = np.unique(values, return_inverse=True)
    return found, which


def rising(numbers: Ints) -> Ints:
    """Each number once, rising; by sorting, since hashes of numbers at equal distances are slow to tell apart.

    >>> rising(np.array([5, 3, 5])).tolist()
    [3, 5]
    """
    found = np.sort(numbers)
    once: Ints = found[np.concatenate([np.ones(min(1, len(found)), dtype=bool), found[1:] != found[:-1]])]
    return once


def thin(values: Floats) -> Floats:
    """The same values, those of a row kept once where they are all alike along it; not to be written to.

    >>> thin(np.array([[2.0, 2.0], [3.0, 3.0]])).strides
    (8, 0)
    """
    if values.size and (values == values[..., :1]).all():
        return np.broadcast_to(values[..., :1].copy(), values.shape)
    return values


def kept(values: Floats) -> int:
    """Numbers that an array keeps, where `thin` may have made it.

    >>> kept(thin(np.zeros((3, 100)))), kept(np.arange(100.0))
    (3, 100)
    """
    alike = values.ndim and values.strides[-1] == 0
    return values.size // max(1, values.shape[-1]) if alike else values.size
