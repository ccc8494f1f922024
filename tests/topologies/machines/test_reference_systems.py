"""Vendors' reference systems: NVL72 racks, DGX SuperPODs and AMD's platforms, as networks and beside measurements."""

import numpy as np
import pytest

from quadrille import collective, find_machine
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.topologies.joined_gpus import joined_endpoints
from quadrille.topologies.machines.machine_catalogue import MACHINES, host_link_of, machine
from quadrille.topologies.routes.routing import Routes

GIB, MIB = 1 << 30, 1 << 20
RACKS = ("gb200-nvl72", "gb300-nvl72")
NIC_BANDWIDTHS = {
    "h200-superpod": 50e9,
    "b200-superpod": 50e9,
    "b300-superpod": 100e9,
    "gb200-nvl72": 50e9,
    "gb300-nvl72": 100e9,
    "mi325x-node": 50e9,
    "mi355x-node": 50e9,
}


def predicted(name, kind, size, gpus, algorithm="nccl", *, measured=False, item_bytes=1):
    question = CollectiveQuestion(
        kind=kind,
        bytes=size,
        gpus=gpus,
        group=gpus,
        choices=parse_choices(algorithm),
        item_bytes=item_bytes,
        nccl=NcclSettings(measured=measured),
    )
    return collective(question, find_machine(name, gpus=gpus))


@pytest.mark.parametrize("name", RACKS)
def test_a_rack_is_one_domain_of_72_gpus_and_two_racks_are_two(name):
    assert joined_endpoints(machine(name).topology(72)) == 72
    net = machine(name).topology(144)
    assert joined_endpoints(net) == 72
    paths = Routes(net).between([0, 0], [71, 72])
    slowest = [net.bandwidths[paths.links[a:b]].min() for a, b in zip(paths.offsets, paths.offsets[1:], strict=False)]
    assert slowest == [900e9, NIC_BANDWIDTHS[name]]


@pytest.mark.parametrize("name", NIC_BANDWIDTHS)
def test_each_gpu_has_a_nic_of_its_own_and_all_can_leave_their_node_at_once(name):
    named = machine(name)
    count = named.gpus_per_node
    net = named.topology(2 * count)
    gpus = np.arange(count)
    paths = Routes(net).between(gpus, gpus + count)
    load = np.bincount(paths.links, paths.shares, minlength=net.link_count)
    assert float((net.bandwidths[load > 0] / load[load > 0]).min()) == NIC_BANDWIDTHS[name]


def test_two_gpus_of_a_rack_share_a_grace_and_its_memory():
    link = host_link_of(machine("gb200-nvl72"))
    assert (link.gpus, link.memory_gpus) == (2, 2)
    assert link.bytes_per_second == 450e9
    assert 36 * link.memory_bytes == pytest.approx(17e12, rel=0.02)  # a rack, by its data sheet


@pytest.mark.parametrize("name", [name for name, named in MACHINES.items() if named.gpu.small_peaks])
def test_eight_bits_are_twice_as_fast_as_sixteen_and_no_machine_file_has_them(name):
    gpu = machine(name).gpu
    assert gpu.small_peaks["float8"] == pytest.approx(2 * gpu.peak_flops_per_second["bfloat16"], rel=1e-3)
    assert gpu.small_peaks.get("float4", gpu.small_peaks["float8"]) >= gpu.small_peaks["float8"]
    assert not {"float8", "float4"} & set(find_machine(name, gpus=8).device.peak_flops_per_second)


@pytest.mark.parametrize("name", [name for name, named in MACHINES.items() if named.generation == "blackwell"])
def test_a_blackwell_gpu_does_not_reach_its_peaks(name):
    assert 0.6 < find_machine(name, gpus=8).device.achieved.product_share < 0.9


# In-switch sums in domains of more than 32 GPUs


@pytest.mark.parametrize("gpus", [36, 64, 72])
def test_a_large_all_reduce_in_a_rack_is_summed_by_its_switches(gpus):
    answer = predicted("gb200-nvl72", "all_reduce", GIB, gpus)
    assert answer.algorithm == "nccl (nvls, Simple, 32 channels)"
    bus = GIB / answer.seconds * 2 * (gpus - 1) / gpus
    assert 800e9 < bus < 1100e9
    assert answer.seconds < predicted("gb200-nvl72", "all_reduce", GIB, gpus, "nccl:ring").seconds


def test_racks_are_joined_by_trees_over_the_nics_of_32_gpus_each():
    one, two = (predicted("gb200-nvl72", "all_reduce", GIB, gpus) for gpus in (72, 144))
    assert (two.algorithm, two.cards) == ("nccl (nvls_tree, Simple, 32 channels)", (32, 72))
    assert one.seconds < two.seconds < 1.5 * one.seconds


def test_an_all_gather_over_a_rack_goes_by_a_ring():
    assert predicted("gb200-nvl72", "all_gather", GIB, 72).algorithm.startswith("nccl (ring")


@pytest.mark.parametrize("name", ["h100-superpod", "gb200-nvl72"])
def test_groups_with_one_gpu_a_node_have_no_in_switch_sums(name):
    per_node = machine(name).gpus_per_node
    question = CollectiveQuestion(kind="all_reduce", bytes=GIB, gpus=8 * per_node, group=8, stride=per_node)
    assert "nvls" not in collective(question, find_machine(name, gpus=8 * per_node)).algorithm


# Beside measurements

MEASURED = (
    ("a100-node", "all_gather", 8, 512 * MIB, 2288e-6),
    ("a100-node", "reduce_scatter", 8, 512 * MIB, 2207e-6),
    ("a100-node", "all_reduce", 8, 512 * MIB, 4226e-6),
    ("h100-node", "all_gather", 8, 512 * MIB, 1425e-6),
    ("h100-node", "all_reduce", 8, 512 * MIB, 2111e-6),
    ("h200-node", "all_gather", 8, 512 * MIB, 1392e-6),
    ("h200-node", "all_reduce", 8, 512 * MIB, 2040e-6),
    ("b200-node", "all_gather", 8, 512 * MIB, 770.5e-6),
    ("b200-node", "reduce_scatter", 8, 512 * MIB, 768.7e-6),
    ("b200-node", "all_reduce", 8, 512 * MIB, 1371e-6),
    ("b300-node", "all_gather", 8, 256 * MIB, 392.3e-6),
    ("b300-node", "all_reduce", 8, 256 * MIB, 715.3e-6),
    ("gb200-nvl72", "all_gather", 4, 512 * MIB, 705.5e-6),
    ("gb200-nvl72", "all_reduce", 4, 32 * MIB, 122.9e-6),
    ("gb300-nvl72", "all_gather", 4, 128 * MIB, 191.8e-6),
    ("gb300-nvl72", "all_reduce", 4, 512 * MIB, 1268e-6),
)
"""Machine, collective, GPUs, bytes, seconds of NCCL; source: aiconfigurator-core 0.12.0 (NVIDIA, PyPI), NCCL tables."""


@pytest.mark.parametrize(("name", "kind", "gpus", "size", "seconds"), MEASURED)
def test_nccl_s_model_on_data_sheets_is_at_most_a_quarter_faster_than_measured(name, kind, gpus, size, seconds):
    ratio = predicted(name, kind, size, gpus).seconds / seconds
    assert 0.75 < ratio < 1


@pytest.mark.parametrize(("name", "kind", "gpus", "size", "seconds"), MEASURED)
def test_tables_hold_the_measurements_that_they_were_made_from(name, kind, gpus, size, seconds):
    assert predicted(name, kind, size, gpus, measured=True, item_bytes=2).seconds == pytest.approx(seconds, rel=0.06)
