"""Parallel branches, sinks, gated attention and clamped gates: trained as the serial reference trains them."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.architecture import LLAMA, Architecture
from quadrille.algorithms.training.flops import step_flops
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.runtime.kernels.kernel_arguments import KernelArguments
from quadrille.runtime.kernels.layer_kernels import carry_out
from quadrille.runtime.training.serial_transformer import (
    attention,
    clamped_swiglu,
    clamped_swiglu_gradient,
    gpt_loss,
)
from tests.support.gradients import check_gradients
from tests.support.trainings import check_training, schedule_of, total_flops, whole_matrices

ADAM = Adam(rate=0.03, decay=0.1, clip=0.05)
GPT_OSS = replace(LLAMA, key_heads=3, biases=True, head_columns=6, sinks=True, window=3, global_every=2, gate="clamped")
QWEN3_NEXT = replace(LLAMA, key_heads=3, head_columns=8, rotary_share=0.25, qk_norm="head", gated_attention=True)
NEOX = Architecture(positions="rotary", shared_table=False, rotary_share=0.5, branches="parallel")
PHI = replace(NEOX, branches="shared")
LATENT = replace(LLAMA, key_rank=9, head_columns=6, rotary_columns=2, value_columns=4, sinks=True, gated_attention=True)
FAMILIES = {"gpt-oss": GPT_OSS, "qwen3-next": QWEN3_NEXT, "neox": NEOX, "phi": PHI, "latent": LATENT}


def gpt(architecture, layers=2, batch=12, **given):
    given = {"dtype": "float64", "adam": ADAM, "inner": 14, **given}
    return Gpt(layers, 24, 6, 5, 17, batch, architecture=architecture, **given)


@pytest.mark.parametrize(
    ("family", "name", "grid"),
    [
        ("gpt-oss", "4d", Grid(data=2, z=2, y=2, x=3)),
        ("gpt-oss", "bian", Grid(z=2, y=2, x=3)),
        ("qwen3-next", "4d", Grid(y=2, x=3)),
        ("neox", "4d", Grid(z=2, y=2)),
        ("phi", "optimus", Grid(z=2, x=2)),
        ("phi", "megatron", Grid(x=3)),
        ("latent", "4d", Grid(y=2, x=3)),
    ],
    ids=str,
)
def test_every_family_trains_as_the_serial_run_does(family, name, grid):
    check_training(gpt(FAMILIES[family], steps=2), grid, find_scheme(name))


@pytest.mark.parametrize("family", ["gpt-oss", "qwen3-next", "neox", "phi"])
def test_scattered_rows_train_a_family_too(family):
    check_training(gpt(FAMILIES[family]), Grid(x=3), find_scheme("megatron", sequence_parallel=True))


@pytest.mark.parametrize(
    ("family", "grid", "options"),
    [
        ("gpt-oss", Grid(data=2, z=2), {"zero": 3, "micro_batch": 1, "dropout": 0.3}),
        ("gpt-oss", Grid(pipeline=2), {"micro_batch": 2, "pipeline_schedule": "zb-h1", "layers": 4}),
        ("phi", Grid(pipeline=2), {"micro_batch": 2, "pipeline_schedule": "zb-h1", "layers": 4}),
        ("neox", Grid(x=2), {"recompute": "full", "dropout": 0.3}),
        ("qwen3-next", Grid(data=2, x=3), {"zero": 1, "attention": "unfused", "recompute": "selective"}),
    ],
    ids=str,
)
def test_a_family_goes_together_with_what_else_a_step_may_be(family, grid, options):
    check_training(gpt(FAMILIES[family], **options), grid)


def test_clamped_gates_have_no_slope_beyond_their_limits():
    """Kernels and serial functions on numbers that pass the limit of 7; slopes from difference quotients."""
    random = np.random.default_rng(9)
    x, g = random.uniform(-20, 20, (8, 10)), random.standard_normal((8, 5))
    out, gradient = np.empty((8, 5)), np.empty((8, 10))
    carry_out("clamped_swiglu", KernelArguments(np, (out,), (), (x,), (), {}, 0))
    carry_out("clamped_swiglu_gradient", KernelArguments(np, (gradient,), (), (x, g), (), {}, 0))
    np.testing.assert_allclose(out, clamped_swiglu(x), rtol=1e-12)
    np.testing.assert_allclose(gradient, clamped_swiglu_gradient(x, g), rtol=1e-12, atol=1e-300)
    assert (gradient == 0).sum() > 20
    for column in range(10):
        step = np.where(np.arange(10) == column, 1e-6, 0.0)
        slope = (g * (clamped_swiglu(x + step) - clamped_swiglu(x - step))).sum(axis=1) / 2e-6
        np.testing.assert_allclose(slope, gradient[:, column], rtol=1e-5, atol=1e-6)


# The serial reference.


@pytest.mark.parametrize("family", FAMILIES)
def test_serial_gradients_are_slopes_of_the_loss(family):
    problem = gpt(FAMILIES[family], batch=2)
    matrices = whole_matrices(schedule_of(problem, Grid()), problem.vocabulary)
    parameters = {name: 0.6 * value for name, value in matrices.items() if "step" not in name}  # gentle curvature
    tokens, targets = (matrices[f"{kind} step 0"].reshape(2, problem.sequence) for kind in ("tokens", "targets"))
    check_gradients(
        lambda held: gpt_loss(held, tokens, targets, problem.layers, problem.heads, FAMILIES[family]), parameters
    )


def test_a_sink_is_a_token_before_all_others_with_a_value_of_zero():
    """A first token whose key gives every query the sink's score, and whose value is zero."""
    random, head, sink = np.random.default_rng(3), 4, 0.7
    qkv = random.standard_normal((6, 3 * head))
    qkv[:, 0] = 1.0
    first = np.zeros((1, 3 * head))
    first[0, head] = sink * np.sqrt(head)
    with_token = attention(np.vstack([first, qkv]), 7, 1)
    with_sink = attention(qkv, 6, 1, Architecture(sinks=True), sinks=np.array([sink]))
    np.testing.assert_allclose(with_sink, with_token[1:], rtol=1e-12)


# What it costs.


@pytest.mark.parametrize("family", FAMILIES)
def test_a_schedule_has_the_parameters_of_its_shape_and_the_flops_of_the_formula(family):
    problem = gpt(FAMILIES[family], layers=3)
    schedule = schedule_of(problem, Grid())
    held = storage(schedule, schedule.coordinates(0), Choices())
    assert sum(held.tensors[name] * held.copies[name] for name in schedule.state) == problem.shape.parameters
    assert total_flops(schedule) == step_flops(problem.shape, problem.batch).hardware


# What is refused.


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: gpt(GPT_OSS, attention="unfused"), "attention 'unfused': a model with attention sinks accepts fused"),
        (lambda: Architecture(branches="both"), "branches 'both': accepted are serial, parallel, shared"),
        (lambda: Architecture(branches="shared", norm_place="after"), "branches shared: needs norm_place=before"),
        (lambda: Architecture(gate="clamped"), "gate clamped: needs gated=yes"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(wrong, said):
    with pytest.raises(InputError) as refused:
        wrong()
    assert said in str(refused.value) and "\n" not in str(refused.value)
