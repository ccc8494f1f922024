"""Layouts of products: the fastest way by given times is taken, and the result is the same but for rounding."""

import numpy as np
import pytest

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Gemm, Kernel
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gemm_layouts import GemmTimes, gemm_variants, seconds, tune_layouts
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from tests.support.trainings import assembled, schedule_of, trained, whole_matrices

GPT = Gpt(2, 12, 4, 5, 17, 6, dtype="float64")
MLP = Mlp((7, 11, 5, 9), rows=13, steps=2, adam=Adam(clip=0.05, rate=0.05))


def times(transposition=0.0, **of_layout):
    """Seconds of a multiply-add by layout, and of an element transposed."""
    return GemmTimes(
        lambda layout, m, k, n: of_layout.get(layout, 1.0) * m * k * n,
        lambda rows, columns: transposition * rows * columns,
    )


def operand(stored, transposed):
    return stored.T if transposed else stored


@pytest.mark.parametrize("written", ["NN", "NT", "TN"])
def test_every_layout_gives_the_product(written):
    rng = np.random.default_rng(3)
    p, q = rng.standard_normal((3, 5)), rng.standard_normal((5, 7))
    a, b = operand(p, written == "TN"), operand(q, written == "NT")
    for way in gemm_variants(written):
        first, second = operand(a, way.first), operand(b, way.second)
        one, other = (second, first) if way.flipped else (first, second)
        found = operand(one, way.layout == "TN") @ operand(other, way.layout == "NT")
        np.testing.assert_allclose(found.T if way.flipped else found, p @ q, rtol=1e-12)


def test_there_are_six_layouts_and_three_to_add_to_a_result():
    assert len(set(gemm_variants("NT"))) == 6
    assert len(set(gemm_variants("NT", accumulate=True))) == 3


def test_seconds_are_those_of_the_product_and_of_what_is_transposed():
    way = next(one for one in gemm_variants("NT") if one.layout == "NN" and not one.flipped)
    assert seconds(way, 3, 5, 7, times(transposition=2.0, NN=1.0)) == 105 + 2 * 35
    way = next(one for one in gemm_variants("NT") if one.layout == "NT" and one.flipped)
    assert seconds(way, 3, 5, 7, times(transposition=2.0)) == 105 + 2 * 21


def test_where_every_layout_is_as_fast_nothing_changes():
    plain = schedule_of(GPT, Grid(z=2, x=2))
    assert tune_layouts(plain, times(transposition=1e-9)) is plain


def layouts(schedule):
    return {op.name: op.layout for op in all_ops(schedule) if isinstance(op, Gemm)}


def test_a_slow_layout_is_left_where_the_transposes_are_cheaper():
    plain = schedule_of(GPT, Grid(z=2, x=2))
    changed = validate(tune_layouts(plain, times(transposition=0.1, TN=10.0)))
    assert "TN" not in layouts(changed).values()
    unchanged = {name for name, layout in layouts(plain).items() if layout != "TN"}
    assert all(layouts(changed)[name] == layouts(plain)[name] for name in unchanged)
    assert layouts(tune_layouts(plain, times(transposition=1e6, TN=10.0))) == layouts(plain)


def test_the_choice_goes_by_the_sizes():
    """dW of the first two layers has 7 and 11 rows; only a large one is slow as it is written."""

    def product(layout, m, k, n):
        return 2.0 if layout == "TN" and m > 10 else 1.0

    plain = schedule_of(MLP, Grid())
    changed = tune_layouts(plain, GemmTimes(product, lambda rows, columns: 1e-6 * rows * columns))
    issued = layouts(changed)
    assert issued["L1 multiply dW"] == "TN"
    assert issued["L2 multiply dW"] == "TN", "flipped, it has 5 rows"
    transposed = {op.sources[0] for op in all_ops(changed) if isinstance(op, Kernel) and op.function == "transpose"}
    assert transposed == {"dL2 W whole transposed"}


@pytest.mark.parametrize(
    ("grid", "slow"),
    [
        (Grid(z=2, x=2), {"TN": 9.0}),
        (Grid(y=3), {"NT": 9.0}),
        (Grid(z=2, x=2), {"NN": 9.0, "NT": 9.0}),
        (Grid(y=3), {"NT": 9.0, "TN": 9.0}),
        (Grid(y=3), {"NN": 9.0}),
    ],
    ids=str,
)
def test_results_are_the_same_but_for_rounding(grid, slow):
    plain = schedule_of(GPT, grid)
    changed = validate(tune_layouts(plain, times(transposition=0.01, **slow)))
    assert not set(slow) & set(layouts(changed).values())
    matrices = whole_matrices(plain, 17)
    expected, found = trained(plain, matrices), trained(overlap(changed, ["oar", "ors", "oag"]), matrices)
    for name in plain.state:
        for copy, matrix in assembled(plain, f"d{name}", expected.outputs).items():
            other = assembled(changed, f"d{name}", found.outputs)[copy]
            np.testing.assert_allclose(other, matrix, rtol=1e-9, atol=1e-12)
    assert found.bytes_sent == expected.bytes_sent


def test_layouts_are_tuned_before_overlaps():
    with pytest.raises(InputError, match="layouts are tuned before"):
        tune_layouts(overlap(schedule_of(GPT, Grid(z=2)), ["oar"]), times())
