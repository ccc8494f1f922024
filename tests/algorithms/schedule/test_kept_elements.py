"""Tests of the sizes of compressed vectors: against masks that are counted element by element."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.kept_elements import MOST_ELEMENTS, TILE, Kept, rectangles
from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.operands.rectangles import Rectangle
from quadrille.runtime.training.pruned_blocks import dense_block, index_of, region_of, tile_mask

SHAPES = st.tuples(st.integers(1, 50), st.integers(1, 200))
SPARSITIES = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 0.99])


@st.composite
def blocks(draw):
    """A matrix's shape and a block of it: a rectangle, or a shard of a rectangle."""
    shape = draw(SHAPES)
    rows, columns = (tuple(sorted((draw(st.integers(0, size)), draw(st.integers(0, size))))) for size in shape)
    elements = (rows[1] - rows[0]) * (columns[1] - columns[0])
    flat = draw(st.none() | st.tuples(st.integers(0, elements), st.integers(0, elements)).map(sorted).map(tuple))
    return shape, Block(rows, columns, flat)


def whole_mask(kept, shape):
    region = Rectangle(0, shape[0], 0, shape[1])
    return tile_mask(np.random.default_rng(1).standard_normal(shape), region, kept), region


@given(SHAPES, SPARSITIES)
def test_a_mask_keeps_the_exact_number_of_each_tile(shape, sparsity):
    kept = Kept(sparsity)
    mask, _ = whole_mask(kept, shape)
    for top in range(0, shape[0], TILE[0]):
        for left in range(0, shape[1], TILE[1]):
            tile = mask[top : top + TILE[0], left : left + TILE[1]]
            assert tile.sum() == tile.size - int(sparsity * tile.size + 0.5)
    assert kept.of_matrix(*shape) == mask.sum()


@given(blocks(), SPARSITIES)
def test_an_index_lists_the_kept_elements_of_a_block_and_fills_its_room(drawn, sparsity):
    (shape, block), kept = drawn, Kept(sparsity)
    mask, region = whole_mask(kept, shape)
    index = index_of(block, mask, region, kept, shape)
    held = dense_block(block, mask, region)
    assert index.size == kept.capacity(block.rows, block.columns, block.flat_range, shape)
    assert sorted(index[index >= 0].tolist()) == np.flatnonzero(held).tolist()
    others = ~index[index < 0]
    assert not held[others].any()
    assert len({*others.tolist()}) == others.size


@given(blocks(), SPARSITIES)
def test_the_index_of_a_region_is_that_of_the_whole_matrix(drawn, sparsity):
    (shape, block), kept = drawn, Kept(sparsity)
    mask, whole = whole_mask(kept, shape)
    region = region_of(block, shape)
    part = mask[region.row_start : region.row_stop, region.column_start : region.column_stop]
    assert (index_of(block, part, region, kept, shape) == index_of(block, mask, whole, kept, shape)).all()


def test_blocks_of_whole_tiles_have_no_room_to_spare():
    kept, shape = Kept(0.9), (64, 256)
    mask, region = whole_mask(kept, shape)
    for rows in ((0, 32), (16, 48)):
        for columns in ((0, 128), (64, 256)):
            index = index_of(Block(rows, columns), mask, region, kept, shape)
            assert (index >= 0).all()
            assert index.size == mask[slice(*rows), slice(*columns)].sum()


@given(blocks())
def test_rectangles_of_a_shard_follow_each_other(drawn):
    shape, block = drawn
    numbers = np.arange(shape[0] * shape[1]).reshape(shape)
    flat = numbers[slice(*block.rows), slice(*block.columns)].reshape(-1)
    expected = flat if block.flat_range is None else flat[slice(*block.flat_range)]
    parts = [
        numbers[slice(*rows), slice(*columns)].reshape(-1)
        for rows, columns in rectangles(block.rows, block.columns, block.flat_range)
    ]
    assert np.concatenate([np.empty(0, int), *parts]).tolist() == expected.tolist()


def test_equal_scores_keep_the_first_elements():
    region = Rectangle(0, 16, 0, 64)
    mask = tile_mask(np.zeros((16, 64)), region, Kept(0.5))
    assert mask.reshape(-1)[:512].all()
    assert not mask.reshape(-1)[512:].any()


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5])
def test_a_sparsity_outside_its_range_is_refused(sparsity):
    with pytest.raises(InputError, match="from 0 and below 1"):
        Kept(sparsity)


def test_a_matrix_too_large_for_an_index_of_4_bytes_is_refused():
    with pytest.raises(InputError, match="no 4-byte index"):
        Kept(0.9).capacity((0, 16), (0, 16), None, (MOST_ELEMENTS // 2**10, 2**10))
