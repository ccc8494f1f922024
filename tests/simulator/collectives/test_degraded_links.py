"""Degraded links: libraries do not know of them, so no collective becomes faster, whichever link and node it is."""

import numpy as np
import pytest

from quadrille.simulator.collectives.nccl.collective import nccl_collective
from quadrille.simulator.collectives.nccl.layout import communicator_of
from quadrille.simulator.collectives.node_layouts import ring_orders
from quadrille.simulator.machine.network import network_of, routes_of
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.what_if import with_faults

KINDS = ("all_reduce", "all_gather", "broadcast", "all_to_all")
LINKS = {
    "perlmutter": ("nic:0-router:0", "nic:7-router:0", "nic:*-router:0", "gpu:0-gpu:1", "gpu:6>gpu:7"),
    "h100-superpod": ("nic:0-leaf:0", "nic:13-leaf:5", "gpu:3-nvswitch:0", "gpu:*>nvswitch:1"),
}
GPUS = {"perlmutter": 8, "h100-superpod": 16}


def degraded(name, *faults):
    machine = with_faults(find_machine(name, gpus=GPUS[name]), degrade=faults)
    return machine, routes_of(machine, network_of(machine))


def seconds(kind, size, name, *faults, nodes=2):
    machine, routes = degraded(name, *faults)
    members = np.arange(nodes * routes.net.per_node)
    return nccl_collective(kind, size, members[None], members, machine, routes).result.seconds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LINKS)
def test_no_degraded_link_makes_a_collective_faster(name, kind):
    for size in (1e5, 1e9):
        healthy = seconds(kind, size, name)
        for link in LINKS[name]:
            half, tenth = (seconds(kind, size, name, f"{link}={share}") for share in (0.5, 0.1))
            assert healthy * (1 - 1e-9) <= half <= tenth * (1 + 1e-9), (link, size)


@pytest.mark.parametrize("name", LINKS)
def test_a_degraded_link_costs_the_same_in_the_first_node_and_in_the_last(name):
    link = {"perlmutter": "nic:{}-router:0", "h100-superpod": "nic:{}-leaf:{}"}[name]
    times = [
        seconds("all_reduce", 1e9, name, f"{link.format(card, card % 8)}=0.25") for card in (1, GPUS[name] // 2 + 1)
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-9)
    assert times[0] > 1.5 * seconds("all_reduce", 1e9, name)


def test_channels_and_choice_are_those_without_degraded_links():
    (_, healthy), (_, slow) = degraded("perlmutter"), degraded("perlmutter", "nic:0-router:0=0.25")
    places = np.arange(8)[None]
    assert communicator_of(healthy, places, "ampere") == communicator_of(slow, places, "ampere")
    for first, second in zip(ring_orders(healthy, places), ring_orders(slow, places), strict=True):
        assert first.tolist() == second.tolist()


def test_a_failed_link_stays_failed_where_others_are_degraded():
    machine = with_faults(find_machine("perlmutter", gpus=8), degrade=["nic:1-router:0=0.5"], fail=["nic:1>router:0"])
    net = network_of(machine)
    failed = net.link_number("nic:1>router:0")
    assert net.failed[failed] and net.expected().failed.sum() == 1 and net.expected().failed[failed]
    back = net.link_number("router:0>nic:1")
    assert net.expected().bandwidths[back] == 2 * net.bandwidths[back]
