import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.schedule.parts import Coordinates, Panel, Part
from quadrille.algorithms.schedule.tensors import NOTHING, Block, Tensor

sizes = st.integers(1, 20)


def blocks(tensor, grid, **sizes):
    return [tensor.block(Coordinates(grid, sizes, grid.coordinates(rank))) for rank in range(grid.size)]


def times_held(blocks, shape):
    """How many ranks hold each element."""
    held = np.zeros(shape, int)
    for block in blocks:
        window = held[slice(*block.rows), slice(*block.columns)]
        if block.flat_range is None:
            window += 1
        else:
            flat = np.zeros(window.size, int)
            flat[slice(*block.flat_range)] = 1
            window += flat.reshape(window.shape)
    return held


@given(sizes, sizes)
def test_every_element_is_held_as_often_as_the_axes_that_repeat_say(m, n):
    grid = Grid(data=2, z=3, y=2, x=2)
    for tensor in (
        Tensor("A", Part("m", ("data", "z")), Part("n", ("y",))),
        Tensor("B", Part("m", ("y",)), Part("n", ("x",)), sharded_over="z"),
        Tensor("C", Part("m"), Part("n")),
        Tensor("D", Part("m", ("z",)), Part("n", ("x",)), held_at=("y", 1)),
        Tensor("E", Part("m", ("z",)), Part("n", ("x",), rotated_by=("z", "t"))),
    ):
        repeats = np.prod([grid.length(axis) for axis in tensor.repeated_over])
        assert (times_held(blocks(tensor, grid, m=m, n=n), (m, n)) == repeats).all(), tensor


@given(sizes, sizes, st.integers(1, 5))
def test_shards_are_pieces_of_the_flattened_block_in_order(m, n, length):
    shards = blocks(Tensor("B", Part("m"), Part("n"), sharded_over="z"), Grid(z=length), m=m, n=n)
    assert [i for shard in shards for i in range(*shard.flat_range)] == list(range(m * n))
    assert max(shard.elements for shard in shards) - min(shard.elements for shard in shards) <= 1
    assert all(shard.shape == (shard.elements,) for shard in shards)


def test_a_tensor_held_at_one_coordinate_is_nothing_elsewhere():
    layers = blocks(Tensor("A", Part("m"), Part("n"), held_at=("y", 1)), Grid(y=3), m=2, n=3)
    assert layers == [NOTHING, Block((0, 2), (0, 3)), NOTHING]
    assert NOTHING.elements == 0


def test_axes_either_cut_or_repeat_or_hold():
    tensor = Tensor("A", Part("m", ("data",)), Part("k", ("x",), rotated_by=("z", "t")), held_at=("y", 0))
    assert tensor.cut_over == {"data", "x", "z"}
    assert tensor.repeated_over == {"pipeline", "context"}
    assert Tensor("A", Part("m"), Part("k")).repeated_over == set(AXES)


def test_copies_take_turns_with_their_loop():
    tensor = Tensor("A", Part("m"), Part("k"), copies=(("t", 2),))
    place = Coordinates(Grid(), {"m": 1, "k": 1}, Grid().coordinates(0))
    assert [tensor.copy_index(place.during("t", index)) for index in range(4)] == [0, 1, 0, 1]
    assert tensor.copy_index(place.during("t", 3), ahead=1) == 0
    assert tensor.copy_index(place) == 0
    assert Tensor("A", Part("m"), Part("k")).copy_index(place.during("t", 3)) == 0


@given(sizes, sizes, st.integers(1, 5), st.integers(1, 7))
def test_the_capacity_holds_the_block_of_every_moment(m, k, length, width):
    grid = Grid(z=length, x=length)
    panel = Panel("k", width, ("x", "z"), loop="t")
    turning = Tensor("A", Part("m", ("z",)), Part("k", ("x",), rotated_by=("z", "t")), copies=(("t", 2),))
    window = Tensor("P", Part("m", ("z",)), Part("k", panel=panel))
    for rank in range(grid.size):
        place = Coordinates(grid, {"m": m, "k": k}, grid.coordinates(rank))
        for tensor, count in ((turning, length), (window, panel.iterations(place)[1])):
            moments = [place.during("t", index) for index in range(count)]
            assert tensor.capacity(place) == max(tensor.block(moment).elements for moment in moments)


def test_a_tensor_prints_its_layout():
    tensor = Tensor("A", Part("m", ("z",)), Part("k", ("x",)), held_at=("y", 0), copies=(("t", 2),))
    assert str(tensor) == "A (m/z × k/x) on y=0 2 copies"
