"""Experts with products in small numbers: which products are small, what is stored and sent, and how long they take."""

from dataclasses import replace

import pytest

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import total_flops, volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Gemm, Kernel
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.architecture import Architecture
from quadrille.algorithms.training.experts import ExpertLoad, Experts
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.memory import memory_bytes_by_kind
from quadrille.algorithms.training.scheme_catalogue import find_scheme

EXPERTS = Experts(8, 2, 32)
MODEL = Gpt(
    2, 64, 4, 16, 128, 8, dtype="bfloat16", experts=EXPERTS, zero=1,
    architecture=Architecture(gated=True, norm="rms", biases=False, positions="rotary"),
)  # fmt: skip
GRID = Grid(data=4, expert=2)
ROWS = 8 * 16 * 2
"""Rows of the experts of a layer over all ranks."""


def schedule_of(grid=GRID, scheme="megatron", *, scattered=False, **options):
    return gpt_schedule(replace(MODEL, **options), grid, find_scheme(scheme, sequence_parallel=scattered))


def is_of_experts(name):
    return name.removeprefix("again ").startswith(("experts", "shared"))


@pytest.mark.parametrize(
    ("products", "grid", "options"),
    [
        ("fp8", GRID, {}),
        ("fp8-delayed", Grid(data=2), {"fp8_param_gather": True, "experts": replace(EXPERTS, shared=16)}),
        ("nvfp4", GRID, {"zero": 3, "fp8_param_gather": True, "recompute": "full"}),
        ("mxfp8", Grid(data=4, x=2, expert=4), {"scattered": True, "expert_load": ExpertLoad(zipf=1.0)}),
        ("fp8-block", Grid(data=2, pipeline=2, expert=2), {"experts": replace(EXPERTS, every=2), "layers": 4}),
    ],
    ids=str,
)
def test_products_of_experts_are_small_in_all_passes_and_that_of_the_router_is_not(products, grid, options):
    schedule = validate(schedule_of(grid, products=products, **options))
    gemms = [op for op in all_ops(schedule) if isinstance(op, Gemm)]
    assert {op.precision for op in gemms if is_of_experts(op.name)} == {products}
    assert {op.precision for op in gemms if op.name.removeprefix("again ").startswith("router")} == {None}
    wide = {name: value for name, value in options.items() if name != "fp8_param_gather"}
    assert total_flops(schedule, Choices()) == total_flops(schedule_of(grid, **wide), Choices())


@pytest.mark.parametrize(("products", "of_forward"), [("fp8", "small"), ("mxfp8", "small columns")])
def test_the_copy_that_the_weight_gradient_reads_is_the_one_of_each_layer(products, of_forward):
    tensors = schedule_of(products=products).tensors
    for rows in ("expert I", "expert G"):
        stored = [name for name, tensor in tensors.items() if name.startswith(rows) and tensor.copies]
        assert stored == [f"{rows} {of_forward}"]
        assert tensors[f"{rows} small"].dtype == "uint8"


def test_rows_travel_in_16_bits():
    wide, small = (volumes(schedule_of(products=name), Choices()).by_op for name in ("dtype", "mxfp8"))
    for name in ("send to experts", "return from experts", "send gradient to experts", "return gradient from experts"):
        assert small[name].sent_total == wide[name].sent_total > 0


def test_rows_that_the_weight_gradient_reads_are_stored_in_one_byte():
    """In both layers, 64 + 32 columns of a row; of a token 64 columns of N1, and A beside its small copy."""
    schedules = [schedule_of(products=name) for name in ("dtype", "mxfp8")]
    wide, small = (
        memory_bytes_by_kind(schedule, schedule.coordinates(0), Choices())["activations"] for schedule in schedules
    )
    tokens = 8 * 16 // 4
    assert wide - small == 2 * (ROWS // 4 * (64 + 32) + tokens * (64 - 64))


def test_casts_precede_the_products_that_read_them():
    names = [op.name for op in all_ops(schedule_of(products="fp8")) if isinstance(op, Gemm | Kernel)]
    for cast, product in (
        ("experts up I cast", "experts up multiply"),
        ("experts down I cast", "experts down multiply"),
        ("experts down dO cast", "experts down multiply dI"),
        ("experts up dO cast", "experts up multiply dI"),
    ):
        assert names.index(cast) < names.index(product)
    assert "experts down transpose dO" in names
