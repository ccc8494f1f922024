from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import AXES, DEFAULT_ORDER, Grid, parse_grid, parse_order

lengths = st.integers(1, 4)
orders = st.permutations(AXES).map(tuple)
grids = st.builds(Grid, data=lengths, z=lengths, y=lengths, x=lengths, order=orders)


@given(grids)
def test_groups_along_an_axis_partition_the_ranks(grid):
    for axis in AXES:
        groups = list(grid.groups(axis))
        assert sorted(rank for group in groups for rank in group) == list(range(grid.size))
        assert {len(group) for group in groups} == {grid.length(axis)}
        assert all(grid.group(rank, axis) == group for group in groups for rank in group)


@given(grids)
def test_a_rank_is_found_again_at_its_coordinates(grid):
    assert [grid.rank_at(grid.coordinates(rank)) for rank in range(grid.size)] == list(range(grid.size))


@given(grids)
def test_members_of_a_group_differ_along_its_axis_only_and_stand_in_its_order(grid):
    for axis in AXES:
        for group in grid.groups(axis):
            assert [grid.coordinate(rank, axis) for rank in group] == list(range(grid.length(axis)))
            others = [{other: grid.coordinate(rank, other) for other in AXES if other != axis} for rank in group]
            assert all(other == others[0] for other in others)


@given(grids)
def test_the_stride_is_the_distance_to_the_next_member(grid):
    for axis in AXES:
        for group in grid.groups(axis):
            assert {after - before for before, after in pairwise(group)} <= {grid.stride(axis)}


def test_by_default_x_is_fastest_then_y_then_z_then_data():
    grid = Grid(data=2, z=3, y=5, x=7)
    assert [grid.stride(axis) for axis in ("x", "y", "z", "data")] == [1, 7, 35, 105]
    assert grid.size == 210


def test_an_order_moves_the_ranks_and_not_the_axes():
    grid = Grid(z=2, x=3, order=("z", "x", "y", "data"))
    assert [grid.coordinates(rank)["z"] for rank in range(6)] == [0, 1, 0, 1, 0, 1]
    assert grid.group(1, "x") == (1, 3, 5)


@given(grids)
def test_a_grid_is_read_back_from_what_it_prints(grid):
    assert parse_grid(str(grid), grid.order) == grid


def test_axes_not_named_have_length_one():
    assert parse_grid("z=2").lengths == {"data": 1, "z": 2, "y": 1, "x": 1}
    assert parse_grid(" y=3 , x=2 ") == Grid(y=3, x=2)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("w=2", "unknown axis 'w'; the axes are pipeline, data, context, z, y, x"),
        ("", "unknown axis ''"),
        ("x=2,x=3", "repeats axis x"),
        ("x=0", "'x=0' is not x=N with a whole number N from 1"),
        ("x=-2", "'x=-2'"),
        ("x=1.5", "'x=1.5'"),
        ("x=²", "'x=²'"),
        ("x=", "'x='"),
        ("x", "'x' is not x=N"),
        ("X=2", "unknown axis 'X'"),
        ("z=2,,x=2", "unknown axis ''"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_with_its_text_and_what_is_accepted(text, named):
    with pytest.raises(InputError) as refused:
        parse_grid(text)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_order_names_the_fastest_first_and_the_rest_follow():
    assert parse_order("data") == ("data", "x", "y", "z", "context", "pipeline")
    assert parse_order("x,y,z,data") == parse_order("x") == DEFAULT_ORDER
    assert parse_order("x,data") == ("x", "data", "y", "z", "context", "pipeline")


@pytest.mark.parametrize(("text", "named"), [("x,x", "repeats x"), ("w", "unknown axis 'w'"), ("", "unknown axis ''")])
def test_an_order_that_cannot_be_is_refused(text, named):
    with pytest.raises(InputError, match=named):
        parse_order(text)


def test_a_grid_checks_itself():
    with pytest.raises(InputError, match="grid axis y=0: a length is a whole number from 1"):
        Grid(y=0)
    with pytest.raises(InputError, match="order x,x must name each of pipeline,data,context,z,y,x at most once"):
        Grid(order=("x", "x"))
