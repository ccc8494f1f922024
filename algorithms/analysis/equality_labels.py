"""Equal things get equal numbers: labels for sequences, sets, pairs and values; arrays with few different values.

No label depends on a hash: two labels are equal if and only if the things are.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def sequences(owner: Ints, position: Ints, columns: Sequence[NDArray[Any]], owners: int) -> Ints:
    """A label for each owner: equal for owners whose rows have the same values in the same order."""
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
    """A label for each owner 0, 1, …: equal for owners with the same set of labels."""
    width = int(label.max(initial=0)) + 1
    keys = np.unique(owner * width + label)
    owner, label = np.divmod(keys, width)
    counts = np.bincount(owner)
    position = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    return sequences(owner, position, [label], len(counts))


def pairs(first: Ints, second: Ints) -> Ints:
    """A label for each pair of numbers from 0: equal for equal pairs, 0, 1, … without gaps."""
    width = int(second.max(initial=0)) + 1
    labels: Ints = np.unique(first * width + second, return_inverse=True)[1]
    return labels


def numbered(values: Sequence[Hashable]) -> Ints:
    """A label for each value: equal for equal values."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def distinct(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """The different values, rising, and the index of each value among them; fast if all values are equal.

    >>> distinct(np.array([3.0, 3.0]))
    (array([3.]), array([0, 0]))
    """
    if len(values) and (values == values[0]).all():
        return values[:1], np.zeros(len(values), dtype=np.int64)
    kinds, which = np.unique(values, return_inverse=True)
    return kinds, which


def rising(numbers: Ints) -> Ints:
    """The different numbers, rising; by sorting, because hashing of equally spaced numbers is slow.

    >>> rising(np.array([5, 3, 5])).tolist()
    [3, 5]
    """
    ordered = np.sort(numbers)
    different: Ints = ordered[np.concatenate([np.ones(min(1, len(ordered)), dtype=bool), ordered[1:] != ordered[:-1]])]
    return different


def thin(values: Floats) -> Floats:
    """The same values, read-only; a row of equal values is stored once.

    >>> thin(np.array([[2.0, 2.0], [3.0, 3.0]])).strides
    (8, 0)
    """
    if values.size and (values == values[..., :1]).all():
        return np.broadcast_to(values[..., :1].copy(), values.shape)
    return values


def kept(values: Floats) -> int:
    """Numbers that an array stores, whether or not `thin` made it.

    >>> kept(thin(np.zeros((3, 100)))), kept(np.arange(100.0))
    (3, 100)
    """
    alike = values.ndim and values.strides[-1] == 0
    return values.size // max(1, values.shape[-1]) if alike else values.size


FACTOR = 1_000_003
"""Multiplier of the hash by which rows are sorted before they are compared."""


def first_equal_rows(columns: Sequence[NDArray[np.int64]]) -> Ints:
    """For each row of these columns the first row with the same numbers.

    >>> first_equal_rows([np.array([[1, 2], [3, 4], [1, 2]])]).tolist()
    [0, 1, 0]
    """
    rows = np.concatenate(columns, axis=1)
    hashes = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        hashes = hashes * FACTOR + column
    _, first_of_hash, which = np.unique(hashes, return_index=True, return_inverse=True)
    first = first_of_hash[which]
    return np.where((rows == rows[first]).all(axis=1), first, np.arange(len(rows)))
