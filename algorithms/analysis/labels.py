"""Numbers for what is alike: sequences of rows, bags of labels, pairs of numbers, values; nothing is hashed to bits."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def sequences(owner: Ints, position: Ints, columns: Sequence[NDArray[Any]], owners: int) -> Ints:
    """A number for each owner: the same for those whose rows have the same values in the same order."""
    row = np.zeros(len(owner), dtype=np.int64)
    for column in columns:
        if len(column) and (column != column[0]).any():
            row = pairs(row, np.unique(column, return_inverse=True)[1])
    numbers = np.zeros(owners, dtype=np.int64)
    for place in range(int(position.max(initial=-1)) + 1):
        here = position == place
        extra = np.zeros(owners, dtype=np.int64)
        extra[owner[here]] = row[here] + 1
        numbers = pairs(numbers, extra)
    return numbers


def bags(owner: Ints, label: Ints) -> Ints:
    """A number for each owner 0, 1, …: the same for those with the same set of labels."""
    width = int(label.max(initial=0)) + 1
    keys = np.unique(owner * width + label)
    owner, label = np.divmod(keys, width)
    counts = np.bincount(owner)
    position = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    return sequences(owner, position, [label], len(counts))


def pairs(one: Ints, other: Ints) -> Ints:
    """A number for each pair of numbers from 0: equal for equal pairs, 0, 1, … without gaps."""
    width = int(other.max(initial=0)) + 1
    found: Ints = np.unique(one * width + other, return_inverse=True)[1]
    return found


def numbered(values: Sequence[Hashable]) -> Ints:
    """The values as numbers: equal ones have the same."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
