from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.build import build
from quadrille.topologies.machines.machine_catalogue import MACHINES, as_machine, larger_machine_remark, machine
from quadrille.topologies.routes.routing import Routes, Routing

DEVICE = ("peak_flops_per_second", "memory_bytes_per_second", "memory_bytes", "overhead_seconds")
EXPECTED = [
    "perlmutter",
    "frontier",
    "alps",
    "selene",
    "jean-zay-a100",
    "jean-zay-v100",
    "abci-a100",
    "abci-v100",
    "longhorn",
    "summit",
    "h100-superpod",
    "h200-superpod",
    "b200-superpod",
    "b300-superpod",
    "gb200-nvl72",
    "gb300-nvl72",
    "a100-node",
    "h100-node",
    "h200-node",
    "b200-node",
    "b300-node",
    "mi300x-node",
    "mi325x-node",
    "mi355x-node",
    "aws-p4d",
    "aws-p6-b200",
    "unnamed-4x8",
    "bench-1to1",
    "bench-2to1",
]


@pytest.fixture(params=MACHINES)
def named(request):
    return machine(request.param)


def test_the_machines_that_people_ask_for_are_there():
    assert set(EXPECTED) <= set(MACHINES)


def test_every_number_has_a_source(named):
    assert all(len(quantity.source) > 20 for quantity in named.quantities)
    assert max(Counter(quantity.quantity for quantity in named.quantities).values()) == 1


def test_the_numbers_listed_are_the_numbers_used(named):
    listed = {quantity.quantity: quantity.value for quantity in named.quantities}
    for dtype, peak in named.peak_flops_per_second.items():
        assert listed[f"peak_flops_per_second.{dtype}"] == peak
    for name in ("gpus", "gpus_per_node", *DEVICE[1:]):
        assert listed[name] == getattr(named, name)
    net = named.topology(named.gpus_per_node)
    used = set(zip(net.bandwidths.tolist(), net.latencies.tolist(), strict=True))
    assert (listed["nic_bandwidth_bytes_per_second"], listed["nic_latency_seconds"]) in used


def test_every_latency_of_the_wiring_is_listed(named):
    net = named.topology(4 * named.unit * named.gpus_per_node)
    listed = {quantity.value for quantity in named.quantities if "latency" in quantity.quantity}
    assert set(net.latencies.tolist()) <= listed | {0.0}


@pytest.mark.parametrize("gpus", [1, 3, 6, 8, 12, 13, 64, 72, 1000, 16384])
def test_any_number_of_gpus_can_be_modelled(named, gpus):
    net = named.topology(gpus)
    assert net.endpoints == ("gpu", gpus)
    paths = Routes(net).between([0], [gpus - 1])
    assert len(paths.links) or gpus == 1


def test_machines_can_be_larger_than_they_are(named):
    gpus = 2 * named.gpus
    net = named.topology(gpus)
    sources = np.random.default_rng(0).integers(0, gpus, 500)
    assert Routes(net).between(sources, sources[::-1]).latency.max() > 0


def test_only_a_real_machine_by_its_own_name_is_said_to_be_larger(named):
    gpus = 2 * named.gpus
    asked = as_machine(named, gpus)
    assert bool(larger_machine_remark(asked, gpus)) == (not named.any_size)
    assert larger_machine_remark(asked, named.gpus) == ""
    assert larger_machine_remark(msgspec.structs.replace(asked, name="our-cluster"), gpus) == ""
    star = {"family": "star", "hosts": gpus}
    assert larger_machine_remark(msgspec.structs.replace(asked, topology=star), gpus) == ""


def test_a_node_injects_what_its_nics_do(named):
    net = named.topology(named.gpus_per_node)
    network_port = "nic" if named.node.nics else "gpu"
    ends = [
        (net.node_name(s).split(":"), net.node_name(t).split(":")[0])
        for s, t in zip(net.sources, net.targets, strict=True)
    ]
    inside = set(named.node.parts)
    leaving = [
        bandwidth
        for ((kind, index), target), bandwidth in zip(ends, net.bandwidths, strict=True)
        if kind == network_port and target not in inside and int(index) < named.node.network_ports
    ]
    assert leaving == [named.node.nic_bandwidth] * named.node.network_ports


def test_a_machine_is_built_by_its_name_from_what_its_file_would_say(named):
    net = build(named.name, named.arguments(64))
    plain = named.topology(64, balanced="balanced" in named.arguments())
    np.testing.assert_array_equal(net.bandwidths, plain.bandwidths)
    np.testing.assert_array_equal(net.latencies, plain.latencies)
    np.testing.assert_array_equal(net.sources, plain.sources)


def test_twice_the_bandwidth_of_nics_is_that_of_all_the_network(named):
    gpus = 2 * named.unit * named.gpus_per_node
    plain = named.topology(gpus)
    faster = named.topology(gpus, bandwidth=2 * named.node.nic_bandwidth, latency=3 * named.node.nic_latency)
    switches = [kind for kind in plain.kinds if kind not in named.node.parts]
    first = min(plain.kinds[kind][0] for kind in switches)
    outside = (plain.sources >= first) | (plain.targets >= first)
    np.testing.assert_allclose(faster.bandwidths, plain.bandwidths * np.where(outside, 2, 1))
    np.testing.assert_allclose(faster.latencies, plain.latencies * np.where(outside, 3, 1))


