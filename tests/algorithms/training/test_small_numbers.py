"""Products in small numbers: which products and tensors are small, bytes that are stored and sent, and refusals."""

import pytest

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import total_flops, volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Gemm, reads
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.architecture import Architecture
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.memory import memory_bytes_by_kind
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.training.small_numbers import RECIPES, find_products

SIZES = {"layers": 4, "hidden": 64, "heads": 4, "sequence": 16, "vocabulary": 128, "batch": 16, "micro_batch": 2}
WEIGHTS = 4 * 12 * 64 * 64
"""Weights of the products of all layers."""
TOKENS = 4 * 16
"""Tokens of a microbatch over both coordinates of data."""


ALONE = Grid()
LOGITS = {"multiply logits", "multiply dlast N", "multiply dtable"}


def schedule_of(grid=ALONE, scheme="megatron", *, scattered=False, **options):
    problem = Gpt(**SIZES | {"dtype": "bfloat16"} | options)
    return gpt_schedule(problem, grid, find_scheme(scheme, sequence_parallel=scattered))


def bytes_by_kind(**options):
    schedule = schedule_of(**options)
    return memory_bytes_by_kind(schedule, schedule.coordinates(0), Choices())


@pytest.mark.parametrize("products", RECIPES)
@pytest.mark.parametrize(
    ("grid", "options"),
    [
        (Grid(data=2, x=2, pipeline=2), {"zero": 1, "scattered": True}),
        (Grid(data=2), {"zero": 3, "fp8_param_gather": True}),
        (Grid(data=2), {"zero": 3, "gathered": "keep", "recompute": "full"}),
        (Grid(z=2, y=2, x=2), {"scheme": "4d", "fp8_param_gather": True}),
        (Grid(x=2, pipeline=2), {"scattered": True, "gathered": "keep", "pipeline_schedule": "zb-h1"}),
    ],
    ids=str,
)
def test_all_three_products_of_all_linear_layers_are_small_and_those_of_the_logits_are_not(products, grid, options):
    schedule = validate(schedule_of(grid, products=products, **options))
    of_products = {op.name: op.precision for op in all_ops(schedule) if isinstance(op, Gemm)}
    layers = [
        name for name in of_products if name.removeprefix("again ").split()[0] in ("QKV", "project", "up", "down")
    ]
    assert {of_products[name] for name in layers} == {products}
    assert {of_products[name] for name in set(of_products) - set(layers)} == {None}
    assert len([name for name in layers if not name.startswith("again")]) == 12
    wide = schedule_of(grid, **{name: value for name, value in options.items() if name != "fp8_param_gather"})
    assert total_flops(schedule, Choices()) == total_flops(wide, Choices())


LATENT = {"key_rank": 16, "head_columns": 24, "rotary_columns": 8, "value_columns": 16, "biases": False}
TRAITS = {
    "latent": Architecture(positions="rotary", query_rank=24, **LATENT),
    "latent keys": Architecture(positions="rotary", **LATENT),
    "gated attention": Architecture(gated_attention=True),
}


@pytest.mark.parametrize(
    ("trait", "grid", "options"),
    [
        ("latent", Grid(data=2, x=2), {"products": "fp8", "zero": 1, "scattered": True}),
        ("latent", Grid(x=2, pipeline=2), {"products": "mxfp8", "recompute": "full"}),
        ("latent", Grid(z=2, y=2, x=2), {"products": "fp8-block", "scheme": "4d"}),
        ("latent keys", Grid(x=2), {"products": "fp8", "scattered": True}),
        ("latent keys", Grid(z=2, y=2, x=2), {"products": "nvfp4", "scheme": "4d"}),
        ("gated attention", Grid(x=2), {"products": "fp8", "scattered": True}),
        ("gated attention", Grid(data=2, context=2), {"products": "mxfp8", "zero": 3}),
    ],
    ids=str,
)
def test_products_that_read_one_input_are_small_and_share_its_cast(trait, grid, options):
    schedule = validate(schedule_of(grid, architecture=TRAITS[trait], **options))
    wide = schedule_of(grid, architecture=TRAITS[trait], **options | {"products": "dtype"})
    ops = list(all_ops(schedule))
    assert {op.name for op in ops if isinstance(op, Gemm) and op.precision is None} == LOGITS
    casts = {op.name.removeprefix("again ") for op in ops if op.name.endswith("I cast") and "N1" in reads(op)}
    assert len(casts) == 1
    assert total_flops(schedule, Choices()) == total_flops(wide, Choices())


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("products", "zero"), [("fp8", 1), ("fp8", 3), ("mxfp8", 3), ("nvfp4", 1)])
def test_a_context_axis_gathers_the_same_bytes_of_small_weights_as_data(products, zero, alone):
    options = {"products": products, "zero": zero, "fp8_param_gather": alone}
    of_both, of_data = (
        volumes(validate(schedule_of(grid, micro_batch=sequences, **options)), Choices()).by_op
        for grid, sequences in ((Grid(data=2, context=2), 4), (Grid(data=4), 2))
    )
    both, data = (
        sum(volume.sent_total for name, volume in by_op.items() if name.startswith("gather up W held"))
        for by_op in (of_both, of_data)
    )
    assert both == data > 0


