from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.timelines.counters import levels

amounts = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 9)), max_size=8)


@given(amounts)
def test_levels_are_the_sums_of_what_is_present_and_no_level_repeats(drawn):
    intervals = [(begin, begin + length, amount) for begin, length, amount in drawn]
    changes = dict(levels(intervals))
    level, previous = 0, None
    for time in range(20):
        level = changes.get(time, level)
        assert level == sum(amount for begin, end, amount in intervals if begin <= time < end)
        if time in changes:
            assert changes[time] != previous
            previous = changes[time]
    assert list(changes) == sorted(changes)
