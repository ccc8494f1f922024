from itertools import pairwise

import networkx as nx
import pytest

from algorithms.errors import InputError
from topologies.cluster import gpu_cluster
from topologies.graph import places
from topologies.links import find_link, links

NUMBERS = {
    "gpus_per_node": 4,
    "nics_per_node": 2,
    "gpu_bandwidth": 450e9,
    "gpu_latency": 1e-6,
    "nic_bandwidth": 50e9,
    "nic_latency": 2e-6,
}


@pytest.fixture
def net():
    """Five nodes, two under a leaf: the last leaf has one."""
    return gpu_cluster(5, **NUMBERS, nodes_per_leaf=2, uplink_bandwidth=100e9)


def test_all_gpus_are_places(net):
    assert places(net) == [f"gpu:{i}" for i in range(20)]


def test_every_nic_has_one_cable_to_the_leaf_of_its_node(net):
    for nic in range(10):
        leaves = [target for target in net[f"nic:{nic}"] if target.startswith("leaf")]
        assert leaves == [f"leaf:{nic // 4}"]


def test_each_leaf_has_one_uplink_for_all(net):
    assert {source for source, _ in net.in_edges("spine:0")} == {"leaf:0", "leaf:1", "leaf:2"}
    assert find_link(net, "leaf:2>spine:0").bandwidth == 100e9


def test_a_message_across_leaves_pays_four_network_latencies(net):
    path = nx.shortest_path(net, "gpu:1", "gpu:19")
    latency = sum(net[one][other][0]["latency"] for one, other in pairwise(path))
    assert path == ["gpu:1", "nic:0", "leaf:0", "spine:0", "leaf:2", "nic:9", "gpu:19"]
    assert latency == pytest.approx(4 * 2e-6)


def test_without_leaves_of_their_own_all_nodes_share_one_fabric():
    net = gpu_cluster(3, "perlmutter")
    assert [node for node in net if node.startswith(("leaf", "spine"))] == ["leaf:0"]
    assert net.out_degree("leaf:0") == 3 * 4


def test_the_last_node_may_not_be_full():
    assert len(places(gpu_cluster(2, "frontier", gpus=11))) == 11
    with pytest.raises(InputError, match="gpus=17 must be from 1 to 16"):
        gpu_cluster(2, "frontier", gpus=17)


def test_joined_nics_are_one_nic_of_their_bandwidth_together():
    net = gpu_cluster(2, **NUMBERS | {"nics_per_node": 1, "nic_bandwidth": 100e9})
    leaving = [link.bandwidth for link in links(net) if link.name.startswith("nic:0>leaf")]
    assert leaving == [100e9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 0, "node": "frontier"}, "nodes=0"),
        ({"nodes": 1, "node": "summit"}, "node=summit is unknown; there are nvswitch, perlmutter, frontier"),
        ({"nodes": 1}, "node=nvswitch lacks gpus_per_node, nics_per_node, gpu_bandwidth"),
        ({"nodes": 1, "node": "frontier", "gpus_per_node": 4}, "node=frontier has its own gpus_per_node"),
        ({"nodes": 1, "node": "frontier", "nodes_per_leaf": 4}, "are given together or not at all"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        gpu_cluster(**arguments)
