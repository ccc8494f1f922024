"""The verbs of both libraries, CuPy's on a GPU made of host memory."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from quadrille.runtime.arrays.array_library import matrix_layout
from quadrille.runtime.arrays.cupy_library import CupyLibrary, from_host, to_host_values
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.arrays.pinned_memory import PinnedPool, fetch_in_chunks, put_in_chunks, size_class
from quadrille.runtime.execution.rank_environment import find_array_library
from quadrille.runtime.host.devices import sharing_ranks
from quadrille.runtime.operands.operands import round_to
from tests.support import fake_device
from tests.support.fake_device import FAKE, Cupy

DTYPES = [dtype for dtype in ITEM_BYTES if dtype not in ("int32", "uint8")]


@pytest.fixture
def cupy(monkeypatch):
    return fake_device.install(monkeypatch)


@pytest.fixture(params=["numpy", "cupy"])
def library(request, cupy):
    return NumpyLibrary() if request.param == "numpy" else CupyLibrary(FAKE)


def integers(shape, seed=0):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def on_device(library, values, dtype="float32"):
    array = library.empty(values.size, dtype)
    library.put(array, values.reshape(-1))
    return array.reshape(values.shape)


def test_put_and_fetch_give_the_values_back(library):
    values = integers((5, 7))
    np.testing.assert_array_equal(library.fetch(on_device(library, values)), values)


@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(1, 1, 1), (2, 3, 5), (7, 1, 3), (1, 5, 2), (3, 4, 1), (3, 0, 2)]
)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_products_in_every_layout_are_numpy_s(library, rows, inner, columns, layout):
    a, b = integers((rows, inner)), integers((inner, columns), seed=1)
    left = on_device(library, a.T.copy()).T if layout == "TN" else on_device(library, a)
    right = on_device(library, b.T.copy()).T if layout == "NT" else on_device(library, b)
    out = on_device(library, np.ones((rows, columns), np.float32))
    library.matmul(left, right, out)
    np.testing.assert_array_equal(library.fetch(out), a @ b)


def test_products_of_windows_change_nothing_beside_them(library):
    a, b, c = integers((7, 11)), integers((13, 5), seed=1), integers((6, 9), seed=2)
    out = on_device(library, c)
    library.matmul(on_device(library, a)[1:4, 2:7], on_device(library, b)[4:9, 1:5], out[2:5, 3:7])
    c[2:5, 3:7] = a[1:4, 2:7] @ b[4:9, 1:5]
    np.testing.assert_array_equal(library.fetch(out), c)
    np.testing.assert_array_equal(library.fetch(out[1:6, ::1][:, 2:8]), c[1:6, 2:8])


def test_sums_copies_and_zeros_are_numpy_s(library):
    one, other = integers(11), integers(11, seed=1)
    held, added, into = on_device(library, one), on_device(library, other), on_device(library, one * 0)
    library.add(held, added, held)
    library.copy(into, held)
    library.zero(held[3:8])
    library.synchronise()
    np.testing.assert_array_equal(library.fetch(into), one + other)
    np.testing.assert_array_equal(
        library.fetch(held), np.where((np.arange(11) < 3) | (np.arange(11) > 7), one + other, 0)
    )


def test_a_lane_of_communication_has_its_own_stream_and_the_same_arrays(cupy):
    library = CupyLibrary(FAKE)
    array = on_device(library, integers(5))
    library.zero(array)
    lane = library.lane()
    assert len({library.stream, lane.stream, library.lane().stream}) == 3 and lane.pinned is library.pinned
    lane.synchronise()
    assert not library.mark().done(), "waiting for the second stream does not wait for the first"
    library.synchronise()
    np.testing.assert_array_equal(lane.fetch(array), np.zeros(5))
    host = NumpyLibrary()
    assert host.lane() is host


def test_a_marker_is_done_when_the_device_has_come_that_far(cupy):
    library = CupyLibrary(FAKE)
    array = library.empty(3, "float32")
    library.zero(array)
    library.zero(array)
    marker = library.mark()
    library.zero(array)
    assert [marker.done() for _ in range(4)] == [False, False, True, True]
    assert cupy.history == ["fill", "fill"]
    assert NumpyLibrary().mark() is None


def test_a_device_that_has_failed_is_not_waited_for(cupy):
    library = CupyLibrary(FAKE)
    library.zero(library.empty(3, "float32"))
    marker = library.mark()
    assert not marker.done()
    cupy.fault = 700  # an illegal address
    with pytest.raises(RunError, match=r"the GPU has failed with CUDA error 700 \(cudaError_t\)"):
        marker.done()


@pytest.mark.parametrize("dtype", DTYPES)
def test_cupy_multiplies_and_adds_every_dtype_accumulating_in_float32_at_least(cupy, dtype):
    library = CupyLibrary(FAKE)
    a, b = np.full((3, 300), 1.0, np.float32), integers((300, 5))
    out, more = on_device(library, np.zeros((3, 5)), dtype), on_device(library, integers((3, 5), seed=3), dtype)
    library.matmul(on_device(library, a, dtype), on_device(library, b, dtype), out)
    library.add(out, more, out)
    expected = (a @ b).astype(np.float64 if dtype == "float64" else np.float32)
    round_to(dtype, expected)
    total = expected + integers((3, 5), seed=3)
    round_to(dtype, total)
    np.testing.assert_array_equal(library.fetch(out), total)
    assert cupy.math_modes == [16], "no reductions in the output's dtype"


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_have_the_item_size_of_their_dtype(cupy, dtype):
    library = CupyLibrary(FAKE)
    assert library.empty(7, dtype).nbytes == 7 * ITEM_BYTES[dtype]


@given(arrays.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32, allow_nan=False)))
def test_bfloat16_on_the_host_is_the_nearest_ties_to_even(values):
    expected = values.copy()
    with np.errstate(over="ignore"):
        round_to("bfloat16", expected)
    np.testing.assert_array_equal(to_host_values(from_host(values, "uint16")), expected)


def test_nan_stays_nan_in_bfloat16():
    bits = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    assert np.isnan(to_host_values(from_host(bits.view(np.float32), "uint16"))).all()


@given(st.tuples(*[st.integers(1, 4)] * 2), st.data())
def test_how_a_matrix_lies_tells_where_each_element_is(shape, data):
    whole = np.arange(1, 50, dtype=np.float32).reshape(7, 7)[: shape[0], : shape[1]]
    matrix = whole.T if data.draw(st.booleans()) else whole
    turned, step = matrix_layout(matrix)
    address = matrix.__array_interface__["data"][0]
    columns = fake_device.columns_at(address, matrix.shape if turned else matrix.shape[::-1], step, np.float32)
    np.testing.assert_array_equal(columns if turned else columns.T, matrix)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(size=st.integers(1, 9000), chunk=st.integers(1, 5000))
def test_copies_in_chunks_are_whole_and_use_two_pinned_buffers(cupy, size, chunk):
    library = CupyLibrary(FAKE)
    values = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    array = library.empty(-(-size // 2), "float16").view(np.uint8)[:size]
    put_in_chunks(library, array, values, chunk)
    back = np.empty_like(values)
    fetch_in_chunks(library, back, array, chunk)
    np.testing.assert_array_equal(back, values)
    assert library.pinned.allocated_bytes == 2 * size_class(min(size, chunk))


@given(st.integers(1, 1 << 40))
def test_a_size_class_holds_its_sizes_with_a_quarter_to_spare_at_most(size):
    assert size <= size_class(size) <= max(4096, 1.25 * size)
    assert size_class(size_class(size)) == size_class(size)


def test_a_pinned_buffer_is_nobody_else_s_until_it_is_given_back():
    pool = PinnedPool(bytearray)
    one, other = pool.take(5000), pool.take(5100)
    assert not np.shares_memory(one, other) and pool.allocated_bytes == 2 * 5120
    pool.give_back(one)
    assert np.shares_memory(pool.take(4999), one) and pool.allocated_bytes == 2 * 5120


def test_the_array_module_loads_without_cupy_or_mpi():
    code = (
        "import sys, quadrille.runtime.arrays.numpy_library; sys.exit('cupy' in sys.modules or 'mpi4py' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_cupy_is_found_for_every_dtype_and_tried_once(cupy, dtype):
    library = find_array_library("cupy", dtype)
    assert library.name == "cupy"
    assert "gemm" in cupy.history


def test_ranks_of_a_host_take_its_gpus_cyclically(monkeypatch):
    gpus = [replace(FAKE, number=i, pci_address=f"0000:0{i}:00.0", uuid=f"{i + 1:02}" * 16) for i in range(3)]
    cupy = fake_device.install(monkeypatch, Cupy(gpus))
    found = [find_array_library("cupy", "float32", rank_on_host=rank).device for rank in range(5)]
    assert [device.number for device in found] == [0, 1, 2, 0, 1]
    assert cupy.current_device == 1
    assert list(sharing_ranks(found)) == [(0, 3), (1, 4)]


def refusal(backend, dtype):
    with pytest.raises(InputError) as caught:
        find_array_library(backend, dtype)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_cupy_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    line = refusal("cupy", "float32")
    assert "pip install 'cupy-cuda12x[ctk]' or 'cupy-cuda13x[ctk]'" in line


def test_without_a_gpu_the_line_says_so(monkeypatch):
    cupy = fake_device.install(monkeypatch, Cupy(devices=()))
    assert "devices=0" in refusal("cupy", "float32")

    def fails():
        raise fake_device.CudaError("cudaErrorInsufficientDriver: too old")

    cupy.cuda.runtime.getDeviceCount = fails
    assert "cudaErrorInsufficientDriver" in refusal("cupy", "float32")


def test_a_gpu_too_old_for_bfloat16_is_refused(monkeypatch):
    fake_device.install(monkeypatch, Cupy([replace(FAKE, compute_capability=(7, 5))]))
    assert "7.5" in refusal("cupy", "bfloat16") and "8.0" in refusal("cupy", "bfloat16")
    assert find_array_library("cupy", "float16").name == "cupy"


def test_missing_cuda_libraries_are_found_before_anything_runs(cupy):
    def missing(*_):
        raise ImportError("libcublas.so.12: cannot open\nshared object file")

    cupy.cuda.cublas.gemmEx = missing
    line = refusal("cupy", "float64")
    assert "libcublas" in line and "cupy-cuda12x[ctk]" in line


def test_backends_and_dtypes_that_cannot_be_are_refused_by_name():
    assert "'torch'" in refusal("torch", "float32") and "numpy, cupy" in refusal("torch", "float32")
    assert "'bfloat16'" in refusal("numpy", "bfloat16")
