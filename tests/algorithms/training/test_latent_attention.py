"""Latent attention (DeepSeek V2 and V3): trained as the serial reference trains it, which the absorbed form checks."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.architecture import LLAMA, Architecture
from quadrille.algorithms.training.flops import step_flops
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.runtime.training.serial_transformer import Masks, Transformer, attention, gpt_loss, rms_norm, rotated
from tests.support.gradients import check_gradients
from tests.support.trainings import check_training, schedule_of, total_flops, whole_matrices

ADAM = Adam(rate=0.03, decay=0.1, clip=0.05)
V2 = replace(LLAMA, key_rank=9, head_columns=6, rotary_columns=2, value_columns=4)
V3 = replace(V2, query_rank=7)
ARCHITECTURES = {"V2": V2, "V3": V3}


def gpt(architecture=V3, layers=2, batch=12, **given):
    given = {"dtype": "float64", "adam": ADAM, "inner": 14, **given}
    return Gpt(layers, 24, 6, 5, 17, batch, architecture=architecture, **given)


@pytest.mark.parametrize(
    ("architecture", "name", "grid"),
    [
        ("V2", "4d", Grid()),
        ("V2", "megatron", Grid(data=2, x=3)),
        ("V3", "4d", Grid(data=2, z=2, x=3, order=("z", "data", "y", "x"))),
        ("V3", "megatron", Grid(x=3)),
        ("V3", "optimus", Grid(z=2, x=3)),
        ("V3", "tesseract", Grid(z=3, y=2, x=2)),
        ("V3", "bian", Grid(z=2, y=2, x=3)),
    ],
    ids=str,
)
def test_every_scheme_trains_latent_attention_as_the_serial_run_does(architecture, name, grid):
    check_training(gpt(ARCHITECTURES[architecture], layers=1, steps=1), grid, find_scheme(name))


def test_scattered_rows_train_latent_attention_too():
    check_training(gpt(), Grid(data=2, x=3), find_scheme("megatron", sequence_parallel=True))


@pytest.mark.parametrize(
    ("name", "grid", "options"),
    [
        ("4d", Grid(data=2, z=2), {"zero": 1, "micro_batch": 1}),
        ("4d", Grid(data=2, x=3), {"zero": 2, "recompute": "full"}),
        ("4d", Grid(data=3, z=2), {"zero": 3, "gathered": "keep", "attention": "unfused"}),
        ("4d", Grid(y=2, x=2), {"attention": "unfused", "recompute": "selective", "dropout": 0.3}),
        ("4d", Grid(x=2), {"dropout": 0.3}),
        ("4d", Grid(pipeline=2, z=2, x=3), {"micro_batch": 2}),
        ("4d", Grid(pipeline=2, x=3), {"micro_batch": 2, "pipeline_schedule": "zb-h1", "layers": 4}),
        ("megatron", Grid(pipeline=2), {"micro_batch": 2, "interleave": 2, "layers": 4}),
        ("optimus", Grid(pipeline=2, z=2), {"micro_batch": 2, "zero": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_latent_attention_goes_together_with_what_else_a_step_may_be(name, grid, options):
    check_training(gpt(**options), grid, find_scheme(name))


@pytest.mark.parametrize("name", ["4d", "bian"])
def test_overlapped_communication_trains_latent_attention(name):
    check_training(gpt(), Grid(z=2, x=3), find_scheme(name), overlaps=OVERLAPS)


# The serial reference.


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_serial_gradients_are_slopes_of_the_loss(architecture):
    problem = gpt(ARCHITECTURES[architecture], batch=2)
    matrices = whole_matrices(schedule_of(problem, Grid()), problem.vocabulary)
    parameters = {name: value for name, value in matrices.items() if "step" not in name}
    tokens, targets = (matrices[f"{kind} step 0"].reshape(2, problem.sequence) for kind in ("tokens", "targets"))
    check_gradients(
        lambda held: gpt_loss(held, tokens, targets, problem.layers, problem.heads, problem.architecture), parameters
    )


def test_attention_equals_its_absorbed_form():
    """Keys and values are never projected up: queries and outputs meet the latents themselves, as in inference."""
    architecture, heads, sequence = V3, 3, 5
    random, suffix = np.random.default_rng(5), " layer 0"
    sizes = {
        "query down W": (8, 7), "query latent γ": (1, 7), "query up W": (7, heads * 6), "key down W": (8, 9),
        "key latent γ": (1, 9), "key up W": (9, heads * 8), "key rotary W": (8, 2),
    }  # fmt: skip
    p = {name + suffix: random.standard_normal(shape) for name, shape in sizes.items()}
    n = random.standard_normal((sequence, 8))
    qkv = Transformer(p, {}, sequence, heads, architecture, Masks()).projected(n, suffix)
    got = attention(qkv, sequence, heads, architecture)
    latent = rms_norm(n @ p["key down W" + suffix], p["key latent γ" + suffix])
    shared = rotated(n @ p["key rotary W" + suffix], architecture.rotary_base)
    queries = rms_norm(n @ p["query down W" + suffix], p["query latent γ" + suffix]) @ p["query up W" + suffix]
    later = np.triu(np.ones((sequence, sequence), bool), 1)
    for head in range(heads):
        q, up = queries[:, 6 * head : 6 * head + 6], p["key up W" + suffix][:, 8 * head : 8 * head + 8]
        scores = rotated(q[:, :2], architecture.rotary_base) @ shared.T + q[:, 2:] @ up[:, :4].T @ latent.T
        weights = np.exp(np.where(later, -np.inf, scores / np.sqrt(6)))
        weights /= weights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(got[:, 4 * head : 4 * head + 4], weights @ latent @ up[:, 4:], rtol=1e-10)


# What it costs.


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("attention_kind", ["fused", "unfused"])
def test_a_schedule_has_the_parameters_of_its_shape_and_the_flops_of_the_formula(architecture, attention_kind):
    problem = gpt(architecture, layers=3, attention=attention_kind)
    schedule = schedule_of(problem, Grid())
    held = storage(schedule, schedule.coordinates(0), Choices())
    assert sum(held.tensors[name] * held.copies[name] for name in schedule.state) == problem.shape.parameters
    assert total_flops(schedule) == step_flops(problem.shape, problem.batch, attention_kind).hardware


def test_tensor_ranks_sum_latents_and_not_hidden_rows():
    """Down projections are replicated: gradients of latents are summed over x; no hidden row is, but of other parts."""
    sent = volumes(schedule_of(gpt(), Grid(x=3), find_scheme("megatron")), Choices()).by_op
    latents = {op: sent[op].sent_total for op in sent if op.startswith(("query", "key")) and sent[op].sent_total}
    rows, ring = 12 * 5 * 8 * 2, 2 * 2
    assert latents == {
        "query up sum dI": rows * 7 * ring,
        "key up sum dI": rows * 9 * ring,
        "key rotary sum dO": rows * 2 * ring,
    }


# What is refused.


@pytest.mark.parametrize(
    ("traits", "said"),
    [
        ({"value_columns": 0}, "key_rank 9: needs value_columns, a whole number from 1"),
        ({"rotary_columns": 3}, "rotary_columns 3: an even number below head_columns = 6"),
        ({"rotary_columns": 6}, "rotary_columns 6: an even number below head_columns = 6"),
        ({"key_heads": 2}, "latent attention needs key_heads=0"),
        ({"biases": True}, "latent attention needs biases=no"),
        ({"qk_norm": "head"}, "latent attention needs qk_norm=none"),
        ({"positions": "none"}, "latent attention needs positions=rotary"),
        ({"key_rank": 0}, "rotary_columns 2: needs key_rank"),
    ],
)
def test_what_contradicts_latent_attention_is_refused_in_one_line(traits, said):
    with pytest.raises(InputError) as refused:
        Architecture(**{name: getattr(V2, name) for name in V2.options} | traits)
    assert said in str(refused.value) and "\n" not in str(refused.value)
