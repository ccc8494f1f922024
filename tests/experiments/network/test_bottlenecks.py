"""Tests of the links with the highest utilisation, with absurd loads and bandwidths."""

import numpy as np
import pytest

from quadrille.experiments.network.bottlenecks import bottlenecks
from quadrille.topologies.families.basic import star

EXTREMES = (5e-324, 1e-9, 1.0, 1e36, 1e300, float("inf"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bandwidth", EXTREMES[1:])
@pytest.mark.parametrize("carried", EXTREMES[:4])
def test_absurd_loads_and_bandwidths_give_no_warning(carried, bandwidth):
    net = star(4, bandwidth=1e9, latency=0.0)
    net = net.with_bandwidths(np.full(net.link_count, bandwidth))
    (link,) = bottlenecks(net, np.full(net.link_count, carried), np.zeros(net.link_count), 1e-3)[:1]
    assert link.bytes == carried


def test_loads_that_differ_by_rounding_are_one_entry():
    net = star(4, bandwidth=1e9, latency=0.0)
    loads = np.full(net.link_count, 3e5) * (1 + 1e-13 * np.arange(net.link_count))
    equal = bottlenecks(net, loads, np.zeros(net.link_count), 1e-3)
    assert [link.alike for link in equal] == [4, 4]
    loads[0] *= 1 + 1e-6
    assert sorted(link.alike for link in bottlenecks(net, loads, np.zeros(net.link_count), 1e-3)) == [1, 3, 4]
