"""The flows of all-pairs rounds on a network with slow links, as a calibration would measure them."""

from math import inf

import numpy as np

from quadrille.runtime.measuring.all_pairs_rates import pairs
from quadrille.runtime.measuring.measured_points import FlowPoint
from quadrille.simulator.engine.max_min import Demands, max_min_rates
from quadrille.topologies.routes.routing import Routes, Routing

PAYLOAD = 0.95


def slower(net, links):
    """The network with the rates of its links multiplied by these shares."""
    bandwidths = net.bandwidths.copy()
    for name, share in links.items():
        bandwidths[net.link_numbers(name)] *= share
    return net.with_bandwidths(bandwidths)


def rounds(net, noise=0.0, payload=PAYLOAD):
    """The flows of each round on a network, with a share of headers and a random error of each flow."""
    random, found = np.random.default_rng(5), []
    for number, sends in enumerate(pairs(net.endpoint_count), start=1):
        hosts, targets = list(sends), list(sends.values())
        paths = Routes(net, Routing()).between(hosts, targets)
        demands = Demands(paths.offsets.tolist(), paths.links.tolist(), paths.shares.tolist())
        rates = max_min_rates((payload * net.bandwidths).tolist(), demands, [1.0] * len(hosts), [inf] * len(hosts))
        off = 1 - noise * random.random(len(hosts))
        found += [FlowPoint(number, *one) for one in zip(hosts, targets, (rates * off).tolist(), strict=True)]
    return found
