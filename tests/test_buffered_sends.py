"""Messages that are handed over: who only sends goes on at once, and they arrive in order, one after the other."""

import msgspec
import pytest

from algorithms.grid import Grid
from algorithms.matmuls.catalogue import matmul_schedule
from algorithms.matmuls.matmul import Matmul
from algorithms.ops import Receive, Send
from algorithms.parts import Part
from algorithms.programs import in_sequence
from algorithms.schedule import Role, Schedule, declare
from algorithms.tensors import Tensor
from simulator.simulate import Switches, simulate
from tests.test_buckets import LEAF_SPINE, laboratory

SIZE, RATE, LATENCY = 10**6, 25e6, 2e-5


def machine(buffered, **given):
    found = laboratory(None, **given)
    return msgspec.structs.replace(
        found, network=msgspec.structs.replace(found.network, buffered_sends=buffered, core_seconds_per_byte=0.0)
    )


def one_way(messages):
    """Rank 0 sends so many messages to rank 1, which receives them in turn."""
    tensors = declare(Tensor("sent", Part("p"), Part("one")), Tensor("room", Part("p"), Part("one")))
    sends = tuple(Send(name=f"m{number}", axis="x", to=1, source="sent") for number in range(messages))
    receives = tuple(Receive(name=f"m{number}", axis="x", sender=0, into="room") for number in range(messages))
    roles = (Role(in_sequence(sends), "x", 0, 1), Role(in_sequence(receives), "x", 1, 2))
    return Schedule("one way", {"p": SIZE // 8, "one": 1}, Grid(x=2), "float64", tensors, ("sent",), ("room",), roles)


def ends(schedule, buffered):
    timeline = simulate(schedule, machine(buffered)).timeline
    return {(span.rank, span.op): span.end for span in timeline.spans}


def test_who_only_sends_goes_on_at_once_and_messages_come_one_after_the_other():
    found, step = ends(one_way(3), buffered=True), LATENCY + SIZE / RATE
    assert [found[0, f"m{number}"] for number in range(3)] == [0.0, 0.0, 0.0]
    assert [found[1, f"m{number}"] for number in range(3)] == pytest.approx([step, 2 * step, 3 * step])


def test_without_buffers_both_ends_are_done_together():
    found = ends(one_way(3), buffered=False)
    assert [found[0, f"m{number}"] for number in range(3)] == [found[1, f"m{number}"] for number in range(3)]


@pytest.mark.parametrize("family", [None, LEAF_SPINE])
@pytest.mark.parametrize("algorithm", ["summa", "2.5d", "cannon", "4d"])
def test_folding_changes_nothing_where_messages_are_handed_over(algorithm, family):
    grid = Grid(z=2, x=2) if algorithm != "2.5d" else Grid(z=2, x=2, y=1)
    schedule = matmul_schedule(Matmul(512, 512, 512), algorithm, grid)
    every = [
        simulate(schedule, machine(True, family=family), switches=switches).timeline.makespan
        for switches in (Switches(), Switches(fold=False), Switches(fold=False, fold_time=False, local=False))
    ]
    assert every[1:] == pytest.approx(every[:1] * 2, rel=1e-9)