@pytest.mark.parametrize(
    ("products", "alone", "weight"),
    [
        ("dtype", False, 2),
        *((name, False, 2 + 2) for name in RECIPES if name != "nvfp4"),
        *((name, True, 2) for name in RECIPES if name != "nvfp4"),
        ("nvfp4", False, 2 + 1),
        ("nvfp4", True, 1),
    ],
)
def test_bytes_of_the_weights_that_products_read(products, alone, weight):
    """16-bit weights and two copies of one byte, or of half a byte with NVFP4; no 16-bit weights if small alone."""
    options = {"products": products, "fp8_param_gather": alone}
    others = bytes_by_kind(zero=0)["parameters"] - 2 * WEIGHTS
    temporary = bytes_by_kind(**options)["parameters"] - others - weight * WEIGHTS
    one_layer = 2 * WEIGHTS // 4
    assert temporary == (one_layer if alone and products in ("fp8-block", "mxfp8") else 0)


@pytest.mark.parametrize("products", RECIPES)
def test_inputs_of_products_are_stored_in_one_byte(products):
    """Of N1, N2 and G, 6 h columns, one byte instead of two; a small copy of A beside A, which its gradient reads."""
    rows, layers, hidden = 2 * 16, 4, 64
    saved = bytes_by_kind()["activations"] - bytes_by_kind(products=products)["activations"]
    assert saved == layers * rows * hidden * (6 * (2 - 1) - 1)


@pytest.mark.parametrize(("products", "copies"), [("fp8", 1), ("fp8-delayed", 1), ("mxfp8", 2), ("fp8-block", 2)])
def test_activations_are_gathered_in_one_byte_for_each_copy(products, copies):
    grid = Grid(x=2)
    wide, small = (
        volumes(schedule_of(grid, scattered=True, products=name), Choices()).by_op for name in ("dtype", products)
    )
    assert small["QKV gather I"].sent_total * 2 == wide["QKV gather I"].sent_total
    of_gradient = [name for name in small if name.startswith("down gather dO")]
    assert len(of_gradient) == copies
    assert sum(small[name].sent_total for name in of_gradient) * 2 == copies * wide["down gather dO"].sent_total
    assert small["down scatter O"] == wide["down scatter O"]


@pytest.mark.parametrize(("products", "of_wide"), [("fp8", 2), ("nvfp4", 2), ("mxfp8", 1)])
def test_small_weights_are_gathered_over_data_where_one_copy_serves_both(products, of_wide):
    grid, name = Grid(data=2), "gather up W held"
    wide, small = (
        volumes(schedule_of(grid, zero=1, products=products, fp8_param_gather=alone), Choices()).by_op[name]
        for alone in (False, True)
    )
    assert small.sent_total * of_wide == wide.sent_total


def test_the_words_of_megatron_are_recipes():
    words = ("tensorwise", "delayed", "blockwise", "mxfp8", "NVFP4")
    assert [find_products(word) for word in words] == ["fp8", "fp8-delayed", "fp8-block", "mxfp8", "nvfp4"]


@pytest.mark.parametrize(
    ("options", "scheme", "line"),
    [
        ({"products": "fp8", "dtype": "float32"}, "4d", "products fp8 with dtype float32: accepted are bfloat16"),
        ({"products": "fp8", "sparsity": 0.5}, "4d", "products fp8 with sparsity: no schedule has both"),
        ({"fp8_param_gather": True}, "4d", "fp8 param gather with products dtype"),
        ({"products": "mxfp8"}, "optimus", "products mxfp8 with scheme optimus: its panels travel in the dtype"),
    ],
)
def test_what_no_schedule_has_is_refused(options, scheme, line):
    with pytest.raises(InputError, match=line):
        schedule_of(scheme=scheme, **options)
