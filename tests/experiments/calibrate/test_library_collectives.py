"""Which sizes of the library's collectives are measured: those asked for, and more where it changes its algorithm."""

import pytest

from quadrille.experiments.calibrate.library_collectives import LONG_SECONDS, points_of_sizes
from quadrille.runtime.measuring.calibration_sizes import FULL
from quadrille.runtime.measuring.library_collectives import GroupShape
from quadrille.runtime.measuring.measured_points import CollectivePoint
from quadrille.simulator.machine.seconds_by_size import SecondsBySize

RATE = 25e6


def measured(seconds_of, sizes=FULL.library_bytes):
    """The sizes and seconds of a points_of_sizes, and what each was expected to take."""
    expected = {}

    def measure(size, about):
        expected[size] = about
        return CollectivePoint("broadcast", GroupShape(4, 1, 4), size, seconds_of(size), 0.0)

    return [(point.bytes, point.seconds) for point in points_of_sizes(measure, sizes, FULL.library_halvings)], expected


def test_where_seconds_grow_with_bytes_only_the_sizes_asked_for_are_measured_up_to_a_long_one():
    found, expected = measured(lambda size: 1e-3 + size / RATE)
    assert [size for size, _ in found] == [size for size in FULL.library_bytes if size <= 1 << 24]
    assert expected[1 << 20] == pytest.approx((1e-3 + (1 << 18) / RATE) * 4)
    long = [size for size, _ in measured(lambda size: 1e-3 + 2 * size / RATE)[0]]
    assert long == [*FULL.library_bytes[: FULL.library_bytes.index(1 << 22) + 1]]
    assert 1e-3 + 2 * (1 << 22) / RATE > LONG_SECONDS


@pytest.mark.parametrize("switch", [1_100_000, 1_500_000, 2_000_000, 3_000_000])
@pytest.mark.parametrize(("below", "above"), [(4.0, 1.5), (1.0, 4.0)])
def test_where_the_library_takes_another_algorithm_sizes_between_are_measured_and_what_it_takes_is_known(
    switch, below, above
):
    def seconds_of(size):
        return (below if size < switch else above) * size / RATE

    found, _ = measured(seconds_of)
    sizes = [size for size, _ in found]
    between = [size for size in sizes if 1 << 20 < size < 1 << 22]
    assert sizes == sorted(sizes) and 2 <= len(between) <= 2**FULL.library_halvings - 1
    low = max(size for size in sizes if size < switch)
    high = min(size for size in sizes if size >= switch)
    assert high / low < 1.42
    for size in (1_200_000, 1_800_000, 2_500_000, 3_500_000):
        if not low < size < high:
            assert SecondsBySize.of(found).seconds(size) == pytest.approx(seconds_of(size), rel=0.3)


def test_small_messages_whose_latency_counts_are_not_parted():
    assert [size for size, _ in measured(lambda _: 1e-3, (1 << 12, 1 << 16))[0]] == [1 << 12, 1 << 16]
