"""`Paths`, the links that each flow takes after routing, and the hash by which routing rules draw paths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quadrille.topologies.network import Floats, Ints


@dataclass(frozen=True, slots=True)
class Paths:
    """The links of each of many flows, and the share of the flow on each link.

    Flow f sends shares[e] of its bytes over links[e], for e from offsets[f] to
    offsets[f + 1].  A flow on a single path has its links in order, each with share 1.
    The links of a flow on several paths have no order: compare them as sets of
    (link, share).

    Parameters
    ----------
    offsets : first entry of each flow, and the number of entries [flows + 1]
    links, shares : link and share of each entry [entries]
    latency : latency of each flow, the sum over its links; the largest sum of several paths [s] [flows]
    """

    offsets: Ints
    links: Ints
    shares: Floats
    latency: Floats


def joined(parts: Sequence[Paths]) -> Paths:
    """The concatenation of the paths of several sets of flows.

    >>> paths = Paths(np.array([0, 2]), np.array([4, 7]), np.ones(2), np.ones(1))
    >>> joined([paths, paths]).offsets.tolist()
    [0, 2, 4]
    """
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Paths(
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([part.links for part in parts]),
        np.concatenate([part.shares for part in parts]),
        np.concatenate([part.latency for part in parts]),
    )


def reordered(paths: Paths, order: Ints) -> Paths:
    """The paths of the flows order[0], order[1], …

    >>> two = Paths(np.array([0, 2, 3]), np.array([4, 7, 9]), np.ones(3), np.zeros(2))
    >>> reordered(two, np.array([1, 0])).links.tolist()
    [9, 4, 7]
    """
    lengths = np.diff(paths.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.arange(offsets[-1]) + np.repeat(paths.offsets[:-1][order] - offsets[:-1], lengths)
    return Paths(offsets, paths.links[entries], paths.shares[entries], paths.latency[order])


def replace_rows(table: Ints, rows: Ints, paths: Ints) -> Ints:
    """The table of links [flows, hops] with these rows replaced; it gets more columns if the new paths are longer."""
    hops = max(table.shape[1], paths.shape[1])
    wider = np.full((len(table), hops), -1, dtype=np.int64)
    wider[:, : table.shape[1]] = table
    wider[rows] = -1
    wider[rows, : paths.shape[1]] = paths
    return wider


def hashed(sources: Ints, targets: Ints, seed: int) -> NDArray[np.uint64]:
    """A pseudorandom number for each (source, target, seed): the finaliser of SplitMix64.

    Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014, section 5.
    """
    mixed = np.full(len(sources), seed % 2**64, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in (sources, targets):
            mixed = mixed + part.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed
