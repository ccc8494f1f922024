"""The links that each flow takes once routing has chosen, and the hash by which rules draw paths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quadrille.topologies.network import Floats, Ints


@dataclass(frozen=True, slots=True)
class Paths:
    """What each of many flows takes of which links.

    Flow f takes shares[e] units of links[e] for a unit of its own, for e from
    offsets[f] to offsets[f + 1]; a flow on one path takes 1 of each of its links,
    in order.  The order of the links of a flow on several paths says nothing:
    compare these as sets of (link, share).

    Parameters
    ----------
    offsets : [flows + 1]
    links, shares : [entries]
    latency : of each flow, the sum over its links; the largest of its paths [s]
    """

    offsets: Ints
    links: Ints
    shares: Floats
    latency: Floats


def joined(parts: Sequence[Paths]) -> Paths:
    """The paths of some flows, and behind them those of others.

    >>> one = Paths(np.array([0, 2]), np.array([4, 7]), np.ones(2), np.ones(1))
    >>> joined([one, one]).offsets.tolist()
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


def put_rows(table: Ints, rows: Ints, paths: Ints) -> Ints:
    """The table with some rows replaced, widened where the new ones are longer."""
    hops = max(table.shape[1], paths.shape[1])
    wider = np.full((len(table), hops), -1, dtype=np.int64)
    wider[:, : table.shape[1]] = table
    wider[rows] = -1
    wider[rows, : paths.shape[1]] = paths
    return wider


def hashed(sources: Ints, targets: Ints, seed: int) -> NDArray[np.uint64]:
    """A number for each (source, target, seed) that looks random (the finaliser of SplitMix64).

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
