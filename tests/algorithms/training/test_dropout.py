"""Dropout: steps equal the serial ones on every grid, masks take the bytes of Korthikanti's formulas."""

import re

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.bands import in_bands
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Kernel
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.architecture import Architecture
from quadrille.algorithms.training.dropout import Dropout
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.recompute import RECOMPUTES
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.runtime.training.serial_transformer import gpt_loss
from tests.support.gradients import check_gradients
from tests.support.pairs import pairs
from tests.support.trainings import assembled, bits, check_training, schedule_of, trained, whole_matrices

H, A, S, B = 24, 4, 6, 8
"""Hidden size, heads, sequence, batch."""
ADAM = Adam(rate=0.01, clip=0.5)


def gpt(dropout=0.3, layers=2, **given):
    return Gpt(layers, H, A, S, 19, B, **{"dtype": "float64", "steps": 2, "adam": ADAM, "dropout": dropout, **given})


GRIDS = [
    (Grid(), None, "repeated"),
    (Grid(), 2, "repeated"),
    (Grid(z=2, y=2, x=2), None, "repeated"),
    (Grid(data=2, x=2), 2, "rows scattered"),
    (Grid(z=2, x=2), None, "sequences scattered"),
]
"""A grid, sequences of a microbatch, and the form of the activations."""


@pytest.mark.parametrize(("case", "recompute", "attention"), pairs(GRIDS, list(RECOMPUTES), ["fused", "unfused"]))
def test_a_step_with_dropout_equals_the_serial_one(case, recompute, attention):
    """Of the full product, combinations in which every two values meet."""
    grid, micro_batch, form = case
    problem = gpt(attention=attention, recompute=recompute, micro_batch=micro_batch)
    check_training(problem, grid, Scheme4D(activations=form))


@pytest.mark.parametrize(
    ("name", "options", "grid", "more"),
    [
        ("megatron", {"sequence_parallel": True}, Grid(pipeline=2, x=2), {"micro_batch": 2}),
        ("megatron", {}, Grid(data=2, x=2), {"zero": 1, "micro_batch": 1}),
        ("megatron", {}, Grid(pipeline=2, data=2), {"layers": 4, "interleave": 2, "micro_batch": 2}),
        ("optimus", {}, Grid(z=2, x=2), {}),
        ("tesseract", {}, Grid(z=2, x=2, y=2), {}),
        ("bian", {}, Grid(z=2, x=2), {"attention": "unfused"}),
        ("4d", {}, Grid(data=2, z=2), {"zero": 3, "micro_batch": 1}),
    ],
    ids=str,
)
def test_dropout_goes_together_with_every_scheme(name, options, grid, more):
    check_training(gpt(**more), grid, find_scheme(name, **options))


@pytest.mark.parametrize("attention", ["fused", "unfused"])
def test_dropout_of_grouped_queries_with_rotary_positions_equals_the_serial_one(attention):
    architecture = Architecture(key_heads=2, positions="rotary", norm="rms", gated=True, biases=False)
    check_training(gpt(attention=attention, architecture=architecture), Grid(z=2, x=2))


@pytest.mark.parametrize(("dropout", "attention_dropout"), [(0.0, 0.4), (0.4, 0.0)])
def test_hidden_states_and_attention_weights_may_be_dropped_alone(dropout, attention_dropout):
    problem = gpt(dropout, attention_dropout=attention_dropout)
    check_training(problem, Grid(z=2, x=2))
    functions = {op.function for op in kernels_of(schedule_of(problem, Grid()))}
    assert ("dropout" in functions) == bool(dropout)


def kernels_of(schedule):
    return [op for op in all_ops(schedule) if isinstance(op, Kernel)]


@pytest.mark.parametrize("overlaps", [("oar",), ("oar", "ors", "oag")])
def test_overlaps_change_no_bit_of_a_step_with_dropout(overlaps):
    schedule = schedule_of(gpt(), Grid(z=2, x=2))
    matrices = whole_matrices(schedule, 19)
    plain = bits(trained(schedule, matrices))
    assert bits(trained(overlap(schedule, overlaps), matrices)) == plain
    banded = bits(trained(overlap(in_bands(schedule, 2, least_rows=1), overlaps), matrices))
    for key, expected in plain.items():
        np.testing.assert_allclose(np.frombuffer(banded[key]), np.frombuffer(expected), rtol=1e-9, atol=1e-11)


