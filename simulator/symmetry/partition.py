"""Data types of folding: flows over links, a partition of ranks, flows and links into classes, and hash constants."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

Floats = NDArray[np.float64]

Columns = Mapping[str, NDArray[np.generic]]
"""Attributes of ranks, links or flows: values by name of the attribute."""


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """The flows from rank to rank, with the links that each crosses.

    Parameters
    ----------
    sender, receiver : rank at each end of a flow; equal for a rank's own work [flows]
    offsets : flow f has the entries offsets[f] .. offsets[f + 1] - 1 [flows + 1]
    links, shares : what a unit of the flow takes of which link; a link occurs at most once in a flow [entries]
    columns : other attributes that distinguish flows: steps of the sender's and receiver's programs, size, latency,
        weight, cap; no two flows of one sender agree in all of them, nor two flows of one receiver
    """

    sender: Ints
    receiver: Ints
    offsets: Ints
    links: Ints
    shares: Floats
    columns: Columns = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of flows."""
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
"""Number of entries from which loading Numba saves time."""

GOLDEN = 0x9E3779B97F4A7C15

SENDER, RECEIVER, LINK, SHARE, SENT, RECEIVED, CROSSING, COLUMN = (
    np.uint64(GOLDEN * salt % 2**64) for salt in range(1, 9)
)

FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
