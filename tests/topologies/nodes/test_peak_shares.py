"""Named machines reach what public microbenchmarks say, not their peaks; each number has its source."""

import pytest

from quadrille.simulator.machine.compute_model import ComputeModel
from quadrille.simulator.machine.rooflines import best_product_seconds, product_seconds
from quadrille.topologies.find_machine import describe_machines, find_machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.nodes.peak_shares import A100_PRODUCTS, BEST_PRODUCTS


@pytest.mark.parametrize("name", MACHINES)
def test_a_named_machine_says_what_it_achieves_where_its_gpus_were_measured(name):
    machine = find_machine(name, gpus=MACHINES[name].gpus_per_node)
    known = MACHINES[name].generation in BEST_PRODUCTS
    assert (machine.device.achieved is not None) == known
    sources = {one.quantity: one.source for one in machine.sources}
    said = describe_machines(name)
    assert ("achieved.product_share" in sources) == ("achieved.product_share" in said) == known
    assert all(sources.values())


@pytest.mark.parametrize(
    "row", [row for row in A100_PRODUCTS if row.count == 1], ids=lambda row: f"{row.m}x{row.k}x{row.n}"
)
def test_products_of_an_a100_take_about_what_was_measured(row):
    model = ComputeModel(find_machine("perlmutter", gpus=4), "float16", 1, 1)
    seconds = model.gemm(row.m, row.k, row.n, "NN").seconds
    assert 2 * row.m * row.k * row.n / seconds == pytest.approx(row.flops_per_second, rel=0.1)


@pytest.mark.parametrize(("m", "k", "n"), [(6, 5, 4), (64, 61, 67), (257, 251, 263)])
def test_a_small_product_takes_smaller_tiles_than_a_large_one(m, k, n):
    device = find_machine("perlmutter", gpus=4).device
    peak = device.peak_flops_per_second["float64"]
    small = best_product_seconds(1, m, k, n, peak, device.achieved)
    assert 2 * m * k * n / peak < small < product_seconds(1, m, k, n, peak, device.achieved) / 2


def test_what_is_achieved_can_be_changed():
    base = find_machine("perlmutter", ["device.achieved.product_share=0.5"], gpus=4)
    faster = find_machine("perlmutter", ["device.achieved.product_share=1"], gpus=4)
    slow, fast = (
        ComputeModel(one, "bfloat16", 1, 1).gemm(8192, 8192, 8192, "NN").seconds - one.device.overhead_seconds
        for one in (base, faster)
    )
    assert slow == pytest.approx(2 * fast)
