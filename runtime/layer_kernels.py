"""The functions of `algorithms/kernels.py` on real arrays, NumPy's or CuPy's: the module of arrays is an argument.

Each takes the blocks that the rank holds, as matrices or, where a function goes
element by element, as they are stored.  Formulas are written out where they
stand; `x` is an input, `y` an output, `g` a gradient.

Only what both modules have is used, and nothing that makes the host wait for the
device: no mask as an index (the result is as long as it has ones), no number taken
out of an array.  On a GPU the rows of an embedding's gradient are summed by atomic
additions, in an order of the device's own, so its last bits may differ from run to run;
all other functions give the same bits every time.

Source: CuPy documentation, "Differences between CuPy and NumPy", and cupyx.scatter_add.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import pi, sqrt
from typing import Any

from algorithms.kernels import Function
from algorithms.tensors import Block
from algorithms.traffic import shared_rectangle
from runtime.communicators import Array

GELU_SLOPE = sqrt(2 / pi)
GELU_CUBE = 0.044715


@dataclass(frozen=True, slots=True)
class Given:
    """What a function is called with.

    Parameters
    ----------
    xp : the module of arrays, numpy or cupy
    into, updates, sources : arrays, in the order of the op
    blocks : where in their tensors the sources lie
    scalars : numbers by name
    count : index of the loop that the op counts, from 0
    """

    xp: Any
    into: tuple[Array, ...]
    updates: tuple[Array, ...]
    sources: tuple[Array, ...]
    blocks: tuple[Block, ...]
    scalars: Mapping[str, float]
    count: int


def carry_out(function: Function, given: Given) -> None:
    """The function, in float32 where elements have 16 bits: sums and exponentials of those would not last."""
    short = [one for one in (*given.into, *given.updates, *given.sources) if one.dtype.itemsize == 2]
    if not short:
        KERNELS[function](given)
        return
    xp = given.xp
    into = tuple(xp.empty(one.shape, xp.float32) if one.dtype.itemsize == 2 else one for one in given.into)
    updates = tuple(_widened(xp, one) for one in given.updates)
    sources = tuple(_widened(xp, one) for one in given.sources)
    KERNELS[function](replace(given, into=into, updates=updates, sources=sources))
    for kept, found in zip((*given.into, *given.updates), (*into, *updates), strict=True):
        if kept is not found:
            kept[...] = _narrowed(xp, found, kept.dtype)


def _widened(xp: Any, array: Array) -> Array:
    """Elements of 16 bits as float32; bfloat16 is kept as uint16, the upper half of its float32."""
    if array.dtype == xp.uint16:
        return (array.astype(xp.uint32) << 16).view(xp.float32)
    return array.astype(xp.float32) if array.dtype.itemsize == 2 else array


def _narrowed(xp: Any, array: Array, dtype: Any) -> Array:
    """The nearest elements of 16 bits, of two as near the even one; what is no number stays none."""
    if dtype == xp.uint16:
        bits = array.view(xp.uint32)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(xp.uint16)
        return xp.where(xp.isnan(array), xp.uint16(0x7FC0), nearest)  # a GPU's own, 0x7FFFFFFF, would become -0
    return array.astype(dtype)


def _add_to(given: Given) -> None:
    given.updates[0][...] += given.sources[0]


def _add_region(given: Given) -> None:
    """Adds what a block shares with another of the same matrix: with zeros, it is cut out of the other."""
    (source,), (update,) = given.sources, given.updates
    shared = shared_rectangle(*given.blocks)
    here, there = (
        tuple(
            slice(first - start, stop - start)
            for (first, stop), (start, _) in ((shared.rows, b.rows), (shared.columns, b.columns))
        )
        for b in (given.blocks[1], given.blocks[0])
    )
    update[here] += source[there]


def _cast(given: Given) -> None:
    """The same numbers in the dtype of what is written."""
    given.into[0][...] = given.sources[0]


def _transpose(given: Given) -> None:
    given.into[0][...] = given.sources[0].T


def _column_sums(given: Given) -> None:
    given.xp.sum(given.sources[0], axis=0, out=given.into[0][0])


def _inner(xp: Any, x: Array) -> Array:
    return xp.tanh(GELU_SLOPE * (x + GELU_CUBE * x * x * x))


def _gelu(given: Given) -> None:
    """Y = x (1 + tanh(c (x + 0.044715 x³))) / 2."""
    (x,) = given.sources
    given.into[0][...] = 0.5 * x * (1 + _inner(given.xp, x))


def _gelu_gradient(given: Given) -> None:
    x, g = given.sources
    t = _inner(given.xp, x)
    slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU_SLOPE * (1 + 3 * GELU_CUBE * x * x)
    given.into[0][...] = g * slope


def _row_moments(given: Given) -> None:
    """Sums of the elements and of their squares, row by row."""
    (x,) = given.sources
    given.into[0][:, 0] = x.sum(axis=1)
    given.into[0][:, 1] = (x * x).sum(axis=1)


def _normalised(given: Given) -> tuple[Array, Array]:
    """(x - mean) / deviation, and 1 / deviation, from the moments of whole rows."""
    x, moments = given.sources[:2]
    columns, epsilon = given.scalars["columns"], given.scalars["epsilon"]
    mean = moments[:, :1] / columns
    variance = moments[:, 1:] / columns - mean * mean
    inverse = 1 / given.xp.sqrt(given.xp.maximum(variance, 0) + epsilon)
    return (x - mean) * inverse, inverse


def _normalise(given: Given) -> None:
    """Y = γ (x - mean) / deviation + β."""
    gamma, beta = given.sources[2:]
    given.into[0][...] = _normalised(given)[0] * gamma + beta


def _normalise_sums(given: Given) -> None:
    """Sums over columns of γ g and of γ g x̂, which the gradient needs of whole rows."""
    gamma, g = given.sources[2:]
    hat, _ = _normalised(given)
    scaled = g * gamma
    given.into[0][:, 0] = scaled.sum(axis=1)
    given.into[0][:, 1] = (scaled * hat).sum(axis=1)


def _normalise_gradient(given: Given) -> None:
    """(γ g - mean(γ g) - x̂ mean(γ g x̂)) / deviation."""
    sums, gamma, g = given.sources[2:]
    hat, inverse = _normalised(given)
    means = sums / given.scalars["columns"]
    given.into[0][...] = (g * gamma - means[:, :1] - hat * means[:, 1:]) * inverse


def _normalise_parameter_sums(given: Given) -> None:
    """Gradients of γ and β: sums over rows of g x̂ and of g."""
    g = given.sources[2]
    hat, _ = _normalised(given)
    given.into[0][0] = (g * hat).sum(axis=0)
    given.into[1][0] = g.sum(axis=0)


def _heads(x: Array, sequence: int, head: int, kinds: int) -> Array:
    """Rows × (heads · kinds · head) as kinds × sequences × heads × sequence × head."""
    return x.reshape(-1, sequence, x.shape[1] // (kinds * head), kinds, head).transpose(3, 0, 2, 1, 4)


def _rows(x: Array) -> Array:
    """Sequences × heads × sequence × head as rows × (heads · head)."""
    batch, heads, sequence, head = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch * sequence, heads * head)


def _scores(given: Given, q: Array, k: Array) -> Array:
    """Q kᵀ / √head, and -∞ where a token would see later ones."""
    sequence = q.shape[2]
    scores = given.xp.matmul(q, k.transpose(0, 1, 3, 2)) / sqrt(q.shape[3])
    later = given.xp.triu(given.xp.ones((sequence, sequence), bool), 1)
    return given.xp.where(later, -given.xp.inf, scores)


def _lengths(given: Given) -> tuple[int, int]:
    """Tokens of a sequence and columns of a head."""
    return int(given.scalars["sequence"]), int(given.scalars["head"])


def _softmax(given: Given, v: Array, scores: Array) -> tuple[Array, Array]:
    """The weights of every token, and the logarithms of their row sums; writes weights · v."""
    largest = scores.max(axis=3, keepdims=True)
    weights = given.xp.exp(scores - largest)
    total = weights.sum(axis=3, keepdims=True)
    weights = weights / total
    given.into[0][...] = _rows(given.xp.matmul(weights, v))
    return weights, largest + given.xp.log(total)


def _attention(given: Given) -> None:
    """softmax(q kᵀ / √head) v for every head; the logarithms of the row sums are kept."""
    q, k, v = _heads(given.sources[0], *_lengths(given), 3)
    given.into[1][...] = _rows(_softmax(given, v, _scores(given, q, k))[1])


def _attention_keeping(given: Given) -> None:
    """The same; the weights are kept."""
    q, k, v = _heads(given.sources[0], *_lengths(given), 3)
    given.into[1][...] = _rows(_softmax(given, v, _scores(given, q, k))[0])


def _attention_gradient(given: Given) -> None:
    """Gradients of q, k and v; the weights are made again from the kept logarithms."""
    sequence, head = _lengths(given)
    qkv, y, logarithms, g = given.sources
    q, k, v = _heads(qkv, sequence, head, 3)
    (y,), (g,) = _heads(y, sequence, head, 1), _heads(g, sequence, head, 1)
    (kept,) = _heads(logarithms, sequence, 1, 1)
    weights = given.xp.exp(_scores(given, q, k) - kept)
    _through_softmax(given, (q, k, v), weights, g, (g * y).sum(axis=3, keepdims=True))


def _attention_keeping_gradient(given: Given) -> None:
    """Gradients of q, k and v from the kept weights."""
    sequence, head = _lengths(given)
    qkv, weights, g = given.sources
    q, k, v = _heads(qkv, sequence, head, 3)
    (weights,), (g,) = _heads(weights, sequence, sequence, 1), _heads(g, sequence, head, 1)
    _through_softmax(given, (q, k, v), weights, g, None)


def _through_softmax(
    given: Given, qkv: tuple[Array, Array, Array], weights: Array, g: Array, along: Array | None
) -> None:
    """Gradients from the weights; `along` is the row sums of weights times their gradients, where these are known."""
    q, k, v = qkv
    towards_weights = given.xp.matmul(g, v.transpose(0, 1, 3, 2))
    if along is None:
        along = (weights * towards_weights).sum(axis=3, keepdims=True)
    towards_scores = weights * (towards_weights - along) / sqrt(q.shape[3])
    found = given.xp.stack(
        [
            given.xp.matmul(towards_scores, k),
            given.xp.matmul(towards_scores.transpose(0, 1, 3, 2), q),
            given.xp.matmul(weights.transpose(0, 1, 3, 2), g),
        ]
    )
    given.into[0][...] = found.transpose(1, 3, 2, 0, 4).reshape(given.sources[0].shape)


def _within(given: Given, tokens: Array, span: tuple[int, int]) -> tuple[Array, Array]:
    """Which tokens lie in a span of the vocabulary, and where in it; 0 for the others."""
    first, stop = span
    here = (tokens >= first) & (tokens < stop)
    return here, given.xp.where(here, tokens - first, 0)


def _embed(given: Given) -> None:
    """The table's row of each token; nothing for tokens in other ranks' rows."""
    tokens, table = given.sources
    here, index = _within(given, tokens[:, 0], given.blocks[1].rows)
    if table.shape[0]:
        given.into[0][...] = table[index] * here[:, None]
    else:
        given.into[0][...] = 0


def _embed_gradient(given: Given) -> None:
    tokens, g = given.sources
    (towards_table,) = given.updates
    here, index = _within(given, tokens[:, 0], given.blocks[-1].rows)
    if towards_table.shape[0]:
        given.xp.add.at(towards_table, index, given.xp.where(here[:, None], g, 0))


def _positions(given: Given, block: Block, sequence: int) -> Array:
    """The position, in its sequence, of each row of a block."""
    return given.xp.arange(*block.rows) % sequence


def _add_positions(given: Given) -> None:
    """Adds the row of each token's position in its sequence."""
    (table,) = given.sources
    given.updates[0][...] += table[_positions(given, given.blocks[-1], table.shape[0])]


