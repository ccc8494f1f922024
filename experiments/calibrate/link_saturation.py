"""Link saturation: the links that are slower than declared, from rounds in which every host sends to another host.

A link is *saturated* in a round if it limits flows of the round.  Two conditions must hold: with the declared rates,
max-min fairness limits a flow of the round by this link; and no other link limits the flows instead, which would show
in a lower rate than in other rounds.  The rate that a saturated link carries, divided by its declared rate, is the
link's share.  If a cable of a host is half as fast, its flows saturate no other link in their rounds, and the links
that they share with other flows are saturated in other rounds:

    star, host:1>switch:0 at a half     round 1  0→1 1   1→2 ½   2→0 1
                                        round 2  0→2 1   1→0 ½   2→1 1

    highest rate                        host:1>switch:0 ½, all others 1

If a flow is clearly slower than all links that may limit it by their declared rates, another link of its path limits
it: a link that carries its highest rate.  Links that only the same flows use cannot be distinguished: all of them count
as slow, which gives the same predictions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from statistics import median

import numpy as np

from quadrille.runtime.measuring.measured_points import FlowPoint
from quadrille.simulator.engine.max_min import Demands, max_min_rates
from quadrille.topologies.network import Floats, Network
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes, Routing

NOISE = 0.05
"""The share by which a saturated link may differ from most links and still count as equal.

On a star of four hosts, a dumbbell of six and two leaves at 2:1, at 200 Mbit/s, no link was off by more than 0.5 % in
fifteen trials with four chunks in flight. At 20 Mbit/s it was 1.6 %; with sixteen hosts on two cores and three chunks,
3 %.
"""
LIMITING_SHARE = 0.9
"""Share of its highest rate that a link carries at least in a round that it limits."""
LEAST_RATE = 1.0
"""A link with a lower rate has carried nothing [B/s]."""
TIE = 1e-6
"""The relative tolerance with which the flows of a full link add up to its rate."""


@dataclass(frozen=True, slots=True)
class LinkSaturation:
    """The result of the rounds for the links between hosts.

    Parameters
    ----------
    relative : share of each link divided by the share of most links; 1 within noise and for links that no round
        saturated [links]
    unfilled : indices of the links that no round saturated
    """

    relative: Floats
    unfilled: tuple[int, ...] = ()

    @property
    def agree(self) -> bool:
        """Whether all links have the same share of their declared rates."""
        return bool((self.relative == 1).all())


def link_saturation(net: Network, routing: Routing, flows: Sequence[FlowPoint], share: float) -> LinkSaturation:
    """The saturation of the links of a network.

    Parameters
    ----------
    flows : measured flows of all rounds, in the order of the rounds
    share : rate of a single message divided by the declared rate.  If most links carry clearly less when all are busy,
        cores limit the messages, and nothing is known about any link
    """
    shares = dict(_saturated_shares(net, routing, flows))
    unfilled = tuple(number for number in range(net.link_count) if number not in shares and not net.failed[number])
    relative = np.ones(net.link_count)
    if not shares:
        return LinkSaturation(relative, unfilled)
    median_share = median(shares.values())
    if median_share < LIMITING_SHARE * share:
        return LinkSaturation(relative, tuple(sorted({*unfilled, *shares})))
    for number, link_share in shares.items():
        if abs(link_share / median_share - 1) > NOISE:
            relative[number] = link_share / median_share
    return LinkSaturation(relative, unfilled)


def rate_of_first_pair(net: Network, routing: Routing, saturation: LinkSaturation | None = None) -> float:
    """The rate of the slowest link between the first two hosts [B/s]: declared, or times the link's share."""
    links = Routes(net, routing).between([0], [1]).links
    rates = net.bandwidths if saturation is None else net.bandwidths * saturation.relative
    return float(min(rates[links], default=inf))


def _saturated_shares(net: Network, routing: Routing, flows: Sequence[FlowPoint]) -> Iterator[tuple[int, float]]:
    """The saturated links, and the highest rate of each divided by its declared rate."""
    routes = Routes(net, routing)
    rounds = [_Round.of(routes, list(points)) for _, points in groupby(flows, key=lambda point: point.round)]
    most: Floats = np.max([measured_round.carried for measured_round in rounds], axis=0, initial=0.0)
    for number in sorted({link for measured_round in rounds for link in measured_round.limiting(most)}):
        yield number, float(most[number] / net.bandwidths[number])


@dataclass(frozen=True, slots=True)
class _Round:
    """The flows of a round on the links.

    Parameters
    ----------
    paths : paths of its flows
    carried : rate of each link [B/s]
    full : links that are full by the declared rates [links]
    """

    paths: Paths
    carried: Floats
    full: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]"

    @classmethod
    def of(cls, routes: Routes, points: Sequence[FlowPoint]) -> "_Round":
        paths = routes.between([point.sender for point in points], [point.receiver for point in points])
        rates = [routes.net.bandwidths, _link_rates(paths, _declared_rates(routes.net, paths), routes.net)]
        measured = _link_rates(paths, [point.bytes_per_second for point in points], routes.net)
        return cls(paths, measured, (rates[1] >= rates[0] * (1 - TIE)) & (rates[1] > 0))

    def limiting(self, most: Floats) -> Iterator[int]:
        """The links that limit a flow.

        Parameters
        ----------
        most : highest rate of each link in any round [B/s]
        """
        for flow in range(len(self.paths.latency)):
            links = self.paths.links[self.paths.offsets[flow] : self.paths.offsets[flow + 1]]
            busy = links[self.carried[links] >= np.maximum(LIMITING_SHARE * most[links], LEAST_RATE)]
            yield from (busy[self.full[busy]] if self.full[busy].any() else busy).tolist()


def _declared_rates(net: Network, paths: Paths) -> list[float]:
    """The rate of each flow with the declared rates of the links [B/s]."""
    demands = Demands(paths.offsets.tolist(), paths.links.tolist(), paths.shares.tolist())
    count = len(paths.latency)
    return max_min_rates(net.bandwidths.tolist(), demands, [1.0] * count, [inf] * count)


def _link_rates(paths: Paths, rates: Sequence[float], net: Network) -> Floats:
    """The rate of each link, from flows with these rates [B/s]."""
    of_flow = np.repeat(np.asarray(rates), np.diff(paths.offsets))
    return np.bincount(paths.links, paths.shares * of_flow, net.link_count).astype(np.float64)
