"""Tests of host links: seconds of copies, contention behind a switch, both directions, and folded ranks."""

from dataclasses import replace

import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import HostCopy, Pointwise
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import in_sequence
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.offload import Offload
from quadrille.simulator.simulate import Shortcuts, simulate
from quadrille.topologies.machines.machine import HostLink, Machine
from tests.support.toy_machines import device, star
from tests.support.trainings import schedule_of

RATE, LATENCY, ELEMENTS = 1e6, 1e-3, 1000
SECONDS = LATENCY + ELEMENTS * 8 / RATE
"""Time of one copy alone."""


def node(**link):
    """A node of GPUs with host links, whose computation takes no time."""
    host_link = {
        "bytes_per_second": RATE,
        "latency_seconds": LATENCY,
        "memory_bytes": 1e9,
        "memory_gpus": 4,
        "memory_bytes_per_second": 1e30,
    } | link
    topology = {"family": "perlmutter", "gpus": 4}
    return Machine(name="node", topology=topology, device=device(), host_link=HostLink(**host_link))


def copies(ranks, *, back=False):
    """Each rank copies a block to the device, and stores another if `back`; along data, where no rank sends."""
    whole = Tensor("here", Part("one"), Part("n"))
    tensors = [whole, replace(whole, name="there", on_host=True), replace(whole, name="sent")]
    tensors += [replace(whole, name="stored", on_host=True)]
    program = [
        Pointwise(name="empty", function="zero", into="sent"),
        HostCopy(name="fetch", source="there", into="here"),
        *([HostCopy(name="store", source="sent", into="stored", to_host=True)] if back else []),
    ]
    roles = (Role(in_sequence(tuple(program))),)
    sizes = {"one": 1, "n": ELEMENTS}
    return Schedule(
        "copies", sizes, Grid(data=ranks), "float64", declare(*tensors), (), ("here",), roles, state=("there",)
    )


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize(("ranks", "gpus", "sharing"), [(1, 4, 1), (4, 1, 1), (2, 2, 2), (4, 2, 2), (4, 4, 4)])
def test_gpus_behind_one_link_share_its_rate(ranks, gpus, sharing, fold):
    shortcuts = Shortcuts(fold=fold)
    seconds = simulate(copies(ranks), node(gpus=gpus), shortcuts=shortcuts).seconds
    assert seconds == pytest.approx(LATENCY + sharing * ELEMENTS * 8 / RATE)


def test_the_directions_of_a_link_are_independent():
    assert simulate(copies(1, back=True), node()).seconds == pytest.approx(SECONDS)


def test_a_copy_on_a_host_without_gpus_is_a_copy_in_memory_on_the_compute_lane():
    machine = star(2, memory=RATE)
    predicted = simulate(copies(1, back=True), machine)
    assert {span.lane for span in predicted.timeline.spans} == {"compute"}
    bytes_of_copy = 2 * ELEMENTS * 8  # read and written
    assert predicted.seconds == pytest.approx((2 * bytes_of_copy + ELEMENTS * 8) / RATE)


def test_an_offloaded_step_takes_at_least_what_its_copies_take_and_bounds_hold_it():
    problem = Gpt(2, 64, 4, 8, 128, 8, dtype="float32", steps=2, offload=Offload(4096))
    schedule = schedule_of(problem, Grid(data=4))
    exact = simulate(schedule, node(gpus=2))
    rough = simulate(schedule, node(gpus=2), granularity="collective")
    low, high = rough.bound.low, rough.bound.high
    assert low <= exact.seconds * (1 + 1e-9) and exact.seconds <= high * (1 + 1e-9)
    matrices = storage(schedule, schedule.coordinates(0), Choices()).host_bytes
    assert exact.seconds > 2 * 2 * matrices / RATE  # two steps, two GPUs on a link, and the directions overlap


def test_adam_on_the_host_takes_the_bandwidth_of_its_memory_which_its_gpus_share():
    problem = Mlp((64, 64), rows=8, offload=Offload(64 * 64, updates_on_host=True))
    memory = 1e3
    fast = {"bytes_per_second": 1e15, "latency_seconds": 0.0, "memory_bytes_per_second": memory}
    touched = 64 * 64 * 4 * (7 + 2)  # Adam reads four and writes three numbers, and the write of weights two more
    for ranks, grid in ((1, Grid()), (4, Grid(data=4))):
        for granularity in ("exact", "collective"):
            seconds = simulate(schedule_of(problem, grid), node(**fast), granularity=granularity).seconds
            assert seconds == pytest.approx(ranks * touched / memory, rel=1e-3)


def test_stored_buckets_overlap_the_update_of_others():
    """With two sets of buffers a step of many buckets takes little longer than the copies of one direction."""
    problem = Mlp((256, 256), rows=2, offload=Offload(1024))
    schedule = schedule_of(problem, Grid())
    seconds = simulate(schedule, node(latency_seconds=0.0)).seconds
    one_way = 12 * 256 * 256 / RATE
    assert one_way < seconds < 1.05 * one_way
