import pytest

from algorithms.errors import InputError
from topologies.graph import add_cable
from topologies.leaf_spine import leaf_spine
from topologies.links import find_link, find_links, link_name, links


@pytest.fixture
def net():
    """Two leaves of three hosts; leaf:1 has three cables to spine:0, of 4, 5 and 6 B/s."""
    net = leaf_spine(2, 1, 3, bandwidth=4.0, latency=0.5)
    for bandwidth in (5.0, 6.0):
        add_cable(net, "leaf:1", "spine:0", bandwidth=bandwidth, latency=0.25)
    return net


def test_every_link_is_found_by_its_name(net):
    assert all(find_link(net, link.name) == link for link in links(net))


def test_links_have_distinct_names_one_per_direction(net):
    names = [link.name for link in links(net)]
    assert len(set(names)) == len(names) == net.number_of_edges() == 2 * (6 + 2 + 2)


def test_parallel_links_are_told_apart_from_one_on(net):
    names = ["leaf:1>spine:0", "leaf:1>spine:0#1", "leaf:1>spine:0#2"]
    assert [find_link(net, name).bandwidth for name in names] == [4.0, 5.0, 6.0]
    assert [link_name("leaf:1", "spine:0", j) for j in range(3)] == names


def test_a_cable_is_both_directions(net):
    there, back = find_links(net, "leaf:1-spine:0#2")
    assert (there.name, back.name) == ("leaf:1>spine:0#2", "spine:0>leaf:1#2")
    assert find_links(net, "spine:0>leaf:1") == (find_link(net, "spine:0>leaf:1"),)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("host:0>spine:0", "host:0 has host:0>leaf:0"),
        ("leaf:1>spine:0#3", "leaf:1 has leaf:1>host:3, .*leaf:1>spine:0#2"),
        ("leaf:1>spine:0#0", "is not in topology"),
        ("host:9>leaf:0", "there is no node 'host:9'"),
        ("host:0-host:1", "host:0 has"),
        ("nonsense", "there is no node 'nonsense'; a link is written"),
    ],
)
def test_a_link_that_is_not_there_is_refused_with_those_that_are(net, name, message):
    with pytest.raises(InputError, match=message):
        find_links(net, name)
