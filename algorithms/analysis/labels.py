"""Numbers for what is alike: sequences of rows, bags of labels, pairs of numbers, values; nothing is hashed to bits."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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


FACTOR = 1_000_003


def first_alike(columns: Sequence[NDArray[np.int64]]) -> Ints:
    """For each row of these columns the first that has the same numbers.

    >>> first_alike([np.array([[1, 2], [3, 4], [1, 2]])]).tolist()
    [0, 1, 0]
    """
    rows = np.concatenate(columns, axis=1)
    marks = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        marks = marks * FACTOR + column
    _, found, which = np.unique(marks, return_index=True, return_inverse=True)
    first = found[which]
    return np.where((rows == rows[first]).all(axis=1), first, np.arange(len(rows)))
