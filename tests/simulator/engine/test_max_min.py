"""Max-min rates against progressive filling from the definition, in exact fractions."""

from fractions import Fraction
from functools import partial
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.simulator.engine.max_min import Demands, max_min_rates
from tests.support.draws import examples

FORMS = {"by level": 10**9, "by bottleneck": 0}


def filled(capacities, rows, weights, caps):
    """All rates rise as w t; an activity that meets a cap or a full resource stops. One level at a time, exactly."""
    capacities = [Fraction(c) for c in capacities]
    weights = [Fraction(w) for w in weights]
    rates = {}
    while len(rates) < len(rows):
        rising = [i for i in range(len(rows)) if i not in rates]
        stops = {("cap", i): Fraction(caps[i]) / weights[i] for i in rising if caps[i] < inf}
        for j, capacity in enumerate(capacities):
            load = sum(Fraction(rows[i].get(j, 0)) * weights[i] for i in rising)
            if load > 0:
                used = sum(Fraction(rows[i].get(j, 0)) * rates[i] for i in rates)
                stops["resource", j] = (capacity - used) / load
        level = min(stops.values())
        for i in rising:
            full = [j for j, d in rows[i].items() if d > 0 and stops["resource", j] == level]
            if full or stops.get(("cap", i)) == level:
                rates[i] = weights[i] * level
    return [float(rates[i]) for i in range(len(rows))]


def assert_same(rates, expected):
    assert rates == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.fixture(params=FORMS)
def solver(request):
    """One of the two implementations, for problems of any size."""
    return partial(max_min_rates, small=FORMS[request.param])


NUMBERS = {
    "ties": st.sampled_from([1.0, 2.0, 3.0, 6.0]),
    "spread": st.floats(0.125, 1024.0, width=16),
}


@st.composite
def problems(draw):
    """A few activities over a few resources, with many equal numbers or with none."""
    numbers = NUMBERS[draw(st.sampled_from(sorted(NUMBERS)))]
    resources = draw(st.integers(1, 7))
    count = draw(st.integers(1, 13))
    row = st.dictionaries(st.integers(0, resources - 1), st.one_of(numbers, st.just(0.0)), max_size=4)
    rows = draw(st.lists(row, min_size=count, max_size=count))
    capped = st.one_of(numbers, st.just(inf))
    caps = [
        draw(capped if any(d > 0 for d in used.values()) else numbers)  # something must hold everybody
        for used in rows
    ]
    weights = draw(st.lists(numbers, min_size=count, max_size=count))
    capacities = draw(st.lists(numbers, min_size=resources, max_size=resources))
    return capacities, rows, weights, caps


@settings(max_examples=examples(300), deadline=None)
@given(problem=problems())
def test_rates_are_those_of_progressive_filling(problem):
    capacities, rows, weights, caps = problem
    expected = filled(capacities, rows, weights, caps)
    for small in FORMS.values():
        assert_same(max_min_rates(capacities, Demands.of(rows), weights, caps, small=small), expected)


def test_both_forms_agree_on_a_large_random_network():
    numbers = np.random.default_rng(7)
    rows = [{int(j): 1.0 for j in numbers.choice(101, 4, replace=False)} for _ in range(997)]
    arguments = [50.0] * 101, Demands.of(rows), numbers.uniform(1, 3, 997).tolist(), [inf] * 997
    by_bottleneck, by_level = (max_min_rates(*arguments, small=FORMS[form]) for form in ("by bottleneck", "by level"))
    assert_same(by_bottleneck, by_level)


def test_a_shared_link_is_halved_and_the_rest_goes_to_who_can_use_it(solver):
    # Three flows on two links: the textbook case.
    rows = [{0: 1.0, 1: 1.0}, {0: 1.0}, {1: 1.0}]
    assert_same(solver([10.0, 30.0], Demands.of(rows), [1.0] * 3, [inf] * 3), [5.0, 5.0, 25.0])


def test_an_activity_that_takes_more_of_a_resource_runs_slower_by_as_much(solver):
    assert_same(solver([12.0], Demands.of([{0: 3.0}]), [1.0], [inf]), [4.0])


def test_shares_follow_the_weights(solver):
    assert_same(solver([12.0], Demands.of([{0: 1.0}] * 3), [1.0, 2.0, 3.0], [inf] * 3), [2.0, 4.0, 6.0])


def test_an_activity_without_demands_runs_at_its_cap(solver):
    assert_same(solver([1.0], Demands.of([{}, {0: 0.0}, {0: 1.0}]), [1.0] * 3, [7.0, 5.0, inf]), [7.0, 5.0, 1.0])


def test_symmetric_activities_get_the_very_same_rate(solver):
    # Rings of 3 and of 5 around resources of one capacity, in thirds that do not round alike.
    rows = [{i: 1 / 3, (i + 1) % 3: 0.1} for i in range(3)]
    rates = solver([0.7] * 3, Demands.of(rows), [1.0] * 3, [inf] * 3)
    assert len(set(rates)) == 1


def test_an_activity_that_nothing_holds_is_refused(solver):
    with pytest.raises(InputError, match="activity 1 has neither a finite cap nor a resource"):
        solver([1.0], Demands.of([{0: 1.0}, {}]), [1.0, 1.0], [inf, inf])
    with pytest.raises(InputError, match="activity 0"):
        solver([inf], Demands.of([{0: 1.0}]), [1.0], [inf])


def test_no_activities_have_no_rates(solver):
    assert solver([1.0], Demands.of([]), [], []) == []
