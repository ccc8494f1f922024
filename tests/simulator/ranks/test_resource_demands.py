"""Where ranks live, and what transfers between them cost."""

from math import inf

import msgspec
import pytest
import simpy

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Shift
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.network import network_of
from quadrille.simulator.ranks.resource_demands import ResourceDemands
from quadrille.simulator.simulate import simulate
from quadrille.topologies.machines.machine import Host, Machine
from tests.support.toy_machines import device, leaf_spine, one_host, products, program_of, star, transfer_row

CURVE = [transfer_row(1000, 2e-6), transfer_row(1_000_000, 1e-3)]


def wiring(machine, ranks, engine=None):
    return ResourceDemands(machine, ranks, engine or FlowEngine(simpy.Environment()))


def placement(machine, ranks):
    found = wiring(machine, ranks)
    return [found.endpoint(rank) for rank in range(ranks)]


def gpus(count, **given):
    return Machine(name="toy", topology={"family": "perlmutter", "gpus": count}, device=device(), **given)


def transfer(machine, ranks, sender, receiver, size, pattern="shift"):
    """The cost of one transfer, and the names of the resources that it takes."""
    engine = FlowEngine(simpy.Environment())
    cost = wiring(machine, ranks, engine).transfer(sender, receiver, size, pattern)
    return cost, [engine.resource_name(resource) for resource in cost.demands]


# Where ranks live


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"),
    [
        (1, 3, [0, 1, 2]),
        (2, 3, [0, 0, 1]),
        (4, 3, [0, 0, 0]),
        (1, 7, [0, 0, 0, 1, 1, 1, 2]),
        (2, 12, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
    ],
)
def test_ranks_fill_the_cores_of_hosts_in_order_and_more_where_there_are_more(cores, ranks, expected):
    assert placement(star(3, cores=cores), ranks) == expected


def test_all_ranks_of_one_host_are_neighbours():
    found = wiring(one_host(2), 5)
    assert [found.neighbours(rank) for rank in range(5)] == [5] * 5
    assert len({tuple(found.local(rank, 1.0)) for rank in range(5)}) == 1


@pytest.mark.parametrize(("ranks", "threads"), [(1, 7), (2, 3), (3, 2), (7, 1), (9, 1)])
def test_a_rank_has_its_share_of_the_cores_as_threads(ranks, threads):
    found = wiring(one_host(7), ranks)
    assert [found.threads(rank) for rank in range(ranks)] == [threads] * ranks


def test_each_gpu_has_one_rank_and_no_core_to_share():
    machine = gpus(8, host=Host(cores=64))
    found = wiring(machine, 8)
    assert [found.endpoint(rank) for rank in range(8)] == list(range(8))
    assert {found.cores_of(place) for place in range(8)} == {1}
    assert {found.threads(rank) for rank in range(8)} == {1}


def test_more_ranks_than_gpus_are_refused():
    with pytest.raises(InputError, match="9 ranks: toy has 8 GPUs"):
        wiring(gpus(8), 9)
    with pytest.raises(InputError, match="9 ranks"):
        simulate(products(9, 4, 4, 4), gpus(8))


def test_the_host_of_a_calibrated_machine_says_its_cores():
    machine = Machine(name="h", topology={"family": "host"}, device=device(), host=Host(cores=6))
    assert wiring(machine, 1).cores_of(0) == 6


# Transfers over links


def test_a_message_takes_each_link_of_its_route_once_and_the_sum_of_their_latencies():
    machine = leaf_spine(2, 2, latency=1e-6)
    cost, names = transfer(machine, 4, 0, 3, 5000)
    assert names == ["host:0>leaf:0", "leaf:0>spine:0", "spine:0>leaf:1", "leaf:1>host:3"]
    assert set(cost.demands.values()) == {1.0}
    assert (cost.work, cost.cap) == (5000, inf)
    assert cost.latency == pytest.approx(4e-6)
    assert transfer(machine, 4, 0, 1, 5000)[1] == ["host:0>leaf:0", "leaf:0>host:1"]


def test_both_directions_of_a_cable_are_links_of_their_own():
    found = wiring(star(2), 2)
    there, back = found.transfer(0, 1, 8, "exchange"), found.transfer(1, 0, 8, "exchange")
    assert not there.demands.keys() & back.demands.keys()


@pytest.mark.parametrize("size", [0, 500, 1000, 250_000, 1_000_000, 3_000_000])
def test_a_measured_network_takes_its_measured_seconds_on_idle_links(size):
    cost, names = transfer(star(2, bandwidth=1e12, network=CURVE), 2, 0, 1, size)
    alone = 2e-6 + (size - 1000) / 999_000 * (1e-3 - 2e-6)
    expected = {0: 2e-6, 500: 2e-6, 3_000_000: 3e-3}.get(size, alone)
    assert cost.latency + cost.work / cost.cap == pytest.approx(expected)
    assert names == ["host:0>switch:0", "switch:0>host:1"]


