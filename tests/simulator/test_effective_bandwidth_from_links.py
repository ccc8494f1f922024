"""AxoNN's B_inter / min(Gnode, P) comes out of the links; no formula of it is anywhere in the simulator.

Source: Singh, Singhania, Ranjan, Satpute, Bhatele, "A 4D Hybrid Algorithm to
Scale Parallel Training to Thousands of GPUs", arXiv 2305.13525, section on the
communication model; B_inter of 80 and 40 GB/s as its authors' script has them.
"""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.machines.machine import Device, Machine

INJECTION = {"perlmutter": 80e9, "frontier": 40e9}
GPUS_PER_NODE = {"perlmutter": 4, "frontier": 8}
NICS = 4
NODES = 8
CASES = [
    *(("perlmutter", stride) for stride in (1, 2, 4, 8)),
    *(("frontier", stride) for stride in (1, 2, 4, 8, 16)),
]


def machine(node: str, *, joined: bool) -> Machine:
    device = Device(
        peak_flops_per_second={"float32": 1e13}, memory_bytes_per_second=1e12, memory_bytes=4e10, overhead_seconds=0
    )
    topology = {"family": "gpu-cluster", "nodes": NODES, "node": node} | ({"joined": True} if joined else {})
    return Machine(name=node, topology=topology, device=device)


def without_latency(net, node: str):
    """The network with no latency, and cables from NICs to the switch that carry what AxoNN counts on."""
    first, count = net.kinds["switch"]
    switch = (net.targets >= first) & (net.targets < first + count) | (net.sources >= first) & (
        net.sources < first + count
    )
    nics = net.kinds["nic"][1] // NODES
    bandwidths = np.where(switch, INJECTION[node] / nics, net.bandwidths)
    return replace(net, latencies=np.zeros(net.link_count), bandwidths=bandwidths)


def bus_bandwidth(node: str, stride: int, *, joined: bool, channels: int, concurrent: str = "all") -> float:
    """Of all-reduces over the whole machine by groups of this stride, where no link takes any time of its own."""
    on = machine(node, joined=joined)
    net = without_latency(network_of(on), node)
    gpus = NODES * GPUS_PER_NODE[node]
    question = CollectiveQuestion(
        kind="all_reduce",
        bytes=1 << 30,
        gpus=gpus,
        group=gpus // stride,
        stride=stride,
        concurrent=concurrent,
        channels=channels,
        shards="even",
        choices=Choices(),
    )
    return predict_collective(question, on, net=net).bus_bandwidth


def expected(node: str, stride: int) -> float:
    return INJECTION[node] / min(GPUS_PER_NODE[node], stride)


@pytest.mark.parametrize(("node", "stride"), CASES)
def test_single_rings_share_one_injection_link(node, stride):
    assert bus_bandwidth(node, stride, joined=True, channels=1) == pytest.approx(expected(node, stride), rel=1e-9)


@pytest.mark.parametrize(("node", "stride"), CASES)
def test_as_many_channels_as_nics_use_all_of_them(node, stride):
    assert bus_bandwidth(node, stride, joined=False, channels=NICS) == pytest.approx(expected(node, stride), rel=1e-9)


@pytest.mark.parametrize("node", INJECTION)
def test_a_single_ring_gets_one_nic_only(node):
    alone = bus_bandwidth(node, 1, joined=False, channels=1)
    assert alone == pytest.approx(INJECTION[node] / NICS, rel=1e-9)


@pytest.mark.parametrize("node", INJECTION)
def test_a_group_alone_has_all_the_nics_that_its_members_reach(node):
    """Two of Perlmutter's four GPUs reach two NICs, four of Frontier's eight reach all four."""
    reached = {"perlmutter": 2, "frontier": 4}[node]
    alone = bus_bandwidth(node, 2, joined=False, channels=NICS, concurrent="one")
    assert alone == pytest.approx(reached * INJECTION[node] / NICS, rel=1e-9)
