"""Adaptive routing on dragonflies: the minimal path or a detour, by the load of global links.

The rule is that of UGAL, with what has been decided so far in place of the
lengths of queues.  Pairs of endpoints are taken in the order in which they are
first asked for.  The load of a link is

    pairs sent over it so far · bandwidth of the widest global link / its own

and q(path) the largest load of the path's global links, H(path) their number: 1
for a minimal path, 2 for a detour.  A pair takes its detour, the one of Valiant
routing, exactly when

    q(minimal) · H(minimal)  >  q(detour) · H(detour)

so when the minimal path's most loaded global link carries more than twice what
the detour's does; else its minimal path.  A pair keeps its path: asked again, or
one by one in the same order, the answer is the same.

Source: Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable Dragonfly
Topology", ISCA 2008, section 4 (UGAL, with all hops of a path for H and the
length of the queue at its first hop for q).
"""

from itertools import pairwise

import numpy as np

from quadrille.topologies.network import Floats, Ints


class AdaptiveChoices:
    """What has been decided for pairs of endpoints so far.

    Parameters
    ----------
    global_links : between groups
    bandwidths : of all links [B/s]
    """

    def __init__(self, endpoints: int, global_links: Ints, bandwidths: Floats) -> None:
        self._places = endpoints
        self._global = np.zeros(len(bandwidths), dtype=bool)
        self._global[global_links] = True
        # In units of the widest global link, so that loads of equal links are whole numbers, and ties are ties.
        widest = bandwidths[global_links].max(initial=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            self._cost: list[float] = (widest / bandwidths).tolist()
        self._load = [0.0] * len(bandwidths)
        self._around: dict[int, bool] = {}

    def around(self, sources: Ints, targets: Ints, straight: Ints, around: Ints) -> Ints:
        """Which of the flows take their detour, given the links of both paths [flows, hops]."""
        pairs: list[int] = (sources * self._places + targets).tolist()
        fresh: dict[int, int] = {}
        for flow, pair in enumerate(pairs):
            if pair not in self._around:
                fresh.setdefault(pair, flow)
        flows = list(fresh.values())
        for flow, short, long in zip(flows, self._crossed(straight[flows]), self._crossed(around[flows]), strict=True):
            self._around[pairs[flow]] = self._decide(short, long)
        return np.flatnonzero([self._around[pair] for pair in pairs])

    def _decide(self, short: list[int], long: list[int]) -> bool:
        """Whether a pair takes the long path, whose load is then counted, else that of the short one."""
        load = self._load
        longer = len(short) * max((load[link] for link in short), default=0.0) > len(long) * max(
            (load[link] for link in long), default=0.0
        )
        for link in long if longer else short:
            load[link] += self._cost[link]
        return longer

    def _crossed(self, table: Ints) -> list[list[int]]:
        """Global links of each way."""
        crossed = (table >= 0) & self._global[table]
        ends: list[int] = np.cumsum(crossed.sum(axis=1)).tolist()
        links = table[crossed].tolist()
        return [links[start:end] for start, end in pairwise([0, *ends])]
