"""Which links are slower than is said of them, by rounds in which every host sends to one other at once.

A link is *filled* in a round that it limits: by the rates that are said, max-min holds a flow of the round to it; and
none of its flows was held by another link instead, which shows in that it carries less than in other rounds.  What it
carried then over what is said of it is its share.  Where one of a host's cables is half as fast, its flows fill
nothing else in their rounds, and the links that they share with others are filled in other rounds:

    star, host:1>switch:0 at a half     round 1  0→1 1   1→2 ½   2→0 1
                                        round 2  0→2 1   1→0 ½   2→1 1

    most carried                        host:1>switch:0 ½, all others 1

A flow that is clearly slower than all links were that may hold it, by what is said, is held by one of its others: by
those that carry as much as ever.  Links that only the same flows pass cannot be told apart: all of them are slow then,
which predicts the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from statistics import median

import numpy as np

from quadrille.runtime.measuring.points import FlowPoint
from quadrille.simulator.engine.max_min import Demands, solve
from quadrille.topologies.network import Floats, Network
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes, Routing

NOISE = 0.05
"""By which a filled link may differ from most and still have their share.

On a star of four hosts, a dumbbell of six and two leaves at 2:1, at 200 Mbit/s, no link was further off than 0.5 % in
fifteen trials with four chunks under way; at 20 Mbit/s 1.6 %, of sixteen hosts on two cores, with three, 3 %.
"""
MOSTLY = 0.9
"""Of what a link carried at most it carries more than this wherever it is what limits."""
LEAST_RATE = 1.0
"""A link that carries less has carried nothing [B/s]."""
TIE = 1e-6
"""A link whose flows add up to its rate but for this is full."""


@dataclass(frozen=True, slots=True)
class LinkSaturation:
    """What rounds showed of the links between hosts.

    Parameters
    ----------
    relative : rate of each link over what most have of theirs, by what is said of it; 1 where the two agree within
        noise, and where no round has filled it [links]
    unfilled : links that no round has filled
    """

    relative: Floats
    unfilled: tuple[int, ...] = ()

    @property
    def agree(self) -> bool:
        return bool((self.relative == 1).all())


def link_saturation(net: Network, routing: Routing, flows: Sequence[FlowPoint], share: float) -> LinkSaturation:
    """What rounds show of the links of this network.

    Parameters
    ----------
    share : of the rate that is said which one message showed: where most links carry clearly less when all are busy,
        the cores limit them, and nothing is known of any
    """
    shares = dict(_shares(net, routing, flows))
    unfilled = tuple(number for number in range(net.link_count) if number not in shares and not net.failed[number])
    relative = np.ones(net.link_count)
    if not shares:
        return LinkSaturation(relative, unfilled)
    usual = median(shares.values())
    if usual < MOSTLY * share:
        return LinkSaturation(relative, tuple(sorted({*unfilled, *shares})))
    for number, found in shares.items():
        if abs(found / usual - 1) > NOISE:
            relative[number] = found / usual
    return LinkSaturation(relative, unfilled)


def rate_between(net: Network, routing: Routing, filled: LinkSaturation | None = None) -> float:
    """Rate of the slowest link between the first two hosts, by what is said and by what rounds showed [B/s]."""
    links = Routes(net, routing).between([0], [1]).links
    rates = net.bandwidths if filled is None else net.bandwidths * filled.relative
    return float(min(rates[links], default=inf))


def _shares(net: Network, routing: Routing, flows: Sequence[FlowPoint]) -> Iterator[tuple[int, float]]:
    """Filled links, and what each carried at most over what is said of it."""
    routes = Routes(net, routing)
    every = [_Round.of(routes, list(points)) for _, points in groupby(flows, key=lambda point: point.round)]
    most: Floats = np.max([one.carried for one in every], axis=0, initial=0.0)
    for number in sorted({link for one in every for link in one.limiting(most)}):
        yield number, float(most[number] / net.bandwidths[number])


@dataclass(frozen=True, slots=True)
class _Round:
    """A round's flows on links.

    Parameters
    ----------
    paths : of its flows
    carried : by each link [B/s]
    full : which links are, by what is said of them [links]
    """

    paths: Paths
    carried: Floats
    full: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]"

    @classmethod
    def of(cls, routes: Routes, points: Sequence[FlowPoint]) -> "_Round":
        paths = routes.between([point.sender for point in points], [point.receiver for point in points])
        rates = [routes.net.bandwidths, _carried(paths, _said(routes.net, paths), routes.net)]
        measured = _carried(paths, [point.bytes_per_second for point in points], routes.net)
        return cls(paths, measured, (rates[1] >= rates[0] * (1 - TIE)) & (rates[1] > 0))

    def limiting(self, most: Floats) -> Iterator[int]:
        """Links that limit a flow.

        Parameters
        ----------
        most : carried by each link in any round [B/s]
        """
        for flow in range(len(self.paths.latency)):
            links = self.paths.links[self.paths.offsets[flow] : self.paths.offsets[flow + 1]]
            busy = links[self.carried[links] >= np.maximum(MOSTLY * most[links], LEAST_RATE)]
            yield from (busy[self.full[busy]] if self.full[busy].any() else busy).tolist()


def _said(net: Network, paths: Paths) -> list[float]:
    """Rate of each flow, by what is said of the links [B/s]."""
    demands = Demands(paths.offsets.tolist(), paths.links.tolist(), paths.shares.tolist())
    count = len(paths.latency)
    return solve(net.bandwidths.tolist(), demands, [1.0] * count, [inf] * count)


def _carried(paths: Paths, rates: Sequence[float], net: Network) -> Floats:
    """By each link, of flows at these rates [B/s]."""
    of_flow = np.repeat(np.asarray(rates), np.diff(paths.offsets))
    return np.bincount(paths.links, paths.shares * of_flow, net.link_count).astype(np.float64)
