"""Attention and recomputation: the same results, the memory of Korthikanti's formulas, flop and bytes of repeats."""

import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.volumes import flops, volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.flops import step_flops
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.recompute import RECOMPUTES, find_attention, find_recompute
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from tests.support.pairs import pairs
from tests.support.trainings import check_training

FORMS = ["repeated", "sequences scattered", "rows scattered"]
PAIRS = [(attention, recompute) for attention in ("fused", "unfused") for recompute in RECOMPUTES]
H, A, S, B = 24, 4, 7, 6
"""Hidden size, heads, sequence, batch."""


def gpt(attention="fused", recompute="none", layers=2, **given):
    return Gpt(layers, H, A, S, 19, B, attention=attention, recompute=recompute, **given)


def schedule_of(problem, grid, form="repeated"):
    return gpt_schedule(problem, grid, Scheme4D(activations=form))


CASES = [
    (Grid(), "repeated", "again"),
    (Grid(z=2, x=2), "repeated", "again"),
    (Grid(z=2, x=2), "rows scattered", "keep"),
    (Grid(z=3, y=2), "sequences scattered", "again"),
]
"""A grid, the form of the activations, and whether gathered weights are kept."""


@pytest.mark.parametrize(
    ("case", "attention", "recompute"), pairs(CASES, ["fused", "unfused"], list(RECOMPUTES)), ids=str
)
def test_a_step_equals_the_serial_one(case, attention, recompute):
    grid, form, gathered = case
    adam = Adam(clip=0.5, rate=0.01)
    problem = gpt(attention, recompute, dtype="float64", steps=2, gathered=gathered, adam=adam)
    check_training(problem, grid, Scheme4D(activations=form))


SCHEMES = [
    ("megatron", {}, Grid(data=2, x=2)),
    ("megatron", {"sequence_parallel": True}, Grid(data=2, x=2)),
    ("megatron", {"sequence_parallel": True}, Grid(pipeline=2, x=2)),
    ("optimus", {}, Grid(z=2, x=2)),
    ("bian", {}, Grid(z=2, x=2)),
]
"""A scheme, its options, and a grid."""


@pytest.mark.parametrize(
    ("scheme", "attention", "recompute"), pairs(SCHEMES, ["fused", "unfused"], list(RECOMPUTES)), ids=str
)
def test_a_step_of_every_scheme_equals_the_serial_one(scheme, attention, recompute):
    name, options, grid = scheme
    problem = gpt(attention, recompute, dtype="float64", micro_batch=3 if grid.pipeline > 1 else None)
    check_training(problem, grid, find_scheme(name, **options))


def kept_of_a_layer(pair, grid, form):
    """Bytes of activations that rank 0 keeps for each layer, and how many layers keep them."""
    sizes = []
    for layers in (2, 3):
        schedule = schedule_of(gpt(*pair, layers, dtype="bfloat16"), grid, form)
        kept = storage(schedule, schedule.coordinates(0), Choices())
        batch = [name for name in kept.tensors if schedule.tensors[name].rows.dimension == "batch"]
        sizes.append(sum(kept.tensors[name] * kept.copies[name] * kept.item_bytes[name] for name in batch))
    return sizes[1] - sizes[0]


