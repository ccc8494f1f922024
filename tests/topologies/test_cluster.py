import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.build import build, parse_topology
from quadrille.topologies.cluster import gpu_cluster, rails
from quadrille.topologies.families.family_table import FABRICS
from quadrille.topologies.routes.routing import Routes, parse_routing
from quadrille.topologies.routes.search import SearchedPaths

NUMBERS = {
    "gpus_per_node": 4,
    "nics_per_node": 2,
    "gpu_bandwidth": 450e9,
    "gpu_latency": 1e-6,
    "nic_bandwidth": 50e9,
    "nic_latency": 2e-6,
}
# Arguments of each family for 8 nodes of 4 NICs.
NETWORKS = {
    "star": {},
    "dumbbell": {"waist_bandwidth": 1e9},
    "leaf-spine": {"per_leaf": 8, "spines": 3},
    "fat-tree": {"ports": 6},
    "tree": {"down": "4x8", "up": "1x2", "parallel": "1x2"},
    "rail-optimised": {"nodes_per_unit": 2, "spines": 3},
    "dragonfly": {"routers": 4, "per_router": 2, "global_links": 2},
    "dragonfly+": {"leaves": 2, "spines": 2, "per_leaf": 4, "global_links": 3},
    "torus": {"dims": "4x4x2"},
    "mesh": {"dims": "4x8"},
    "ring": {},
    "full": {},
}


@pytest.fixture
def net():
    """Five nodes, two under a leaf: the last leaf has one."""
    return gpu_cluster(5, **NUMBERS, nodes_per_leaf=2, uplink_bandwidth=100e9)


def route(net, source, target):
    return net.link_names(Routes(net).between([source], [target]).links)


def leaving(net, kind, towards):
    """(source, target, bandwidth) of the links from nodes of a kind to nodes of another."""
    links = [net.link(number) for number in range(net.link_count)]
    return [
        (one.source, one.target, one.bandwidth)
        for one in links
        if one.source.startswith(f"{kind}:") and one.target.startswith(f"{towards}:")
    ]


def test_all_gpus_are_places(net):
    assert net.endpoints == ("gpu", 20)
    assert net.kinds["gpu"] == (0, 20)


def test_every_nic_has_one_cable_to_the_leaf_of_its_node(net):
    assert leaving(net, "nic", "leaf") == [(f"nic:{nic}", f"leaf:{nic // 4}", 50e9) for nic in range(10)]


def test_each_leaf_has_one_uplink_for_all(net):
    assert leaving(net, "leaf", "spine") == [(f"leaf:{leaf}", "spine:0", 100e9) for leaf in range(3)]


def test_a_message_across_leaves_pays_four_network_latencies(net):
    assert route(net, 1, 19) == [
        "gpu:1>nic:0", "nic:0>leaf:0", "leaf:0>spine:0", "spine:0>leaf:2", "leaf:2>nic:9", "nic:9>gpu:19"
    ]  # fmt: skip
    assert Routes(net).between([1], [19]).latency[0] == pytest.approx(4 * 2e-6)


def test_a_message_inside_a_node_goes_over_its_nvswitch(net):
    assert route(net, 5, 6) == ["gpu:5>nvswitch:1", "nvswitch:1>gpu:6"]


def test_without_leaves_all_nodes_share_one_switch():
    net = gpu_cluster(3, "perlmutter")
    assert net.kinds["switch"] == (24, 1)
    assert len(leaving(net, "nic", "switch")) == 3 * 4


def test_the_last_node_may_not_be_full():
    assert gpu_cluster(2, "frontier", gpus=11).endpoint_count == 11
    with pytest.raises(InputError, match="gpus=17 must be from 1 to 16"):
        gpu_cluster(2, "frontier", gpus=17)


@pytest.mark.parametrize("joined", [True, "true"])
def test_joined_nics_are_one_nic_of_their_bandwidth_together(joined):
    net = gpu_cluster(2, **NUMBERS, joined=joined)
    assert leaving(net, "nic", "switch") == [("nic:0", "switch:0", 100e9), ("nic:1", "switch:0", 100e9)]


def test_all_families_of_networks_are_tried_here():
    assert set(NETWORKS) == set(FABRICS)


@pytest.fixture(params=NETWORKS)
def network(request):
    return {"network": request.param, **NETWORKS[request.param]}


@pytest.mark.parametrize("rule", ["shortest", "ecmp:3", "spray"])
def test_flows_through_any_network_lose_nothing_on_the_way(network, rule):
    net = gpu_cluster(8, "dgx-1v", nodes_per_rail=2, **network)
    sources, targets = np.divmod(np.random.default_rng(0).choice(64 * 64, 200), 64)
    paths = Routes(net, parse_routing(rule)).between(sources, targets)
    for pair in range(200):
        entries = slice(paths.offsets[pair], paths.offsets[pair + 1])
        check_flow(net, sources[pair], targets[pair], paths.links[entries], paths.shares[entries])


