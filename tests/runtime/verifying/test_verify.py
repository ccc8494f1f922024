"""Verification: right products pass, wrong ones do not, for every method and product."""

import tracemalloc
from functools import partial
from math import inf, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.operands.operands import Operands
from quadrille.runtime.operands.rectangles import Rectangle, whole
from quadrille.runtime.verifying import verify as verification
from quadrille.runtime.verifying.freivalds import SPREAD
from quadrille.runtime.verifying.products import Output, Tiling, output_of_block
from quadrille.runtime.verifying.verify import (
    EPS,
    TILES_AT_ONCE,
    VERIFY_BYTES,
    Verification,
    choose_method,
    combine,
    error_bound,
)

M, K, N = 29, 43, 37
PRODUCTS = ["C", "dA", "dB"]
METHODS = ["serial", "freivalds"]
FORMS = ["none", "a", "b"]
SMALL_TILES = Tiling(tile=16)


def verify(outputs, operands, *, tiling=SMALL_TILES, **options):
    return verification.verify(outputs, operands, tiling=tiling, **options)


def factors(product, operands, dtype=None):
    """The two factors of a product, as NumPy would multiply them."""
    a, b, dc = (
        operands.block(name, whole(operands.shape(name))).astype(dtype or operands.array_dtype)
        for name in ("A", "B", "dC")
    )
    if operands.transposed == "a":
        return {"C": (a.T, b), "dA": (b, dc.T), "dB": (a, dc)}[product]
    if operands.transposed == "b":
        return {"C": (a, b.T), "dA": (dc, b), "dB": (dc.T, a)}[product]
    return {"C": (a, b), "dA": (dc, b.T), "dB": (a.T, dc)}[product]


def whole_output(product, operands):
    left, right = factors(product, operands)
    values = left @ right
    return Output(product, ((whole(values.shape), values),)), values


def magnitude(product, operands):
    left, right = factors(product, operands, np.float64)
    return np.abs(left) @ np.abs(right)


@pytest.mark.parametrize("kind", ["uniform", "integers"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transposed", FORMS)
def test_a_right_product_is_verified(transposed, method, product, dtype, kind):
    operands = Operands(M, K, N, dtype, seed=4, kind=kind, transposed=transposed)
    verdict = verify([whole_output(product, operands)[0]], operands, ranks=4, method=method)
    assert verdict.ok
    assert verdict.reason == ""
    assert verdict.method == method
    assert 0 <= verdict.max_error <= verdict.bound == (0 if kind == "integers" else 12 * EPS[dtype])
    assert (verdict.max_error > 0) == (kind == "uniform")


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_serial_error_is_the_largest_relative_to_the_product_of_magnitudes(product):
    operands = Operands(M, K, N, "float32")
    output, values = whole_output(product, operands)
    left, right = factors(product, operands, np.float64)
    expected = (np.abs(values - left @ right) / magnitude(product, operands)).max()
    assert verify([output], operands, ranks=1).max_error == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transposed", FORMS)
def test_one_element_off_by_a_hundred_bounds_is_found_by_the_serial_product(transposed, product, dtype):
    operands = Operands(M, K, N, dtype, transposed=transposed)
    output, values = whole_output(product, operands)
    values[7, 19] += 100 * error_bound(2, EPS[dtype]) * magnitude(product, operands)[7, 19]
    verdict = verify([output], operands, ranks=2)
    assert not verdict.ok
    assert verdict.max_error == pytest.approx(100 * verdict.bound, rel=0.2)
    assert f"{product} is off by" in verdict.reason
    assert "at row 7, column 19" in verdict.reason


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("transposed", FORMS)
def test_one_element_off_by_a_hundred_bounds_is_found_by_freivalds(transposed, product, dtype, seed):
    operands = Operands(M, K, N, dtype, transposed=transposed)
    output, values = whole_output(product, operands)
    values[7, 19] += 100 * error_bound(2, EPS[dtype]) * magnitude(product, operands)[7, 19]
    verdict = verify([output], operands, ranks=2, method="freivalds", seed=seed)
    assert not verdict.ok
    assert "in the sum over row 7" in verdict.reason


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bit", [0, 11, 23, 31])
def test_one_flipped_bit_is_found_where_the_product_is_exact(method, product, bit):
    operands = Operands(M, K, N, "float32", kind="integers")
    output, values = whole_output(product, operands)
    values[11, 5] = 0 if bit == 0 else values[11, 5] or 3
    values.view(np.uint32)[11, 5] ^= np.uint32(1 << bit)
    verdict = verify([output], operands, ranks=2, method=method)
    assert not verdict.ok
    assert verdict.bound == 0


@pytest.mark.parametrize("product", PRODUCTS)
@settings(max_examples=30, deadline=None)
@given(
    row=st.integers(0, M - 1), column=st.integers(0, M - 1), sign=st.sampled_from([-1, 1]), seed=st.integers(0, 2**64)
)
def test_freivalds_is_certain_to_see_the_smallest_error_it_states(product, row, column, sign, seed):
    operands = Operands(M, K, N, "float32", seed=seed)
    output, values = whole_output(product, operands)
    stated = verify([output], operands, ranks=4, method="freivalds", vectors=1, seed=seed)
    assert stated.ok
    values[row, column] += np.float32(1.01 * sign * stated.smallest_error_seen)
    assert not verify([output], operands, ranks=4, method="freivalds", vectors=1, seed=seed).ok


def test_freivalds_misses_a_pair_of_equal_errors_about_half_of_the_time_with_one_vector():
    operands = Operands(5, 7, 11, "float64", kind="integers")
    output, values = whole_output("C", operands)
    values[3, [2, 8]] += 1
    missed = [verify([output], operands, ranks=1, method="freivalds", vectors=1, seed=s).ok for s in range(200)]
    assert 70 < sum(missed) < 130
    assert not any(verify([output], operands, ranks=1, method="freivalds", vectors=30, seed=s).ok for s in range(20))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.5])
