from collections import Counter
from itertools import combinations

import networkx as nx
import pytest

from algorithms.errors import InputError
from topologies.gpu_node import FRONTIER, PERLMUTTER, XGMI_LINKS, add_gpu_node, inside_path, nvswitch_node
from topologies.graph import empty_topology

NUMBERS = {"gpu_bandwidth": 450e9, "gpu_latency": 1e-6, "nic_bandwidth": 50e9, "nic_latency": 2e-6}
NVSWITCH = nvswitch_node(6, 3, **NUMBERS)
KINDS = [PERLMUTTER, FRONTIER, NVSWITCH]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_gpu_reaches_every_other_and_its_nic(kind):
    for one, other in combinations(range(kind.gpus), 2):
        assert inside_path(kind, f"gpu:{one}", f"gpu:{other}")
    for gpu in range(kind.gpus):
        assert inside_path(kind, f"gpu:{gpu}", f"nic:{kind.nic(gpu)}")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_nic_serves_as_many_gpus(kind):
    assert set(Counter(map(kind.nic, range(kind.gpus))).values()) == {kind.gpus // kind.nics}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_second_node_numbers_on_from_the_first(kind):
    net = empty_topology("gpu-cluster", {}, "gpu", 2 * kind.gpus)
    for index in range(2):
        add_gpu_node(net, kind, index)
    kinds = Counter(name for _, name in net.nodes(data="kind"))
    assert kinds == {
        k: v for k, v in {"gpu": 2 * kind.gpus, "nvswitch": 2 * kind.switches, "nic": 2 * kind.nics}.items() if v
    }
    assert net.number_of_edges() == 2 * 2 * len(kind.cables)
    assert nx.number_strongly_connected_components(net) == 2


def test_perlmutter_gpus_are_joined_pairwise():
    assert all(len(inside_path(PERLMUTTER, f"gpu:{a}", f"gpu:{b}")) == 2 for a, b in combinations(range(4), 2))


def test_an_a100_uses_its_twelve_nvlinks():
    bandwidth = sum(c.bandwidth for c in PERLMUTTER.cables if c.other.startswith("gpu") and "gpu:2" in (c.one, c.other))
    assert bandwidth == 12 * 25e9


def test_every_gcd_of_frontier_uses_its_eight_ports():
    # GPU links, one to the host, and the NIC's at the odd ones.
    for gcd in range(8):
        links = sum(count for pair, count in XGMI_LINKS.items() if gcd in pair)
        assert links + 1 + gcd % 2 == 8


def test_gcds_that_are_not_joined_go_through_the_widest_neighbour():
    assert inside_path(FRONTIER, "gpu:0", "gpu:4") in {("gpu:0", "gpu:2", "gpu:4"), ("gpu:0", "gpu:6", "gpu:4")}
    assert inside_path(FRONTIER, "gpu:2", "gpu:6") in {("gpu:2", "gpu:4", "gpu:6"), ("gpu:2", "gpu:0", "gpu:6")}
    assert inside_path(FRONTIER, "gpu:0", "gpu:7") == ("gpu:0", "gpu:6", "gpu:7")


def test_more_nics_than_gpus_are_refused():
    with pytest.raises(InputError, match="nics_per_node=3 must be at most gpus_per_node=2"):
        nvswitch_node(2, 3, **NUMBERS)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_cable_of_a_node_that_cannot_be_is_refused_by_name(name):
    with pytest.raises(InputError, match=f"gpu-cluster: {name}=-1"):
        nvswitch_node(2, 1, **NUMBERS | {name: -1})