def test_steps_differ_in_their_masks_and_runs_do_not():
    """The same batch in every step, with a learning rate that moves nothing: only the masks change the loss."""
    problem = gpt(steps=3, adam=Adam(rate=1e-300))
    schedule = schedule_of(problem, Grid())
    matrices = whole_matrices(schedule, 19)
    for kind in ("tokens", "targets"):
        for step in (1, 2):
            matrices[f"{kind} step {step}"] = matrices[f"{kind} step 0"]
    losses = [
        [float(loss[0, 0]) for loss in assembled(schedule, "loss", trained(schedule, matrices).outputs).values()]
        for _ in range(2)
    ]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 3


def test_serial_gradients_with_dropout_are_slopes_of_the_loss():
    matrices = whole_matrices(schedule_of(gpt(steps=1), Grid()), 19)
    parameters = {name: value for name, value in matrices.items() if not name.startswith(("tokens", "targets"))}
    tokens, targets = (np.random.default_rng(3).integers(0, 19, (2, S)) for _ in range(2))
    check_gradients(lambda held: gpt_loss(held, tokens, targets, 2, A, dropout=Dropout(0.3, 0.2), step=1), parameters)


def stored_bytes_of_a_layer(grid, form, **given):
    """Bytes of activations that rank 0 stores for each layer."""
    sizes = []
    for layers in (2, 3):
        problem = gpt(layers=layers, dtype="bfloat16", steps=1, **given)
        schedule = schedule_of(problem, grid, Scheme4D(activations=form))
        buffers = storage(schedule, schedule.coordinates(0), Choices())
        rows = [name for name in buffers.tensors if schedule.tensors[name].rows.dimension == "batch"]
        sizes.append(sum(buffers.tensors[name] * buffers.copies[name] * buffers.item_bytes[name] for name in rows))
    return sizes[1] - sizes[0]


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize(("attention", "recompute"), [("unfused", "none"), ("unfused", "selective"), ("fused", "none")])
def test_activations_with_dropout_take_the_bytes_of_korthikantis_formulas(attention, recompute, t):
    """(34 s b h + 5 a s² b) / t with rows scattered over t ranks, without scores 34 s b h / t.

    Moments of the normalisations (8 bytes of a row) and fused attention's logarithms (2 bytes of a row and head) come
    on top, which the formulas leave out.

    Source: Korthikanti et al., arXiv 2205.05198, sections 4 and 5.
    """
    scores = 5 * A * S * S * B if (attention, recompute) == ("unfused", "none") else 0
    formula = (34 * S * B * H + scores) / t
    left_out = 2 * (S * B / t) * 8 + (2 * S * B * A / t if attention == "fused" else 0)
    stored = stored_bytes_of_a_layer(Grid(x=t), "rows scattered", attention=attention, recompute=recompute)
    assert stored == formula + left_out


@pytest.mark.parametrize(
    ("attention", "masks"), [("fused", 2 * S * B * H), ("unfused", 2 * S * B * H + 3 * A * S * S * B)]
)
def test_masks_are_counted_where_there_is_dropout_alone(attention, masks):
    with_dropout, without = (
        stored_bytes_of_a_layer(Grid(), "repeated", attention=attention, dropout=share) for share in (0.1, 0.0)
    )
    assert with_dropout - without == masks


def test_without_dropout_the_schedule_has_no_masks():
    schedule = schedule_of(gpt(0.0), Grid(z=2))
    assert not [name for name in schedule.tensors if "mask" in name]
    assert not [op.name for op in kernels_of(schedule) if "dropout" in dict(op.scalars) or op.function == "dropout"]


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused_in_one_line(share):
    with pytest.raises(InputError, match=re.escape(f"dropout {share}: a number from 0 and below 1")) as refused:
        gpt(share)
    assert "\n" not in str(refused.value)
