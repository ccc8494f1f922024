import pytest

from algorithms.errors import InputError
from topologies.build import FAMILIES, build, parse_topology
from topologies.leaf_spine import leaf_spine

CABLE = {"bandwidth": 25e6, "latency": 25e-6}
NODE = {
    "gpus_per_node": 4,
    "nics_per_node": 2,
    "gpu_bandwidth": 450e9,
    "gpu_latency": 1e-6,
    "nic_bandwidth": 50e9,
    "nic_latency": 2e-6,
}
EXAMPLES = {
    "host": {"cores": 2},
    "star": {"hosts": 3, **CABLE},
    "leaf-spine": {"leaves": 2, "spines": 1, "hosts_per_leaf": 4, **CABLE},
    "fat-tree": {"ports": 4, **CABLE},
    "gpu-cluster": {"nodes": 2, **NODE},
    "perlmutter": {"gpus": 5},
    "frontier": {"gpus": 5},
}


def test_every_family_has_an_example_here():
    assert EXAMPLES.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", EXAMPLES)
def test_a_topology_is_built_again_from_what_it_says_of_itself(family):
    net = build(family, EXAMPLES[family])
    again = build(*parse_topology(net.name))
    assert (again.name, dict(again.nodes), list(again.edges(data=True))) == (
        net.name,
        dict(net.nodes),
        list(net.edges(data=True)),
    )


@pytest.mark.parametrize("family", EXAMPLES)
def test_every_cable_goes_both_ways_alike(family):
    net = build(family, EXAMPLES[family])
    there = sorted((a, b, edge["bandwidth"], edge["latency"]) for a, b, edge in net.edges(data=True))
    assert there == sorted((b, a, bandwidth, latency) for a, b, bandwidth, latency in there)


def test_names_with_units_are_the_same_arguments():
    units = {"bandwidth_bytes_per_second": 25e6, "latency_seconds": 25e-6, "uplink_bandwidth_bytes_per_second": 1e6}
    net = build("leaf-spine", {"leaves": 2, "spines": 1, "hosts_per_leaf": 4, **units})
    direct = leaf_spine(2, 1, 4, **CABLE, uplink_bandwidth=1e6)
    assert list(net.edges(data=True)) == list(direct.edges(data=True))


@pytest.mark.parametrize(
    ("family", "arguments", "message"),
    [
        ("ring", {}, "family 'ring' is unknown; there are host, star, leaf-spine, fat-tree, gpu-cluster"),
        (
            "star",
            {"hosts": 3, **CABLE, "spines": 1},
            r"spines is unknown; it takes hosts, bandwidth, latency, \[cores\]",
        ),
        ("star", {"hosts": 3}, "lacks bandwidth, latency; it takes hosts"),
        ("star", {"hosts": 2.5, **CABLE}, "hosts=2.5 must be a whole number"),
        ("star", {"hosts": "two", **CABLE}, "hosts='two' must be a whole number"),
        ("star", {"hosts": True, **CABLE}, "hosts=True must be a whole number"),
        ("star", {"hosts": 2, **CABLE, "latency": "fast"}, "latency='fast' must be a finite number"),
        ("star", {"hosts": 2, **CABLE, "latency": float("nan")}, "latency=nan must be a finite number"),
        ("star", {"hosts": 2, **CABLE, "bandwidth_bytes_per_second": 1.0}, "bandwidth is given twice"),
        ("star", {"hosts": -2, **CABLE}, "hosts=-2 must be a whole number from 1"),
        ("gpu-cluster", {"nodes": 2, "node": 3}, "node=3 must be a word"),
        ("perlmutter", {}, "lacks gpus"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_one_line(family, arguments, message):
    with pytest.raises(InputError, match=message) as refused:
        build(family, arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ring:hosts=2", "family 'ring' is unknown"),
        ("star:hosts", "'hosts' is not key=value; star takes hosts"),
        ("star:hosts=", "is not key=value"),
        ("star:hosts=2,,cores=1", "'' is not key=value"),
        ("star:hosts=2,hosts=3", "hosts is given twice"),
    ],
)
def test_a_topology_that_cannot_be_read_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_topology(text)