def test_a_pattern_that_was_not_measured_takes_the_shift_s_numbers():
    found = wiring(star(2, network=[*CURVE, transfer_row(1000, 7e-6, pattern="one_way")]), 2)
    assert found.transfer(0, 1, 1000, "exchange").latency == 2e-6
    assert found.transfer(0, 1, 1000, "one_way").latency == 7e-6


@pytest.mark.parametrize(("hosts", "latency"), [(2, 2e-6), (3, 2e-6), (4, 9e-6), (6, 9e-6)])
def test_of_several_numbers_of_hosts_the_one_nearest_to_those_taking_part_counts(hosts, latency):
    found = wiring(star(6, network=[*CURVE, transfer_row(1000, 9e-6, ranks=4)]), hosts)
    assert found.transfer(0, 1, 1000, "shift").latency == latency


@pytest.mark.parametrize(
    ("cores", "ranks", "latency", "shares"), [(2, 2, 2e-6, True), (2, 4, 2e-6, True), (4, 4, 9e-6, True)]
)
def test_rows_of_more_ranks_than_cores_are_passed_over(cores, ranks, latency, shares):
    found = wiring(one_host(cores, transfer=[*CURVE, transfer_row(1000, 9e-6, ranks=4)]), ranks)
    cost = found.transfer(0, 1, 1000, "shift")
    assert cost.latency == latency and cost.demands


def test_rows_of_more_ranks_than_cores_have_shared_them_already():
    found = wiring(one_host(2, transfer=[transfer_row(1000, 9e-6, ranks=4)]), 4)
    assert found.transfer(0, 1, 1000, "shift").demands == {}


@pytest.mark.parametrize(("ranks", "latency"), [(2, 2e-6), (4, 4e-6), (6, 4e-6), (8, 8e-6)])
def test_where_all_rows_are_of_more_ranks_than_cores_those_nearest_to_the_neighbours_count(ranks, latency):
    rows = [transfer_row(1000, count * 1e-6, ranks=count) for count in (2, 4, 8)]
    machine = one_host(1, transfer=rows)
    machine = msgspec.structs.replace(machine, host=msgspec.structs.replace(machine.host, ranks=8))
    assert wiring(machine, ranks).transfer(0, 1, 1000, "shift").latency == pytest.approx(latency)
    steady = simulate(shifted(ranks), machine, granularity="collective").timeline.makespan
    assert steady == pytest.approx(simulate(shifted(ranks), machine).timeline.makespan) == pytest.approx(latency)


def shifted(ranks):
    """Each rank passes a few bytes to the next."""
    tensors = [Tensor(name, Part("m"), Part("one")) for name in ("sent", "room")]
    step = Shift(name="step", axis="x", distance=1, source="sent", into="room")
    return program_of(Grid(x=ranks), tensors, step, m=4, one=1)


def test_a_transfer_beyond_what_was_measured_is_flagged():
    found = wiring(star(2, network=CURVE), 2)
    assert [found.transfer(0, 1, size, "shift").extrapolated for size in (1, 2_000_000, 2_000_001)] == [
        False,
        False,
        True,
    ]


# Transfers within a host


def test_a_message_within_a_host_takes_a_core_and_no_link():
    cost, names = transfer(one_host(2, memory=1e9, overhead=3e-6), 2, 0, 1, 5000)
    assert names == ["cores of host:0"]
    assert cost.latency == 3e-6
    assert cost.work / cost.cap == pytest.approx(2 * 5000 / 1e9)


@pytest.mark.parametrize(("size", "seconds"), [(0, 2e-6), (1000, 2e-6), (1_000_000, 1e-3), (2_000_000, 2e-3)])
def test_a_measured_host_takes_its_measured_seconds(size, seconds):
    cost = wiring(one_host(2, transfer=CURVE), 2).transfer(0, 1, size, "shift")
    assert cost.latency + cost.work / cost.cap == pytest.approx(seconds)


# The topology of a machine


def test_the_topology_of_a_machine_is_that_of_its_family_and_arguments():
    net = network_of(leaf_spine(2, 3))
    assert net.family == "leaf-spine"
    assert net.endpoints == ("host", 6)


def test_an_unknown_family_is_an_input_that_cannot_be():
    machine = msgspec.structs.replace(star(2), topology={"family": "torus"})
    with pytest.raises(InputError, match="torus"):
        simulate(products(1, 4, 4, 4), machine)
