from weakref import WeakSet

import pytest

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Gemm, Pointwise, Shift
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Repeat, walk
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor


class Token:
    """A token that can be seen to be forgotten."""


def square(name, **layout):
    return Tensor(name, Part("n"), Part("n"), **layout)


def waits(*program, tensors=None):
    """What each op instance waits for, by name and instance."""
    declared = tensors or [square(letter) for letter in "ABCD"]
    schedule = Schedule("test", {"n": 3}, Grid(x=2), "float32", declare(*declared), (), (), (Role(program),))
    dependencies, counts, found = Dependencies(schedule), {}, {}
    for op, moment in walk(program, schedule.coordinates(0)):
        token = f"{op.name}{counts.setdefault(op.name, 0)}"
        counts[op.name] += 1
        found[token] = set(dependencies.enter(op, moment, token))
    return found


def copy(name, source, into, after=()):
    return Pointwise(name=name, function="copy", into=into, sources=(source,), after=after)


def test_a_read_waits_for_the_latest_write():
    found = waits(copy("w", "A", "B"), copy("v", "A", "B"), copy("r", "B", "C"))
    assert found["r0"] == {"v0"}


def test_a_write_waits_for_the_reads_since_the_latest_write():
    found = waits(copy("w", "A", "B"), copy("r", "B", "C"), AllReduce(name="s", axis="x", buffer="B"))
    assert found["s0"] == {"w0", "r0"}


def test_two_reads_do_not_wait_for_each_other():
    found = waits(copy("r", "A", "B"), copy("q", "A", "C"))
    assert found["q0"] == set()


def test_the_last_reader_of_each_lane_stands_for_the_earlier_ones():
    shift = Shift(name="t", axis="x", distance=1, source="A", into="D")
    found = waits(copy("r", "A", "B"), shift, copy("q", "A", "C"), Pointwise(name="w", function="zero", into="A"))
    assert found["w0"] == {"t0", "q0"}


def test_after_waits_for_the_latest_instance_and_for_nothing_if_there_is_none():
    loop = Repeat("i", 2, (copy("a", "A", "B"), copy("b", "C", "D", after=("a", "c"))))
    found = waits(loop, copy("c", "A", "B", after=("b",)))
    assert found["b0"] == {"a0"}
    assert {"a1"} <= found["b1"]
    assert "b1" in found["c0"]
    assert "b0" not in found["c0"]


def test_an_accumulation_reads_what_it_adds_to():
    program = (Pointwise(name="zero", function="zero", into="C"), Gemm(name="g", a="A", b="B", c="C", accumulate=True))
    assert waits(*program)["g0"] == {"zero0"}


def test_copies_are_storages_of_their_own():
    tensors = [square("A", copies=(("t", 2),)), square("B")]
    turn = Shift(name="turn", axis="x", distance=1, source="A", into="A", iteration_offset=1)
    use = Gemm(name="use", a="A", b="A", c="B", accumulate=True)
    found = waits(Repeat("t", 3, (use, turn)), tensors=tensors)
    assert found["turn0"] == set(), "it writes the copy that nobody reads"
    assert found["use1"] == {"turn0", "use0"}
    assert found["turn1"] == {"turn0", "use0"}, "the copy of iteration 0 is written again"


@pytest.mark.parametrize(("algorithm", "grid"), [("summa", Grid(z=2, x=2)), ("2.5d", Grid(z=2, x=2, y=2))])
def test_what_is_kept_does_not_grow_with_the_number_of_iterations(algorithm, grid):
    def kept(panels):
        schedule = matmul_schedule(Matmul(8, panels, 8, "float32", "training", panel=1), algorithm, grid)
        dependencies, alive, most = Dependencies(schedule), WeakSet(), 0
        place = schedule.coordinates(0)
        for op, moment in walk(schedule.program(place), place):
            token = Token()
            alive.add(token)
            dependencies.enter(op, moment, token)
            most = max(most, len(alive))
        return most

    assert kept(100) == kept(10) < 40
