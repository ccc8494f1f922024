import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.build import FAMILIES, build, parse_topology
from quadrille.topologies.families.leaf_spine import leaf_spine
from quadrille.topologies.machines.machine_catalogue import MACHINES

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
    "dumbbell": {"hosts": 4, "waist_bandwidth": 2e6, **CABLE},
    "leaf-spine": {"leaves": 2, "spines": 1, "hosts_per_leaf": 4, **CABLE},
    "fat-tree": {"ports": 4, **CABLE},
    "tree": {"down": "4x2x3", "up": "1x2x2", "parallel": "1x1x3", "bandwidth": "1e9x2e9x4e9", "latency": 1e-6},
    "dragonfly": {"groups": 3, "routers": 4, "hosts_per_router": 2, "global_links": 1, "local_links": 2, **CABLE},
    "dragonfly+": {"groups": 3, "leaves": 2, "spines": 2, "hosts_per_leaf": 2, "global_links": 1, **CABLE},
    "torus": {"dims": "3x4", "hosts_per_router": 2, "host_bandwidth": 1e6, **CABLE},
    "mesh": {"dims": 5, **CABLE},
    "rail-optimised": {"nodes": 3, "rails": 2, "nodes_per_unit": 2, "spines": 2, **CABLE},
    "ring": {"hosts": 5, **CABLE},
    "full": {"hosts": 5, **CABLE},
    "gpu-cluster": {"nodes": 2, **NODE},
    **{name: {"gpus": 5} for name in MACHINES},
}


@pytest.mark.parametrize(
    ("family", "listed", "word"),
    [
        ("torus", {"dims": [3, 4]}, {"dims": "3x4"}),
        ("mesh", {"dims": (5,)}, {"dims": 5}),
        (
            "tree",
            {"down": [4, 2], "up": [1, 2], "bandwidth": [1e9, 25e9], "latency": [0, 1e-6]},
            {"down": "4x2", "up": "1x2", "bandwidth": "1e9x25e9", "latency": "0x1e-6"},
        ),
        (
            "gpu-cluster",
            {"nodes": 16, "node": "perlmutter", "network": "torus", "dims": [8, 8]},
            {"nodes": 16, "node": "perlmutter", "network": "torus", "dims": "8x8"},
        ),
    ],
)
def test_a_list_is_as_good_as_a_word(family, listed, word):
    own = CABLE if family in ("torus", "mesh") else {}
    one, other = build(family, {**own, **listed}), build(family, {**own, **word})
    assert [column.tolist() for column in columns(one)] == [column.tolist() for column in columns(other)]
    assert columns(build(*parse_topology(one.name)))[2].tolist() == columns(one)[2].tolist()


def columns(net):
    return [net.sources, net.targets, net.bandwidths, net.latencies]


def test_every_family_has_an_example_here():
    assert EXAMPLES.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", EXAMPLES)
def test_a_topology_is_built_again_from_what_it_says_of_itself(family):
    net = build(family, EXAMPLES[family])
    again = build(*parse_topology(net.name))
    assert (again.name, again.kinds, again.endpoints) == (net.name, net.kinds, net.endpoints)
    assert all(np.array_equal(one, other) for one, other in zip(columns(again), columns(net), strict=True))


@pytest.mark.parametrize("family", EXAMPLES)
def test_both_directions_of_every_cable_are_equal(family):
    net = build(family, EXAMPLES[family])
    assert np.array_equal(net.sources[0::2], net.targets[1::2])
    assert np.array_equal(net.targets[0::2], net.sources[1::2])
    assert np.array_equal(net.bandwidths[0::2], net.bandwidths[1::2])
    assert np.array_equal(net.latencies[0::2], net.latencies[1::2])