def korthikanti(recompute, t, *, scattered):
    """Bytes of a layer's activations on t tensor-parallel ranks.

    Source: Korthikanti et al., arXiv 2205.05198, sections 4 and 5.
    """
    sbh, scores = S * B * H, 5 * A * S * S * B
    match recompute:
        case "none":
            return (34 * sbh + scores) / t if scattered else sbh * (10 + 24 / t) + scores / t
        case "selective":
            return 34 * sbh / t if scattered else sbh * (10 + 24 / t)
        case _:
            return 2 * sbh / t if scattered else 2 * sbh


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("form", ["repeated", "rows scattered"])
@pytest.mark.parametrize(("attention", "recompute"), PAIRS)
def test_activations_take_the_bytes_of_korthikantis_formulas(attention, recompute, form, t):
    """Fused attention stores what selective recomputation stores, and the logarithms of the row sums."""
    scattered = form == "rows scattered"
    stored = "selective" if (attention, recompute) == ("fused", "none") else recompute
    expected = korthikanti(stored, t, scattered=scattered)
    if stored != "full":
        # There is no dropout: no two masks of one byte, and of attention's 5 bytes only the 2 of the weights.
        # What the formulas leave out as small is kept: two moments of every row of both normalisations, in
        # float32, and attention's logarithms, one of each row and head.
        rows = S * B / (t if scattered else 1)
        expected += 2 * rows * 2 * 4 - 2 * rows * H
        expected -= 3 * A * S * S * B / t if stored == "none" else 0
        expected += 2 * S * B * A / t if attention == "fused" else 0
    assert kept_of_a_layer((attention, recompute), Grid(x=t), form) == expected


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_attention_weights_that_run_again_have_one_buffer_for_all_layers(recompute):
    for layers in (2, 5):
        schedule = schedule_of(gpt("unfused", recompute, layers), Grid(x=2))
        kept = storage(schedule, schedule.coordinates(0), Choices())
        assert (kept.tensors["attention weights"], kept.copies["attention weights"]) == (B * A // 2 * S * S, 1)


def test_selective_recomputation_changes_nothing_of_fused_attention():
    for grid in (Grid(), Grid(z=2, y=2, x=2), Grid(pipeline=2, x=2)):
        none, selective = (schedule_of(gpt("fused", word), grid) for word in ("none", "selective"))
        assert none == selective


@pytest.mark.parametrize("attention", ["fused", "unfused"])
@pytest.mark.parametrize("recompute", RECOMPUTES)
def test_hardware_flops_are_those_that_the_schedule_computes(attention, recompute):
    problem = gpt(attention, recompute)
    schedule = schedule_of(problem, Grid())
    assert step_flops(problem.shape, B, attention, recompute).hardware == flops(schedule, schedule.coordinates(0))


@pytest.mark.parametrize("attention", ["fused", "unfused"])
def test_full_recomputation_multiplies_every_layer_again(attention):
    plain, again = (schedule_of(gpt(attention, word), Grid()) for word in ("none", "full"))
    forward = 24 * B * S * H * H + 2 * B * S * S * H  # half of the two square products: attention is causal
    assert flops(again, again.coordinates(0)) - flops(plain, plain.coordinates(0)) == 2 * forward


def test_selective_recomputation_runs_unfused_attention_again():
    none, selective = (schedule_of(gpt("unfused", word), Grid()) for word in ("none", "selective"))
    assert flops(selective, selective.coordinates(0)) - flops(none, none.coordinates(0)) == 2 * 2 * B * S * S * H
    names = [op.name for op in all_ops(selective)]
    assert names.index("again attention") + 1 == names.index("attention gradient")


def test_fused_attention_makes_the_scores_again():
    unfused, fused = (schedule_of(gpt(word), Grid()) for word in ("unfused", "fused"))
    assert flops(fused, fused.coordinates(0)) - flops(unfused, unfused.coordinates(0)) == 2 * B * S * S * H


@pytest.mark.parametrize("form", FORMS)
def test_full_recomputation_sums_twice_and_gathers_weights_as_often_as_before(form):
    grid = Grid(z=2, y=2, x=2)
    plain, again = (volumes(schedule_of(gpt("fused", word), grid, form), Choices()).by_op for word in ("none", "full"))

    def sent(by_op, *words):
        return sum(volume.sent_total for name, volume in by_op.items() if all(word in name for word in words))

    assert sent(again, "gather W") == sent(plain, "gather W") > 0
    assert sent(again, "scatter dW") == sent(plain, "scatter dW") > 0
    word = "sum O" if form == "repeated" else "scatter O"
    assert sent(again, word) == 2 * sent(plain, word) > 0


def test_what_the_second_run_gathers_serves_the_backward_pass():
    names = [op.name for op in all_ops(schedule_of(gpt(recompute="full"), Grid(z=2)))]
    assert "again up gather W" in names
    assert "up gather W again" not in names
    kept = [op.name for op in all_ops(schedule_of(gpt(recompute="full", gathered="keep"), Grid(z=2)))]
    assert "again up gather W" not in kept
    assert "again up multiply" in kept


def test_an_unknown_word_is_refused_with_those_accepted():
    with pytest.raises(InputError, match="attention 'flash': accepted are fused, unfused"):
        find_attention("flash")
    with pytest.raises(InputError, match="attention 'flash'"):
        gpt("flash")
    with pytest.raises(InputError, match="recompute 'some': accepted are none, selective, full"):
        find_recompute("some")