def test_what_is_no_whole_number_is_found_in_any_tile(bad):
    operands = Operands(M, K, N, "float32", kind="integers")
    output, values = whole_output("dB", operands)
    values[40, 33] = bad
    verdict = verify([output], operands, ranks=2)
    assert not verdict.ok and f"dB holds {bad} at row 40, column 33" in verdict.reason


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "kind"), [("float32", "integers"), ("float64", "uniform")])
def test_verification_takes_no_more_memory_than_is_counted(method, product, dtype, kind):
    operands = Operands(400, 600, 520, dtype, kind=kind)
    output, _ = whole_output(product, operands)
    tracemalloc.start()
    assert verify([output], operands, ranks=2, method=method, tiling=Tiling(tile=256)).ok
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most <= TILES_AT_ONCE * 256 * 256 * 8
    assert VERIFY_BYTES == TILES_AT_ONCE * 2**20 * 8


@pytest.mark.parametrize("row", [0, 30, 42])
def test_bands_of_rows_are_checked_as_the_whole_is(row):
    operands = Operands(M, K, N, "float64", kind="integers")
    output, values = whole_output("dB", operands)
    stated = verify([output], operands, ranks=2, method="freivalds")
    bands_of_a_tile = partial(verify, ranks=2, method="freivalds", tiling=Tiling(tile=16, band_tiles=1))
    assert bands_of_a_tile([output], operands) == stated
    values[row, 5] += 1
    verdict = bands_of_a_tile([output], operands)
    assert not verdict.ok and f"in the sum over row {row} " in verdict.reason


def test_the_numbers_of_freivalds_check_are_stated():
    operands = Operands(M, K, N, "float32")
    verdict = verify([whole_output("C", operands)[0]], operands, ranks=1, method="freivalds", vectors=5)
    assert (verdict.vectors, verdict.chance_of_missing) == (5, 2**-5)
    left, right = factors("C", operands, np.float64)
    certain = np.abs(left) @ np.abs(right).sum(axis=1)
    likely = SPREAD * np.abs(left) @ np.linalg.norm(right, axis=1)
    tolerance = verdict.bound * np.minimum(certain, likely).max()
    assert verdict.smallest_error_seen == pytest.approx(2 * tolerance)
    assert "with 5 vectors" in str(verdict)
    assert "0.031" in str(verdict)


def test_the_tolerance_of_a_long_row_grows_with_its_root():
    operands = Operands(3, 5, 4000, "float32")
    verdict = verify([whole_output("C", operands)[0]], operands, ranks=1, method="freivalds")
    assert verdict.ok
    assert verdict.smallest_error_seen < 0.2 * 2 * verdict.bound * magnitude("C", operands).sum(axis=1).max()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_blocks_and_pieces_are_checked_in_their_place(method, product):
    operands = Operands(M, K, N, "float64")
    _, values = whole_output(product, operands)
    block = Block((3, 28), (2, 25))
    pieces = [Block(block.rows, block.columns, (start, start + 115)) for start in range(0, 25 * 23, 115)]
    cut = values[3:28, 2:25]
    outputs = [output_of_block(product, block, cut.copy())]
    outputs += [output_of_block(product, piece, cut.ravel()[slice(*piece.flat_range)].copy()) for piece in pieces]
    for output in outputs:
        assert verify([output], operands, ranks=2, method=method).ok
        part = output.parts[-1][1]
        part[...] = np.roll(part, 1)
        assert not verify([output], operands, ranks=2, method=method).ok


