"""The links with the highest utilisation during a collective; equally loaded links are one entry."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.field_units import Bytes, Seconds, Share
from quadrille.topologies.network import Floats, Network

MOST_BOTTLENECKS = 8
DIGITS = 30
"""Binary digits in which the loads of two links must agree to count as equal."""


class LinkUse(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a link, and the number of links with the same load.

    Parameters
    ----------
    link : name of one of these links
    alike : number of links with the same load
    bytes : bytes that each of them carries
    utilisation : bytes / (bandwidth · time)
    busy_s : longest time in which one of them is in use [s]
    """

    link: str
    alike: int
    bytes: Bytes
    utilisation: Share
    busy_s: Seconds


def bottlenecks(net: Network, link_bytes: Floats, busy_seconds: Floats, seconds: float) -> tuple[LinkUse, ...]:
    """The links with the highest utilisation; links with the same kinds of ends, bytes and bandwidth are one entry.

    Parameters
    ----------
    link_bytes : bytes that each link carries [links]
    busy_seconds : time in which each link is in use [s] [links]
    seconds : time of the collective [s]
    """
    used = np.flatnonzero(link_bytes > 0)
    if not len(used) or seconds <= 0:
        return ()
    carried, capacity = link_bytes[used], net.bandwidths[used]
    starts = np.array([first for first, _ in net.kinds.values()])
    order = np.argsort(starts)
    kinds = [order[np.searchsorted(starts[order], ends[used], side="right") - 1] for ends in (net.sources, net.targets)]
    key = np.stack([*kinds, _rounded(carried), _rounded(capacity)], axis=1)
    _, first, group, count = np.unique(key, axis=0, return_index=True, return_inverse=True, return_counts=True)
    busy = np.zeros(len(first))
    np.maximum.at(busy, group.ravel(), busy_seconds[used])
    share = carried / (capacity * seconds)
    best = sorted(range(len(first)), key=lambda i: (-round(float(share[first[i]]), 9), first[i]))[:MOST_BOTTLENECKS]
    return tuple(
        LinkUse(
            link=net.link(int(used[first[i]])).name,
            alike=int(count[i]),
            bytes=float(carried[first[i]]),
            utilisation=float(share[first[i]]),
            busy_s=max(float(busy[i]), float(carried[first[i]] / capacity[first[i]])),
        )
        for i in best
    )


def _rounded(values: Floats) -> NDArray[np.float64]:
    """The values, rounded to 30 binary digits, so that rounding errors do not separate equal links."""
    mantissas, exponents = np.frexp(values)
    rounded: NDArray[np.float64] = np.ldexp(np.round(np.ldexp(mantissas, DIGITS)), exponents - DIGITS)
    return rounded
