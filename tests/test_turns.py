"""Folding over time: loops whose turns repeat are as long as if every turn had been simulated."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.catalogue import matmul_schedule
from algorithms.choices import parse_choices
from algorithms.grid import Grid, parse_grid
from algorithms.matmul import Matmul
from algorithms.ops import AllReduce, Barrier, Pointwise
from algorithms.parts import Part
from algorithms.schedule import Repeat, Role
from algorithms.tensors import Tensor
from algorithms.timeline import Span
from algorithms.timeline_files import load_timeline, save_timeline
from algorithms.what_if import with_faults
from simulator.folding.turns import Gap, plan, rhythm, walk_without
from simulator.simulate import Switches, simulate
from tests.test_alike_ranks import check_same, key
from tests.toy_machines import leaf_spine, program_of, star

EVERY_TURN = Switches(fold_time=False)
FEW = {"memory": 1e10, "overhead": 1e-6}
LONG = [
    ("summa", "z=2,x=2", (64, 256, 64), "training"),
    ("summa", "z=3,x=2", (50, 600, 70), "forward"),
    ("summa", "z=1,x=4", (64, 500, 60), "forward"),
    ("2.5d", "z=2,x=2,y=2", (40, 600, 40), "forward"),
]
MACHINES = {
    "star": lambda n: star(n, **FEW),
    "leaves": lambda n: leaf_spine(-(-n // 4), 4, spines=2, **FEW),
    "a slow host": lambda n: with_faults(star(n, **FEW), slow=["host:1=0.5"]),
    "a slow link": lambda n: with_faults(leaf_spine(-(-n // 4), 4, spines=2, **FEW), degrade=["leaf:0-spine:1=0.3"]),
}


def scheduled(algorithm, grid, sizes, passes, panel=4):
    return matmul_schedule(Matmul(*sizes, "float64", passes, panel=panel), algorithm, parse_grid(grid))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("collectives", ["own", "own:doubling"])
@pytest.mark.parametrize("case", LONG, ids=str)
def test_the_answer_is_that_of_every_turn(case, collectives, machine):
    schedule = scheduled(*case)
    given_ = schedule, MACHINES[machine](schedule.grid.size)
    choices = parse_choices(collectives)
    short, long = (simulate(*given_, choices=choices, switches=one) for one in (Switches(), EVERY_TURN))
    check_same(short, long)
    by_name = {load.link: load for load in long.links}
    assert by_name.keys() & {load.link for load in short.links}
    for load in short.links:
        twin = by_name.get(load.link, load)
        assert (load.bytes, load.busy_s) == pytest.approx((twin.bytes, twin.busy_s), rel=1e-9)


@pytest.mark.parametrize("case", LONG[:2], ids=str)
def test_most_turns_of_a_long_loop_are_not_simulated(case):
    schedule = scheduled(*case)
    short, long = (simulate(schedule, star(schedule.grid.size), switches=s) for s in (Switches(), EVERY_TURN))
    assert short.extent.iterations_skipped >= 48
    assert short.extent.events < long.extent.events / 2


@settings(max_examples=12)
@given(
    z=st.integers(1, 3),
    x=st.integers(1, 3),
    k=st.integers(60, 300),
    panel=st.integers(2, 9),
    sides=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    passes=st.sampled_from(["forward", "training"]),
    machine=st.sampled_from(sorted(MACHINES)),
)
def test_the_answer_is_the_same_for_panels_of_any_width(z, x, k, panel, sides, passes, machine):
    schedule = scheduled("summa", f"z={z},x={x}", (sides[0], k, sides[1]), passes, panel)
    given_ = schedule, MACHINES[machine](max(4, z * x))
    check_same(simulate(*given_), simulate(*given_, switches=EVERY_TURN))


def test_a_timeline_of_many_ranks_says_turns_once_and_unrolls_them_when_asked(tmp_path):
    buffer = Tensor("S", Part("m"), Part("m"))
    body = (Pointwise(name="clear", function="zero", into="S"), AllReduce(name="sum", axis="x", buffer="S"))
    role = Role((Repeat("i", 60, body), Barrier(name="meet", axis="x")))
    schedule = program_of(Grid(x=66), [buffer], roles=(role,), m=66)
    machine = star(66, **FEW)
    short, long = (simulate(schedule, machine, switches=one).timeline for one in (Switches(), EVERY_TURN))
    assert len(short.spans) < len(long.spans)
    assert short.makespan == pytest.approx(long.makespan, rel=1e-9)
    save_timeline(short, tmp_path / "t.json")
    assert load_timeline(tmp_path / "t.json") == short
    mine, theirs = (sorted(one.unrolled().expanded(schedule.grid).spans, key=key) for one in (short, long))
    assert [key(span) for span in mine] == [key(span) for span in theirs]
    assert max(abs(one.end - other.end) for one, other in zip(mine, theirs, strict=True)) < 1e-9 * long.makespan
    for name, times in long.op_times().items():
        assert short.op_times()[name].seconds == pytest.approx(times.seconds, rel=1e-9)
        assert short.op_times()[name].count == times.count


# Parts


def test_what_is_left_out_is_a_multiple_of_every_period_and_only_of_long_stretches():
    assert plan({0: [1] * 23 + [2] * 40}, {}) == [Gap(0, 23, 39, 63)]
    assert plan({0: [1] * 40}, {(0, 0): 32}) == []


def test_turns_that_are_left_out_are_passed_over():
    schedule = scheduled("summa", "z=1,x=2", (4, 80, 4), "forward")
    place = schedule.place(0)
    program = schedule.program(place)
    numbers = [turn[1] for _, _, turn in walk_without(program, place, [Gap(1, 0, 3, 18)]) if turn]
    assert sorted(set(numbers)) == [0, 1, 2, 18, 19]


def spans_of(turns, ranks=1, drift=0.0):
    """One op a turn, a second each; ranks begin `drift` seconds after each other."""
    found = [
        Span(
            rank,
            "op",
            "gemm",
            "compute",
            turn + rank * drift,
            turn + rank * drift,
            0.0,
            turn + 1 + rank * drift,
            index=turn,
        )
        for rank in range(ranks)
        for turn in range(turns)
    ]
    return found, [(0, span.index) for span in found]


def test_a_rhythm_is_found_where_all_turns_are_alike():
    found = rhythm(Gap(0, 0, 8, 56), *spans_of(8))
    assert (found.seconds, found.turns, found.times) == (pytest.approx(1.0), 1, 48)


def test_ranks_that_drift_apart_for_longer_than_the_window_have_no_rhythm():
    assert rhythm(Gap(0, 0, 8, 56), *spans_of(8, ranks=2, drift=1.0)) is not None
    assert rhythm(Gap(0, 0, 8, 56), *spans_of(8, ranks=8, drift=1.0)) is None


def test_something_else_under_way_breaks_the_rhythm():
    spans, turns = spans_of(8)
    other = Span(0, "else", "all_reduce", "z", 2.0, 2.0, 2.0, 7.0)
    assert rhythm(Gap(0, 0, 8, 56), [*spans, other], [*turns, None]) is None


def test_a_turn_that_is_slower_breaks_the_rhythm():
    spans, turns = spans_of(8)
    spans[4] = Span(0, "op", "gemm", "compute", 4.0, 4.0, 0.0, 4.5, index=4)
    assert rhythm(Gap(0, 0, 8, 56), spans, turns) is None
