"""Local work takes longer while its rank communicates, by the machine file's factor."""

import msgspec
import pytest

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Gemm
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.simulator.simulate import Shortcuts, simulate
from tests.support.overlapped_ring import MEMBERS, ROWS, WHOLE, ring_beside_product
from tests.support.predictions import seconds_of
from tests.support.toy_machines import program_of, star


def slowed(slowdown):
    machine = star(MEMBERS)
    return msgspec.structs.replace(
        machine, device=msgspec.structs.replace(machine.device, overlap_slowdown=slowdown), host=None
    )


def test_it_is_slower_only_as_long_as_the_ring_lasts():
    inner = 50_000
    alone, beside = (simulate(ring_beside_product(inner), slowed(slowdown)) for slowdown in (1.0, 1.25))
    ring = seconds_of(alone, "sum")
    product = seconds_of(alone, "multiply")
    assert ring < product / 3
    assert seconds_of(beside, "sum") == pytest.approx(ring, rel=1e-9)
    # While the ring lasts, 1/1.25 of it is done: a fifth of the ring's time is lost.
    assert seconds_of(beside, "multiply") == pytest.approx(product + 0.2 * ring, rel=1e-9)


def test_a_product_after_the_ring_takes_as_long_as_ever():
    one, other = (simulate(ring_beside_product(500, after=("sum",)), slowed(slowdown)) for slowdown in (1.0, 2.0))
    assert one.timeline.makespan == other.timeline.makespan


def test_groups_of_one_rank_disturb_nobody():
    tensors = [Tensor("S", WHOLE, Part("n")), Tensor("A", Part("k"), Part("k")), Tensor("C", Part("k"), Part("k"))]
    role = Role((AllReduce(name="sum", axis="y", buffer="S"), Gemm(name="multiply", a="A", b="A", c="C")))
    schedule = program_of(Grid(x=MEMBERS), tensors, roles=(role,), m=6, n=1000, k=ROWS)
    one, other = (simulate(schedule, slowed(slowdown)) for slowdown in (1.0, 2.0))
    assert one.timeline.makespan == other.timeline.makespan


@pytest.mark.parametrize("inner", [500, 5000, 50_000])
def test_folding_and_memory_change_nothing(inner):
    schedule, machine = ring_beside_product(inner), slowed(1.19)
    off = Shortcuts(fold=False, fold_time=False, memory=False, local=False)
    assert simulate(schedule, machine).timeline.makespan == pytest.approx(
        simulate(schedule, machine, shortcuts=off).timeline.makespan, rel=1e-12
    )


def test_the_bounds_of_collective_granularity_hold():
    schedule, machine = ring_beside_product(20_000), slowed(1.5)
    exact = simulate(schedule, machine).timeline.makespan
    bound = simulate(schedule, machine, granularity="collective").bound
    assert bound.low * (1 - 1e-12) <= exact <= bound.high * (1 + 1e-12)
