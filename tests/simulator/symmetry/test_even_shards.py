"""Shards of mean size: how far the makespan is from the exact one, and that symmetry is back."""

from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.bands import in_bands
from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.algorithms.training.gpt import Gpt
from quadrille.simulator.simulate import simulate
from quadrille.simulator.symmetry.even_shards import CONTENTION, even_bound, with_even_shards
from tests.support.toy_machines import leaf_spine, star
from tests.support.trainings import schedule_of

GRIDS = [
    ("4d", "data=2,z=3,y=2,x=2"),
    ("3d", "z=2,y=3,x=2"),
    ("summa", "z=2,x=3"),
    ("cannon", "z=3,x=3"),
    ("2.5d", "z=2,x=2,y=2"),
    ("1d-column", "x=7"),
]
TURNED = [(*case, transposed) for case in GRIDS if case[0] in ("3d", "summa") for transposed in ("a", "b")]


def scheduled(algorithm, grid, sizes, passes="training", transposed="none"):
    problem = Matmul(*sizes, "float64", passes, panel=97, transposed=transposed)
    return matmul_schedule(problem, algorithm, parse_grid(grid))


@settings(max_examples=20)
@example(  # sharing is fooled: a little more than without contention
    case=(*GRIDS[0], "none"), sizes=(30, 19, 274), collectives="own:doubling", leaves=True, memory=1e10
)
@given(
    case=st.sampled_from([(*case, "none") for case in GRIDS] + TURNED),
    sizes=st.tuples(*[st.integers(1, 60) | st.integers(100, 5000)] * 3),
    collectives=st.sampled_from(["own", "own:doubling"]),
    leaves=st.booleans(),
    memory=st.sampled_from([1e30, 1e10]),
)
def test_the_exact_makespan_lies_within_the_bound(case, sizes, collectives, leaves, memory):
    algorithm, grid, transposed = case
    schedule, choices = scheduled(algorithm, grid, sizes, transposed=transposed), parse_choices(collectives)
    ranks = schedule.grid.size
    machine = leaf_spine(-(-ranks // 4), 4, spines=2, memory=memory) if leaves else star(ranks, memory=memory)
    exact, even = (
        simulate(one, machine, choices=choices).timeline.makespan for one in (schedule, with_even_shards(schedule))
    )
    without_contention = even_bound(schedule, choices) / CONTENTION
    assert abs(exact - even) <= (without_contention * (CONTENTION if leaves else 1) + 1e-9) * even


@pytest.mark.parametrize(("algorithm", "grid"), GRIDS)
def test_sizes_that_divide_are_off_by_nothing(algorithm, grid):
    schedule = scheduled(algorithm, grid, (36 * 49, 36 * 49, 36 * 49), passes="forward")
    if algorithm not in ("summa", "2.5d"):
        assert even_bound(schedule, parse_choices("own")) == 0
    exact, even = (
        simulate(one, star(schedule.grid.size)).timeline.makespan for one in (schedule, with_even_shards(schedule))
    )
    assert even == pytest.approx(exact, rel=1e-12)


def test_the_bound_is_about_one_row_of_the_shortest_block():
    schedule = scheduled("1d-column", "x=8", (1, 1, 8001), passes="forward")
    bound = even_bound(schedule, parse_choices("own")) / CONTENTION
    assert bound == pytest.approx(1 - 1000 / (8001 / 8) + 7 / 8001, rel=0.2)


def test_even_shards_give_back_the_symmetry_that_a_remainder_takes():
    schedule, machine = scheduled("4d", "data=2,z=16,x=4", (10007, 1009, 1013)), star(128)
    exact, even = simulate(schedule, machine), simulate(with_even_shards(schedule), machine)
    assert even.extent.rank_classes == 1
    assert exact.extent.rank_classes > 16


def test_parts_of_a_mean_size_are_equal_to_the_last_bit():
    place = with_even_shards(scheduled("1d-column", "x=7", (10, 10, 10))).coordinates(0)
    assert place.sizes["n"] == Fraction(10)
    grid = Grid(x=7)
    blocks = {
        stop - start
        for rank in range(7)
        for start, stop in [
            with_even_shards(scheduled("1d-column", "x=7", (10, 10, 10)))
            .tensors["B"]
            .block(with_even_shards(scheduled("1d-column", str(grid), (10, 10, 10))).coordinates(rank))
            .columns
        ]
    }
    assert blocks == {Fraction(10, 7)}


@pytest.mark.parametrize(("sequences", "bound"), [(16, 0), (17, None)])
def test_bands_of_whole_sequences_are_those_of_exact_shards_where_all_ranks_have_as_many(sequences, bound):
    model = Gpt(2, 16, 4, 4, 16, sequences)
    schedule = in_bands(schedule_of(model, Grid(z=2, y=2)), 4)
    rows = [part for tensor in schedule.tensors.values() if (part := tensor.rows).band is not None]
    assert rows, "attention is cut in bands"
    found = even_bound(schedule, parse_choices("own"))
    assert found == bound if bound is not None else found > 0


def test_a_smaller_last_microbatch_is_compared_with_its_own_mean():
    schedule = schedule_of(Gpt(1, 16, 4, 4, 16, batch=64 + 19, micro_batch=16), Grid(data=2))
    exact, even = (simulate(each, star(2)).timeline.makespan for each in (schedule, with_even_shards(schedule)))
    bound = even_bound(schedule, parse_choices("own"))
    assert abs(exact - even) <= bound * even
    assert bound == pytest.approx(CONTENTION * 0.5 / 9.5), "10 and 9 of 19 sequences"