def _position_sums(given: Given) -> None:
    """Sums over sequences, one after the other; a block may begin and end within one."""
    (into,), (g,) = given.into, given.sources
    first, stop = given.blocks[0].rows
    sequence = into.shape[0]
    into[...] = 0
    for start in range(first - first % sequence, stop, sequence):
        top, bottom = max(start, first), min(start + sequence, stop)
        into[top - start : bottom - start] += g[top - first : bottom - first]


def _row_maxima(given: Given) -> None:
    (x,) = given.sources
    given.into[0][...] = x.max(axis=1, keepdims=True) if x.shape[1] else -given.xp.inf


def _exponential_sums(given: Given) -> None:
    """Row sums of exp(x - maximum), and x - maximum of the target where it lies in this rank's columns."""
    x, maxima, targets = given.sources
    shifted = x - maxima
    given.into[0][:, 0] = given.xp.exp(shifted).sum(axis=1)
    here, index = _within(given, targets[:, 0], given.blocks[0].columns)
    rows = given.xp.arange(x.shape[0])
    given.into[0][:, 1] = shifted[rows, index] * here if x.shape[1] else 0


def _cross_entropy(given: Given) -> None:
    """Gradient (softmax(x) - target) · weight, and the rows' part of the loss: weight · Σ (log Σ exp - x of target)."""
    x, maxima, sums, targets = given.sources
    weight = given.scalars["weight"]
    towards_x = given.into[0]
    towards_x[...] = given.xp.exp(x - maxima) / sums[:, :1] * weight
    here, index = _within(given, targets[:, 0], given.blocks[0].columns)
    if x.shape[1]:
        towards_x[given.xp.arange(x.shape[0]), index] -= here * towards_x.dtype.type(weight)
    given.into[1][...] = weight * (given.xp.log(sums[:, 0]) - sums[:, 1]).sum()


