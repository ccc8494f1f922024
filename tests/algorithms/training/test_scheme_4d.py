"""Training steps of the 4D algorithm: losses, gradients and parameters equal those of a serial reference, which itself
is checked by finite differences and against PyTorch."""

import itertools

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.runtime.training.serial_training import clipped, gelu, gelu_slope, mlp_loss, train
from quadrille.runtime.training.serial_transformer import gpt_loss
from tests.support.gradients import check_gradients
from tests.support.trainings import check_training, reference, schedule_of, whole_matrices

GRIDS = [
    Grid(),
    Grid(x=3),
    Grid(y=3),
    Grid(z=3),
    Grid(data=3),
    Grid(y=2, x=3),
    Grid(z=2, y=3),
    Grid(data=2, z=2, y=3, x=2, order=("z", "data", "y", "x")),
]
"""Every axis alone, pairs whose lengths differ, and all axes in an order of their own."""
BIG = Adam(rate=0.03, decay=0.1, clip=0.05)
CALM = Adam(epsilon=1e-2)
"""So large an epsilon that gradients which are nothing but rounding, those of the keys' biases, stay small steps."""
MLP = Mlp((7, 11, 5, 13), rows=17, dtype="float64", steps=2, adam=BIG)
GPT = Gpt(2, 12, 6, 5, 17, 7, dtype="float64", steps=2, adam=BIG)


def name_of(grid):
    return ",".join(f"{axis}={length}" for axis, length in grid.lengths.items() if length > 1) or "1"


@pytest.mark.parametrize("grid", GRIDS, ids=name_of)
def test_mlp_equals_serial(grid):
    check_training(MLP, grid)


@pytest.mark.parametrize("grid", GRIDS, ids=name_of)
def test_gpt_equals_serial(grid):
    check_training(GPT, grid)


@pytest.mark.parametrize("problem", [MLP, GPT], ids=["mlp", "gpt"])
@pytest.mark.parametrize("grid", [Grid(z=2, y=3), Grid(data=2, x=3)], ids=name_of)
def test_the_librarys_collectives_give_the_same(grid, problem):
    check_training(problem, grid, collectives="library")


@pytest.mark.parametrize(
    ("grid", "activations", "gathered"),
    [
        (Grid(z=2, x=3), "repeated", "keep"),
        (Grid(z=2, x=3), "rows scattered", "again"),
        (Grid(z=2, x=3), "rows scattered", "keep"),
        (Grid(y=2, x=3), "sequences scattered", "again"),
        (Grid(z=2, y=3), "sequences scattered", "keep"),
    ],
    ids=str,
)
def test_forms_of_the_algorithm_equal_serial(grid, activations, gathered):
    problem = Gpt(3, 12, 6, 5, 17, 13, dtype="float64", steps=1, gathered=gathered, adam=BIG)
    check_training(problem, grid, Scheme4D(activations=activations))


@pytest.mark.parametrize("widths", [(1, 1), (3, 2), (2, 3, 5), (13, 1, 7, 2), (5, 5, 5, 5, 5)])
def test_mlps_of_any_width_equal_serial(widths):
    for grid in (Grid(z=2, y=2), Grid(data=2, x=3)):
        check_training(Mlp(widths, rows=11, dtype="float64", steps=2, adam=Adam(rate=0.02)), grid)


@pytest.mark.parametrize("adam", [Adam(), Adam(clip=1e-3), Adam(clip=1e6), Adam(decay=0.3), Adam(beta1=0.5, beta2=0.7)])
def test_every_setting_of_the_optimizer_equals_serial(adam):
    check_training(Gpt(1, 6, 3, 3, 11, 5, dtype="float64", steps=3, adam=adam), Grid(z=2, y=2))
    check_training(Mlp((3, 7, 5), rows=9, dtype="float64", steps=3, adam=adam), Grid(data=2, x=3))


@pytest.mark.parametrize(
    "problem", [Mlp((7, 11, 5), rows=13, adam=CALM), Gpt(2, 12, 6, 5, 17, 5, adam=CALM)], ids=["mlp", "gpt"]
)
def test_float32_equals_serial(problem):
    check_training(problem, Grid(z=2, x=3))


def test_the_loss_falls():
    problem = Gpt(2, 12, 3, 7, 13, 5, dtype="float64", steps=12, adam=Adam(rate=0.01))
    schedule = schedule_of(problem, Grid())
    drawn = whole_matrices(schedule, problem.vocabulary)
    same = {name: drawn[f"{name.split()[0]} step 0"] if "step" in name else value for name, value in drawn.items()}
    losses, _, _ = reference(problem, same)
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Mlp((3,), rows=2), "at least two widths"),
        (lambda: Mlp((3, 0), rows=2), "each from 1"),
        (lambda: Mlp((3, 2), rows=0), "rows 0"),
        (lambda: Mlp((3, 2), rows=2, dtype="int8"), "int8"),
        (lambda: Gpt(0, 12, 6, 5, 17, 7), "layers 0"),
        (lambda: Gpt(1, 12, 5, 5, 17, 7), "heads 5: a number that divides hidden = 12"),
        (lambda: schedule_of(GPT, Grid(x=4)), "must divide heads = 6"),
        (lambda: schedule_of(GPT, Grid(data=2, z=5)), "at least data=2 times z=5, 10 sequences"),
        (lambda: Adam(rate=0), "rate 0"),
        (lambda: Adam(beta1=1), "beta1 1"),
        (lambda: Adam(clip=-1), "clip -1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(wrong, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")) as refused:
        wrong()
    assert "\n" not in str(refused.value)


