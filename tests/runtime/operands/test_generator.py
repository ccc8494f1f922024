"""The generator: any element on any rank, and numbers that look random."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.runtime.operands.generator import (
    SLAB_ELEMENTS,
    block,
    check_exact,
    longest_exact_sum,
    mix,
    signs,
    stream_key,
)
from quadrille.runtime.operands.rectangles import Rectangle, whole

ROWS, COLUMNS = 23, 37
GAMMA = 0x9E3779B97F4A7C15


def matrix(name="A", rows=ROWS, columns=COLUMNS, seed=5, dtype="float64", kind="uniform"):
    return block(seed, name, rows, columns, whole((rows, columns)), dtype, kind)


@st.composite
def rectangles(draw):
    top, bottom = sorted(draw(st.tuples(st.integers(0, ROWS), st.integers(0, ROWS))))
    left, right = sorted(draw(st.tuples(st.integers(0, COLUMNS), st.integers(0, COLUMNS))))
    return Rectangle(top, bottom, left, right)


@pytest.mark.parametrize("kind", ["uniform", "integers"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=40, deadline=None)
@given(rectangle=rectangles())
def test_any_rectangle_is_the_same_part_of_the_whole_matrix(rectangle, dtype, kind):
    part = block(5, "B", ROWS, COLUMNS, rectangle, dtype, kind)
    rows, columns = slice(rectangle.row_start, rectangle.row_stop), slice(rectangle.column_start, rectangle.column_stop)
    assert part.dtype == dtype
    assert part.flags.c_contiguous
    np.testing.assert_array_equal(part, matrix("B", dtype=dtype, kind=kind)[rows, columns])


@pytest.mark.parametrize("shape", [(3, SLAB_ELEMENTS + 7), (SLAB_ELEMENTS + 7, 3), (1, 1), (SLAB_ELEMENTS + 1, 1)])
def test_slabs_of_any_shape_leave_no_seam(shape):
    rows, columns = shape
    elements = matrix(rows=rows, columns=columns).ravel()
    for index in (0, elements.size // 2, SLAB_ELEMENTS % elements.size, elements.size - 1):
        row, column = divmod(index, columns)
        one = block(5, "A", rows, columns, Rectangle(row, row + 1, column, column + 1), "float64")
        assert one.item() == elements[index]


def test_an_element_is_the_splitmix_number_of_its_position():
    state = (stream_key(5, "A") + (4 * COLUMNS + 9) * GAMMA) % 2**64
    number = mix(state)
    signed = number - 2**64 if number >= 2**63 else number
    assert matrix()[4, 9] == (signed >> 10) / 2**53
    assert matrix(dtype="float32")[4, 9] == (signed >> 39) / 2**24


def test_a_corner_beyond_two_to_the_sixty_fourth_bytes_is_reached_at_once():
    side = 2**31
    corner = block(0, "A", side, side, Rectangle(side - 2, side, side - 3, side), "float32")
    assert np.unique(corner).size == 6


def test_a_given_array_is_filled_even_if_it_is_a_view():
    held = np.full((ROWS, 2 * COLUMNS), 9.0)
    given_back = block(5, "A", ROWS, COLUMNS, whole((ROWS, COLUMNS)), "float64", out=held[:, ::2])
    assert np.shares_memory(given_back, held)
    np.testing.assert_array_equal(held[:, ::2], matrix())
    assert (held[:, 1::2] == 9).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_elements_have_the_moments_of_the_uniform_distribution(dtype):
    elements = matrix(rows=500, columns=800, dtype=dtype).astype(float)
    count = elements.size
    assert elements.min() >= -1
    assert elements.max() < 1
    assert abs(elements.mean()) < 5 * (1 / 3 / count) ** 0.5
    assert abs(elements.var() - 1 / 3) < 5 * (4 / 45 / count) ** 0.5
    histogram, _ = np.histogram(elements, bins=100, range=(-1, 1))
    assert ((histogram - count / 100) ** 2).sum() / (count / 100) < 99 + 5 * (2 * 99) ** 0.5


def test_neighbours_rows_seeds_and_matrices_are_uncorrelated():
    a = matrix(rows=300, columns=300)
    others = [matrix("B", 300, 300), matrix("dC", 300, 300), matrix("A", 300, 300, seed=6)]
    others += [np.roll(a, 1, axis=0), np.roll(a, 1, axis=1), a.T - np.diag(np.diag(a))]
    for other in others:
        assert abs((a * other).mean()) < 5 / 3 / a.size**0.5


def test_no_row_and_no_element_repeats():
    a = matrix(rows=400, columns=300)
    assert np.unique(a).size == a.size
    assert np.unique(a[:, 0]).size == 400


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float64", 53)])
def test_uniform_elements_use_every_bit_of_their_dtype(dtype, bits):
    scaled = matrix(rows=100, columns=100, dtype=dtype).astype(float) * 2.0**bits
    assert (scaled == np.rint(scaled)).all()
    for bit in range(bits):
        assert 0.4 < ((scaled.astype(np.int64) >> bit) & 1).mean() < 0.6


def test_integers_are_the_nine_whole_numbers_in_equal_parts():
    values, counts = np.unique(matrix(rows=300, columns=300, kind="integers"), return_counts=True)
    assert values.tolist() == list(range(-4, 5))
    assert abs(counts - 10_000).max() < 500


def test_the_longest_exact_sum_stays_below_the_first_gap_of_the_dtype():
    for dtype, bits in {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}.items():
        assert longest_exact_sum(dtype) * 16 < 2**bits <= (longest_exact_sum(dtype) + 1) * 16


def test_a_sum_too_long_to_be_exact_is_refused_with_the_longest_that_is():
    check_exact("k", 1_048_575, "float32")
    with pytest.raises(InputError, match=r"k=1048576 .* float32.* k \* 16 < 2\^24, k up to 1048575"):
        check_exact("k", 1_048_576, "float32")


def test_signs_do_not_depend_on_the_range_asked_for():
    every = signs(3, "r", 0, 50, 7)
    np.testing.assert_array_equal(signs(3, "r", 13, 29, 7), every[13:29])
    assert 100 < (every == 1).sum() < 250