def test_no_gpus_and_unknown_machines_are_refused(named):
    with pytest.raises(InputError, match=f"{named.name}: gpus=0"):
        named.topology(0)
    with pytest.raises(InputError, match="machine 'tianhe' is unknown; there are perlmutter, frontier"):
        machine("tianhe")


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("dgx-b300", "b300-superpod, b300-node"),
        ("hgx-h200", "h200-superpod, h200-node"),
        ("gb300-rack", "gb300-nvl72"),
        ("mi355x-cluster", "mi355x-node"),
    ],
)
def test_an_unknown_machine_with_a_known_gpu_is_answered_with_the_machines_of_that_gpu(name, names):
    with pytest.raises(InputError, match=f"machine '{name}' is unknown; .*{names.split(', ')[0]}") as refused:
        machine(name)
    assert len(str(refused.value)) < 130


def test_too_many_gpus_are_refused_with_the_largest_number(named):
    with pytest.raises(InputError, match=rf"{named.name}: gpus=10000000: at most \d+ GPUs are modelled") as refused:
        named.topology(10_000_000)
    assert 180_000 < int(str(refused.value).split()[-4]) < 10_000_000


# The bench clusters, as they are pinned


@pytest.mark.parametrize(("name", "uplink"), [("bench-1to1", 1600e9), ("bench-2to1", 800e9)])
def test_the_bench_clusters_are_the_pinned_ones(name, uplink):
    net = machine(name).topology(100)
    assert {net.kinds[kind][1] for kind in ("nvswitch", "leaf")} == {13, 4}
    paths = Routes(net).between([0, 0, 0], [1, 8, 32])
    assert paths.latency.tolist() == pytest.approx([2e-6, 2e-6, 4e-6])
    ways = [net.link_names(paths.links[a:b]) for a, b in pairwise(paths.offsets)]
    assert ways == [
        ["gpu:0>nvswitch:0", "nvswitch:0>gpu:1"],
        ["gpu:0>leaf:0", "leaf:0>gpu:8"],
        ["gpu:0>leaf:0", "leaf:0>spine:0", "spine:0>leaf:1", "leaf:1>gpu:32"],
    ]
    rates = {name: net.link(net.link_number(name)).bandwidth for way in ways for name in way}
    assert rates["gpu:0>nvswitch:0"] == 450e9
    assert rates["gpu:0>leaf:0"] == 50e9
    assert rates["leaf:0>spine:0"] == rates["spine:0>leaf:1"] == uplink


def test_the_bench_clusters_cost_no_overhead():
    assert machine("bench-1to1").overhead_seconds == machine("bench-2to1").overhead_seconds == 0


# Dragonflies


def test_any_two_cabinets_of_frontier_are_joined_by_four_cables_in_one():
    net = machine("frontier").topology(2 * 1024)
    first, count = net.kinds["router"]
    between = (net.sources >= first) & (net.targets >= first)
    assert count == 74
    assert between.sum() == 74 * 73
    assert set(net.bandwidths[between]) == {4 * 25e9}
    assert net.bandwidths[between].sum() == pytest.approx(2 * 270e12, rel=1e-3)  # Atchley et al., SC23


def test_one_cabinet_blocks_nothing_and_two_share_their_cables():
    net = machine("perlmutter").topology(1024)
    half = np.arange(512)
    inside = Routes(net).between(half, (half + 4) % 512)
    assert np.bincount(inside.links).max() == 1
    across = Routes(net).between(half, half + 512)
    assert np.bincount(across.links).max() == 512
    assert net.bandwidths[np.bincount(across.links).argmax()] == 22 * 25e9


@pytest.mark.parametrize(("name", "group"), [("perlmutter", 512), ("frontier", 1024), ("alps", 448)])
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_the_core_of_balanced_groups_carries_what_all_their_cables_do(name, group, groups):
    """Where each group sends to the next, one cable to a core is as good as adaptive routing over all of them."""
    gpus = groups * group
    sources = np.arange(gpus)
    cables, core = machine(name).topology(gpus), machine(name).topology(gpus, balanced=True)
    reached = []
    for net, rule in ((cables, "balanced"), (core, "shortest")):
        paths = Routes(net, Routing(rule)).between(sources, (sources + group) % gpus)
        load = np.bincount(paths.links, paths.shares, minlength=net.link_count)
        reached.append((float(np.max(load / net.bandwidths)), float(paths.latency.max())))
    assert reached[0] == pytest.approx(reached[1], rel=1e-9)


def test_a_simulated_frontier_has_what_was_measured_between_its_groups():
    """Atchley et al., SC23: about 30 GB/s a node in an all-to-all over the whole machine."""
    net = build("frontier", machine("frontier").arguments(74 * 1024))
    first, _ = net.kinds["router"]
    core = net.kinds["core"][0]
    up = (net.sources >= first) & (net.targets == core)
    assert up.sum() == 74
    assert net.bandwidths[up] / 128 == pytest.approx(30e9, rel=0.05)


def test_only_machines_with_groups_are_balanced():
    assert {name for name, one in MACHINES.items() if one.arguments().get("balanced")} == {
        "perlmutter",
        "frontier",
        "alps",
    }
    with pytest.raises(InputError, match="selene: balanced=true is for machines with groups"):
        machine("selene").topology(8, balanced="true")


def test_joined_nics_of_a_dragonfly_inject_as_much_by_one_cable():
    net = machine("perlmutter").topology(1024, joined="true")
    assert net.kinds["nic"][1] == 256
    paths = Routes(net).between([0, 0], [127, 1023])
    assert net.bandwidths[paths.links].min() == 100e9
