"""Products by another BLAS than NumPy's; the one at hand everywhere is the OpenBLAS of NumPy's wheel."""

import ctypes
import json

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from quadrille.algorithms.errors import InputError
from quadrille.runtime.arrays import blas
from quadrille.runtime.arrays.blas import BlasLibrary, describe_blas, installed_libraries, open_blas
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.measuring.measured_points import GemmPoint
from quadrille.runtime.measuring.microbenchmarks import Bench
from tests.support.quadrille import called

OWN = next((one["filepath"] for one in threadpool_info() if one["user_api"] == "blas"), None)
pytestmark = pytest.mark.skipif(OWN is None, reason="NumPy has no BLAS that threadpoolctl knows")
EPS = {"float64": 2.0**-52, "float32": 2.0**-23}
WORDS = ["--matmul", "61,47,53", "--repeats", "1", "--warmups", "0", "--verify", "--json", "-"]


@pytest.fixture(scope="module")
def library():
    return BlasLibrary(OWN)


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (127, 331, 61), (1, 500, 3), (64, 1, 64), (5, 0, 7), (0, 3, 4)])
def test_products_are_numpy_s_within_rounding(library, dtype, layout, m, k, n):
    random = np.random.default_rng(0)
    a, b = random.uniform(-1, 1, (m, k)).astype(dtype), random.uniform(-1, 1, (k, n)).astype(dtype)
    left = a.T.copy().T if layout == "TN" else a
    right = b.T.copy().T if layout == "NT" else b
    out = np.full((m, n), np.nan, dtype)
    library.matmul(left, right, out)
    bound = (k + 2) * EPS[dtype] * (np.abs(a).astype(float) @ np.abs(b).astype(float))
    assert np.all(np.abs(out - a.astype(float) @ b.astype(float)) <= bound)


def test_windows_of_larger_matrices_are_multiplied_where_they_lie(library):
    whole = np.arange(200.0).reshape(10, 20)
    out = np.zeros((6, 9))
    library.matmul(whole[2:6, 3:8], whole[:5, 5:12], out[1:5, 1:8])
    np.testing.assert_array_equal(out[1:5, 1:8], whole[2:6, 3:8] @ whole[:5, 5:12])
    assert not out[[0, 5]].any() and not out[:, [0, 8]].any()


def test_threads_are_those_of_the_library_s_own_call(library):
    before = [one["num_threads"] for one in threadpool_info() if one["filepath"] == OWN]
    try:
        library.use_threads(1)
        assert [one["num_threads"] for one in threadpool_info() if one["filepath"] == OWN] == [1]
    finally:
        library.use_threads(*before)


def test_a_library_without_products_is_refused():
    path = ctypes.util.find_library("c")
    with pytest.raises(InputError, match="has no product of the C interface"):
        BlasLibrary(path)


class WrongBlas(BlasLibrary):
    """A library that makes each product one too large."""

    def matmul(self, a, b, out):
        super().matmul(a, b, out)
        out += 1


def test_a_library_whose_products_are_wrong_is_refused():
    with pytest.raises(InputError, match="product of 2 x 3 by 3 x 4 is wrong"):
        WrongBlas(OWN)


def test_a_name_that_is_not_here_is_refused_and_what_is_here_is_said(monkeypatch):
    monkeypatch.setattr(blas, "_path", lambda known: "/lib/libblis.so.4" if known.system_name == "blis" else None)
    with pytest.raises(
        InputError, match=r"there is no libmkl_rt\.so\*.*found here: numpy, blis \(/lib/libblis\.so\.4\)"
    ):
        open_blas("mkl", 1)
    with pytest.raises(InputError, match="accepted are numpy, mkl, openblas, blis and the path of a shared library"):
        open_blas("fastblas", 1)


def test_the_openblas_of_a_wheel_is_found_by_name():
    if "openblas" not in installed_libraries():
        pytest.skip("NumPy is not of a wheel here")
    assert "openblas" in open_blas("openblas", 1).version.lower()


def test_numpy_s_own_is_named_in_a_record():
    assert describe_blas(NumpyLibrary()).startswith("openblas")


def test_a_run_is_verified_and_its_record_says_whose_products_they_are(capsys):
    ended = called(capsys, "run", *WORDS, "--blas", OWN)
    record = json.loads(ended.out)
    assert record["verified"]["ok"] and OWN.rpartition("/")[2] in record["provenance"]["versions"]["blas"]


def test_a_calibration_measures_products_by_that_library_in_every_layout():
    from mpi4py import MPI

    class Counting(BlasLibrary):
        products = 0

        def matmul(self, a, b, out):
            Counting.products += 1
            super().matmul(a, b, out)

    bench = Bench(MPI.COMM_SELF, library=Counting(OWN))
    before = Counting.products
    for layout in ("NN", "NT", "TN"):
        found = bench.gemm(GemmPoint(7, 5, 3, "float32", layout, 1, 1), repeats=2)
        assert found.seconds > 0
    assert Counting.products >= before + 3 * 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--blas", "./nowhere.so"], "blas './nowhere.so': cannot be loaded"),
        (["--blas", "cublas"], "blas 'cublas': accepted are numpy"),
        (["--blas", "mkl", "--backend", "cupy"], "is for products of host arrays"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(capsys, words, said):
    ended = called(capsys, "run", *WORDS, *words)
    assert ended.status == 2 and said in ended.line


def test_a_calibration_by_a_library_that_is_not_here_is_refused_before_it_measures(capsys, tmp_path):
    ended = called(capsys, "calibrate", "--out", tmp_path / "host.toml", "--blas", "./nowhere.so")
    assert ended.status == 2 and "blas './nowhere.so': cannot be loaded" in ended.line
    assert not (tmp_path / "host.toml").exists()
