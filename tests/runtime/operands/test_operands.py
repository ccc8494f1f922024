"""Operands: rectangles, pieces, dtypes, and where the elements come from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.operands.operands import Operands, round_to
from quadrille.runtime.operands.rectangles import Rectangle, rectangles_of_piece, split_block, split_piece, whole


@st.composite
def pieces(draw):
    rectangle = Rectangle(3, 3 + draw(st.integers(1, 7)), 5, 5 + draw(st.integers(1, 7)))
    start, stop = sorted(draw(st.tuples(*2 * [st.integers(0, rectangle.elements)])))
    return rectangle, start, stop


@given(piece=pieces())
def test_the_rectangles_of_a_piece_are_its_elements_in_flat_order(piece):
    rectangle, start, stop = piece
    numbers = np.arange(20 * 20).reshape(20, 20)
    block = numbers[rectangle.row_start : rectangle.row_stop, rectangle.column_start : rectangle.column_stop]
    found = [numbers[r.row_start : r.row_stop, r.column_start : r.column_stop] for r in rectangles_of_piece(*piece)]
    assert len(found) <= 3
    assert all(part.size for part in found)
    assert [n for part in found for n in part.ravel()] == block.ravel()[start:stop].tolist()


@given(piece=pieces())
def test_splitting_a_piece_gives_views_that_cover_it_once(piece):
    flat = np.zeros(piece[2] - piece[1])
    for part, values in split_piece(*piece, flat):
        assert values.shape == part.shape
        np.add(values, 1, out=values)
    assert (flat == 1).all()


def test_splitting_a_block_follows_how_it_is_stored():
    stored = np.arange(6.0)
    assert [r for r, _ in split_block(Block((0, 2), (0, 3)), stored.reshape(2, 3))] == [Rectangle(0, 2, 0, 3)]
    assert [r.shape for r, _ in split_block(Block((0, 9), (4, 8), (3, 9)), stored)] == [(1, 1), (1, 4), (1, 1)]
    assert split_block(Block((0, 0), (0, 3)), np.zeros((0, 3))) == []


def test_shapes_are_those_of_the_multiplication():
    operands = Operands(3, 5, 7, "float32")
    assert [operands.shape(matrix) for matrix in ("A", "B", "dC")] == [(3, 5), (5, 7), (3, 7)]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_any_block_is_the_same_part_of_the_whole_operand(dtype):
    operands = Operands(11, 13, 7, dtype, seed=3)
    full = operands.block("A", whole((11, 13)))
    part = operands.block("A", Rectangle(2, 9, 4, 11))
    assert part.flags.c_contiguous
    assert part.dtype == ("float64" if dtype == "float64" else "float32")
    np.testing.assert_array_equal(part, full[2:9, 4:11])


def test_a_stored_piece_is_the_flattened_block_from_start_to_stop():
    operands = Operands(11, 13, 7, "float64")
    flat = operands.block("B", Rectangle(2, 9, 1, 6)).ravel()
    np.testing.assert_array_equal(operands.stored("B", Block((2, 9), (1, 6), (3, 22))), flat[3:22])
    np.testing.assert_array_equal(operands.stored("B", Block((2, 9), (1, 6))).ravel(), flat)


@pytest.mark.parametrize(
    ("transposed", "shapes"), [("none", [(11, 13), (13, 7)]), ("a", [(13, 11), (13, 7)]), ("b", [(11, 13), (7, 13)])]
)
def test_a_transposed_operand_is_as_tall_as_the_other_is_wide(transposed, shapes):
    operands = Operands(11, 13, 7, "float64", transposed=transposed)
    assert [operands.shape(name) for name in ("A", "B")] == shapes and operands.shape("dC") == (11, 7)
    assert operands.block("A", whole(shapes[0])).shape == shapes[0]


@pytest.mark.parametrize("order", ["C", "F"])
def test_elements_come_from_the_array_of_a_file_in_any_order(order):
    held = np.asarray(np.random.default_rng(0).random((5, 7)), order=order)
    operands = Operands(3, 5, 7, "float64", files={"B": held})
    out = np.empty((2, 4))
    assert operands.block("B", Rectangle(1, 3, 2, 6), out=out) is out
    np.testing.assert_array_equal(out, held[1:3, 2:6])


def test_only_generated_integers_are_exact():
    assert Operands(3, 5, 7, "float32", kind="integers").exact
    assert not Operands(3, 5, 7, "float32").exact
    assert not Operands(3, 5, 7, "float64", kind="integers", files={"A": np.zeros((3, 5))}).exact


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_values_are_the_nearest_with_eight_significant_bits(value):
    rounded = np.array([[value]], np.float32)
    round_to("bfloat16", rounded)
    mantissa, exponent = np.frexp(np.float64(value))
    digits = max(-125, exponent) - 8  # of the last bit, also below the smallest normal number
    nearest = np.rint(np.ldexp(mantissa, exponent - digits)) * 2.0**digits
    with np.errstate(over="ignore"):
        assert rounded.item() == np.float32(nearest)


def test_rounding_keeps_what_is_no_number_and_overflows_to_infinity():
    for dtype in ("float16", "bfloat16"):
        values = np.array([np.nan, np.inf, -np.inf, 3.4e38], np.float32)
        round_to(dtype, values)
        assert np.isnan(values[0])
        assert values[1:].tolist() == [np.inf, -np.inf, np.inf]


def test_half_precision_operands_hold_only_values_of_their_dtype():
    values = Operands(11, 13, 7, "float16").block("A", whole((11, 13)))
    np.testing.assert_array_equal(values, values.astype(np.float16))
    bits = Operands(11, 13, 7, "bfloat16").block("A", whole((11, 13))).view(np.uint32)
    assert not (bits & 0xFFFF).any()
