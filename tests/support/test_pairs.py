"""Covering sets hold every pair, and are smaller than the full product."""

from itertools import combinations, product

import pytest

from tests.support.pairs import pairs


@pytest.mark.parametrize(
    ("lengths", "most"), [((2, 9, 3, 2), 30), ((4, 4), 16), ((3, 1, 2), 6), ((2,) * 6, 9), ((3,) * 4, 13)]
)
def test_every_two_values_of_different_options_occur_together(lengths, most):
    found = pairs(*map(range, lengths))
    for one, other in combinations(range(len(lengths)), 2):
        together = {(combination[one], combination[other]) for combination in found}
        assert together == set(product(range(lengths[one]), range(lengths[other])))
    assert len(set(found)) == len(found) <= most
    assert set(found) <= set(product(*map(range, lengths)))
