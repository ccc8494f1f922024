import numpy as np
from threadpoolctl import threadpool_info

from quadrille.runtime.measuring import reference_kernels
from quadrille.runtime.measuring.reference_kernels import SAMPLES, ReferenceBenchmark, seconds


def blas_threads():
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_the_kernels_are_three_times_above_zero():
    times = ReferenceBenchmark().measure()
    assert len(times) == 3 and min(times) > 0


def test_the_product_is_measured_on_one_thread_and_the_threads_are_given_back(monkeypatch):
    kernels, before, during = ReferenceBenchmark(), blas_threads(), []
    monkeypatch.setattr(ReferenceBenchmark, "product", lambda self: during.append(blas_threads()) or 1.0)
    kernels.measure()
    assert set(during[0].values()) == {1}
    assert blas_threads() == before


def test_a_kernel_is_warmed_before_it_is_timed(monkeypatch):
    calls, timed = [], []
    monkeypatch.setattr(reference_kernels, "seconds", lambda kernel: timed.append(len(calls)) or float(len(timed)))
    assert reference_kernels._median_seconds(lambda: calls.append(None)) == (1 + SAMPLES) / 2
    assert timed == [1] * SAMPLES


def test_the_kernels_multiply_the_same_numbers_each_time():
    one, other = ReferenceBenchmark(), ReferenceBenchmark()
    one.product()
    np.testing.assert_array_equal(one._a, other._a)
    np.testing.assert_array_equal(one._b, other._b)
    np.testing.assert_allclose(one._c, one._a @ one._b)


def test_seconds_are_those_of_one_call():
    calls = []
    assert seconds(lambda: calls.append(None)) >= 0
    assert calls == [None]
