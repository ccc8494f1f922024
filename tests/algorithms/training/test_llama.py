"""Llama and each of its traits alone: trained as the serial reference trains them, under every scheme and option."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.overlap import OVERLAPS, overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Kernel
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.architecture import LLAMA, PLAIN, Architecture
from quadrille.algorithms.training.flops import step_flops
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.runtime.training.serial_transformer import gpt_loss
from tests.support.gradients import check_gradients
from tests.support.trainings import check_training, schedule_of, total_flops, trained, whole_matrices

ADAM = Adam(rate=0.03, decay=0.1, clip=0.05)
GROUPED = replace(LLAMA, key_heads=3)
TRAITS = {
    "gated": Architecture(gated=True),
    "rms": Architecture(norm="rms"),
    "no biases": Architecture(biases=False),
    "groups": Architecture(key_heads=3),
    "one key": Architecture(key_heads=1),
    "rotary": Architecture(positions="rotary", rotary_base=7.0),
    "no positions": Architecture(positions="none"),
    "two tables": Architecture(shared_table=False),
    "llama": GROUPED,
}


def gpt(architecture=GROUPED, layers=2, batch=13, **given):
    given = {"dtype": "float64", "adam": ADAM, "inner": 14, **given}
    return Gpt(layers, 24, 6, 3, 17, batch, architecture=architecture, **given)


@pytest.mark.parametrize("trait", TRAITS)
def test_every_trait_alone_equals_serial(trait):
    problem = gpt(TRAITS[trait], steps=1)
    grid = Grid(data=2, z=2, y=2) if trait == "one key" else Grid(z=2, x=3)
    check_training(problem, grid)
    check_training(problem, replace(grid, x=1), find_scheme("tesseract"))


@pytest.mark.parametrize(
    ("name", "grid", "collectives"),
    [
        ("4d", Grid(data=2, z=2, x=3, order=("z", "data", "y", "x")), "own"),
        ("4d", Grid(data=2, y=2, x=3), "library"),
        ("megatron", Grid(data=2, x=3), "own"),
        ("optimus", Grid(data=2, z=2, x=3), "own"),
        ("tesseract", Grid(z=3, y=2, x=3), "own"),
        ("bian", Grid(z=2, y=2, x=3), "own"),
        ("bian", Grid(data=2, y=3), "library"),
    ],
    ids=str,
)
def test_every_scheme_trains_a_llama_as_the_serial_run_does(name, grid, collectives):
    check_training(gpt(steps=1), grid, find_scheme(name), collectives)


def test_scattered_rows_train_a_llama_too():
    check_training(gpt(), Grid(data=2, x=3), find_scheme("megatron", sequence_parallel=True))


@pytest.mark.parametrize(
    ("name", "grid", "options"),
    [
        ("4d", Grid(data=2, z=2), {"zero": 1, "micro_batch": 1}),
        ("4d", Grid(data=2, x=3), {"zero": 2, "recompute": "full"}),
        ("4d", Grid(data=3, z=2), {"zero": 3, "gathered": "keep", "attention": "unfused"}),
        ("optimus", Grid(data=2, z=2), {"zero": 3, "attention": "unfused", "recompute": "selective"}),
        ("bian", Grid(data=2, y=2), {"zero": 2, "recompute": "full"}),
        ("4d", Grid(pipeline=2, z=2, x=3), {"micro_batch": 2}),
        ("4d", Grid(pipeline=2, data=2), {"micro_batch": 1, "interleave": 2, "layers": 4, "attention": "unfused"}),
        ("megatron", Grid(pipeline=3, x=3), {"micro_batch": 2, "layers": 4, "attention": "unfused"}),
        ("optimus", Grid(pipeline=2, z=2), {"micro_batch": 2, "layers": 3, "zero": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_a_llama_goes_together_with_what_else_a_step_may_be(name, grid, options):
    check_training(gpt(batch=12, **options), grid, find_scheme(name))


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("4d", Grid(z=2, x=3)),
        ("4d", Grid(pipeline=2, z=2)),
        ("bian", Grid(z=2, x=3)),
        ("optimus", Grid(pipeline=2, z=2)),
    ],
    ids=str,
)
def test_overlaps_change_no_bit_of_a_llama(name, grid):
    problem = gpt(layers=3, batch=12, micro_batch=2 if grid.pipeline > 1 else None, dtype="float32")
    plain = schedule_of(problem, grid, find_scheme(name))
    matrices = whole_matrices(plain, 17)
    expected = trained(plain, matrices).outputs
    for names in (("oag",), OVERLAPS):
        overlapped = trained(validate(overlap(plain, names)), matrices).outputs
        assert list(overlapped) == list(range(grid.size))
        for rank, tensors in overlapped.items():
            assert tensors.keys() == expected[rank].keys()
            for tensor, blocks in tensors.items():
                pairs = zip(blocks, expected[rank][tensor], strict=True)
                assert all(np.array_equal(block, plain_block) for block, plain_block in pairs), (names, tensor)


# What it costs.


@pytest.mark.parametrize("trait", TRAITS)
def test_a_schedule_has_the_parameters_of_its_shape_and_the_flops_of_the_formula(trait):
    problem = gpt(TRAITS[trait])
    schedule = schedule_of(problem, Grid())
    place = schedule.coordinates(0)
    held = storage(schedule, place, Choices())
    assert sum(held.tensors[name] * held.copies[name] for name in schedule.state) == problem.shape.parameters
    assert total_flops(schedule) == step_flops(problem.shape, problem.batch).hardware


def test_a_llama_keeps_the_activations_that_its_gradients_read():
    """Of every token and layer: X, N1, X2, N2, and A of h each, QKV, gate and up, G, two moments and the logarithms."""
    kept = []
    for layers in (2, 3):
        schedule = schedule_of(gpt(layers=layers), Grid())
        held = storage(schedule, schedule.coordinates(0), Choices())
        batch = [name for name in held.tensors if schedule.tensors[name].rows.dimension == "batch"]
        kept.append(sum(held.tensors[name] * held.copies[name] for name in batch))
    hidden, head, inner, heads = 24, 4, 14, 6
    of_token = 5 * hidden + (heads + 2 * 3) * head + 2 * inner + inner + 2 + heads
    assert kept[1] - kept[0] == 13 * 3 * of_token


def test_one_column_of_statistics_and_no_exchange_of_tables_cross_the_wires():
    layered, rms = (volumes(schedule_of(gpt(how), Grid(y=2)), Choices()).by_op for how in (PLAIN, GROUPED))
    for op in ("norm1 sum moments", "norm2 sum gradient sums", "last sum moments"):
        assert layered[op].sent_total == 2 * rms[op].sent_total > 0
    stages = [
        {op.name for op in all_ops(schedule_of(gpt(how, batch=12), Grid(pipeline=2)))} for how in (PLAIN, GROUPED)
    ]
    assert "send dtable" in stages[0] and not any("send dtable" in name for name in stages[1])


def test_a_group_of_heads_takes_keys_and_values_once():
    """One key and one value beside three queries: 5/9 of the columns of QKV."""
    plain, grouped = (
        schedule_of(gpt(how), Grid()).tensors["QKV"].columns.unit * schedule_of(gpt(how), Grid()).sizes["heads"]
        for how in (PLAIN, Architecture(key_heads=2))
    )
    assert grouped * 9 == plain * 5
    attention = [op for op in all_ops(schedule_of(gpt(), Grid())) if isinstance(op, Kernel) and op.name == "attention"]
    assert dict(attention[0].scalars) == {"sequence": 3, "head": 4, "group": 2, "rotary_base": 10000}


# What is refused.


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: gpt(Architecture(key_heads=4)), "key_heads 4: must divide heads = 6"),
        (lambda: gpt(Architecture(key_heads=-1)), "key_heads -1: a whole number from 0"),
        (lambda: Gpt(1, 6, 2, 3, 17, 4, architecture=LLAMA), "hidden / heads must be even, and 6 / 2 is odd"),
        (lambda: Architecture(norm="batch"), "norm 'batch': accepted are layer, rms"),
        (lambda: Architecture(positions="alibi"), "positions 'alibi': accepted are learned, rotary, none"),
        (lambda: Architecture(rotary_base=1), "rotary_base 1: a number above 1"),
        (
            lambda: schedule_of(gpt(), Grid(x=2)),
            "grid x=2: groups of heads are cut over x, which must divide key_heads = 3: accepted are 1, 3",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(wrong, said):
    with pytest.raises(InputError) as refused:
        wrong()
    assert said in str(refused.value) and "\n" not in str(refused.value)


# The serial reference.


def loss_and_parameters(how, layers=2, heads=6):
    problem = Gpt(layers, 24, heads, 5, 11, 3, inner=10, architecture=how)
    matrices = whole_matrices(schedule_of(problem, Grid()), 11)
    parameters = {name: value for name, value in matrices.items() if "step" not in name}
    tokens, targets = (matrices[f"{kind} step 0"].reshape(3, 5) for kind in ("tokens", "targets"))
    return parameters, tokens, targets


@pytest.mark.parametrize("trait", TRAITS)
def test_serial_gradients_are_slopes_of_the_loss(trait):
    how = TRAITS[trait]
    parameters, tokens, targets = loss_and_parameters(how)
    check_gradients(lambda held: gpt_loss(held, tokens, targets, 2, 6, how), parameters)


def test_rotary_positions_see_distances_alone():
    """The scores of a turned query and key depend on how far they are apart, not on where they are."""
    from quadrille.runtime.training.serial_transformer import rotated

    random = np.random.default_rng(3)
    q, k = (np.repeat(random.standard_normal((1, 8)), 9, axis=0) for _ in range(2))
    scores = rotated(q, 100.0) @ rotated(k, 100.0).T
    for distance in range(-8, 9):
        along = np.diagonal(scores, distance)
        np.testing.assert_allclose(along, along[0], rtol=1e-12)
    assert np.ptp(scores) > 0.1


def test_serial_llama_equals_pytorch():
    torch = pytest.importorskip("torch")
    parameters, tokens, targets = loss_and_parameters(GROUPED)
    loss, gradients = gpt_loss(parameters, tokens, targets, 2, 6, GROUPED)
    held = {name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()}
    theirs = torch_loss(torch, held, torch.tensor(tokens), torch.tensor(targets), 2, (6, 3))
    theirs.backward()
    assert loss == pytest.approx(theirs.item(), rel=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, held[name].grad.numpy(), rtol=1e-8, atol=1e-12, err_msg=name)


def torch_loss(torch, p, tokens, targets, layers, heads):
    """The same model in PyTorch's own functions, rotations as the `transformers` library writes them."""
    f = torch.nn.functional
    x, (queries, keys) = p["table"][tokens], heads
    group, head = queries // keys, x.shape[-1] // queries
    frequencies = 10000.0 ** (-torch.arange(0, head, 2, dtype=x.dtype) / head)
    angles = torch.outer(torch.arange(tokens.shape[1], dtype=x.dtype), frequencies).repeat(1, 2)

    def norm(value, gamma):
        return value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + 1e-5) * gamma[0]

    def rotated(value):
        one, other = value.chunk(2, dim=-1)
        return value * angles.cos() + torch.cat((-other, one), dim=-1) * angles.sin()

    for layer in range(layers):
        of = f" layer {layer}"
        qkv = (norm(x, p[f"norm1 γ{of}"]) @ p[f"QKV W{of}"]).unflatten(-1, (keys, group + 2, head))
        q = rotated(qkv[..., :group, :].flatten(2, 3).transpose(1, 2))
        k = rotated(qkv[..., group, :].transpose(1, 2)).repeat_interleave(group, dim=1)
        v = qkv[..., group + 1, :].transpose(1, 2).repeat_interleave(group, dim=1)
        a = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + a @ p[f"project W{of}"]
        gate, up = (norm(x, p[f"norm2 γ{of}"]) @ p[f"up W{of}"]).unflatten(-1, (-1, 2)).unbind(-1)
        x = x + (f.silu(gate) * up) @ p[f"down W{of}"]
    logits = norm(x, p["last γ"]) @ p["output table"].T
    return f.cross_entropy(logits.flatten(0, 1), targets.flatten())
