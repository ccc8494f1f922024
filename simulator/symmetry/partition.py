"""What is folded, ranks with their flows over links, and a partition of these into classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

Floats = NDArray[np.float64]

Columns = Mapping[str, NDArray[np.generic]]
"""What is known of each rank, link or flow: name of an attribute to its values."""


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """Who sends to whom, over which links.

    Parameters
    ----------
    sender, receiver : rank of each flow [flows]; the same for work of a rank by itself
    offsets : flow f has the entries offsets[f] .. offsets[f + 1] - 1 [flows + 1]
    links, shares : what a unit of the flow takes of which link; a link at most once in a flow [entries]
    columns : whatever tells flows apart beside these: in which steps of its sender's and receiver's programs, size,
        latency, weight, cap; no two flows that one rank sends may agree in all of it, nor two that it receives
    """

    sender: Ints
    receiver: Ints
    offsets: Ints
    links: Ints
    shares: Floats
    columns: Columns = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.sender)

    def entry_flows(self) -> Ints:
        """The flow of each entry."""
        return np.repeat(np.arange(self.count), np.diff(self.offsets))


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The class of each rank, flow and link; classes are 0, 1, …, none empty."""

    ranks: Ints
    flows: Ints
    links: Ints


def firsts(classes: Ints) -> Ints:
    """The first member of each class.

    >>> firsts(np.array([0, 1, 0, 1, 2])).tolist()
    [0, 1, 4]
    """
    first = np.empty(int(classes.max(initial=-1)) + 1, dtype=np.int64)
    first[classes[::-1]] = np.arange(len(classes))[::-1]
    return first


Hashes = NDArray[np.uint64]

MANY = 1 << 20
"""Entries from which on loading Numba pays."""

GOLDEN = 0x9E3779B97F4A7C15

SENDER, RECEIVER, LINK, SHARE, SENT, RECEIVED, CROSSING, COLUMN = (
    np.uint64(GOLDEN * salt % 2**64) for salt in range(1, 9)
)

FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
