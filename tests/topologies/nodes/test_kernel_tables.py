"""Tables of measured kernels: interpolation, and what predictions take from them."""

import math

import pytest

from quadrille.algorithms.analysis.volumes import AttentionProducts, Work
from quadrille.algorithms.errors import InputError
from quadrille.simulator.machine.compute_model import ComputeModel
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.machines.what_if import apply_settings
from quadrille.topologies.nodes.gpus import TABLE_OF_GPU
from quadrille.topologies.nodes.kernel_tables import (
    best_product_share,
    experts_bound,
    kernel_table,
    kernel_table_names,
    product_bound,
)
from quadrille.topologies.nodes.training_factors import FACTORS, training_factors

NAMES = kernel_table_names()


@pytest.fixture(scope="module")
def tabled():
    return find_machine("h100-node")


@pytest.fixture(scope="module")
def untabled(tabled):
    return apply_settings(tabled, ("device.kernel_table=none",))


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


def test_every_named_machine_whose_gpu_has_a_table_uses_it():
    assert {*TABLE_OF_GPU.values(), *FACTORS} == {*NAMES}
    assert find_machine("perlmutter", gpus=4).device.kernel_table == "a100-sxm"
    assert not find_machine("frontier", gpus=8).device.kernel_table
    assert not find_machine("bench-1to1", gpus=8).device.kernel_table
    assert {*TABLE_OF_GPU} <= {MACHINES[name].gpu.name for name in MACHINES}


@pytest.mark.parametrize("name", NAMES)
def test_no_product_at_or_between_grid_points_exceeds_the_best_share(name):
    kernels = kernel_table(name)
    peak, rate = kernels.peak_flops_per_second["bfloat16"], kernels.memory_bytes_per_second
    for m in (8192, 11000, 32768, 90000):
        for k in (1024, 5000, 65536):
            for n in (2048, 14000, 65536):
                seconds, _ = kernels.product_seconds((m, k, n), "bfloat16", peak, rate)
                assert 2 * m * k * n / seconds <= best_product_share(name) * peak


def test_products_and_attention_of_a_gpu_take_the_times_of_its_table(tabled, untabled):
    plain, measured = (ComputeModel(machine, "bfloat16", 1, 1) for machine in (untabled, tabled))
    assert plain.gemm(4096, 4096, 4096, "NN").extrapolated
    estimate = measured.gemm(4096, 4096, 4096, "NN")
    assert not estimate.extrapolated
    kernels = kernel_table("h100-sxm")
    device = tabled.device
    bound = product_bound(
        4096, 4096, 4096, "bfloat16", device.peak_flops_per_second["bfloat16"], device.memory_bytes_per_second
    )
    ratio = kernels.products["bfloat16"].ratio(4096, 4096, 4096)[0]
    factors = training_factors("h100-sxm")
    assert estimate.seconds == pytest.approx(factors.product * ratio * bound + device.overhead_seconds)
    weights = measured.gemm(4096, 4096, 4096, "TN").seconds
    assert weights == estimate.seconds  # the sum in 32 bits is an op of its own
    assert measured.gemm(4096, 4096, 2**20, "NN").extrapolated


def test_the_backward_pass_of_attention_takes_the_times_of_flashattention_3(tabled):
    model = ComputeModel(tabled, "bfloat16", 1, 1)
    forward, backward = (
        model.kernel(Work(0, products.flops, touched, products), products.function).seconds - 5e-6
        for products, touched in (
            (AttentionProducts(64, 4096, 128, 2, "attention"), 2**28),
            (AttentionProducts(64, 4096, 128, 2, "attention_gradient"), 2**29),
        )
    )
    assert backward / forward == pytest.approx(2.5 * 638 / 542)


def test_unfused_attention_does_not_use_the_table(tabled, untabled):
    products = AttentionProducts(64, 2048, 128, 2, "attention")
    work = Work(flops=0, product_flops=products.flops, touched=2**26, squares=products)
    models = [
        ComputeModel(apply_settings(machine, settings), "bfloat16", 1, 1)
        for machine in (untabled, tabled)
        for settings in ((), ("device.achieved.attention=unfused",))
    ]
    plain, plain_unfused, measured, measured_unfused = (model.kernel(work, "attention") for model in models)
    assert measured != plain
    assert not measured.extrapolated
    assert plain_unfused.extrapolated and measured_unfused.extrapolated


def test_other_dtypes_do_not_use_the_table(tabled, untabled):
    plain, measured = (ComputeModel(machine, "float32", 1, 1) for machine in (untabled, tabled))
    assert measured.gemm(512, 512, 512, "NN") == plain.gemm(512, 512, 512, "NN")


