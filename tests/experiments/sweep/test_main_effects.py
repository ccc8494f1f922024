"""The expected quantity at points of a full product, from the effects of the values of each key."""

import numpy as np
import pytest

from quadrille.experiments.sweep import main_effects
from quadrille.experiments.sweep.main_effects import MainEffects


def test_few_known_points_of_a_long_key_have_the_effects_of_the_whole_equations(monkeypatch):
    draw = np.random.default_rng(3)
    places = [int(place) for place in draw.choice(7 * 40 * 2, 30, replace=False)]
    values = draw.normal(size=30).tolist()
    whole = MainEffects((7, 40, 2)).expected(places, values)
    monkeypatch.setattr(main_effects, "MOST_EFFECTS", 10)
    assert MainEffects((7, 40, 2)).expected(places, values) == pytest.approx(whole, abs=1e-12)


def test_a_key_of_a_hundred_thousand_values_needs_no_equation_for_each():
    expected = MainEffects((100_000,)).expected([0, 1, 99_999], [1.0, 2.0, 6.0])
    assert expected[50] == pytest.approx(3.0) and expected[0] < 3.0 < expected[-1]
