import networkx as nx
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.leaf_spine import leaf_spine


@pytest.fixture
def net():
    return leaf_spine(3, 2, 5, bandwidth=4.0, latency=1e-6, uplink_bandwidth=7.0)


def links(net):
    return [net.link(number) for number in range(net.link_count)]


def bandwidth_between(net, kind, other):
    return sum(link.bandwidth for link in links(net) if link.source.startswith(kind) and link.target.startswith(other))


def test_every_host_has_one_cable_and_every_leaf_reaches_every_spine(net):
    degrees = dict(net.graph().out_degree())
    assert net.link_count == 2 * (15 + 6)
    assert {degrees[place] for place in (f"host:{i}" for i in range(15))} == {1}
    assert [degrees[f"leaf:{i}"] for i in range(3)] == [5 + 2] * 3
    assert [degrees[f"spine:{i}"] for i in range(2)] == [3, 3]


def test_the_diameter_is_four_hops(net):
    assert nx.diameter(net.graph()) == 4
    assert nx.shortest_path_length(net.graph(), "host:0", "host:4") == 2
    assert nx.shortest_path_length(net.graph(), "host:4", "host:5") == 4


def test_uplinks_have_their_own_bandwidth(net):
    assert bandwidth_between(net, "host", "leaf") == 15 * 4.0
    assert bandwidth_between(net, "leaf", "spine") == 6 * 7.0 == bandwidth_between(net, "spine", "leaf")


def test_uplinks_are_like_the_others_by_default():
    net = leaf_spine(2, 1, 2, bandwidth=4.0, latency=1e-6)
    assert bandwidth_between(net, "leaf", "spine") == 2 * 4.0


def test_what_passes_from_one_leaf_to_the_rest_is_the_least_of_both_levels(net):
    flat = nx.DiGraph()
    for link in links(net):
        flat.add_edge(link.source, link.target, capacity=link.bandwidth)
    for host in range(5):
        flat.add_edge("source", f"host:{host}", capacity=4.0)
    for host in range(5, 15):
        flat.add_edge(f"host:{host}", "sink", capacity=4.0)
    assert nx.maximum_flow_value(flat, "source", "sink") == min(5 * 4.0, 2 * 7.0)


@pytest.mark.parametrize("counts", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_an_empty_level_is_refused(counts):
    with pytest.raises(InputError, match="=0 must be a whole number from 1"):
        leaf_spine(*counts, bandwidth=1.0, latency=0.0)


def test_an_uplink_without_bandwidth_is_refused():
    with pytest.raises(InputError, match="uplink_bandwidth=0"):
        leaf_spine(1, 1, 1, bandwidth=1.0, latency=0.0, uplink_bandwidth=0)
