"""Bytes on the wire, from the schedule alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.analysis import traffic
from quadrille.algorithms.analysis.rank_symmetry import equivalent_ranks
from quadrille.algorithms.analysis.volumes import bytes_sent, flops, volumes
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.matmuls.catalogue import find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid

GRIDS = {
    "1d-column": [Grid(x=3)],
    "1d-row": [Grid(y=5)],
    "cannon": [Grid(z=3, x=3), Grid(z=2, x=2)],
    "summa": [Grid(z=2, x=3), Grid(z=4, x=1)],
    "2.5d": [Grid(z=2, x=2, y=3), Grid(z=1, x=1, y=4)],
    "3d": [Grid(z=2, y=3, x=2), Grid(z=3, y=2, x=4)],
    "4d": [Grid(data=2, z=2, y=3, x=2), Grid(data=3, z=5, y=2, x=1)],
}
CASES = [(name, grid) for name, grids in GRIDS.items() for grid in grids]


@pytest.mark.parametrize("collectives", ["own:ring", "own:doubling", "own:halving_doubling"])
@pytest.mark.parametrize(("name", "grid"), CASES)
@settings(max_examples=5, deadline=None)
@given(sizes=st.tuples(*[st.integers(1, 40)] * 3), transposed=st.sampled_from(["none", "a", "b"]))
def test_classes_of_ranks_give_the_numbers_of_all_ranks(name, grid, collectives, sizes, transposed):
    form = transposed if find_algorithm(name).any_form else "none"
    schedule = matmul_schedule(Matmul(*sizes, passes="training", panel=3, transposed=form), name, grid)
    choices = parse_choices(collectives)
    each = [bytes_sent(schedule, rank, choices) for rank in range(grid.size)]
    totals = volumes(schedule, choices)
    assert totals.sent_total == sum(each)
    assert totals.sent_per_rank_max == max(each)
    assert sum(one.count for one in equivalent_ranks(schedule, choices)) == grid.size


def test_the_flops_of_all_ranks_are_those_of_the_products():
    for name, grid in CASES:
        problem = Matmul(12, 17, 23, passes="training", panel=4)
        schedule = matmul_schedule(problem, name, grid)
        assert sum(flops(schedule, schedule.coordinates(rank)) for rank in range(grid.size)) == problem.flops


def test_few_ranks_stand_for_a_hundred_thousand():
    grid = Grid(data=32, z=64, y=6, x=8)
    schedule = matmul_schedule(Matmul(1 << 20, 12289, 4 * 12289, passes="training"), "4d", grid)
    assert len(equivalent_ranks(schedule, parse_choices("own"))) < grid.size / 100


@pytest.mark.parametrize("passes", ["forward", "training"])
def test_one_dimensional_products_send_what_4d_sends_on_their_axis(passes):
    problem, choices = Matmul(13, 29, 31, passes=passes), parse_choices("own")
    for name, grid in (("1d-column", Grid(x=5)), ("1d-row", Grid(y=5))):
        one, other = matmul_schedule(problem, name, grid), matmul_schedule(problem, "4d", grid)
        assert volumes(one, choices).by_op == volumes(other, choices).by_op


def test_the_bytes_of_the_design_page_s_record():
    schedule = matmul_schedule(Matmul(4096, 4096, 4096), "4d", Grid(z=2, y=2, x=2))
    numbers = volumes(schedule, parse_choices("own"))
    assert numbers.sent_per_rank_max == 25165824
    assert numbers.sent_total == 201326592
    assert numbers.flops_per_rank_max == 17179869184
    assert numbers.by_op["gather B"].sent_per_rank_max == 8388608
    assert numbers.by_op["gather B"].sent_total == 67108864


def test_steps_of_a_long_ring_are_visited_once_for_each_op_and_kind_of_rank(monkeypatch):
    schedule, visited = matmul_schedule(Matmul(60, 40, 80), "4d", Grid(z=100)), []
    counted = traffic.op_amount
    monkeypatch.setattr(traffic, "op_amount", lambda op, *rest: visited.append(op.name) or counted(op, *rest))
    volumes(schedule, parse_choices("own:ring"))
    kinds = len(equivalent_ranks(schedule, parse_choices("own:ring")))
    assert visited and max(map(visited.count, visited)) <= kinds
