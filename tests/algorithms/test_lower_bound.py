"""Bytes that the schedules send, against the tight lower bound of Al Daas et al. (`communication_lower_bound.py`)."""

from itertools import permutations
from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.analysis.communication_lower_bound import lower_bound_words, regime
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from tests.support.formulas import optimal_grid

ITEM = ITEM_BYTES["float32"]
OPTIMAL = [  # d1, d2, d3, ranks, regime: grids are whole and every piece is even
    (9600, 2400, 600, 3, "1d"),
    (28800, 7200, 1800, 36, "2d"),
    (1024, 256, 64, 512, "3d"),
    (1024, 1024, 1024, 64, "3d"),
    (1000, 100, 100, 10, "1d"),
    (400, 400, 80, 25, "2d"),
    (108, 108, 108, 27, "3d"),
]


def sent_words(problem, algorithm, grid):
    """Words that the rank which sends most sends, and the mean over ranks."""
    numbers = volumes(matmul_schedule(problem, algorithm, grid), Choices())
    return numbers.sent_per_rank_max / ITEM, numbers.sent_total / ITEM / grid.size


def best_grid(m, k, n, ranks):
    lengths = {axis: round(length) for axis, length in optimal_grid(m, k, n, ranks).items()}
    assert lengths == pytest.approx(optimal_grid(m, k, n, ranks))
    return Grid(**lengths)


@pytest.mark.parametrize(
    ("sizes", "ranks", "case"),
    [(sizes, ranks, case) for *dims, ranks, case in OPTIMAL for sizes in sorted(set(permutations(dims)))],
)
def test_3d_on_its_optimal_grid_sends_exactly_the_bound_in_every_regime_and_form(sizes, ranks, case):
    assert regime(*sizes, ranks) == case
    for transposed in ("none", "a", "b"):
        most, mean = sent_words(Matmul(*sizes, transposed=transposed), "3d", best_grid(*sizes, ranks))
        assert most == mean == pytest.approx(lower_bound_words(*sizes, ranks), rel=1e-12)


def test_where_shards_are_uneven_the_mean_over_ranks_is_the_bound():
    most, mean = sent_words(Matmul(9600, 2400, 600), "3d", best_grid(9600, 2400, 600, 512))
    assert mean == pytest.approx(lower_bound_words(9600, 2400, 600, 512), rel=1e-12) == 210937.5
    assert mean < most < mean + 300, "a row of C at most"


def even(grid, factors):
    """Sizes whose blocks and shards are all equal on the grid."""
    cuts = {"m": grid.z * lcm(grid.x, grid.y), "k": grid.y * grid.x * grid.z, "n": grid.x * grid.z}
    return tuple(cuts[letter] * factor for letter, factor in zip("mkn", factors, strict=True))


lengths = st.integers(1, 5)
factors = st.tuples(*[st.integers(1, 12)] * 3)


@settings(max_examples=80)
@given(factors, lengths, lengths, lengths)
def test_3d_never_sends_less_than_the_bound(factors, z, y, x):
    grid = Grid(z=z, y=y, x=x)
    sizes = even(grid, factors)
    most, _ = sent_words(Matmul(*sizes), "3d", grid)
    assert most >= lower_bound_words(*sizes, grid.size) * (1 - 1e-9)


@settings(max_examples=40)
@given(factors, lengths, lengths, st.integers(1, 64))
def test_summa_never_sends_less_than_the_bound(factors, z, x, panel):
    grid = Grid(z=z, x=x)
    sizes = even(grid, factors)
    most, mean = sent_words(Matmul(*sizes, panel=panel), "summa", grid)
    assert most >= mean >= lower_bound_words(*sizes, grid.size) * (1 - 1e-9)


@settings(max_examples=40)
@given(factors, lengths)
def test_cannon_never_sends_less_than_the_bound(factors, q):
    grid = Grid(z=q, x=q)
    sizes = even(grid, factors)
    most, mean = sent_words(Matmul(*sizes), "cannon", grid)
    assert most >= mean >= lower_bound_words(*sizes, grid.size) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("algorithm", "grid"),
    [("1d-column", Grid(x=8)), ("4d", Grid(x=8)), ("4d", Grid(data=2, x=4)), ("4d", Grid(data=8))],
)
def test_repeated_operands_multiply_without_sending_a_word(algorithm, grid):
    assert sent_words(Matmul(4096, 4096, 4096), algorithm, grid) == (0, 0)
    assert lower_bound_words(4096, 4096, 4096, 8) > 0


def test_3d_with_the_same_grid_pays_for_having_one_copy():
    most, _ = sent_words(Matmul(4096, 4096, 4096), "3d", Grid(x=8))
    assert most == 4096 * 4096 * 7 / 8
    assert most > lower_bound_words(4096, 4096, 4096, 8)


def test_2_5d_layers_that_start_with_copies_go_below_the_bound():
    """The panels alone, that is without the copies that are counted, are fewer words than one copy allows."""
    grid, problem = Grid(z=4, x=4, y=4), Matmul(1024, 1024, 1024)
    by_op = volumes(matmul_schedule(problem, "2.5d", grid), Choices()).by_op
    panels = by_op["send A panel"].sent_total + by_op["send B panel"].sent_total
    assert panels / ITEM / grid.size < lower_bound_words(1024, 1024, 1024, 64)
