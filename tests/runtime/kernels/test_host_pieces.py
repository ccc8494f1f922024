"""Kernels by pieces: the same bits as on whole arrays, for every cut; and the passes that a prediction counts."""

import numpy as np
import pytest

from quadrille.algorithms.analysis import host_passes
from quadrille.algorithms.analysis.host_passes import attention_piece
from quadrille.algorithms.schedule.kernel_signatures import ATTENTION_PRODUCTS, SIGNATURES
from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.kernels import host_pieces
from quadrille.runtime.kernels.host_pieces import BY_ROWS
from quadrille.runtime.kernels.kernel_arguments import KernelArguments
from quadrille.runtime.kernels.layer_kernels import carry_out

SEQUENCE, HEAD, GROUPS, SEQUENCES = 6, 4, 3, 5
SCALARS = {"columns": 7.0, "epsilon": 1e-5, "weight": 0.25, "dropout": 0.3, "place": 1.0, "tokens": 30.0}
WHOLE, SMALL = 1 << 30, 40


def arrays(random, shapes, lengths):
    return tuple(
        random.random(tuple(lengths.get(word) or int(word) for word in shape.split())) + 0.5 for shape in shapes
    )


def results(monkeypatch, function, args, elements):
    """The written arrays of a kernel with pieces of this many elements."""
    monkeypatch.setattr(host_passes, "PIECE_ELEMENTS", elements)
    carry_out(function, args)
    return [array.copy() for array in (*args.into, *args.updates)]


@pytest.mark.parametrize("function", [*BY_ROWS, "cross_entropy"])
def test_pieces_of_rows_give_the_same_bits(monkeypatch, function):
    signature, lengths = SIGNATURES[function], {"m": 13, "n": 7, "2n": 14, "v": 7}
    random = np.random.default_rng(1)
    into, sources = (arrays(random, shapes, lengths) for shapes in (signature.into, signature.sources))
    if "v" in "".join(signature.sources):
        sources = (*sources[:-1], random.integers(0, 9, (13, 1)))
    args = KernelArguments(np, into, (), sources, (Block((0, 13), (1, 8)),) * len(sources), SCALARS, 0)
    whole, cut = (results(monkeypatch, function, args, elements) for elements in (WHOLE, SMALL))
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one, other)


def attention_arguments(function, group, extra):
    random, rows = np.random.default_rng(2), SEQUENCES * SEQUENCE
    lengths = {
        "m": rows,
        "(group+2)h": GROUPS * (group + 2) * HEAD,
        "(group)h": GROUPS * group * HEAD,
        "-": GROUPS * group,
        "w": GROUPS * group * SEQUENCE,
    }
    signature = SIGNATURES[function]
    into, sources = (arrays(random, shapes, lengths) for shapes in (signature.into, signature.sources))
    blocks = (Block((30, 30 + rows), (lengths["(group+2)h"], 2 * lengths["(group+2)h"])),) * len(sources)
    scalars = {"sequence": SEQUENCE, "head": HEAD, "group": group} | extra
    return KernelArguments(np, into, (), sources, blocks, scalars, 0)


DROPPING = {name: SCALARS[name] for name in ("dropout", "place", "tokens")}
CASES = [
    (function, group, {"rotary_base": 9.0} | (DROPPING if dropping else {}))
    for function in ATTENTION_PRODUCTS
    for group in (1, 2)
    for dropping in ((True,) if "dropping" in function else (False,) if "keeping" in function else (False, True))
]


@pytest.mark.parametrize(("function", "group", "extra"), CASES)
@pytest.mark.parametrize("elements", [1, 2 * SEQUENCE**2, 4 * GROUPS * SEQUENCE**2])
def test_pieces_of_heads_give_the_same_bits(monkeypatch, function, group, extra, elements):
    args = attention_arguments(function, group, extra)
    whole, cut = (results(monkeypatch, function, args, size) for size in (WHOLE, elements))
    assert all(np.isfinite(array).all() for array in whole)
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one, other)


def test_pieces_are_those_that_a_prediction_counts(monkeypatch):
    monkeypatch.setattr(host_passes, "PIECE_ELEMENTS", 2 * SEQUENCE**2)
    assert attention_piece(SEQUENCE, 1, GROUPS) == (1, 2)
    args = attention_arguments("attention", 1, {})
    assert len(list(host_pieces.pieces("attention", args))) == SEQUENCES * 2


def test_a_kernel_without_pieces_runs_on_its_arguments():
    args = attention_arguments("attention", 1, {})
    assert list(host_pieces.pieces("row_maxima", args)) == [args]
