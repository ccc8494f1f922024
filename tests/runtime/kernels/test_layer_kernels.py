"""Kernels whose gradients are kernels of their own: each gradient is the slope of its function."""

from functools import partial

import numpy as np
import pytest

from quadrille.algorithms.schedule.kernel_signatures import SIGNATURES
from quadrille.runtime.kernels.host_pieces import BY_ELEMENT, PIECE
from quadrille.runtime.kernels.layer_kernels import KERNELS, KernelArguments, carry_out

SEQUENCE, HEAD, GROUPS = 4, 6, 2
ROWS, COLUMNS = 2 * SEQUENCE, 10
NORM = {"columns": float(COLUMNS), "epsilon": 1e-5}


def call(function, into, sources, scalars=None):
    """What a function writes: arrays of these shapes."""
    found = tuple(np.full(shape, np.nan) for shape in into)
    KERNELS[function](KernelArguments(np, found, (), tuple(sources), (), scalars or {}, 0))
    return found


def rows_normalised(kind, x, *vectors):
    moments, function, columns = {"rms": ("row_squares", "rms_normalise", 1), "layer": ("row_moments", "normalise", 2)}[
        kind
    ]
    (sums,) = call(moments, [(ROWS, columns)], [x])
    return call(function, [x.shape], [x, sums, *vectors], NORM)[0]


def towards_norm(kind, x, gamma, g):
    """Gradients of x and of the vectors."""
    columns, vectors = (1, 1) if kind == "rms" else (2, 2)
    prefix = "rms" if kind == "rms" else "normalise"
    (moments,) = call("row_squares" if kind == "rms" else "row_moments", [(ROWS, columns)], [x])
    (sums,) = call(f"{prefix}_sums", [(ROWS, columns)], [x, moments, gamma, g], NORM)
    (towards,) = call(f"{prefix}_gradient", [x.shape], [x, moments, sums, gamma, g], NORM)
    of_vectors = call(f"{prefix}_parameter_sums", [(1, COLUMNS)] * vectors, [x, moments, g], NORM)
    return towards, *of_vectors


def slopes(function, given, g, step=1e-6):
    """Central differences of Σ g · function(given), element by element."""
    found = np.empty_like(given)
    for place in np.ndindex(given.shape):
        ends = []
        for sign in (1, -1):
            moved = given.copy()
            moved[place] += sign * step
            ends.append(float((g * function(moved)).sum()))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


def drawn(*shape):
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_gradients_of_norms_are_their_slopes(kind):
    x, gamma, beta, g = drawn(ROWS, COLUMNS) + 0.5, drawn(1, COLUMNS), drawn(1, COLUMNS) * 0.5, drawn(ROWS, COLUMNS) * 2
    vectors = [gamma] if kind == "rms" else [gamma, beta]
    found = towards_norm(kind, x, gamma, g)
    rest = {"atol": 1e-8, "rtol": 1e-6}
    np.testing.assert_allclose(found[0], slopes(lambda at: rows_normalised(kind, at, *vectors), x, g), **rest)
    for place, vector in enumerate(vectors):
        others = lambda at, place=place: [at if here == place else one for here, one in enumerate(vectors)]  # noqa: E731 - a vector moved
        along = slopes(lambda at, others=others: rows_normalised(kind, x, *others(at)), vector, g)
        np.testing.assert_allclose(found[1 + place], along, **rest)


@pytest.mark.parametrize(("function", "columns"), [("gelu", 1), ("swiglu", 2)])
def test_gradients_of_an_mlps_functions_are_their_slopes(function, columns):
    x, g = drawn(ROWS, columns * COLUMNS) * 2, drawn(ROWS, COLUMNS)
    (found,) = call(f"{function}_gradient", [x.shape], [x, g])
    along = slopes(lambda at: call(function, [g.shape], [at])[0], x, g)
    np.testing.assert_allclose(found, along, atol=1e-8, rtol=1e-6)


def test_swiglu_takes_gates_beside_what_they_open():
    x = np.array([[0.0, 5.0, 2.0, 3.0, -800.0, 7.0]], np.float32)
    (found,) = call("swiglu", [(1, 3)], [x])
    assert found == pytest.approx(np.array([[0.0, 6 / (1 + np.exp(-2)), 0.0]]), abs=1e-6)


@pytest.mark.parametrize("keeping", [False, True], ids=["made again", "kept"])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("base", [None, 5.0], ids=["plain", "rotary"])
def test_gradients_of_attention_are_its_slopes(base, group, keeping):
    scalars = {"sequence": float(SEQUENCE), "head": float(HEAD), "group": float(group)}
    if base is not None:
        scalars["rotary_base"] = base
    heads = GROUPS * group
    x, g = drawn(ROWS, GROUPS * (group + 2) * HEAD), drawn(ROWS, heads * HEAD)
    word, kept = ("attention_keeping", heads * SEQUENCE) if keeping else ("attention", heads)

    def forward(at):
        return call(word, [g.shape, (ROWS, kept)], [at], scalars)

    y, left = forward(x)
    sources = [x, left, g] if keeping else [x, y, left, g]
    (found,) = call(f"{word}_gradient", [x.shape], sources, scalars)
    np.testing.assert_allclose(found, slopes(lambda at: forward(at)[0], x, g), atol=1e-7, rtol=1e-5)


def test_groups_are_heads_that_are_given_the_same_key_and_value():
    group = 3
    scalars = {"sequence": float(SEQUENCE), "head": float(HEAD), "rotary_base": 9.0}
    x = drawn(ROWS, GROUPS, group + 2, HEAD)
    apart = np.stack([x[:, :, [query, group, group + 1]] for query in range(group)], axis=2)
    shapes = [(ROWS, GROUPS * group * HEAD), (ROWS, GROUPS * group)]
    grouped = call("attention", shapes, [x.reshape(ROWS, -1)], scalars | {"group": float(group)})
    single = call("attention", shapes, [apart.reshape(ROWS, -1)], scalars)
    for one, other in zip(grouped, single, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("function", BY_ELEMENT)
def test_piece_by_piece_gives_the_same_bits(function):
    facts, size = SIGNATURES[function], 2 * PIECE + 3
    scalars = {"rate": 1e-3, "epsilon": 1e-8, "decay": 0.01, "beta1": 0.9, "beta2": 0.99}
    found = []
    for carried in (KERNELS[function], partial(carry_out, function)):
        into, updates, sources = (
            tuple(abs(drawn(size)) * (place + 1) for place, _ in enumerate(shapes))
            for shapes in (facts.into, facts.updates, facts.sources)
        )
        carried(KernelArguments(np, into, updates, sources, (), scalars, 3))
        found.append((*into, *updates))
    for whole, pieces in zip(*found, strict=True):
        np.testing.assert_array_equal(pieces, whole)
