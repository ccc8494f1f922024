"""Kernels by pieces: the same bits as on whole arrays, for every cut; and the passes that a prediction counts."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis import host_passes
from quadrille.algorithms.analysis.host_passes import KernelShape, attention_piece
from quadrille.algorithms.schedule.kernel_signatures import ATTENTION_PRODUCTS, OF_BLOCKS, SIGNATURES
from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.kernels import host_pieces
from quadrille.runtime.kernels.host_pieces import BY_ROWS
from quadrille.runtime.kernels.kernel_arguments import KernelArguments
from quadrille.runtime.kernels.layer_kernels import carry_out

SEQUENCE, HEAD, GROUPS, SEQUENCES, VALUE = 6, 4, 3, 5, 2
SCALARS = {"columns": 7.0, "epsilon": 1e-5, "weight": 0.25, "dropout": 0.3, "place": 1.0, "tokens": 30.0}
SCALARS |= {"head": 4.0, "value": 3.0, "rotated": 2.0, "pair": 5.0}
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
    signature, lengths = (
        SIGNATURES[function],
        {"m": 13, "n": 7, "2n": 14, "v": 13, "h": 7, "(qkv)h": 22, "(head)h": 8, "(pair)h": 10, "r": 2},
    )
    random = np.random.default_rng(1)
    into, sources = (arrays(random, shapes, lengths) for shapes in (signature.into, signature.sources))
    tokens = random.integers(0, 9, (13, 1))
    if any("v" in shape.split() for shape in signature.sources):
        at = 0 if function == "embed" else len(sources) - 1
        sources = (*sources[:at], tokens, *sources[at + 1 :])
    args = KernelArguments(np, into, (), sources, (Block((0, 13), (0, 13)),) * len(sources), SCALARS, 0)
    whole, cut = (results(monkeypatch, function, args, elements) for elements in (WHOLE, SMALL))
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one, other)


def attention_arguments(function, group, extra):
    random, rows = np.random.default_rng(2), SEQUENCES * SEQUENCE
    lengths = {
        "m": rows,
        "(qkv)h": GROUPS * (group + 2) * HEAD,
        "(attended)h": GROUPS * group * HEAD,
        "-": GROUPS * group,
        "w": GROUPS * group * SEQUENCE,
    }
    if "value" in extra:
        lengths |= {"(qkv)h": GROUPS * (2 * HEAD + VALUE), "(attended)h": GROUPS * VALUE}
    signature = SIGNATURES[function]
    into, sources = (arrays(random, shapes, lengths) for shapes in (signature.into, signature.sources))
    blocks = (Block((30, 30 + rows), (lengths["(qkv)h"], 2 * lengths["(qkv)h"])),) * len(sources)
    scalars = {"sequence": SEQUENCE, "head": HEAD, "group": group} | extra
    return KernelArguments(np, into, (), sources, blocks, scalars, 0)


DROPPING = {name: SCALARS[name] for name in ("dropout", "place", "tokens")}
CASES = [
    (function, group, {"rotary_base": 9.0} | (DROPPING if dropping else {}))
    for function in ATTENTION_PRODUCTS
    if function not in OF_BLOCKS
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
    assert len(list(host_pieces.cut_arguments("attention", args))) == SEQUENCES * 2


def test_a_kernel_without_pieces_runs_on_its_arguments():
    args = attention_arguments("attention", 1, {})
    assert list(host_pieces.cut_arguments("row_maxima", args)) == [args]


# The passes that a prediction counts are the calls of the kernels


class Recorded(np.ndarray):
    """An array that notes the calls that it takes part in: (name, elements of the larger operand or of the result)."""

    calls: list

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        plain = tuple(np.asarray(array) if isinstance(array, Recorded) else array for array in inputs)
        if out is not None:
            options["out"] = tuple(np.asarray(array) for array in out)
        result = getattr(ufunc, method)(*plain, **options)
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        largest = max(np.size(array) for array in (*plain, result))
        multiplications = result.size * plain[0].shape[-1] if name == "matmul" else 0
        Recorded.calls.append((name, largest, multiplications))
        return np.asarray(result).view(Recorded)

    def __array_function__(self, function, types, arguments, options):
        plain = [np.asarray(array) if isinstance(array, Recorded) else array for array in arguments]
        if function is np.concatenate:
            plain = [[np.asarray(array) for array in arguments[0]]]
        result = function(*plain, **options)
        Recorded.calls.append((function.__name__, result.size, 0))
        return result.view(Recorded)


CALLS_OF_PASS = {
    "exponential": ("exp", "tanh"),
    "select": ("where",),
    "row_maximum": ("maximum.reduce",),
    "row_sum": ("add.reduce",),
}


@pytest.mark.parametrize("function", ["attention", "attention_gradient", "attention_keeping_gradient"])
@pytest.mark.parametrize(
    "extra", [{}, {"score_cap": 0.5}, {"value": VALUE}, {"rotary_base": 9.0}, {"rotary_base": 9.0, "rotated": 2}]
)
def test_predicted_passes_are_the_calls_of_the_kernel(monkeypatch, function, extra):
    monkeypatch.setattr(host_passes, "PIECE_ELEMENTS", 2 * SEQUENCE**2)
    args = attention_arguments(function, 1, extra)
    monkeypatch.setattr(Recorded, "calls", [], raising=False)
    recorded = replace(args, sources=tuple(array.view(Recorded) for array in args.sources))
    carry_out(function, recorded)
    rows, columns = args.sources[0].shape
    traits = {
        "rotary": "rotary_base" in extra,
        "rotated": extra.get("rotated", 0),
        "value": extra.get("value", 0),
        "capped": "score_cap" in extra,
    }
    passes = host_passes.host_passes(function, KernelShape(rows, columns, SEQUENCE, HEAD, 1, GROUPS, **traits))

    def counted(operation):
        chosen = [each for each in passes if each.operation == operation]
        return sum(each.calls for each in chosen), sum(each.elements for each in chosen)

    for operation, names in CALLS_OF_PASS.items():
        sizes = [size for name, size, _ in Recorded.calls if name in names]
        assert (len(sizes), sum(sizes)) == counted(operation), operation
    products = [count for name, _, count in Recorded.calls if name == "matmul"]
    predicted = [each for each in passes if each.operation.startswith("product")]
    assert (len(products), sum(products)) == (
        sum(each.calls for each in predicted),
        sum(each.multiplications for each in predicted),
    )
    over_scores = [size for name, size, _ in Recorded.calls if name in ("add", "subtract", "multiply", "divide")]
    scores = SEQUENCES * GROUPS * SEQUENCE**2
    predicted_scores = counted("arithmetic")[1] + counted("elementwise")[1]
    assert sum(over_scores) == pytest.approx(predicted_scores, abs=scores)