# The serial reference.


@pytest.mark.parametrize("widths", [(3, 2), (5, 7, 3), (2, 3, 5, 4)])
def test_serial_mlp_gradients_are_slopes_of_the_loss(widths):
    random = np.random.default_rng(1)
    parameters = {}
    for layer, (before, after) in enumerate(itertools.pairwise(widths), 1):
        parameters[f"L{layer} W"] = random.standard_normal((before, after))
        parameters[f"L{layer} b"] = random.standard_normal((1, after))
    x, target = random.standard_normal((6, widths[0])), random.standard_normal((6, widths[-1]))
    check_gradients(lambda held: mlp_loss(held, x, target), parameters)


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 2), (1, 4)])
def test_serial_gpt_gradients_are_slopes_of_the_loss(layers, heads):
    problem = Gpt(layers, 8, heads, 5, 11, 3)
    matrices = whole_matrices(schedule_of(problem, Grid()), 11)
    parameters = {name: value for name, value in matrices.items() if "step" not in name}
    tokens, targets = (matrices[f"{kind} step 0"].reshape(3, 5) for kind in ("tokens", "targets"))
    check_gradients(lambda held: gpt_loss(held, tokens, targets, layers, heads), parameters)


def test_serial_gelu_is_the_tanh_form():
    x = np.linspace(-4, 4, 101)
    from math import erf, sqrt

    exact = np.array([value * (1 + erf(value / sqrt(2))) / 2 for value in x])
    assert np.abs(gelu(x) - exact).max() < 1e-3
    assert gelu_slope(x) == pytest.approx((gelu(x + 1e-6) - gelu(x - 1e-6)) / 2e-6, abs=1e-8)


def test_serial_clipping_keeps_small_gradients_and_shrinks_large_ones():
    gradients = {"a": np.array([[3.0]]), "b": np.array([[4.0]])}
    assert clipped(gradients, 0) is gradients
    assert clipped(gradients, 6)["a"] == pytest.approx(3.0)
    shrunk = clipped(gradients, 1)
    assert np.hypot(shrunk["a"][0, 0], shrunk["b"][0, 0]) == pytest.approx(1, rel=1e-6)


def test_serial_adam_of_one_number_by_hand():
    """A first step of Adam goes by the rate against the gradient's sign, whatever its size; decay comes on top."""
    losses, held, gradients = train(
        {"w": np.array([[2.0]])},
        lambda p, _: (float(p["w"][0, 0] ** 2), {"w": 2 * p["w"]}),
        range(1),
        Adam(rate=0.1, decay=0.5),
    )
    assert losses == [4.0]
    assert gradients["w"][0, 0] == 4.0
    assert held["w"][0, 0] == pytest.approx(2 - 0.1 - 0.1 * 0.5 * 2, abs=1e-8)


def test_serial_gpt_equals_pytorch():
    torch = pytest.importorskip("torch")
    problem = Gpt(2, 12, 3, 5, 17, 4)
    matrices = whole_matrices(schedule_of(problem, Grid()), 17)
    parameters = {name: value for name, value in matrices.items() if "step" not in name}
    tokens, targets = (matrices[f"{kind} step 0"].reshape(4, 5) for kind in ("tokens", "targets"))
    loss, gradients = gpt_loss(parameters, tokens, targets, 2, 3)
    held = {name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()}
    theirs = torch_loss(torch, held, torch.tensor(tokens), torch.tensor(targets), 2, 3)
    theirs.backward()
    assert loss == pytest.approx(theirs.item(), rel=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, held[name].grad.numpy(), rtol=1e-8, atol=1e-12, err_msg=name)


def torch_loss(torch, p, tokens, targets, layers, heads):
    """The same model in PyTorch's own functions."""
    f = torch.nn.functional
    x = p["table"][tokens] + p["positions"]
    hidden = x.shape[-1]

    def norm(value, name, suffix):
        return f.layer_norm(value, (hidden,), p[f"{name} γ{suffix}"][0], p[f"{name} β{suffix}"][0])

    for layer in range(layers):
        of = f" layer {layer}"
        qkv = norm(x, "norm1", of) @ p[f"QKV W{of}"] + p[f"QKV b{of}"]
        q, k, v = qkv.unflatten(-1, (heads, 3, hidden // heads)).permute(3, 0, 2, 1, 4)
        a = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + a @ p[f"project W{of}"] + p[f"project b{of}"]
        u = norm(x, "norm2", of) @ p[f"up W{of}"] + p[f"up b{of}"]
        x = x + f.gelu(u, approximate="tanh") @ p[f"down W{of}"] + p[f"down b{of}"]
    logits = norm(x, "last", "") @ p["table"].T
    return f.cross_entropy(logits.flatten(0, 1), targets.flatten())
