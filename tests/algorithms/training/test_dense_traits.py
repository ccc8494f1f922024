"""The traits of Qwen, Gemma, OLMo, Mistral and Phi, alone and together: trained as the serial reference trains them."""

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
from quadrille.algorithms.training.architecture import LLAMA, PLAIN, Architecture
from quadrille.algorithms.training.flops import step_flops
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.runtime.training.serial_transformer import Masks, Transformer, attention, gpt_loss
from tests.support.gradients import check_gradients
from tests.support.trainings import check_training, schedule_of, total_flops, whole_matrices

ADAM = Adam(rate=0.03, decay=0.1, clip=0.05)
QWEN2 = replace(LLAMA, key_heads=3, qkv_biases=True)
QWEN3 = replace(LLAMA, key_heads=3, qk_norm="head", head_columns=6)
GEMMA2 = replace(
    LLAMA,
    key_heads=3,
    head_columns=6,
    shared_table=True,
    scaled_embedding=True,
    gate="gelu",
    norm_place="both",
    window=3,
    global_every=2,
    score_cap=0.7,
    score_columns=5.0,
    logit_cap=0.9,
)
GEMMA3 = replace(
    GEMMA2, score_cap=0.0, logit_cap=0.0, qk_norm="head", global_every=3, rotary_base=90.0, local_rotary_base=7.0
)
OLMO2 = replace(LLAMA, key_heads=3, norm_place="after", qk_norm="row")
PHI = replace(LLAMA, key_heads=3, rotary_share=0.5, window=2)
FAMILIES = {"qwen2": QWEN2, "qwen3": QWEN3, "gemma2": GEMMA2, "gemma3": GEMMA3, "olmo2": OLMO2, "phi": PHI}
TRAITS = {
    "narrow heads": Architecture(head_columns=2),
    "wide heads of keys": Architecture(head_columns=10, key_heads=3),
    "norm of heads": Architecture(qk_norm="head", key_heads=3),
    "norm of rows": Architecture(qk_norm="row", key_heads=3),
    "norms after": Architecture(norm_place="after"),
    "norms before and after": Architecture(norm_place="both", norm="rms"),
    "geglu": Architecture(gated=True, gate="gelu"),
    "window": Architecture(window=2),
    "windows in two of three layers": Architecture(window=2, global_every=3),
    "two bases": Architecture(positions="rotary", window=9, global_every=2, rotary_base=900.0, local_rotary_base=3.0),
    "capped scores": Architecture(score_cap=0.3),
    "scaled scores": Architecture(score_columns=9.0),
    "capped logits": Architecture(logit_cap=0.5),
    "scaled embedding": Architecture(scaled_embedding=True),
    "half of a head rotated": Architecture(positions="rotary", rotary_share=0.5),
    "biases of QKV": Architecture(biases=False, qkv_biases=True),
}


def gpt(architecture, layers=3, batch=12, **given):
    given = {"dtype": "float64", "adam": ADAM, "inner": 14, **given}
    return Gpt(layers, 24, 6, 5, 17, batch, architecture=architecture, **given)


@pytest.mark.parametrize("trait", TRAITS)
def test_every_trait_alone_equals_serial(trait):
    check_training(gpt(TRAITS[trait], layers=TRAITS[trait].global_every or 2, steps=1), Grid(y=2, x=3))


@pytest.mark.parametrize("trait", ["norms before and after", "capped scores"])
@pytest.mark.parametrize("attention", ["fused", "unfused"])
def test_dropout_and_stored_weights_keep_a_trait_equal_to_serial(trait, attention):
    recompute = "selective" if attention == "unfused" else "none"
    check_training(gpt(TRAITS[trait], steps=1, dropout=0.3, attention=attention, recompute=recompute), Grid(x=2))


