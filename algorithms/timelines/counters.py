"""Counters: values of a rank or of the network that stay constant between changes, beside the spans of a timeline."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Changes = tuple[tuple[float, Mapping[str, float]], ...]
"""The times at which values change, rising [s], each with the values from then on."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Values over time, such as the bytes of a rank by kind.

    Parameters
    ----------
    name : what is counted, with its unit
    changes : the values from each time on
    rank : rank to which the values belong; None for the network
    """

    name: str
    changes: Changes
    rank: int | None = None


def levels(amounts: Iterable[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """The sum of the amounts that are present, from each time at which the sum changes.

    >>> levels([(0.0, 2.0, 5), (1.0, 3.0, 7), (2.0, 3.0, 5)])
    [(0.0, 5), (1.0, 12), (3.0, 0)]

    Parameters
    ----------
    amounts : begin [s], end [s] and amount of each
    """
    differences: dict[float, float] = defaultdict(int)
    for begin, end, amount in amounts:
        differences[begin] += amount
        differences[end] -= amount
    level: float = 0
    changed: list[tuple[float, float]] = []
    for time in sorted(differences):
        if differences[time]:
            level += differences[time]
            changed.append((time, level))
    return changed
