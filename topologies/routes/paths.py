"""Paths: what flows take of which links, once routing has chosen; and tables of links, a row for each flow."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
