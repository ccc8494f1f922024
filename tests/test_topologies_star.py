import networkx as nx
import pytest

from algorithms.errors import InputError
from topologies.graph import places
from topologies.star import star


@pytest.fixture
def net():
    return star(5, bandwidth=25e6, latency=24e-6, cores=2)


def test_a_star_has_one_cable_per_host(net):
    assert net.number_of_nodes() == 6
    assert net.number_of_edges() == 2 * 5
    assert nx.diameter(net) == 2
    assert dict(net.out_degree())["switch:0"] == 5


def test_its_hosts_are_the_places_and_have_cores(net):
    assert places(net) == [f"host:{i}" for i in range(5)]
    assert all(net.nodes[place]["cores"] == 2 for place in places(net))


def test_every_cable_carries_what_was_asked_for(net):
    assert {(edge["bandwidth"], edge["latency"]) for *_, edge in net.edges(data=True)} == {(25e6, 24e-6)}


def test_a_star_without_hosts_or_bandwidth_is_refused():
    with pytest.raises(InputError, match="hosts=0"):
        star(0, bandwidth=1.0, latency=0.0)
    with pytest.raises(InputError, match=r"bandwidth=-1\.0"):
        star(1, bandwidth=-1.0, latency=0.0)
