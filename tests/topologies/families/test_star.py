import networkx as nx
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.basic import star


@pytest.fixture
def net():
    return star(5, bandwidth=25e6, latency=24e-6, cores=2)


def test_a_star_has_one_cable_per_host(net):
    assert net.node_count == 6
    assert net.link_count == 2 * 5
    assert nx.diameter(net.graph()) == 2
    assert dict(net.graph().out_degree())["switch:0"] == 5


def test_its_hosts_are_the_places_and_have_cores(net):
    assert net.endpoints == ("host", 5)
    assert net.cores.tolist() == [2] * 5


def test_every_cable_carries_what_was_asked_for(net):
    assert set(net.bandwidths) == {25e6}
    assert set(net.latencies) == {24e-6}


def test_a_star_without_hosts_or_bandwidth_is_refused():
    with pytest.raises(InputError, match="hosts=0"):
        star(0, bandwidth=1.0, latency=0.0)
    with pytest.raises(InputError, match=r"bandwidth=-1\.0"):
        star(1, bandwidth=-1.0, latency=0.0)


def test_a_star_that_would_not_fit_is_refused_at_once():
    with pytest.raises(InputError, match="star: 10000000000 nodes"):
        star(10**10, bandwidth=1.0, latency=0.0)