def test_paths_between_nodes_with_one_network_port_are_those_that_a_search_finds(network):
    net = gpu_cluster(32, "gh200-1", **network)
    sources, targets = np.divmod(np.arange(32 * 32), 32)
    hops = np.diff(Routes(net).between(sources, targets).offsets)
    found = (SearchedPaths(net).links(sources, targets, np.zeros_like(sources)) >= 0).sum(axis=1)
    if network["network"].startswith("dragonfly"):  # by way of a third group may be as near, and is not taken
        assert (hops >= found).all()
        assert hops.max() == found.max()
    else:
        np.testing.assert_array_equal(hops, found)


def check_flow(net, source, target, links, shares):
    """All that enters a node leaves it, but for the ends, where one unit begins and ends."""
    balance = np.zeros(net.node_count)
    np.add.at(balance, net.sources[links], shares)
    np.add.at(balance, net.targets[links], -shares)
    expected = np.zeros(net.node_count)
    expected[source] += 1
    expected[target] -= 1
    np.testing.assert_allclose(balance, expected, atol=1e-12)


def test_a_network_keeps_its_own_arguments_under_their_own_names():
    net = gpu_cluster(4, "dgx-a100", network="tree", down="8x4", up="1x2", bandwidth="25e9x50e9")
    assert {link[2] for link in leaving(net, "leaf", "spine")} == {50e9}
    assert net.arguments["down"] == "8x4"


def test_the_cables_of_nics_are_the_networks_unless_it_has_its_own():
    net = gpu_cluster(4, "dgx-a100", network="leaf-spine", nodes_per_leaf=2, spines=4)
    assert {bandwidth for *_, bandwidth in leaving(net, "leaf", "spine")} == {25e9}
    assert net.kinds["leaf"][1] == 2


def test_rails_are_nics_of_the_same_number():
    net = gpu_cluster(8, "perlmutter", nodes_per_rail=4, network="leaf-spine", per_leaf=4, spines=1)
    under = {}
    for nic, leaf, _ in leaving(net, "nic", "leaf"):
        under.setdefault(leaf, []).append(int(nic.partition(":")[2]))
    assert under["leaf:0"] == [0, 4, 8, 12]
    assert under["leaf:7"] == [19, 23, 27, 31]


def test_an_order_by_rails_is_an_order():
    for nodes, network_ports, unit in [(5, 3, 2), (7, 4, 3), (6, 2, 6), (4, 4, 1)]:
        assert sorted(rails(nodes, network_ports, unit).tolist()) == list(range(nodes * network_ports))
    assert rails(5, 3, 1).tolist() == list(range(15))


def test_a_topology_on_the_command_line_says_all_of_it():
    family, arguments = parse_topology(
        "gpu-cluster:nodes=4,node=gh200-4,network=dragonfly,routers=4,per_router=4,global_links=1"
    )
    net = build(family, arguments)
    assert net.kinds["router"] == (32, 4)
    assert net.endpoint_count == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0, "node": "frontier"}, "nodes=0"),
        ({"nodes": 1, "node": "cray-1"}, "node 'cray-1' is unknown; there are nvswitch, dgx-a100"),
        ({"nodes": 1}, "node=nvswitch lacks gpus_per_node, nics_per_node, gpu_bandwidth"),
        ({"nodes": 1, "node": "frontier", "gpus_per_node": 4}, "node=frontier has its own gpus_per_node"),
        ({"nodes": 1, "node": "frontier", "nodes_per_leaf": 4}, "nodes_per_leaf needs uplink_bandwidth, or spines"),
        ({"nodes": 1, "node": "frontier", "uplink_bandwidth": 4e9}, "give nodes_per_leaf too"),
        ({"nodes": 1, "node": "frontier", "network": "cube"}, "network 'cube' is unknown; there are star, leaf-spine"),
        ({"nodes": 1, "node": "frontier", "network": "star", "spines": 2}, "network=star does not take spines"),
        ({"nodes": 1, "node": "frontier", "network": "fat-tree"}, "network=fat-tree lacks ports"),
        ({"nodes": 1, "node": "frontier", "spines": 4}, "spines is for a network: give network="),
        (
            {"nodes": 1, "node": "frontier", "network": "torus", "dims": 4, "nodes_per_leaf": 4},
            "nodes_per_leaf is for network=leaf-spine",
        ),
        ({"nodes": 1, "node": "frontier", "joined": "yes"}, "joined=yes must be true or false"),
        ({"nodes": 4, "node": "frontier", "nodes_per_rail": 0}, "nodes_per_rail=0"),
    ],
)  # fmt: skip
def test_a_cluster_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        gpu_cluster(**arguments)
