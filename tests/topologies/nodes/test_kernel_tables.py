"""Tables of measured kernels: interpolation, and what predictions take from them."""

import math

import pytest

from quadrille.algorithms.analysis.volumes import AttentionProducts, Work
from quadrille.algorithms.errors import InputError
from quadrille.simulator.machine.compute_model import ComputeModel
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.what_if import apply_settings
from quadrille.topologies.nodes.kernel_tables import kernel_table, kernel_table_names, product_bound

NAMES = kernel_table_names()


@pytest.fixture(scope="module")
def tabled():
    return apply_settings(find_machine("h100-node"), ("device.kernel_table=h100-sxm",))


@pytest.mark.parametrize("name", NAMES)
def test_no_product_of_a_table_is_faster_than_the_peak(name):
    kernels = kernel_table(name)
    for precision, table in kernels.products.items():
        peak, rate = kernels.peak_flops_per_second[precision], kernels.memory_bytes_per_second
        for m in (128, 4096, 32768):
            for k in (128, 5000, 65536):
                seconds = table.ratio(m, 4096, k)[0] * product_bound(m, k, 4096, precision, peak, rate)
                assert 0.01 < 2 * m * k * 4096 / seconds / peak < 1 or m * k < 2**20


@pytest.mark.parametrize("name", NAMES)
def test_a_table_has_a_ratio_for_every_grid_point(name):
    kernels = kernel_table(name)
    for table in (*kernels.products.values(), kernels.attention):
        assert len(table.thousandths) == math.prod(map(len, table.axes.values()))
        assert table.rows > 1000
        assert 0 < table.median_error < 0.1


def test_the_ratio_at_a_grid_point_is_that_of_the_file():
    table = kernel_table("h100-sxm").products["bfloat16"]
    m, n, k = (list(points) for points in table.axes.values())
    index = (3 * len(n) + 4) * len(k) + 5
    assert table.ratio(m[3], n[4], k[5]) == (math.exp(table.thousandths[index] / 1000), False)


def test_products_and_attention_of_a_gpu_take_the_times_of_its_table(tabled):
    plain, measured = (ComputeModel(machine, "bfloat16", 1, 1) for machine in (find_machine("h100-node"), tabled))
    assert plain.gemm(4096, 4096, 4096, "NN").extrapolated
    estimate = measured.gemm(4096, 4096, 4096, "NN")
    assert not estimate.extrapolated
    kernels = kernel_table("h100-sxm")
    device = tabled.device
    bound = product_bound(
        4096, 4096, 4096, "bfloat16", device.peak_flops_per_second["bfloat16"], device.memory_bytes_per_second
    )
    ratio = kernels.products["bfloat16"].ratio(4096, 4096, 4096)[0]
    assert estimate.seconds == pytest.approx(ratio * bound + device.overhead_seconds)
    assert measured.gemm(4096, 4096, 2**20, "NN").extrapolated


def test_unfused_attention_does_not_use_the_table(tabled):
    products = AttentionProducts(64, 2048, 128, 2, "attention")
    work = Work(flops=0, product_flops=products.flops, touched=2**26, squares=products)
    models = [
        ComputeModel(apply_settings(machine, settings), "bfloat16", 1, 1)
        for machine in (find_machine("h100-node"), tabled)
        for settings in ((), ("device.achieved.attention=unfused",))
    ]
    plain, plain_unfused, measured, measured_unfused = (model.kernel(work, "attention") for model in models)
    assert measured != plain
    assert not measured.extrapolated
    assert plain_unfused.extrapolated and measured_unfused.extrapolated


def test_other_dtypes_do_not_use_the_table(tabled):
    plain, measured = (ComputeModel(machine, "float32", 1, 1) for machine in (find_machine("h100-node"), tabled))
    assert measured.gemm(512, 512, 512, "NN") == plain.gemm(512, 512, 512, "NN")


def test_a_faster_gpu_of_a_what_if_question_is_faster(tabled):
    faster = apply_settings(tabled, ("device.peak_flops_per_second=x2",))
    before, after = (
        ComputeModel(machine, "bfloat16", 1, 1).gemm(8192, 8192, 8192, "NN") for machine in (tabled, faster)
    )
    assert 0.5 < after.seconds / before.seconds < 0.6


def test_a_table_that_does_not_exist_is_refused_with_the_names_of_all():
    with pytest.raises(InputError, match="kernel_table 'h10': accepted are a100-sxm, "):
        apply_settings(find_machine("h100-node"), ("device.kernel_table=h10",))
    with pytest.raises(InputError, match="kernels 'h10': accepted are a100-sxm, "):
        kernel_table("h10")
