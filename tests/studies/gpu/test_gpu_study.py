"""The study of one GPU, on a GPU made of host memory: whether figures are what they are called, not how fast it is."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.measured_rows import KernelRow
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.runtime.arrays.cupy_library import CupyLibrary
from quadrille.runtime.measuring import benchmark_kernels
from quadrille.runtime.measuring.benchmark_kernels import MEASURED
from quadrille.runtime.measuring.device_benchmarks import (
    DeviceBench,
    DeviceProduct,
    DeviceStream,
    LaunchCost,
    Tf32Library,
)
from quadrille.studies.gpu import calibration, study
from quadrille.studies.gpu.calibration import DTYPES, TINY, Calibration, StagedTransfers
from quadrille.studies.gpu.device_machine import host_link, machine_of_device
from quadrille.studies.gpu.report import ExecutedRun, SharedRun, data_sheet_shares
from quadrille.studies.gpu.study import GpuSpeed, gpu, show
from quadrille.topologies.machines.machine_file import load_machine, save_machine
from quadrille.topologies.nodes.peak_shares import Product
from tests.support import fake_device
from tests.support.fake_device import FAKE
from tests.support.quadrille import called
from tests.support.toy_machines import transfer_row

MADE = provenance(["test"])


@pytest.fixture
def cupy(monkeypatch):
    return fake_device.install(monkeypatch)


@pytest.fixture
def bench(cupy):
    return DeviceBench(CupyLibrary(FAKE), repeats=2, values=1 << 10)


def product(size, dtype, seconds):
    return DeviceProduct(size, size, size, dtype, "NN", seconds, 0.0)


def machine_at(rate, products=None):
    """A GPU of one rate and 1e12 bytes a second, whose staged steps take 1 ms and 1 ns a byte for each rank."""
    measured = products or [product(size, "float32", 2.0 * size**3 / rate) for size in (256, 384, 512, 768, 1024, 2048)]
    streams = [DeviceStream(word, 1 << 26, (1 << 26) / 1e12, 0.0) for word in ("copy", "add", "zero", "to host")]
    rows = [transfer_row(size, ranks * (1e-3 + size * 1e-9), ranks=ranks) for ranks in (2, 4) for size in (8, 1 << 24)]
    return machine_of_device("fake", 1 << 30, measured, streams, LaunchCost(2e-6, 9e-6), rows, MADE, ranks=8)


def test_a_host_link_has_the_rate_of_the_slower_direction_and_the_latency_of_its_smallest_copy():
    sizes, latency = (1 << 12, 1 << 30), 2e-5
    streams = [
        DeviceStream(name, size, latency + size / rate, 0.0)
        for name, rate in (("to host", 2e10), ("to device", 2.5e10))
        for size in sizes
    ]
    link = host_link(streams, 1 << 40)
    assert link.bytes_per_second == pytest.approx(2e10, rel=1e-3) and link.memory_bytes == 1 << 40
    assert link.latency_seconds == pytest.approx(latency, rel=1e-3)
    assert host_link(streams[:2], 1 << 40) is None and host_link(streams, 0) is None
    assert machine_at(1e12).host_link is None, "one direction is not measured"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN"])
def test_every_product_is_made_as_often_as_it_is_waited_for_and_costs_time(cupy, bench, dtype, layout):
    found = bench.product(5, 7, 3, dtype, layout)
    assert found.seconds > 0 and found.flops_per_second == pytest.approx(2 * 5 * 7 * 3 / found.seconds)
    assert (found.m, found.k, found.n, found.dtype, found.layout) == (5, 7, 3, dtype, layout)
    assert cupy.history.count("gemm") > bench._repeats


def test_tf32_is_asked_of_cublas_by_its_compute_type_and_nothing_else_is(cupy, monkeypatch):
    asked_for = []
    true = cupy.cuda.cublas.gemmEx
    monkeypatch.setattr(cupy.cuda.cublas, "gemmEx", lambda *given: (asked_for.append(given[-2]), true(*given)))
    for library in (CupyLibrary(FAKE), Tf32Library(FAKE)):
        one = library.empty(1, "float32").reshape(1, 1)
        library.put(one, np.ones((1, 1)))
        library.matmul(one, one, library.empty(1, "float32").reshape(1, 1))
    assert asked_for == [cupy.cuda.cublas.CUBLAS_COMPUTE_32F, cupy.cuda.cublas.CUBLAS_COMPUTE_32F_FAST_TF32]


@pytest.mark.parametrize(
    ("operation", "name"), [("copy", "copy"), ("zero", "fill"), ("to host", "to host"), ("to device", "to device")]
)
def test_streams_are_of_the_bytes_that_were_asked_for(cupy, bench, operation, name):
    before = cupy.history.count(name)
    found = bench.stream(operation, 1 << 12)
    assert found.bytes == 1 << 12 and found.seconds > 0 and cupy.history.count(name) > before + 2


def test_a_launch_costs_time_in_a_row_of_many_and_alone(cupy, bench):
    found = bench.launch()
    assert min(found.seconds, found.alone_seconds) > 0 and cupy.history.count("add") > bench._repeats


@pytest.mark.parametrize("function", MEASURED)
def test_functions_of_layers_touch_what_calibrate_says_they_touch(bench, function):
    for dtype, item in (("float32", 4), ("bfloat16", 2)):
        found = bench.kernel(function, dtype, 1 << 11)
        assert found.seconds > 0 and (found.function, found.dtype) == (function, dtype)
        given = benchmark_kernels.arguments(function, "float32", 1 << 11)
        most = sum(one.size for one in (*given.into, *given.updates, *given.updates, *given.sources))
        assert most * item <= found.bytes <= most * 4, "sums and moments have 4 bytes"


def test_a_softmax_is_three_functions(cupy, bench):
    names = [one.function for one in bench.softmax("float32", 4, 8)]
    assert names == ["row_maxima", "exponential_sums", "cross_entropy"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_is_counted_in_bytes_in_and_out_and_in_flops(bench, dtype):
    item = 4 if dtype == "float32" else 2
    forward = bench.attention("attention", dtype, 2, 4, 3, 5)
    assert forward.bytes == 2 * 4 * 3 * (5 * item * (3 + 1) + 4)
    assert forward.flops_per_second == pytest.approx(2 * (8 * 4 * 15) / forward.seconds)
    assert bench.attention("attention_gradient", dtype, 2, 4, 3, 5).bytes == 2 * 4 * 3 * (5 * item * (3 + 3 + 2) + 4)


def test_operands_are_filled_on_the_device_with_the_same_random_values_again_and_again(bench):
    array = bench._random((3, 1000), "float32")
    flat = bench._library.fetch(array).reshape(-1)
    assert np.unique(flat[:1024]).size == 1024 and np.array_equal(flat[1024:2048], flat[:1024])
    assert np.array_equal(flat[2048:], flat[:952])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_executor_is_timed_alternately_with_a_bare_product(cupy, bench, dtype):
    found = bench.executor_ratio(8, dtype, repeats=3)
    assert min(found.bare_seconds, found.seconds, found.share) > 0
    assert found.bare == ("cublasGemmEx" if dtype == "bfloat16" else "cupy.matmul")
    assert cupy.history.count("gemm" if dtype == "bfloat16" else "matmul") >= 1 + 3


def test_the_bare_product_of_bfloat16_is_cupy_s_where_ml_dtypes_is(cupy, bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", SimpleNamespace(bfloat16=np.float16))
    assert bench.executor_ratio(8, "bfloat16", repeats=1).bare == "cupy.matmul"


def test_cupy_s_own_product_is_made_under_cublas_s_own_choice_and_ours_is_not(cupy, bench):
    bench.executor_ratio(8, "float16", repeats=2)
    assert cupy.math_modes[-2:] == [0, 16]


def test_the_machine_file_predicts_a_product_as_it_was_measured_and_a_launch(tmp_path):
    save_machine(machine_at(1e13), tmp_path / "gpu.toml")
    machine = load_machine(tmp_path / "gpu.toml")
    made, _ = predict_record_and_timeline(MatmulExperiment(Matmul(1024, 1024, 1024)), machine, backend="cupy")
    (multiply,) = [op for op in made.ops if op.kind == "gemm"]
    assert multiply.seconds == pytest.approx(2.0 * 1024**3 / 1e13 + 9e-6, rel=1e-3)
    assert {row.bytes_per_second for row in machine.device.memory} == {1e12}
    assert machine.device.memory_bytes_per_second == 2e12


def test_ranks_that_share_the_gpu_multiply_in_turn():
    machine = machine_at(1e13)
    alone, shared = (
        next(op for op in predict_record_and_timeline(experiment, machine)[0].ops if op.kind == "gemm").seconds
        for experiment in (
            MatmulExperiment(Matmul(1024, 1024, 1024)),
            MatmulExperiment(Matmul(4096, 1024, 1024), Grid(z=4)),
        )
    )
    assert shared == pytest.approx(4 * alone, rel=0.05)


@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_are_predicted_as_they_were_measured_on_so_many_ranks(ranks):
    made, _ = predict_record_and_timeline(MatmulExperiment(Matmul(1024, 1024, 1024), Grid(z=ranks)), machine_at(1e13))
    (gather,) = [op for op in made.ops if op.name == "gather B"]
    shard = 1024 * 1024 * 4 / ranks
    assert gather.seconds == pytest.approx((ranks - 1) * ranks * (1e-3 + shard * 1e-9), rel=0.05)


def test_peaks_are_the_best_that_was_seen_and_tf32_stands_apart():
    products = [
        product(512, dtype, seconds) for dtype, seconds in (("float32", 2e-3), ("float32", 1e-3), ("tf32", 1e-4))
    ]
    peaks = machine_at(1.0, products).device.peak_flops_per_second
    assert peaks == {"float32": pytest.approx(2 * 512**3 / 1e-3), "tf32": pytest.approx(2 * 512**3 / 1e-4)}


def test_where_no_cupy_is_the_command_is_refused_in_one_line(capsys, monkeypatch):
    def missing():
        raise InputError("backend 'cupy': CuPy cannot be imported; install it")

    monkeypatch.setattr("quadrille.runtime.arrays.cupy_library.use_device", lambda rank: missing())
    ended = called(capsys, "study", "gpu")
    assert ended.status == 2 and "CuPy cannot be imported" in ended.line and ended.out == ""
    ended = called(capsys, "study", "gpu", "--ranks", "3")
    assert ended.status == 2 and "ranks '3': accepted are 1, 2, 4, 8" in ended.line


def test_the_whole_study_writes_its_answer_and_a_machine_file(cupy, monkeypatch, tmp_path, capsys):
    staged = StagedTransfers((transfer_row(8, 1e-3), transfer_row(1 << 20, 2e-3)))
    monkeypatch.setattr(calibration, "measure_staged_transfers", lambda counts: staged)
    ran = [SharedRun("16,16,16", 2, "float32", 1.0, 1.25, True)]
    monkeypatch.setattr(study, "measure_shared_runs", lambda machine, count, sizes: ran)
    answer = gpu(
        json=str(tmp_path / "gpu.json"),
        out=str(tmp_path / "gpu.toml"),
        ranks=(1, 2),
        sizes=TINY,
    )
    assert len(answer.calibration.products) == 2 * len(DTYPES) * 3
    assert json.loads((tmp_path / "gpu.json").read_text())["calibration"]["device"].startswith("Fake GPU")
    device = load_machine(tmp_path / "gpu.toml").device
    assert {row.dtype for row in device.gemm} == set(DTYPES)
    assert {row.function for row in device.kernel} > set(MEASURED)
    printed = capsys.readouterr().out
    assert "-20.0 %" in printed and "tf32 is float32 multiplied in TF32" in printed


def test_asked_as_usual_it_keeps_what_it_finds_and_says_where_there_is_no_gpu(cupy, monkeypatch, tmp_path, capsys):
    results, asked_with = tmp_path / "results", []
    monkeypatch.setattr(
        study, "gpu", lambda **given: asked_with.append(given) or schema_files.check_writable(given["out"])
    )
    study.main(results)
    assert asked_with[0]["json"].startswith(str(results)) and capsys.readouterr().err == ""
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    study.main(results)
    assert len(asked_with) == 1 and "left out, and results kept as they are" in capsys.readouterr().err


def test_the_answer_and_the_machine_file_are_two_files(tmp_path):
    path = str(tmp_path / "gpu")
    with pytest.raises(InputError, match="--json and --out both name"):
        gpu(json=path, out=path)


def calibrated(name="NVIDIA H100 80GB HBM3", **parts):
    return Calibration(device=name, name=name, memory_bytes=80_000_000_000, provenance=MADE, **parts)


def test_tables_show_shares_of_the_data_sheet_s_peak_and_what_was_measured(capsys):
    show(
        GpuSpeed(
            calibration=calibrated(
                products=tuple(product(8192, dtype, 2 * 8192**3 / 494.7e12) for dtype in DTYPES),
                kernels=(KernelRow(function="gelu", dtype="float32", bytes=1 << 20, seconds=1e-6),),
            ),
            executed=(ExecutedRun(8192, "float16", "cupy.matmul", 0.95, 1.0, 0.95),),
            shared=(SharedRun("4,4,4", 2, "float32", 1.0, 1.25, False),),
            provenance=MADE,
        )
    )
    printed = capsys.readouterr().out
    assert "494.7 (50%)" in printed and "494.7 (100%)" in printed, "of bfloat16 and of tf32"
    assert "95.0 %" in printed and "NO" in printed and "1.05 TB/s" in printed


def test_what_a_gpu_reaches_of_its_data_sheet_is_found_again_from_products_of_known_share_and_ramp(capsys):
    share, ramp, peak, products = 0.8, 200.0, 989.4e12, []
    for m, k, n in ((8192, 8192, 8192), (4096, 4096, 4096), (8192, 1024, 4096), (2048, 13312, 2048)):
        rate = share * k / (k + ramp) * peak * Product(1, m, k, n, 1.0).tile_efficiency(132)
        products.append(DeviceProduct(m, k, n, "bfloat16", "NN", 2 * m * k * n / rate, 0.0))
    copy = DeviceStream("copy", 1 << 30, 2 * (1 << 30) / 2.68e12, 0.0)
    found = data_sheet_shares(calibrated(products=tuple(products), streams=(copy,)))
    values = {name: value for name, (value, _) in found.items()}
    assert values["product_share"] == pytest.approx(share) and values["ramp"] == pytest.approx(ramp)
    assert values["memory_share"] == pytest.approx(2.68 / 3.35, rel=1e-3)
    assert data_sheet_shares(calibrated("Fake GPU", products=tuple(products), streams=(copy,))) == {}


def test_a_calibration_in_parts_is_enough_for_a_machine_file_with_products_streams_and_launch():
    parts = {
        "products": (product(8, "float32", 1e-6),),
        "streams": (DeviceStream("copy", 1 << 20, 1e-6, 0.0),),
        "launch": LaunchCost(1e-6, 2e-6),
    }
    assert not calibrated().suffices_for_machine and not calibrated(products=parts["products"]).suffices_for_machine
    machine = calibrated(**parts).machine(4)
    assert (
        calibrated(**parts).suffices_for_machine and machine.host.ranks == 4 and machine.device.overhead_seconds == 2e-6
    )
