import pytest

from algorithms.errors import InputError
from topologies.graph import add_cable, add_node, check_cable, check_counts, empty_topology, place_count, places


def test_a_node_carries_its_kind():
    net = empty_topology("star", {}, "host", 1)
    add_node(net, "host:0", cores=3)
    assert net.nodes["host:0"] == {"kind": "host", "cores": 3}


def test_a_second_cable_between_two_nodes_is_a_parallel_one():
    net = empty_topology("star", {}, "host", 2)
    for bandwidth in (1.0, 2.0):
        add_cable(net, "host:0", "host:1", bandwidth=bandwidth, latency=0.0)
    assert [net["host:1"]["host:0"][index]["bandwidth"] for index in (0, 1)] == [1.0, 2.0]


def test_places_are_numbered_nodes_of_one_kind():
    net = empty_topology("gpu-cluster", {"nodes": 1}, "gpu", 3)
    assert places(net) == ["gpu:0", "gpu:1", "gpu:2"]
    assert place_count(net) == 3


def test_the_name_of_a_topology_leaves_out_what_was_not_given():
    assert empty_topology("star", {"hosts": 2, "cores": None}, "host", 2).name == "star:hosts=2"


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