def test_names_with_units_are_the_same_arguments():
    units = {"bandwidth_bytes_per_second": 25e6, "latency_seconds": 25e-6, "uplink_bandwidth_bytes_per_second": 1e6}
    net = build("leaf-spine", {"leaves": 2, "spines": 1, "hosts_per_leaf": 4, **units})
    direct = leaf_spine(2, 1, 4, **CABLE, uplink_bandwidth=1e6)
    assert all(np.array_equal(one, other) for one, other in zip(columns(net), columns(direct), strict=True))


TORUS = {"dims": "4x4", **CABLE}
DRAGONFLY = EXAMPLES["dragonfly"]
LARGE = {"tree": {"down": 4, "up": 1, **CABLE}}


@pytest.mark.parametrize(
    ("family", "arguments", "message"),
    [
        (
            "circle",
            {},
            "family 'circle' is unknown; there are host, star, leaf-spine, dumbbell, fat-tree, tree, dragonfly",
        ),
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
        ("torus", {**TORUS, "dims": 2.5}, "dims=2.5 must be whole numbers joined by x"),
        (
            "torus",
            {**TORUS, "dims": []},
            r"dims=\[\] must be whole numbers joined by x, such as 4x4, or a list of them",
        ),
        ("torus", {**TORUS, "dims": [4, True]}, r"dims=\[4, True\] must be whole numbers joined by x"),
        ("torus", {**TORUS, "dims": [4, 2.5]}, r"dims=4x2.5 must be whole numbers from 1 joined by x"),
        ("torus", {**TORUS, "dims": ["4", "4"]}, r"dims=\['4', '4'\] must be whole numbers joined by x"),
        ("torus", {**TORUS, "bandwidth": [1e9]}, r"bandwidth=\[1000000000.0\] must be a finite number"),
        ("ring", {"hosts": [4], **CABLE}, r"hosts=\[4\] must be a whole number"),
        ("torus", {**TORUS, "host_bandwidth": 1e9}, "host_bandwidth is for hosts on routers: give hosts_per_router"),
        ("mesh", {**TORUS, "host_latency": 1e-6}, "host_latency is for hosts on routers: give hosts_per_router"),
        ("torus", {**TORUS, "dims": "4x0"}, "dims=4x0 must be whole numbers from 1 joined by x"),
        ("torus", {**TORUS, "dims": "4xfour"}, "dims=4xfour must be whole numbers from 1"),
        ("torus", {**TORUS, "dims": ""}, "dims= must be whole numbers from 1"),
        ("torus", {**TORUS, "dims": "x".join("2" * 13)}, "has 13 dimensions; at most 12"),
        ("torus", {**TORUS, "hosts_per_router": -1}, "torus: hosts_per_router=-1 must be a whole number from 0"),
        ("torus", {**TORUS, "hosts_per_router": 1, "host_bandwidth": 0.0}, "torus: host_bandwidth=0.0 must be"),
        ("mesh", {**TORUS, "bandwidth": 0.0}, "mesh: bandwidth=0.0 must be"),
        ("ring", {"hosts": 0, **CABLE}, "ring: hosts=0 must be"),
        ("ring", {"hosts": 3, "bandwidth": -1.0, "latency": 0.0}, "ring: bandwidth=-1.0 must be"),
        ("full", {"hosts": 0, **CABLE}, "full: hosts=0 must be"),
        ("full", {"hosts": 3, "bandwidth": 1.0, "latency": -1.0}, "full: latency=-1.0 must be"),
        ("tree", {**EXAMPLES["tree"], "up": "1x2"}, "tree: up=1x2 has 2 numbers; it must have 1 or 3"),
        ("tree", {**EXAMPLES["tree"], "bandwidth": "1e9x0x1e9"}, "tree: bandwidth=0.0 must be"),
        ("tree", {**EXAMPLES["tree"], "bandwidth": "1e9xfastx1e9"}, "bandwidth=1e9xfastx1e9 must be finite numbers"),
        ("tree", {**EXAMPLES["tree"], "down": "x".join("2" * 13)}, "has 13 levels; at most 12"),
        ("dragonfly", {**DRAGONFLY, "groups": 6}, "dragonfly: groups=6 must be at most 5: a group has 4 × 1 global"),
        ("dragonfly", {**DRAGONFLY, "local_links": 0}, "dragonfly: local_links=0 must be"),
        ("dragonfly", {**DRAGONFLY, "global_latency": -1.0}, "dragonfly: global_latency=-1.0 must be"),
        ("dragonfly+", {**EXAMPLES["dragonfly+"], "groups": 4}, r"dragonfly\+: groups=4 must be at most 3"),
        ("rail-optimised", {**EXAMPLES["rail-optimised"], "rails": 0}, "rail-optimised: rails=0 must be"),
        ("perlmutter", {"gpus": 0}, "gpus=0"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_one_line(family, arguments, message):
    with pytest.raises(InputError, match=message) as refused:
        build(family, arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("star", "hosts"),
        ("leaf-spine", "leaves"),
        ("leaf-spine", "spines"),
        ("leaf-spine", "hosts_per_leaf"),
        ("fat-tree", "ports"),
        ("tree", "down"),
        ("tree", "up"),
        ("tree", "parallel"),
        ("dragonfly", "routers"),
        ("dragonfly", "hosts_per_router"),
        ("dragonfly", "local_links"),
        ("dragonfly+", "leaves"),
        ("dragonfly+", "spines"),
        ("dragonfly+", "hosts_per_leaf"),
        ("torus", "dims"),
        ("torus", "hosts_per_router"),
        ("mesh", "dims"),
        ("rail-optimised", "nodes"),
        ("rail-optimised", "spines"),
        ("ring", "hosts"),
        ("full", "hosts"),
    ],
)
def test_what_would_not_fit_in_memory_is_refused_before_it_is_built(family, name):
    for value in (10**9, 10**17):
        with pytest.raises(InputError, match=r"nodes and .* links are too many; at most"):
            build(family, {**LARGE.get(family, EXAMPLES[family]), name: value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("circle:hosts=2", "family 'circle' is unknown"),
        ("star:hosts", "'hosts' is not key=value; star takes hosts"),
        ("star:hosts=", "is not key=value"),
        ("star:hosts=2,,cores=1", "'' is not key=value"),
        ("star:hosts=2,hosts=3", "hosts is given twice"),
    ],
)
def test_a_topology_that_cannot_be_read_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_topology(text)


def test_lists_are_joined_by_x_or_colons():
    one, other = (build(*parse_topology(f"torus:dims={dims},bandwidth=1e9,latency=0")) for dims in ("3x4", "3:4"))
    assert one.name == other.name
    assert one.endpoint_count == 12


@pytest.mark.parametrize("digits", ["\u0664", "\uff14", "1_000", "0x10", "4.0", "1e1"])
def test_whole_numbers_are_written_in_plain_digits(digits):
    with pytest.raises(InputError, match=r"topology ring: hosts=.* must be a whole number"):
        build(*parse_topology(f"ring:hosts={digits},bandwidth=1e9,latency=0"))


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "star:" + "hosts=1," * 10_000,
        "torus:dims=" + "1x" * 100_000 + "1,bandwidth=1e9,latency=0",
        "torus:dims=" + "9" * 10_000 + ",bandwidth=1e9,latency=0",
        "mesh:dims=" + "999999x" * 1_000 + "2,bandwidth=1e9,latency=0",
        "tree:down=2x2,up=1x1,bandwidth=" + "9" * 10_000 + ",latency=0",
        "ring:hosts=" + "9" * 10_000 + ",bandwidth=1e9,latency=0",
        "host:cores=" + "9" * 100,
    ],
)
def test_an_endless_argument_is_refused_in_a_short_line(text):
    with pytest.raises(InputError) as refused:
        build(*parse_topology(text))
    assert len(str(refused.value)) < 600


def test_a_file_that_is_no_topology_is_named_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.txt").write_text("star")
    with pytest.raises(InputError, match=r"'net\.txt': a file of a topology is called \.json, \.xml or \.toml"):
        parse_topology("net.txt")