def _square_error(given: Given) -> None:
    """Gradient and sum of weight (y - t)² / 2."""
    y, t = given.sources
    weight = given.scalars["weight"]
    difference = y - t
    given.into[0][...] = difference * weight
    given.into[1][...] = 0.5 * weight * (difference * difference).sum()


def _square_sum(given: Given) -> None:
    (g,) = given.sources
    given.into[0][...] = (g * g).sum()


def _clip(given: Given) -> None:
    """Scales a gradient so that the norm of all, whose square is given, is at most the limit."""
    norm = given.xp.sqrt(given.sources[0])
    given.updates[0][...] *= given.xp.minimum(1.0, given.scalars["limit"] / (norm + 1e-6))[0, 0]


def _adam(given: Given) -> None:
    """Adam with decoupled weight decay; `count` is the step, from 0."""
    w, first, second = given.updates
    (g,) = given.sources
    rate, epsilon, decay = (given.scalars[name] for name in ("rate", "epsilon", "decay"))
    one, two = given.scalars["beta1"], given.scalars["beta2"]
    first[...] = one * first + (1 - one) * g
    second[...] = two * second + (1 - two) * g * g
    mean = first / (1 - one ** (given.count + 1))
    spread = second / (1 - two ** (given.count + 1))
    w[...] -= rate * (mean / (given.xp.sqrt(spread) + epsilon) + decay * w)


def _add_bias(given: Given) -> None:
    given.updates[0][...] += given.sources[0]


KERNELS: dict[Function, Callable[[Given], None]] = {
    "add_to": _add_to,
    "transpose": _transpose,
    "add_region": _add_region,
    "cast": _cast,
    "add_bias": _add_bias,
    "column_sums": _column_sums,
    "gelu": _gelu,
    "gelu_gradient": _gelu_gradient,
    "row_moments": _row_moments,
    "normalise": _normalise,
    "normalise_sums": _normalise_sums,
    "normalise_gradient": _normalise_gradient,
    "normalise_parameter_sums": _normalise_parameter_sums,
    "attention": _attention,
    "attention_gradient": _attention_gradient,
    "attention_keeping": _attention_keeping,
    "attention_keeping_gradient": _attention_keeping_gradient,
    "embed": _embed,
    "embed_gradient": _embed_gradient,
    "add_positions": _add_positions,
    "position_sums": _position_sums,
    "row_maxima": _row_maxima,
    "exponential_sums": _exponential_sums,
    "cross_entropy": _cross_entropy,
    "square_error": _square_error,
    "square_sum": _square_sum,
    "clip": _clip,
    "adam": _adam,
}