def test_a_faster_gpu_of_a_what_if_question_is_faster(tabled):
    faster = apply_settings(tabled, ("device.peak_flops_per_second=x2",))
    before, after = (
        ComputeModel(machine, "bfloat16", 1, 1).gemm(8192, 8192, 8192, "NN") for machine in (tabled, faster)
    )
    assert 0.5 < after.seconds / before.seconds < 0.6


def test_a_table_that_does_not_exist_is_refused_with_the_names_of_all():
    with pytest.raises(InputError, match="kernel_table 'h10': accepted are none, a100-sxm, "):
        apply_settings(find_machine("h100-node"), ("device.kernel_table=h10",))
    with pytest.raises(InputError, match="kernels 'h10': accepted are a100-sxm, "):
        kernel_table("h10")


EXPERT = (4096, 2048)
"""Columns of a row and of the hidden layer of an expert."""


def expert_seconds(machine, rows, product, layout="NN"):
    """Seconds of the grouped product of a rank's gated experts, without its launch."""
    model = ComputeModel(machine, "bfloat16", 1, 1)
    return model.expert_products(rows, product, layout, EXPERT).seconds - machine.device.overhead_seconds


def test_both_grouped_products_take_the_measured_ratio_of_the_expert_to_its_bound(tabled):
    kernels, device, factors = kernel_table("h100-sxm"), tabled.device, training_factors("h100-sxm")
    rates = device.peak_flops_per_second["bfloat16"], device.memory_bytes_per_second
    up, down = (kernels.grouped_seconds({256: 8}, EXPERT, matrix, *rates)[0] for matrix in ((4096, 4096), (2048, 4096)))
    ratio, beyond = kernels.experts.ratio(256, 8, *EXPERT)
    assert up + down == pytest.approx(ratio * experts_bound(2048, 8, *EXPERT, *rates, gated=True))
    assert expert_seconds(tabled, (256,) * 8, (2048, 2048, 4096)) == pytest.approx(factors.product * down)
    assert not beyond


def test_layouts_of_a_grouped_product_differ_by_the_factor_of_weight_gradients(tabled):
    rows, factors = (1024,) * 8, training_factors("h100-sxm")
    forward = expert_seconds(tabled, rows, (8192, 4096, 4096))
    inputs = expert_seconds(tabled, rows, (8192, 4096, 4096), "NT")
    weights = expert_seconds(tabled, rows, (4096, 8192, 4096), "TN")
    assert inputs == pytest.approx(forward)
    assert (inputs + weights) / forward == pytest.approx(factors.expert_backward)


def test_grouped_products_of_uneven_experts_are_sums_over_the_numbers_of_rows(tabled):
    kernels, device = kernel_table("h100-sxm"), tabled.device
    rates = device.peak_flops_per_second["bfloat16"], device.memory_bytes_per_second
    few, many, uneven = (
        kernels.grouped_seconds(rows, EXPERT, (4096, 4096), *rates)[0]
        for rows in ({64: 8}, {1984: 8}, {64: 4, 1984: 4})
    )
    assert uneven == pytest.approx((few + many) / 2)
    assert expert_seconds(tabled, (0,) * 8, (8192, 4096, 4096)) == 0


@pytest.mark.parametrize("name", sorted(FACTORS))
def test_no_more_rows_take_less_time_and_no_group_takes_longer_than_products_one_after_the_other(name):
    machine = find_machine("h100-node")
    machine = apply_settings(machine, (f"device.kernel_table={name}",))
    model = ComputeModel(machine, "bfloat16", 1, 1)
    for columns, hidden in ((1024, 2048), (7168, 2048)):
        for count in (1, 4):
            seconds = [
                model.expert_products((each,) * count, (each * count, columns, hidden), "NN", (columns, hidden)).seconds
                for each in (256, 1024, 4096, 16384)
            ]
            assert seconds == sorted(seconds)
            alone = count * model.gemm(4096, columns, hidden, "NN").seconds
            assert seconds[2] <= alone


def test_experts_without_a_table_of_experts_are_products_one_after_the_other():
    machine = find_machine("a100-node")
    alone = ComputeModel(machine, "bfloat16", 1, 1).gemm(1024, 4096, 4096, "NN").seconds
    seconds = expert_seconds(machine, (1024,) * 8, (8192, 4096, 4096))
    assert seconds == pytest.approx(8 * (alone - machine.device.overhead_seconds))
    with pytest.raises(InputError, match="experts: no measured kernels of A100 SXM"):
        kernel_table("a100-sxm").grouped_seconds({8: 1}, (128, 128), (128, 128), 1e12, 1e12)
