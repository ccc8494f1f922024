from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.analysis.communication_lower_bound import lower_bound_words, regime, words_3d
from quadrille.algorithms.errors import InputError
from tests.support.formulas import optimal_grid

CHECKED = [  # m, k, n, ranks, regime, grid, words: printed in the project's notes on Al Daas et al.
    (9600, 2400, 600, 3, "1d", (3, 1, 1), 960000),
    (9600, 2400, 600, 36, "2d", (12, 3, 1), 760000),
    (9600, 2400, 600, 512, "3d", (32, 8, 2), 210937.5),
    (1024, 1024, 1024, 64, "3d", (4, 4, 4), 147456),
]
sizes = st.integers(1, 5000)


@pytest.mark.parametrize(("m", "k", "n", "ranks", "case", "grid", "words"), CHECKED)
def test_checked_numbers_are_met_by_bound_and_algorithm(m, k, n, ranks, case, grid, words):
    z, y, x = grid
    assert regime(m, k, n, ranks) == case
    assert lower_bound_words(m, k, n, ranks) == pytest.approx(words, rel=1e-13)
    assert words_3d(m, k, n, z=z, y=y, x=x) == pytest.approx(words, rel=1e-13)
    assert optimal_grid(m, k, n, ranks) == pytest.approx({"z": z, "y": y, "x": x}, rel=1e-13)


@given(sizes, sizes, sizes, st.integers(1, 4096))
def test_the_3d_algorithm_on_the_optimal_grid_meets_the_bound(m, k, n, ranks):
    grid = optimal_grid(m, k, n, ranks)
    assert grid["z"] * grid["y"] * grid["x"] == pytest.approx(ranks)
    lengths = {axis: max(length, 1.0) for axis, length in grid.items()}
    assert words_3d(m, k, n, **lengths) == pytest.approx(lower_bound_words(m, k, n, ranks), rel=1e-9, abs=1e-3)


@given(sizes, sizes, sizes, st.integers(1, 60))
def test_no_whole_grid_beats_the_bound(m, k, n, ranks):
    bound = lower_bound_words(m, k, n, ranks)
    divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
    for z, y in product(divisors, divisors):
        if ranks % (z * y) == 0:
            assert words_3d(m, k, n, z=z, y=y, x=ranks // (z * y)) >= bound * (1 - 1e-9) - 1e-6


@pytest.mark.parametrize("dimensions", list(permutations((9600, 2400, 600))))
def test_the_bound_does_not_know_which_dimension_is_which(dimensions):
    assert lower_bound_words(*dimensions, 36) == 760000
    assert sorted(optimal_grid(*dimensions, 36).values()) == [1, 3, 12]


@pytest.mark.parametrize("ranks", [4, 64])
def test_neighbouring_regimes_agree_where_they_meet(ranks):
    assert lower_bound_words(9600, 2400, 600, ranks) == pytest.approx(
        2 * (9600 * 2400 * 600**2 / ranks) ** 0.5 - (9600 * 600 + 2400 * 600) / ranks
    )


def test_one_rank_moves_nothing():
    assert lower_bound_words(7, 5, 3, 1) == 0


@pytest.mark.parametrize("numbers", [(0, 1, 1, 1), (1, -1, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)])
def test_a_size_below_one_is_refused(numbers):
    with pytest.raises(InputError, match="whole number from 1"):
        lower_bound_words(*numbers)


def test_a_grid_axis_below_one_is_refused():
    with pytest.raises(InputError, match="y=0"):
        words_3d(1, 1, 1, z=1, y=0, x=1)