@pytest.mark.parametrize("method", METHODS)
def test_a_rank_that_holds_nothing_agrees(method):
    operands = Operands(M, K, N, "float64")
    nothing = output_of_block("C", Block((0, 0), (0, 0)), np.zeros((0, 0)))
    assert verify([nothing], operands, ranks=2, method=method).ok
    assert verify([], operands, ranks=2, method=method).ok


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_products_are_checked_with_their_own_eps(method, dtype):
    operands = Operands(M, K, N, dtype)
    output, values = whole_output("C", operands)
    assert verify([output], operands, ranks=1, method=method, eps=EPS["float32"]).ok
    rounded = values.astype(np.float16).astype(np.float32)
    output = Output("C", ((whole(rounded.shape), rounded),))
    assert verify([output], operands, ranks=1, method=method, eps=EPS["float16"]).ok
    assert not verify([output], operands, ranks=1, method="serial", eps=EPS["float32"]).ok


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", METHODS)
def test_a_result_that_is_no_number_is_named(method, value):
    operands = Operands(M, K, N, "float32")
    output, values = whole_output("dB", operands)
    values[21, 4] = value
    verdict = verify([output], operands, ranks=2, method=method)
    assert not verdict.ok
    assert verdict.max_error == inf
    assert verdict.reason == f"dB holds {value} at row 21, column 4, though its operands are finite"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("product", "matrix"), [("C", "A"), ("C", "B"), ("dA", "dC"), ("dA", "B"), ("dB", "A")])
@pytest.mark.parametrize("transposed", FORMS)
def test_an_operand_that_holds_no_number_is_named_rather_than_the_result(transposed, method, product, matrix):
    operands = Operands(M, K, N, "float64", transposed=transposed)
    held = operands.block(matrix, whole(operands.shape(matrix)))
    held[20, 18] = np.nan
    operands = Operands(M, K, N, "float64", files={matrix: held}, transposed=transposed)
    verdict = verify([whole_output(product, operands)[0]], operands, ranks=2, method=method)
    assert not verdict.ok
    assert verdict.reason == f"{matrix} holds nan at row 20, column 18"


@pytest.mark.parametrize("method", METHODS)
def test_products_beyond_the_range_of_float64_are_not_verified(method):
    held = np.full((M, K), 1e300)
    operands = Operands(M, K, N, "float64", files={"A": held, "B": np.full((K, N), 1e300)})
    zeros = Output("C", ((whole((M, N)), np.zeros((M, N))),))
    assert not verify([zeros], operands, ranks=1, method=method).ok


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-150, 1e-100, 1e140])
def test_the_error_does_not_depend_on_the_scale_of_the_operands(method, scale):
    uniform = Operands(M, K, N, "float64")
    files = {name: scale * uniform.block(name, whole(uniform.shape(name))) for name in ("A", "B")}
    operands = Operands(M, K, N, "float64", files=files)
    output, values = whole_output("C", operands)
    assert verify([output], operands, ranks=1, method=method).ok
    values[2, 2] *= 2
    assert not verify([output], operands, ranks=1, method=method).ok


@pytest.mark.parametrize("method", METHODS)
def test_zero_operands_ask_for_zero(method):
    operands = Operands(M, K, N, "float32", files={"A": np.zeros((M, K), np.float32)})
    output, values = whole_output("C", operands)
    assert verify([output], operands, ranks=1, method=method).max_error == 0
    values[1, 2] = 1e-30
    assert verify([output], operands, ranks=1, method=method).max_error == inf


@given(st.integers(1, 10**6))
def test_the_bound_is_eight_and_two_logarithms_of_the_ranks(ranks):
    assert error_bound(ranks, 1.0) == 8 + 2 * log2(ranks)


def test_the_method_follows_the_share_of_a_rank():
    assert choose_method(256**3) == "serial"
    assert choose_method(2**36) == "serial"
    assert choose_method(2**36 + 1) == "freivalds"


def test_the_verification_of_all_is_that_of_the_worst_and_names_the_rank():
    right = Verification("freivalds", 1e-8, 1e-7, True, 8, 0.1, 2**-8)
    wrong = Verification("freivalds", 1e-2, 1e-7, False, 8, 0.3, 2**-8, "C is off")
    assert combine([right, right]) == right
    assert combine([right, wrong, right]) == Verification(
        "freivalds", 1e-2, 1e-7, False, 8, 0.3, 2**-8, "rank 1: C is off"
    )


@pytest.mark.parametrize("method", METHODS)
def test_all_ranks_together_agree_with_one(method):
    operands = Operands(M, K, N, "float64")
    _, values = whole_output("C", operands)
    blocks = [Rectangle(top, top + high, 0, N) for top, high in [(0, 10), (10, 10), (20, 9)]]
    parts = [Output("C", ((block, values[block.row_start : block.row_stop]),)) for block in blocks]
    one = verify([Output("C", ((whole((M, N)), values),))], operands, ranks=3, method=method)
    together = combine([verify([part], operands, ranks=3, method=method) for part in parts])
    assert together.ok
    # The order of summation inside BLAS may depend on the shape, hence not equal to the last bit.
    assert together.max_error == pytest.approx(one.max_error, rel=0.5)
