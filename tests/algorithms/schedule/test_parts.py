from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.expressions import Affine, PanelOwner, evaluate
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.parts import Coordinates, Panel, Part, boundaries, cut

sizes = st.integers(0, 50)
parts = st.integers(1, 9)


def places(grid, **sizes):
    return [Coordinates(grid, sizes, grid.coordinates(rank)) for rank in range(grid.size)]


def elements(bounds):
    return list(range(*bounds))


@given(sizes, parts)
def test_a_cut_partitions_the_dimension_in_order(size, parts):
    ranges = [cut(size, parts, index) for index in range(parts)]
    assert [i for bounds in ranges for i in elements(bounds)] == list(range(size))
    assert boundaries(size, parts) == [start for start, _ in ranges] + [size]


@given(sizes, parts)
def test_the_first_size_mod_parts_parts_are_one_longer(size, parts):
    lengths = [stop - start for start, stop in (cut(size, parts, index) for index in range(parts))]
    assert lengths == [size // parts + 1] * (size % parts) + [size // parts] * (parts - size % parts)


def test_m_6_over_data_2_then_z_2_gives_2_1_2_1():
    rows = Part("m", ("data", "z"))
    lengths = [stop - start for start, stop in (rows.bounds(place) for place in places(Grid(data=2, z=2), m=6))]
    assert lengths == [2, 1, 2, 1]


@given(sizes, st.permutations(["data", "z", "y", "x"]), st.integers(1, 4))
def test_nested_cuts_partition_the_dimension(size, axes, depth):
    grid = Grid(data=2, z=3, y=2, x=1)
    part = Part("m", tuple(axes[:depth]))
    held = [i for place in places(grid, m=size) for i in elements(part.bounds(place))]
    repeats = grid.size
    for axis in part.axes:
        repeats //= grid.length(axis)
    assert sorted(held) == sorted(list(range(size)) * repeats)


@given(sizes, parts, st.integers(0, 20))
def test_a_turning_part_is_at_every_member_in_turn(size, length, turn):
    grid = Grid(z=2, x=length)
    part = Part("k", ("x",), rotated_by=("z", "t"))
    for place in places(grid, k=size):
        start, stop = part.bounds(place.during("t", turn))
        assert (start, stop) == cut(size, length, (place.along["x"] + place.along["z"] + turn) % length)
        assert part.longest(place) == max(cut(size, length, i)[1] - cut(size, length, i)[0] for i in range(length))


def test_a_part_without_an_axis_is_what_its_group_holds_together():
    grid = Grid(data=2, z=3)
    part = Part("m", ("data", "z"))
    for group in grid.groups("z"):
        first = Coordinates(grid, {"m": 13}, grid.coordinates(group[0]))
        held = [
            i for rank in group for i in elements(part.bounds(Coordinates(grid, {"m": 13}, grid.coordinates(rank))))
        ]
        assert held == elements(part.without("z").bounds(first))


@given(st.integers(1, 40), st.integers(1, 50), parts, parts)
def test_panels_partition_the_dimension_and_end_where_blocks_end(size, width, z, x):
    grid = Grid(z=z, x=x)
    edges = Panel("k", width, ("x", "z"), loop="p").edges(grid, size)
    assert edges[0] == 0
    assert edges[-1] == size
    assert all(0 < after - before <= width for before, after in pairwise(edges))
    assert set(boundaries(size, z)) | set(boundaries(size, x)) <= set(edges)


@given(st.integers(1, 40), st.integers(1, 9), parts, parts)
def test_the_owner_of_a_panel_has_all_of_it(size, width, z, x):
    grid = Grid(z=z, x=x)
    panel = Panel("k", width, ("x", "z"), loop="p")
    place = places(grid, k=size)[0]
    for index in range(*panel.iterations(place)):
        moment = place.during("p", index)
        for axis in ("x", "z"):
            first, last = cut(size, grid.length(axis), evaluate(PanelOwner(panel, axis), moment))
            start, stop = panel.bounds(moment)
            assert first <= start < stop <= last


@given(st.integers(1, 40), st.integers(1, 9), parts)
def test_layers_that_share_the_panels_take_each_once(size, width, layers):
    grid = Grid(z=2, x=2, y=layers)
    panel = Panel("k", width, ("x", "z"), loop="p", shared_over="y")
    taken = []
    for layer in range(layers):
        place = Coordinates(grid, {"k": size}, {"data": 0, "z": 0, "y": layer, "x": 0})
        first, last = panel.iterations(place)
        taken += [panel.bounds(place.during("p", index)) for index in range(last - first)]
    assert taken == list(pairwise(panel.edges(grid, size)))


def test_the_longest_panel_is_the_room_that_a_panel_needs():
    grid = Grid(z=2, x=3)
    panel = Panel("k", 4, ("x", "z"), loop="p")
    assert Part("k", panel=panel).longest(places(grid, k=10)[0]) == 4
    assert Part("k", panel=panel).longest(places(grid, k=2)[0]) == 1


def test_a_panel_without_width_is_refused():
    with pytest.raises(InputError, match="panel 0: a panel is a whole number of columns from 1"):
        Panel("k", 0, ("x",), loop="p")


def test_a_multiple_follows_coordinates_and_loop_indices():
    place = Coordinates(Grid(x=5), {}, {"data": 0, "z": 0, "y": 0, "x": 3}).during("t", 2)
    assert evaluate(Affine("x", 1, offset=1), place) == 4
    assert evaluate(Affine("t", -2), place) == -4
    assert evaluate(Affine("u", 7, offset=1), place) == 1, "outside its loop an index is 0"
    assert evaluate(6, place) == 6


def test_parts_print_as_they_are_said():
    panel = Panel("k", 4, ("x", "z"), loop="p")
    assert str(Part("m")) == "m"
    assert str(Part("m", ("data", "z"))) == "m/data/z"
    assert str(Part("k", ("x",), rotated_by=("z", "t"))) == "k/x+z+t"
    assert str(Part("k", panel=panel)) == "k[p]"
    assert str(PanelOwner(panel, "x")) == "owner of k[p]"
    assert [str(Affine("x", factor, plus)) for factor, plus in ((1, 1), (-1, 0), (3, -2))] == ["x+1", "-x", "3·x-2"]
