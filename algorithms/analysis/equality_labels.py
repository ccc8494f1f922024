"""Equality labels: integers that are equal if and only if the labelled sequences, sets, pairs or values are equal.

Comparing labels replaces comparing objects, for a hundred thousand ranks at once with NumPy.  No label depends on a
hash, so no two different objects share a label.  The module also has helpers for arrays with few different values.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def sequence_labels(owner: Ints, position: Ints, columns: Sequence[NDArray[Any]], owners: int) -> Ints:
    """Labels of sequences of rows [owners]: equal for owners whose rows have the same values in the same order.

    Parameters
    ----------
    owner : owner of each row [rows]
    position : position of each row in its owner's sequence [rows]
    columns : values of the rows, each [rows]
    owners : number of owners
    """
    row = np.zeros(len(owner), dtype=np.int64)
    for column in columns:
        if len(column) and (column != column[0]).any():
            row = pair_labels(row, np.unique(column, return_inverse=True)[1])
    numbers = np.zeros(owners, dtype=np.int64)
    for index in range(int(position.max(initial=-1)) + 1):
        here = position == index
        extra = np.zeros(owners, dtype=np.int64)
        extra[owner[here]] = row[here] + 1
        numbers = pair_labels(numbers, extra)
    return numbers


def set_labels(owner: Ints, label: Ints) -> Ints:
    """Labels of sets [owners]: equal for owners 0, 1, … with the same set of labels.

    Parameters
    ----------
    owner : owner of each element [elements]
    label : label of each element [elements]
    """
    width = int(label.max(initial=0)) + 1
    keys = np.unique(owner * width + label)
    owner, label = np.divmod(keys, width)
    counts = np.bincount(owner)
    position = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    return sequence_labels(owner, position, [label], len(counts))


def pair_labels(first: Ints, second: Ints) -> Ints:
    """Labels 0, 1, … of pairs of non-negative integers [pairs]: equal for equal pairs."""
    width = int(second.max(initial=0)) + 1
    labels: Ints = np.unique(first * width + second, return_inverse=True)[1]
    return labels


def value_labels(values: Sequence[Hashable]) -> Ints:
    """Labels 0, 1, … of hashable values, in the order of first occurrence [values]: equal for equal values."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def distinct_values(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """The sorted distinct values, and the index of each value among them; fast if all values are equal.

    >>> distinct_values(np.array([3.0, 3.0]))
    (array([3.]), array([0, 0]))
    """
    if len(values) and (values == values[0]).all():
        return values[:1], np.zeros(len(values), dtype=np.int64)
    kinds, which = np.unique(values, return_inverse=True)
    return kinds, which


def sorted_distinct(numbers: Ints) -> Ints:
    """The sorted distinct numbers; found by sorting, because hashing of equally spaced numbers is slow.

    >>> sorted_distinct(np.array([5, 3, 5])).tolist()
    [3, 5]
    """
    ordered = np.sort(numbers)
    different: Ints = ordered[np.concatenate([np.ones(min(1, len(ordered)), dtype=bool), ordered[1:] != ordered[:-1]])]
    return different


def compact(values: Floats) -> Floats:
    """The values as a read-only array; if every row has equal values, each row is stored as one number.

    >>> compact(np.array([[2.0, 2.0], [3.0, 3.0]])).strides
    (8, 0)
    """
    if values.size and (values == values[..., :1]).all():
        return np.broadcast_to(values[..., :1].copy(), values.shape)
    return values


def stored_numbers(values: Floats) -> int:
    """The count of numbers that an array stores in memory, whether or not `compact` returned the array.

    >>> stored_numbers(compact(np.zeros((3, 100)))), stored_numbers(np.arange(100.0))
    (3, 100)
    """
    is_compact = values.ndim and values.strides[-1] == 0
    return values.size // max(1, values.shape[-1]) if is_compact else values.size


FACTOR = 1_000_003
"""Multiplier of the hash by which rows are sorted before they are compared."""


def first_equal_rows(columns: Sequence[NDArray[np.int64]]) -> Ints:
    """The index of the first row with the same numbers, for each row of these columns [rows].

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