@pytest.mark.parametrize("family", ["gemma3", "olmo2"])
@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("4d", Grid(data=2, z=2, x=3, order=("z", "data", "y", "x"))),
        ("megatron", Grid(data=2, x=3)),
        ("optimus", Grid(z=2, x=3)),
        ("tesseract", Grid(z=2, y=2, x=3)),
        ("bian", Grid(z=2, y=2, x=3)),
    ],
    ids=str,
)
def test_every_scheme_trains_norms_of_heads_and_of_rows_as_the_serial_run_does(family, name, grid):
    check_training(gpt(FAMILIES[family], steps=1), grid, find_scheme(name))


@pytest.mark.parametrize("family", ["gemma3", "olmo2"])
def test_scattered_rows_train_a_family_too(family):
    check_training(gpt(FAMILIES[family]), Grid(data=2, x=3), find_scheme("megatron", sequence_parallel=True))


@pytest.mark.parametrize(
    ("family", "name", "grid", "options"),
    [
        ("qwen2", "4d", Grid(data=2, z=2), {"zero": 1, "micro_batch": 1}),
        ("gemma2", "4d", Grid(data=2, x=3), {"zero": 2, "recompute": "full"}),
        ("olmo2", "4d", Grid(data=2, x=3), {"zero": 2, "recompute": "full"}),
        ("gemma3", "4d", Grid(data=3, z=2), {"zero": 3, "gathered": "keep", "attention": "unfused"}),
        ("phi", "4d", Grid(pipeline=2, z=2, x=3), {"micro_batch": 2}),
        ("gemma2", "4d", Grid(pipeline=2), {"micro_batch": 2, "interleave": 2, "layers": 4}),
        ("gemma3", "4d", Grid(pipeline=2, x=3), {"micro_batch": 2, "pipeline_schedule": "zb-h1", "layers": 4}),
        ("olmo2", "4d", Grid(pipeline=2, x=3), {"micro_batch": 2, "pipeline_schedule": "zb-h1", "layers": 4}),
        ("gemma2", "4d", Grid(pipeline=2), {"micro_batch": 2, "pipeline_schedule": "zb-v", "layers": 4}),
        ("qwen3", "megatron", Grid(pipeline=3, x=3), {"micro_batch": 2, "layers": 4}),
        ("gemma3", "optimus", Grid(pipeline=2, z=2), {"micro_batch": 2, "zero": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_every_family_goes_together_with_what_else_a_step_may_be(family, name, grid, options):
    check_training(gpt(FAMILIES[family], **options), grid, find_scheme(name))


@pytest.mark.parametrize(("family", "name"), [("gemma2", "4d"), ("olmo2", "4d"), ("gemma3", "bian")])
def test_overlapped_communication_trains_a_family(family, name):
    grid = Grid(z=2, x=3) if name == "4d" else Grid(y=2, x=3)
    check_training(gpt(FAMILIES[family]), grid, find_scheme(name), overlaps=OVERLAPS)


# The serial reference.


@pytest.mark.parametrize("family", FAMILIES)
def test_serial_gradients_are_slopes_of_the_loss(family):
    problem = gpt(FAMILIES[family], batch=2)
    matrices = whole_matrices(schedule_of(problem, Grid()), problem.vocabulary)
    parameters = {name: value for name, value in matrices.items() if "step" not in name}
    tokens, targets = (matrices[f"{kind} step 0"].reshape(2, problem.sequence) for kind in ("tokens", "targets"))
    check_gradients(
        lambda held: gpt_loss(held, tokens, targets, problem.layers, problem.heads, FAMILIES[family]), parameters
    )


def test_a_token_sees_its_window_and_no_more():
    """A change of a value reaches the tokens of the window after it, in the layers with a window alone."""
    architecture = Architecture(window=3, global_every=2)
    random = np.random.default_rng(7)
    qkv = random.standard_normal((9, 3 * 4))
    changed = qkv.copy()
    changed[2, 8:] += 1.0
    for layer, reached in ((0, [2, 3, 4]), (1, [2, 3, 4, 5, 6, 7, 8]), (2, [2, 3, 4])):
        before, after = (attention(x, 9, 1, architecture, layer=layer) for x in (qkv, changed))
        assert [row for row in range(9) if not np.allclose(before[row], after[row])] == reached


def test_norms_of_queries_and_keys_have_root_mean_square_one():
    """The norm of a head is of a head's columns, the norm of a row of all queries or all keys together."""
    for norm, heads_together in (("head", 1), ("row", 6)):
        problem = gpt(Architecture(qk_norm=norm, key_heads=3), layers=1)
        schedule = schedule_of(problem, Grid())
        kept = {name: np.ones(matrix.shape) for name, matrix in whole_matrices(schedule, 17).items() if "γ" in name}
        model = Transformer(kept, {}, 5, 6, problem.architecture, Masks())
        qkv = np.random.default_rng(11).standard_normal((4, 3 * 4 * 4))
        normalised = model.query_key_norm(qkv, " layer 0").reshape(4, 3, 4, 4)
        queries = normalised[:, :, :2].reshape(4, 6 // heads_together, -1)
        np.testing.assert_allclose((queries**2).mean(axis=2), 1, rtol=1e-3)
        assert np.array_equal(normalised[:, :, 3], qkv.reshape(4, 3, 4, 4)[:, :, 3])


# What it costs.


@pytest.mark.parametrize("architecture", [*TRAITS.values(), *FAMILIES.values()], ids=[*TRAITS, *FAMILIES])
def test_a_schedule_has_the_parameters_of_its_shape_and_the_flops_of_the_formula(architecture):
    problem = gpt(architecture, layers=5)
    schedule = schedule_of(problem, Grid())
    held = storage(schedule, schedule.coordinates(0), Choices())
    assert sum(held.tensors[name] * held.copies[name] for name in schedule.state) == problem.shape.parameters
    assert total_flops(schedule) == step_flops(problem.shape, problem.batch).hardware


def test_a_window_of_the_whole_sequence_is_no_window():
    assert schedule_of(gpt(Architecture(window=5)), Grid()) == schedule_of(gpt(PLAIN), Grid())


def test_only_the_norm_of_rows_communicates():
    sent = {
        trait: volumes(schedule_of(gpt(TRAITS[trait]), Grid(x=3)), Choices()).by_op
        for trait in ("norm of heads", "norm of rows")
    }
    assert not [op for op in sent["norm of heads"] if op.startswith("QK norm")]
    assert sent["norm of rows"]["QK norm sum moments"].sent_total == 12 * 5 * 2 * 8 * 2 * 2 * 3


# What is refused.


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Architecture(head_columns=-1), "head_columns -1: a whole number from 0"),
        (lambda: Architecture(qk_norm="layer"), "qk_norm 'layer': accepted are none, head, row"),
        (lambda: Architecture(gate="gelu"), "gate gelu: needs gated=yes"),
        (lambda: Architecture(qkv_biases=True), "qkv_biases True: needs biases=no"),
        (lambda: Architecture(global_every=2), "global_every 2: needs window"),
        (lambda: Architecture(rotary_share=0.5), "rotary_share 0.5: needs positions=rotary"),
        (lambda: Architecture(positions="rotary", rotary_share=1.5), "rotary_share 1.5: a number above 0 and up to 1"),
        (lambda: Architecture(score_cap=-1.0), "score_cap -1.0: a number from 0"),
        (lambda: Architecture(norm_place="between"), "norm_place 'between': accepted are before, after, both"),
        (lambda: gpt(Architecture(positions="rotary", rotary_share=0.25)), "0.25 of 4 columns is 1: an even number"),
        (lambda: Gpt(1, 10, 4, 3, 17, 4), "heads 4: a number that divides hidden = 10"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(wrong, said):
    with pytest.raises(InputError) as refused:
        wrong()
    assert said in str(refused.value) and "\n" not in str(refused.value)
