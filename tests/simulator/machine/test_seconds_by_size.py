"""Measured seconds between, below and above the sizes that were measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.simulator.machine.seconds_by_size import SecondsBySize

CURVE = SecondsBySize.of([(100, 2.0), (300, 4.0), (1100, 5.0)])
points = st.lists(
    st.tuples(st.integers(1, 1000).map(float), st.floats(0.1, 10.0)), min_size=1, max_size=8, unique_by=lambda p: p[0]
)


@given(points)
def test_the_curve_passes_through_every_point(points):
    curve = SecondsBySize.of(points)
    assert [curve.seconds(size) for size, _ in points] == pytest.approx([seconds for _, seconds in points])


@given(points, st.floats(0, 2000))
def test_between_two_points_the_seconds_lie_between_theirs(points, size):
    curve = SecondsBySize.of(points)
    below = [seconds for measured, seconds in sorted(points) if measured <= size][-1:]
    above = [seconds for measured, seconds in sorted(points) if measured >= size][:1]
    if below and above:
        low, high = sorted((*below, *above))
        assert low * (1 - 1e-12) <= curve.seconds(size) <= high * (1 + 1e-12)


@given(points, st.randoms())
def test_the_order_of_the_points_does_not_matter(points, random):
    shuffled = points[:]
    random.shuffle(shuffled)
    assert SecondsBySize.of(shuffled) == SecondsBySize.of(points)


@given(points)
def test_what_grows_takes_no_less_where_it_is_larger_and_stays_among_what_was_measured(points):
    curve, measured = SecondsBySize.growing(points), SecondsBySize.of(points)
    assert list(curve.times) == sorted(curve.times) and curve.sizes == measured.sizes
    assert min(measured.times) <= curve.least and curve.times[-1] <= max(measured.times)
    assert SecondsBySize.growing(zip(curve.sizes, curve.times, strict=True)) == curve


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8).map(sorted))
def test_what_was_measured_to_grow_is_taken_as_it_is(times):
    assert SecondsBySize.growing(enumerate(times)).times == tuple(times)


@pytest.mark.parametrize("place", range(4))
def test_one_small_message_that_was_held_up_does_not_count(place):
    times = [1.0, 1.1, 1.2, 1.3, 9.0]
    times[place] = 5.0
    assert SecondsBySize.growing(enumerate(times)).times[-1] == 9.0
    assert SecondsBySize.growing(enumerate(times)).least <= 1.25


@pytest.mark.parametrize(("size", "seconds"), [(200, 3.0), (700, 4.5), (100, 2.0), (1100, 5.0)])
def test_it_is_a_straight_line_between_neighbours(size, seconds):
    assert CURVE.seconds(size) == pytest.approx(seconds)


def test_below_the_smallest_size_it_takes_what_the_smallest_takes():
    assert CURVE.seconds(0) == CURVE.seconds(99.9) == CURVE.least == 2.0


def test_above_the_largest_size_the_rate_stays_that_of_the_largest():
    assert CURVE.seconds(2200) == 10.0
    assert CURVE.seconds(11000) == 50.0


def test_of_one_size_measured_several_times_the_median_counts():
    assert SecondsBySize.of([(100, 9.0), (100, 2.0), (100, 3.0)]).seconds(100) == 3.0


def test_one_point_gives_a_constant_below_and_a_rate_above():
    curve = SecondsBySize.of([(100, 2.0)])
    assert (curve.seconds(1), curve.seconds(100), curve.seconds(400)) == (2.0, 2.0, 8.0)


def test_it_covers_sizes_up_to_twice_the_largest():
    assert [CURVE.covers(size) for size in (0, 50, 300, 2200, 2201)] == [True, True, True, True, False]
