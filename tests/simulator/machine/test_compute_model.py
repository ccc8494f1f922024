"""The compute model: planted numbers found again, the rows that count, and what is flagged."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.analysis.volumes import Work
from quadrille.algorithms.formats.measured_rows import KernelRow
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Gemm, Pointwise
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.simulator.machine.compute_model import LEAST_ROWS, LEAST_ROWS_IN_PAGES, ComputeModel, Estimate, fit_gemm
from quadrille.simulator.simulate import simulate
from quadrille.topologies.machines.machine import Device, Machine
from tests.support.toy_machines import gemm_row, memory_row, one_host, products, program_of, star

SIZES = [64, 160, 400, 1000]
SHAPES = list(product(SIZES, repeat=3))
PLANTED = (2e-6, 2e-11, 3e-10, 5e-10, 4e-10)
"""Seconds a call, a multiplication and addition, and an element of B, of C and of A."""

planted = st.tuples(st.floats(1e-6, 1e-5), st.floats(1e-11, 1e-10), *[st.floats(1e-10, 1e-9)] * 3)


def planted_seconds(coefficients, m, k, n):
    """c0 + c1 mkn + c2 kn + c3 mn + c4 mk."""
    terms = (1, m * k * n, k * n, m * n, m * k)
    return sum(c * term for c, term in zip(coefficients, terms, strict=True))


def rows_of(coefficients=PLANTED, *, factor=1.0, shapes=SHAPES, **given):
    return [gemm_row(*shape, factor * planted_seconds(coefficients, *shape), **given) for shape in shapes]


def model_of(rows=(), *, threads=1, busy=1, dtype="float64", **given):
    return ComputeModel(one_host(2, gemm=rows, **given), dtype, threads, busy)


def relative_error(found, expected):
    return abs(found / expected - 1)


# The fit


@given(planted)
def test_planted_coefficients_are_found_again(coefficients):
    fit = fit_gemm(rows_of(coefficients), "float64")
    assert fit.coefficients == pytest.approx(coefficients, rel=1e-6)
    assert fit.residual < 1e-9


@settings(max_examples=50)
@given(coefficients=planted, seed=st.integers(0, 2**32 - 1), outliers=st.integers(1, len(SHAPES) // 8))
def test_an_eighth_of_outliers_does_not_move_the_fit_by_more_than_three_percent(coefficients, seed, outliers):
    random = np.random.default_rng(seed)
    factors = np.ones(len(SHAPES))
    factors[random.choice(len(SHAPES), outliers, replace=False)] = random.uniform(1.5, 4.0, outliers)
    rows = [
        gemm_row(*shape, float(factor) * planted_seconds(coefficients, *shape))
        for shape, factor in zip(SHAPES, factors, strict=True)
    ]
    fit = fit_gemm(rows, "float64")
    for shape in SHAPES:
        assert relative_error(fit.estimate(*shape).seconds, planted_seconds(coefficients, *shape)) <= 0.03


@given(seed=st.integers(0, 2**32 - 1))
def test_the_residual_is_that_of_the_noise(seed):
    noise = np.random.default_rng(seed).uniform(0.98, 1.02, len(SHAPES))
    rows = [gemm_row(*s, float(f) * planted_seconds(PLANTED, *s)) for s, f in zip(SHAPES, noise, strict=True)]
    fit = fit_gemm(rows, "float64")
    assert 0.002 < fit.residual < 0.02
    errors = [relative_error(fit.estimate(*s).seconds, planted_seconds(PLANTED, *s)) for s in SHAPES]
    assert np.median(errors) < 0.02


def test_no_product_is_predicted_much_faster_than_the_fastest_one_measured():
    shapes = [(size, size, size) for size in (100, 150, 200, 300, 400, 600)]
    fit = fit_gemm([gemm_row(*shape, 1e-3) for shape in shapes], "float64")
    fastest = 2.0 * 600**3 / 1e-3
    seconds = fit.estimate(6000, 6000, 6000).seconds
    assert 2.0 * 6000**3 / seconds <= fastest / 0.8 * (1 + 1e-9)


# Results whose rows are whole pages long

IN_PAGES = [(m, k, n) for m, k in product((160, 400, 1000), repeat=2) for n in (512, 1024)]
ADDED = (3e-12, 2e-10)
"""Seconds more for a multiplication and addition, and for an element of C."""


def seconds_in_pages(m, k, n):
    return planted_seconds(PLANTED, m, k, n) + ADDED[0] * m * k * n + ADDED[1] * m * n


def rows_in_pages(shapes=IN_PAGES):
    return [gemm_row(*shape, seconds_in_pages(*shape)) for shape in shapes]


def test_results_in_whole_pages_have_coefficients_of_their_own():
    fit = fit_gemm(rows_of() + rows_in_pages(), "float64")
    assert fit.coefficients == pytest.approx((*PLANTED, *ADDED), rel=1e-6)
    assert fit.estimate(300, 300, 1536).seconds == pytest.approx(seconds_in_pages(300, 300, 1536), rel=1e-6)
    assert fit.estimate(300, 300, 1530).seconds == pytest.approx(planted_seconds(PLANTED, 300, 300, 1530), rel=1e-6)
    assert fit.estimate(512, 1024, 300).seconds == pytest.approx(planted_seconds(PLANTED, 512, 1024, 300), rel=1e-6)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(rows_of() + rows_in_pages(IN_PAGES[: LEAST_ROWS_IN_PAGES - 1]), id="few in whole pages"),
        pytest.param(rows_of(shapes=SHAPES[: LEAST_ROWS - 1]) + rows_in_pages(), id="few others"),
    ],
)
def test_with_few_rows_of_either_kind_all_products_are_of_one(rows):
    fit = fit_gemm(rows, "float64")
    assert len(fit.coefficients) == len(PLANTED)
    assert fit.estimate(400, 400, 1023).seconds == pytest.approx(fit.estimate(400, 400, 1024).seconds, rel=0.01)


# What is flagged


@pytest.mark.parametrize("dimension", range(3))
@pytest.mark.parametrize(("size", "flagged"), [(31, True), (32, False), (500, False), (2000, False), (2001, True)])
def test_a_dimension_beyond_twice_what_was_measured_is_extrapolated(dimension, size, flagged):
    shape = [400, 400, 400]
    shape[dimension] = size
    assert model_of(rows_of()).gemm(*shape, "NN").extrapolated is flagged


def test_an_empty_product_costs_the_overhead_alone():
    assert model_of(rows_of(), overhead=3e-6).gemm(5, 0, 7, "NN") == Estimate(3e-6, False)


def test_the_overhead_is_added_to_what_was_fitted():
    plain, more = (model_of(rows_of(), overhead=overhead).gemm(400, 400, 400, "NN") for overhead in (0.0, 1e-3))
    assert more.seconds - plain.seconds == pytest.approx(1e-3)


# Which rows count


def test_rows_of_the_rank_s_own_threads_and_neighbours_are_taken():
    factors = {(1, 1): 1.0, (1, 2): 2.0, (2, 1): 3.0}
    rows = [row for (t, b), f in factors.items() for row in rows_of(factor=f, threads=t, busy_ranks=b)]
    alone = planted_seconds(PLANTED, 400, 400, 400)
    for (threads, busy), factor in factors.items():
        found = model_of(rows, threads=threads, busy=busy).gemm(400, 400, 400, "NN")
        assert found.seconds == pytest.approx(factor * alone, rel=1e-6)
        assert not found.extrapolated


def test_rows_of_the_nearest_circumstances_stand_in_and_are_flagged():
    rows = rows_of(factor=1.0, threads=1) + rows_of(factor=0.5, threads=4)
    alone = planted_seconds(PLANTED, 400, 400, 400)
    found = model_of(rows, threads=3).gemm(400, 400, 400, "NN")
    assert found.seconds == pytest.approx(0.5 * alone, rel=1e-6)
    assert found.extrapolated


def test_threads_count_more_than_busy_neighbours():
    rows = rows_of(factor=1.0, threads=1, busy_ranks=2) + rows_of(factor=3.0, threads=2, busy_ranks=1)
    found = model_of(rows, threads=1, busy=1).gemm(400, 400, 400, "NN")
    assert found.seconds == pytest.approx(planted_seconds(PLANTED, 400, 400, 400), rel=1e-6)


def test_circumstances_with_too_few_rows_are_passed_over():
    few = rows_of(factor=7.0, busy_ranks=2, shapes=SHAPES[: LEAST_ROWS - 1])
    found = model_of(rows_of() + few, busy=2).gemm(400, 400, 400, "NN")
    assert found.seconds == pytest.approx(planted_seconds(PLANTED, 400, 400, 400), rel=1e-6)
    assert found.extrapolated


def test_each_layout_has_a_fit_of_its_own():
    factors = {"NN": 1.0, "NT": 2.0, "TN": 3.0}
    model = model_of([row for layout, factor in factors.items() for row in rows_of(factor=factor, layout=layout)])
    for layout, factor in factors.items():
        found = model.gemm(400, 400, 400, layout)
        assert found.seconds == pytest.approx(factor * planted_seconds(PLANTED, 400, 400, 400), rel=1e-6)
        assert not found.extrapolated


def test_other_layouts_stand_in_for_a_missing_one_and_are_flagged():
    model = model_of(rows_of(layout="NN") + rows_of(layout="NT"))
    found = model.gemm(400, 400, 400, "TN")
    assert found.seconds == pytest.approx(planted_seconds(PLANTED, 400, 400, 400), rel=1e-6)
    assert found.extrapolated
    assert not model.gemm(400, 400, 400, "NT").extrapolated


@pytest.mark.parametrize("rows", [(), rows_of(shapes=SHAPES[: LEAST_ROWS - 1]), rows_of(dtype="float32")])
def test_without_enough_rows_the_data_sheet_counts_and_is_flagged(rows):
    found = model_of(rows, peak=1e10, memory=1e12).gemm(400, 300, 500, "NN")
    assert found == Estimate(2.0 * 400 * 300 * 500 / 1e10, True)


def test_the_data_sheet_takes_the_longer_of_arithmetic_and_memory():
    found = model_of(peak=1e15, memory=1e9).gemm(400, 300, 500, "NN")
    assert found.seconds == pytest.approx((400 * 300 + 300 * 500 + 400 * 500) * 8 / 1e9)


def test_a_dtype_that_the_data_sheet_lacks_is_taken_as_the_fastest_there_is():
    assert model_of(peak=1e10, dtype="float16").gemm(40, 30, 50, "NN").seconds == 2.0 * 40 * 30 * 50 / 2e10


# Work bound by memory


def test_work_bound_by_memory_is_read_off_the_curve_of_its_kind():
    rows = [memory_row(name, size, seconds) for name, seconds in (("copy", 1e-3), ("add", 3e-3)) for size in (1 << 20,)]
    model = model_of(memory_rows=rows)
    assert model.memory("copy", 1 << 20) == Estimate(pytest.approx(1e-3), False)
    assert model.memory("add", 1 << 20) == Estimate(pytest.approx(3e-3), False)
    assert model.memory("copy", 1 << 23) == Estimate(pytest.approx(8e-3), True)


def test_the_curve_is_that_of_the_nearest_number_of_busy_neighbours():
    rows = [memory_row("copy", 1000, 1.0, busy_ranks=1), memory_row("copy", 1000, 2.5, busy_ranks=3)]
    seconds = [model_of(memory_rows=rows, busy=busy).memory("copy", 1000).seconds for busy in (1, 3, 8)]
    assert seconds == pytest.approx([1.0, 2.5, 2.5])


@pytest.mark.parametrize(("operation", "touched"), [("copy", 2), ("add", 3), ("zero", 1)])
def test_without_a_curve_every_byte_touched_takes_its_share_of_the_bandwidth(operation, touched):
    assert model_of(memory=1e9).memory(operation, 1000) == Estimate(touched * 1000 / 1e9, True)


@pytest.mark.parametrize("operation", ["copy", "add", "zero"])
def test_nothing_takes_no_time(operation):
    assert model_of(memory=1e9).memory(operation, 0) == Estimate(0.0, False)


# In a simulation


def test_a_product_of_a_schedule_takes_what_was_measured_and_is_not_flagged():
    found = simulate(products(1, 400, 160, 1000, count=3), star(1, gemm=rows_of()))
    assert found.timeline.makespan == pytest.approx(3 * planted_seconds(PLANTED, 400, 160, 1000), rel=1e-6)
    assert found.extrapolated == frozenset()


def test_ranks_take_the_rows_of_as_many_busy_neighbours_as_they_have():
    rows = rows_of() + rows_of(factor=1.4, busy_ranks=2)
    times = [simulate(products(ranks, 400, 160, 1000), one_host(2, gemm=rows), threads=1) for ranks in (1, 2)]
    one, two = (found.timeline.makespan for found in times)
    assert two == pytest.approx(1.4 * one, rel=1e-6)


def test_more_ranks_than_cores_are_as_busy_as_the_cores():
    rows = rows_of() + rows_of(factor=1.4, busy_ranks=2)
    found = simulate(products(8, 400, 160, 1000), one_host(2, gemm=rows), threads=1)
    alone = planted_seconds(PLANTED, 400, 160, 1000)
    assert found.timeline.makespan == pytest.approx(4 * 1.4 * alone, rel=1e-6)
    assert found.extrapolated == frozenset()


def test_a_product_that_is_added_costs_the_sum_too():
    tensors = [Tensor("A", Part("m"), Part("k")), Tensor("B", Part("k"), Part("n")), Tensor("C", Part("m"), Part("n"))]
    ops = Pointwise(name="zero C", function="zero", into="C"), Gemm(name="add", a="A", b="B", c="C", accumulate=True)
    schedule = program_of(Grid(), tensors, *ops, m=400, k=160, n=1000)
    rows = [memory_row("zero", 8 * 400 * 1000, 0.25), memory_row("add", 8 * 400 * 1000, 0.5)]
    found = simulate(schedule, star(1, gemm=rows_of(), memory_rows=rows)).timeline.op_times()
    assert found["zero C"].seconds == pytest.approx(0.25)
    assert found["add"].seconds == pytest.approx(0.5 + planted_seconds(PLANTED, 400, 160, 1000), rel=1e-6)


def test_a_layers_function_takes_what_was_measured_of_it_and_others_what_their_bytes_take():
    rows = tuple(
        KernelRow(function="gelu", dtype="float32", bytes=size, busy_ranks=ranks, seconds=ranks * size * 1e-9)
        for size in (1 << 10, 1 << 20)
        for ranks in (1, 2)
    )
    machine = Machine(
        name="host",
        topology={"family": "host", "cores": 2},
        device=Device(
            peak_flops_per_second={"float32": 1e12},
            memory_bytes_per_second=1e10,
            memory_bytes=8e9,
            overhead_seconds=0.0,
            kernel=rows,
        ),
    )
    alone, together = (ComputeModel(machine, "float32", 1, busy) for busy in (1, 2))
    work = Work(0, 0, 1 << 19)
    assert alone.kernel(work, "gelu").seconds == pytest.approx(2**19 * 1e-9)
    assert together.kernel(work, "gelu").seconds == pytest.approx(2 * 2**19 * 1e-9)
    assert not alone.kernel(work, "gelu").extrapolated
    assert alone.kernel(Work(0, 0, 1 << 22), "gelu").extrapolated
    by_bytes = alone.kernel(work, "adam")
    assert (by_bytes.seconds, by_bytes.extrapolated) == (pytest.approx(2**19 / 1e10), True)
    assert ComputeModel(machine, "float64", 1, 1).kernel(work, "gelu") == by_bytes
