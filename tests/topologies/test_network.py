import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.basic import star
from quadrille.topologies.families.leaf_spine import leaf_spine
from quadrille.topologies.network import link_name
from quadrille.topologies.network_builder import Builder, reverse
from quadrille.topologies.size_limits import MAX_LINKS, MAX_NODES, check_cable, check_counts, check_size


@pytest.fixture
def net():
    """Two leaves of three hosts under one spine; leaf:1 has three cables to it, of 4, 5 and 6 B/s."""
    builder = Builder("file", {})
    hosts, leaves, spine = builder.nodes("host", 6), builder.nodes("leaf", 2), builder.nodes("spine", 1)
    builder.cables(hosts, leaves[np.arange(6) // 3], bandwidth=4.0, latency=0.5)
    builder.cables(leaves[[0, 1, 1, 1]], spine, bandwidth=np.array([4.0, 4.0, 5.0, 6.0]), latency=0.25)
    return builder.network(("host", 6), cores=2)


def test_a_node_is_found_by_its_name_and_named_by_its_number(net):
    assert [net.node_name(node) for node in (0, 5, 6, 8)] == ["host:0", "host:5", "leaf:0", "spine:0"]
    assert all(net.node_number(net.node_name(node)) == node for node in range(net.node_count))


@pytest.mark.parametrize("name", ["host:6", "host:01", "host:-1", "host:", "host", "leaf:x", "leaf:²", "tor:0", ""])
def test_a_node_that_is_not_there_has_no_number(net, name):
    assert net.node_number(name) == -1


def test_a_node_whose_number_has_ten_thousand_digits_is_not_there(net):
    assert net.node_number("host:" + "9" * 10_000) == -1


def test_every_link_is_found_by_its_name(net):
    assert all(net.link_number(net.link(number).name) == number for number in range(net.link_count))


def test_links_have_distinct_names_one_per_direction(net):
    found = net.link_names(range(net.link_count))
    assert len(set(found)) == len(found) == net.link_count == 2 * (6 + 1 + 3)


def test_names_of_many_links_are_those_of_each(net):
    backwards = range(net.link_count - 1, -1, -1)
    assert net.link_names(backwards) == [net.link(number).name for number in backwards]
    assert net.link_names([3, 3]) == [net.link(3).name] * 2
    assert net.link_names([]) == []


def test_parallel_links_have_indices_from_one_on(net):
    written = ["leaf:1>spine:0", "leaf:1>spine:0#1", "leaf:1>spine:0#2"]
    assert [net.link(net.link_number(name)).bandwidth for name in written] == [4.0, 5.0, 6.0]
    assert [link_name("leaf:1", "spine:0", j) for j in range(3)] == written


def test_a_cable_is_both_directions(net):
    there, back = (net.link(number) for number in net.link_numbers("leaf:1-spine:0#2"))
    assert (there.name, back.name) == ("leaf:1>spine:0#2", "spine:0>leaf:1#2")
    assert (there.bandwidth, there.latency) == (back.bandwidth, back.latency) == (6.0, 0.25)
    assert net.link_numbers("spine:0>leaf:1") == [net.link_number("spine:0>leaf:1")]


def test_the_reverse_of_a_link_goes_the_other_way(net):
    links = np.arange(net.link_count)
    assert (net.sources[reverse(links)] == net.targets).all()
    assert (net.targets[reverse(links)] == net.sources).all()
    assert (reverse(reverse(links)) == links).all()
    assert reverse(np.array([-1, 4])).tolist() == [-1, 5]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("host:0>spine:0", "host:0 has host:0>leaf:0"),
        ("leaf:1>spine:0#3", "leaf:1 has leaf:1>host:3, .*leaf:1>spine:0#2"),
        ("leaf:1>spine:0#0", "is not in topology"),
        ("leaf:1>spine:0#", "is not in topology"),
        ("leaf:1-spine:0#9", "leaf:1>spine:0#9' is not in topology"),
        ("host:9>leaf:0", "there is no node 'host:9'"),
        ("host:0-host:1", "host:0 has"),
        ("nonsense", "there is no node 'nonsense'; a link is written"),
    ],
)
def test_a_link_that_is_not_there_is_refused_with_those_that_are(net, name, message):
    with pytest.raises(InputError, match=message) as refused:
        net.link_numbers(name)
    assert "\n" not in str(refused.value)


def test_many_links_of_a_node_are_not_all_listed():
    with pytest.raises(InputError, match=r"switch:0>host:7, …$"):
        star(20, bandwidth=1.0, latency=0.0).link_number("switch:0>leaf:0")


def test_places_are_numbered_nodes_of_one_kind(net):
    assert net.endpoint_count == 6
    assert [net.node_name(node) for node in net.endpoint_nodes()] == [f"host:{i}" for i in range(6)]
    assert net.cores.tolist() == [2] * 6


def test_the_name_of_a_topology_leaves_out_what_was_not_given():
    builder = Builder("star", {"hosts": 2, "cores": None})
    builder.nodes("host", 2)
    assert builder.network(("host", 2)).name == "star:hosts=2"


def test_a_network_with_other_bandwidths_has_the_same_links(net):
    bandwidths = net.bandwidths.copy()
    bandwidths[net.link_numbers("leaf:1-spine:0#1")] = 0.0
    faulty = net.with_bandwidths(bandwidths)
    assert faulty.link_names(np.flatnonzero(faulty.failed)) == ["leaf:1>spine:0#1", "spine:0>leaf:1#1"]
    assert not net.failed.any()


def test_the_graph_has_the_same_nodes_and_links(net):
    graph = net.graph()
    assert graph.nodes["host:0"] == {"kind": "host", "cores": 2}
    assert graph.nodes["leaf:1"] == {"kind": "leaf"}
    assert graph.number_of_edges() == net.link_count
    links = [net.link(number) for number in range(net.link_count)]
    assert all(
        graph[link.source][link.target][link.index] == {"bandwidth": link.bandwidth, "latency": link.latency}
        for link in links
    )


def test_a_graph_of_gpus_says_where_places_are():
    assert leaf_spine(2, 1, 2, bandwidth=1.0, latency=0.0).graph().graph["places"] == ["host", 4]


def test_counts_below_one_are_refused():
    with pytest.raises(InputError, match="star: hosts=0 must be a whole number from 1"):
        check_counts("star", hosts=0)


@pytest.mark.parametrize(
    ("bandwidth", "latency", "message"),
    [
        (0.0, 0.0, "bandwidth=0.0 must be"),
        (float("inf"), 0.0, "bandwidth=inf"),
        (1.0, -1e-6, "latency=-1e-06 must be"),
        (1.0, float("nan"), "latency=nan"),
    ],
)
def test_cables_that_cannot_be_are_refused(bandwidth, latency, message):
    with pytest.raises(InputError, match=message):
        check_cable("star", bandwidth, latency)


def test_what_would_not_fit_in_memory_is_refused_once_and_clearly():
    check_size("star", MAX_NODES, MAX_LINKS)
    with pytest.raises(InputError, match="star: 1048577 nodes and 2 links are too many") as refused:
        check_size("star", MAX_NODES + 1, 2)
    assert str(refused.value).count("at most") == 1
    with pytest.raises(InputError, match="star: 2 nodes and 2097153 links are too many"):
        check_size("star", 2, MAX_LINKS + 1)
