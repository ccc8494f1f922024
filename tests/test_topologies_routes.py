from collections import Counter
from itertools import pairwise, product

import networkx as nx
import pytest

from algorithms.errors import InputError
from topologies.cluster import gpu_cluster
from topologies.fat_tree import fat_tree
from topologies.graph import add_cable, place_count, places
from topologies.host import host
from topologies.leaf_spine import leaf_spine
from topologies.links import find_link
from topologies.named import machine
from topologies.routes import Routes
from topologies.star import star

NVSWITCH = {
    "gpus_per_node": 3,
    "nics_per_node": 3,
    "gpu_bandwidth": 450e9,
    "gpu_latency": 1e-6,
    "nic_bandwidth": 50e9,
    "nic_latency": 1e-6,
}
NETS = {
    "star": star(5, bandwidth=1e9, latency=1e-6),
    "leaf-spine": leaf_spine(3, 2, 3, bandwidth=1e9, latency=1e-6),
    "fat-tree": fat_tree(4, bandwidth=1e9, latency=1e-6),
    "nvswitch": gpu_cluster(4, **NVSWITCH, nodes_per_leaf=2, uplink_bandwidth=1e11),
    "perlmutter": machine("perlmutter").topology(10),
    "frontier": machine("frontier").topology(18),
}


@pytest.fixture(params=NETS)
def net(request):
    return NETS[request.param]


def unstructured(net):
    """The same graph, without what its builder knows."""
    copy = net.copy()
    copy.graph["family"] = "file"
    return copy


def pairs(net):
    return product(range(place_count(net)), repeat=2)


def ends(route):
    ways = [link.partition("#")[0].split(">") for link in route]
    assert all(one[1] == other[0] for one, other in pairwise(ways))
    return ways[0][0], ways[-1][1]


def test_routes_are_connected_links_that_exist(net):
    routes, names = Routes(net), places(net)
    for source, target in pairs(net):
        route = routes.between(source, target)
        assert all(find_link(net, name) for name in route)
        assert route == () if source == target else ends(route) == (names[source], names[target])


def test_structured_routes_are_as_short_as_searched_ones(net):
    structured, searched = Routes(net), Routes(unstructured(net))
    for source, target in pairs(net):
        assert len(structured.between(source, target)) == len(searched.between(source, target))


def test_searched_routes_are_shortest_and_exist(net):
    routes, names = Routes(unstructured(net)), places(net)
    for source, target in pairs(net):
        route = routes.between(source, target)
        assert len(route) == nx.shortest_path_length(net, names[source], names[target])
        assert all(find_link(net, name) for name in route)


def test_the_way_back_is_as_long_as_the_way_there(net):
    routes = Routes(net)
    assert all(len(routes.between(a, b)) == len(routes.between(b, a)) for a, b in pairs(net))


def test_routes_are_the_same_every_time(net):
    first, again = Routes(net), Routes(net.copy())
    assert all(first.between(a, b) == again.between(a, b) for a, b in pairs(net))


def test_targets_spread_evenly_over_the_spines():
    net = leaf_spine(2, 3, 6, bandwidth=1e9, latency=1e-6)
    for routes in (Routes(net), Routes(unstructured(net))):
        spines = Counter(routes.between(0, target)[1] for target in range(6, 12))
        assert set(spines.values()) == {2}
        assert len(spines) == 3


def test_every_core_switch_of_a_fat_tree_is_used():
    net = NETS["fat-tree"]
    cores = Counter(routes for target in range(4, 16) for routes in Routes(net).between(0, target) if "core" in routes)
    assert {name.split(">")[1] for name in cores if ">core" in name} == {f"core:{i}" for i in range(4)}


def test_targets_spread_over_parallel_cables():
    net = star(4, bandwidth=1e9, latency=1e-6)
    add_cable(net, "host:0", "switch:0", bandwidth=1e9, latency=1e-6)
    routes = Routes(net)
    assert [routes.between(0, target)[0] for target in (1, 2, 3)] == [
        "host:0>switch:0#1",
        "host:0>switch:0",
        "host:0>switch:0#1",
    ]


def test_a_link_taken_away_is_gone_round():
    net = leaf_spine(2, 2, 2, bandwidth=1e9, latency=1e-6)
    net.remove_edge("leaf:0", "spine:1")
    assert Routes(net).between(0, 3)[1] == "leaf:0>spine:0"


def test_places_that_are_not_joined_have_no_route():
    net = star(2, bandwidth=1e9, latency=1e-6)
    net.remove_edge("host:0", "switch:0")
    with pytest.raises(InputError, match="no way from host:0 to host:1"):
        Routes(net).between(0, 1)


@pytest.mark.parametrize("place", [-1, 1])
def test_a_place_that_is_not_there_is_refused(place):
    with pytest.raises(InputError, match=f"place {place}: topology 'host:cores=1' has 1, from 0"):
        Routes(host()).between(0, place)
