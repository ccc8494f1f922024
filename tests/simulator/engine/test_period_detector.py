"""Steps of collectives that repeat are passed over, and nothing shows but the time that it takes."""

import pytest

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllGather, AllReduce, Gemm, Pointwise, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.simulator.ranks.lane_simulation import LaneSimulation
from quadrille.simulator.simulate import Shortcuts, simulate
from quadrille.topologies.machines.what_if import with_faults
from tests.support.predictions import check_same_spans
from tests.support.toy_machines import leaf_spine, program_of, star

FEW = {"memory": 1e10, "overhead": 1e-6}
MACHINES = {
    "star": lambda n: star(n, **FEW),
    "leaves": lambda n: leaf_spine(-(-n // 4), 4, spines=2, **FEW),
    "a slow host": lambda n: with_faults(star(n, **FEW), slow=["host:1=0.5"]),
}
MEMBERS = 12
WHOLE, CUT = Part("m"), Part("m", ("x",))


def alone():
    """One ring after another, of pieces of one size."""
    tensors = [Tensor("S", WHOLE, Part("n")), Tensor("P", CUT, Part("n"))]
    role = Role(
        (
            AllReduce(name="sum", axis="x", buffer="S"),
            ReduceScatter(name="scatter", axis="x", source="S", into="P"),
            AllGather(name="gather", axis="x", source="P", into="S"),
        )
    )
    return program_of(Grid(x=MEMBERS), tensors, roles=(role,), m=5 * MEMBERS, n=77)


def beside_a_product(inner):
    """A ring beside a product that takes longer or not as long, and a little work when it has ended."""
    tensors = [
        Tensor("S", WHOLE, Part("n")),
        Tensor("A", Part("k"), Part("l")),
        Tensor("B", Part("l"), Part("k")),
        Tensor("C", Part("k"), Part("k")),
    ]
    role = Role(
        (
            AllReduce(name="sum", axis="x", buffer="S"),
            Gemm(name="multiply", a="A", b="B", c="C"),
            Pointwise(name="clear", function="zero", into="C"),
        )
    )
    return program_of(Grid(x=MEMBERS), tensors, roles=(role,), m=5 * MEMBERS, n=77, k=60, l=inner)


def two_at_a_time():
    """Rings over both axes at once: steps of two lengths, on links that they share."""
    tensors = [Tensor("S", WHOLE, Part("n")), Tensor("T", WHOLE, Part("k"))]
    role = Role((AllReduce(name="sum", axis="x", buffer="S"), AllReduce(name="other", axis="y", buffer="T")))
    return program_of(Grid(y=5, x=6), tensors, roles=(role,), m=30, n=77, k=50)


CASES = {
    "alone": alone,
    "uneven pieces": lambda: program_of(
        Grid(x=MEMBERS),
        [Tensor("S", WHOLE, Part("n"))],
        roles=(Role((AllReduce(name="sum", axis="x", buffer="S"),)),),
        m=5,
        n=31,
    ),
    "beside a short product": lambda: beside_a_product(10),
    "beside a long product": lambda: beside_a_product(5000),
    "two at a time": two_at_a_time,
}


def jumps(monkeypatch):
    """Times that steps were passed over, in the simulations from now on."""
    found = []
    run = LaneSimulation.run

    def noted(self):
        run(self)
        found.append(self.engine.counts.jumps)

    monkeypatch.setattr(LaneSimulation, "run", noted)
    return found


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_every_step(case, machine, fold, monkeypatch):
    schedule = CASES[case]()
    given = schedule, MACHINES[machine](schedule.grid.size)
    passed = jumps(monkeypatch)
    short = simulate(*given, shortcuts=Shortcuts(fold=fold))
    if case == "alone" and machine == "star":
        assert sum(passed) >= 3
    long = simulate(*given, shortcuts=Shortcuts(fold=fold, memory=False))
    check_same_spans(short, long)
    assert short.timeline.makespan == pytest.approx(long.timeline.makespan, rel=1e-12)
    mine, theirs = ({load.link: load for load in one.links} for one in (short, long))
    for link in mine.keys() & theirs.keys():
        assert mine[link].bytes == pytest.approx(theirs[link].bytes, rel=1e-9)
        assert mine[link].busy_s == pytest.approx(theirs[link].busy_s, rel=1e-9)
    for name, parts in long.parts.items():
        assert short.parts[name] == pytest.approx(parts, rel=1e-9, abs=1e-15)


def test_most_steps_of_a_ring_in_lockstep_are_passed_over():
    schedule = alone()
    short, long = (simulate(schedule, star(MEMBERS), shortcuts=Shortcuts(memory=one)) for one in (True, False))
    assert short.extent.events < long.extent.events / 2
