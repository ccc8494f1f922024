from collections import Counter
from dataclasses import replace
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.runtime.measuring import microbenchmarks
from quadrille.runtime.measuring.measured_points import GemmPoint
from quadrille.runtime.measuring.microbenchmarks import SECOND_TRIES, Bench, product_shapes

POINT = GemmPoint(13, 7, 5, "float64", "NN", threads=1, busy_ranks=1)


class Kernels:
    """Reference products that take as long as they are told, the last of them for ever."""

    def __init__(self, *seconds):
        self.seconds = list(seconds)

    def product(self):
        return self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]


def bench_of(*reference_seconds):
    """A bench of one rank beside whose points the reference product takes these times, twice each."""
    alone = SimpleNamespace(Get_size=lambda: 1, Barrier=lambda: None, allgather=lambda value: [value])
    twice = [seconds for seconds in reference_seconds for _ in range(2)]
    pool = [np.ones(4096) for _ in range(2)]
    return Bench(alone, Kernels(*twice), _pools=pool)


# Shapes of products


@given(
    count=st.integers(1, 60),
    smallest=st.integers(1, 200),
    factor=st.integers(1, 32),
    room=st.floats(3.0, 1e4),
)
def test_shapes_are_the_same_each_time_and_within_their_bounds(count, smallest, factor, room):
    bounds = {"smallest": smallest, "largest": smallest * factor, "most_flops": 2.0 * room * smallest**3}
    found = list(product_shapes(count, **bounds))
    assert found == list(product_shapes(count, **bounds))
    assert len(found) == count
    for sizes in found:
        assert all(smallest <= size <= bounds["largest"] for size in sizes)
        assert 2.0 * np.prod(sizes, dtype=float) <= bounds["most_flops"]


def test_more_shapes_begin_with_the_same_ones():
    bounds = {"smallest": 128, "largest": 4096, "most_flops": 3.2e9}
    assert list(product_shapes(24, **bounds))[:8] == list(product_shapes(8, **bounds))


@given(count=st.integers(1, 30), columns=st.sampled_from([512, 1024]))
def test_shapes_have_as_many_columns_as_they_are_asked_to_be_a_multiple_of(count, columns):
    found = list(product_shapes(count, smallest=128, largest=4096, most_flops=6.4e9, columns=columns))
    assert len(found) == count
    assert all(n % columns == 0 and n > 0 and 2.0 * m * k * n <= 6.4e9 for m, k, n in found)


@pytest.mark.parametrize(("columns", "most_flops"), [(512, 3.2e9), (1024, 6.4e9)])
@pytest.mark.parametrize("count", [6, 12])
def test_shapes_of_a_multiple_of_columns_have_several_of_them(count, columns, most_flops):
    bounds = {"smallest": 128, "largest": 4096, "most_flops": most_flops}
    found = Counter(n for _, _, n in product_shapes(count, **bounds, columns=columns))
    assert len(found) >= 3
    assert max(found.values()) <= 2 * count / 3


@pytest.mark.parametrize("axis", range(3))
def test_shapes_are_spread_evenly_over_the_logarithms_of_each_dimension(axis):
    found = np.log2([sizes[axis] for sizes in product_shapes(64, smallest=128, largest=2048, most_flops=1e12)])
    counts, _ = np.histogram(found, bins=4, range=(7, 11))
    assert counts.sum() == 64
    assert counts.min() >= 12 and counts.max() <= 20


def test_shapes_leave_no_large_gap():
    found = np.log2(list(product_shapes(64, smallest=128, largest=2048, most_flops=1e12))) - 7
    corners = np.stack(np.meshgrid(*[np.arange(0.5, 4)] * 3), axis=-1).reshape(-1, 3)  # the middles of 64 cells
    nearest = np.linalg.norm(corners[:, None] - found[None], axis=-1).min(axis=1)
    assert nearest.max() < np.sqrt(3)


# Points that something else disturbed


def test_a_calm_point_is_measured_once():
    bench = bench_of(1.0)
    assert bench.undisturbed(lambda: [1.0, 3.0, 2.0]) == ([1.0, 3.0, 2.0], True)
    assert bench.disturbed == 0


def test_a_disturbed_point_is_measured_again_until_it_is_calm():
    bench = bench_of(1.0, 1.0, 1.0, 1.2, 1.0)
    for _ in range(3):
        bench.undisturbed(lambda: [5.0])
    tries = iter([[9.0], [5.0], [1.0]])
    assert bench.undisturbed(lambda: next(tries)) == ([5.0], True)
    assert bench.disturbed == 1


def test_of_tries_that_were_all_disturbed_the_fastest_counts():
    bench = bench_of(1.0, 1.0, 1.0, 1.0, *[2.0] * (1 + SECOND_TRIES))
    for _ in range(4):
        bench.undisturbed(lambda: [5.0])
    tries = [[9.0], [7.0], [8.0], [1.0]]
    remaining = iter(tries)
    assert bench.undisturbed(lambda: next(remaining)) == (min(tries[: 1 + SECOND_TRIES], key=median), False)
    assert bench.disturbed == 1 + SECOND_TRIES


def test_what_is_usual_is_known_for_each_number_of_threads():
    bench = bench_of(1.0, 1.0, 0.5, 0.5, 1.0, 0.5)
    for threads in (1, 1, 2, 2, 1, 2):
        bench.undisturbed(lambda: [5.0], threads)
    assert bench.disturbed == 0


def test_a_point_that_was_slow_for_itself_is_not_disturbed():
    bench = bench_of(1.0)
    assert bench.undisturbed(lambda: [100.0]) == ([100.0], True)
    assert bench.disturbed == 0


# Rows


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_product_is_timed_in_every_layout_and_dtype(layout, dtype):
    asked = replace(POINT, layout=layout, dtype=dtype)
    found = bench_of(1.0).gemm(asked)
    assert found.seconds > 0 and found.spread >= 0
    assert replace(found, seconds=0.0, spread=0.0) == asked


@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_the_product_that_is_timed_is_the_one_that_is_named(monkeypatch, layout):
    shapes_seen = []
    multiply = np.matmul

    def watched(a, b, out):
        shapes_seen.append((a.shape, b.shape, out.shape, a.flags.c_contiguous, b.flags.c_contiguous))
        return multiply(a, b, out=out)

    monkeypatch.setattr(microbenchmarks.np, "matmul", watched)
    bench_of(1.0).gemm(replace(POINT, layout=layout))
    assert set(shapes_seen) == {((13, 7), (7, 5), (13, 5), layout != "TN", layout != "NT")}


@pytest.mark.parametrize("operation", ["copy", "add", "zero"])
def test_memory_bound_work_is_timed_by_the_bytes_it_writes(operation):
    found = bench_of(1.0).stream(operation, 1 << 10)
    assert (found.operation, found.bytes, found.busy_ranks) == (operation, 1 << 10, 1)
    assert found.bytes_per_second > 0
