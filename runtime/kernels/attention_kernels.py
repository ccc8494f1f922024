"""Kernels of causal attention, forward and backward, with grouped-query heads, rotary positions and sliding windows.

The columns of a group are those of its query heads, then of the key and the value that they share. With rotary
positions, queries and keys are rotated before they are multiplied: columns i and i + head / 2 of position p by the
angle p · base^(-2 i / head). If only the first r columns of a head are rotated, r takes the place of head here.

Values may have other columns than queries and keys (latent attention).

With a window of w tokens, a token sees itself and the w - 1 tokens before it. With a soft cap c, scores s become
c · tanh(s / c).

Shapes: sequences × groups × heads of a group × tokens × columns of a head.

Source: Vaswani et al., "Attention Is All You Need", 2017; Dao et al., "FlashAttention", 2022; Ainslie et al., "GQA",
2023; Su et al., "RoFormer", 2021 (with the halves of a head as pairs, as GPT-NeoX and the `transformers` library have
them).
"""

from collections.abc import Mapping
from functools import lru_cache
from math import log, sqrt
from typing import Any

import numpy as np

from quadrille.algorithms.schedule.kernel_signatures import attention_columns
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels.dropout_kernels import before_microbatch, kept, scale
from quadrille.runtime.kernels.kernel_arguments import KernelArguments

KEY_AND_VALUE = 2


def lengths_of(args: KernelArguments) -> tuple[int, int, int]:
    """The tokens of a sequence, the columns of a head and the query heads of a group."""
    scalars = args.scalars
    return int(scalars["sequence"]), int(scalars["head"]), int(scalars.get("group", 1))


def heads_of(x: Array, sequence: int, head: int, heads: int) -> Array:
    """Rows × (groups · heads · head) as sequences × groups × heads × sequence × head."""
    return x.reshape(-1, sequence, x.shape[1] // (heads * head), heads, head).transpose(0, 2, 3, 1, 4)


def rows_of_heads(x: Array) -> Array:
    """The inverse of `heads_of`."""
    batch, groups, heads, sequence, head = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(batch * sequence, groups * heads * head)


def rotated(args: KernelArguments, x: Array, direction: int, positions: Array | None = None) -> Array:
    """The queries or keys rotated by the angles of their positions (or back); unchanged without rotary positions.

    Parameters
    ----------
    positions : positions of the tokens; None for 0, 1, …
    """
    base = args.scalars.get("rotary_base")
    if base is None:
        return x
    xp, columns = args.xp, int(args.scalars.get("rotated", x.shape[4]))
    half = columns // 2
    numbers = (x.shape[3], half, base, direction, x.dtype)
    if positions is not None:
        cosine, sine = _rotations(xp, positions, *numbers[1:])
    else:
        cosine, sine = _rotations_on_host(*numbers) if xp is np else _rotations(xp, xp.arange(x.shape[3]), *numbers[1:])
    first, second, rest = x[..., :half], x[..., half:columns], x[..., columns:]
    return xp.concatenate([first * cosine - second * sine, second * cosine + first * sine, rest], axis=4)


def _rotations(xp: Any, positions: Array, half: int, base: float, direction: int, dtype: Any) -> tuple[Array, Array]:
    """Cosine and sine of the angle of each position and each pair of columns."""
    frequencies = xp.exp(xp.arange(half) * (-log(base) / half))
    angles = positions[:, None] * frequencies * direction
    return xp.cos(angles).astype(dtype), xp.sin(angles).astype(dtype)


@lru_cache(maxsize=2)
def _rotations_on_host(sequence: int, half: int, base: float, direction: int, dtype: Any) -> tuple[Array, Array]:
    """The same cosines and sines for all pieces of an attention kernel on the host."""
    return _rotations(np, np.arange(sequence), half, base, direction, dtype)


def _queries_keys_values(args: KernelArguments) -> tuple[Array, Array, Array]:
    """The rotated queries and keys, and the values."""
    sequence, head, group = lengths_of(args)
    if "value" in args.scalars:
        q, k, v = _uneven_parts(args)
    else:
        x = heads_of(args.sources[0], sequence, head, group + KEY_AND_VALUE)
        q, k, v = x[:, :, :group], x[:, :, group : group + 1], x[:, :, group + 1 :]
    return rotated(args, q, 1), rotated(args, k, 1), v


def _uneven_parts(args: KernelArguments) -> tuple[Array, Array, Array]:
    """Queries, key and value of each group where a value has other columns than a query."""
    sequence, head, group = lengths_of(args)
    whole, keys = attention_columns(args.scalars)[0], group * head
    x = heads_of(args.sources[0], sequence, whole, 1)[:, :, 0]
    batch, groups = x.shape[:2]
    q = x[..., :keys].reshape(batch, groups, sequence, group, head).transpose(0, 1, 3, 2, 4)
    return q, x[:, :, None, :, keys : keys + head], x[:, :, None, :, keys + head :]


def _value(args: KernelArguments) -> int:
    """Columns of a value, and of the output of a head."""
    return int(args.scalars.get("value", args.scalars["head"]))


def _transposed(x: Array) -> Array:
    """The array with its last two dimensions swapped."""
    return x.transpose(0, 1, 2, 4, 3)


def _score_root(scalars: Mapping[str, float]) -> float:
    """The number by which scores are divided: √head, or the root of another number of columns."""
    return sqrt(scalars.get("score_columns", scalars["head"]))


def scores_of(args: KernelArguments, q: Array, k: Array) -> tuple[Array, Array | None]:
    """The scores q kᵀ / √head of all pairs, and their slopes under a soft cap."""
    xp, cap = args.xp, args.scalars.get("score_cap")
    scores = xp.matmul(q, _transposed(k)) / _score_root(args.scalars)
    if cap is None:
        return scores, None
    shares = xp.tanh(scores / cap)
    return cap * shares, 1 - shares * shares


def _scores(args: KernelArguments, q: Array, k: Array) -> tuple[Array, Array | None]:
    """The scores q kᵀ / √head, with -∞ where a token sees no other; and their slopes under a soft cap."""
    xp, (scores, slopes) = args.xp, scores_of(args, q, k)
    sizes = q.shape[3], int(args.scalars.get("window", 0))
    hidden = _hidden_on_host(*sizes) if xp is np else _hidden(xp, *sizes)
    return xp.where(hidden, -xp.inf, scores), slopes


def _hidden(xp: Any, sequence: int, window: int) -> Array:
    """Whether the token of a row does not see that of a column, which is a later one or outside its window."""
    hidden = xp.triu(xp.ones((sequence, sequence), bool), 1)
    if 0 < window < sequence:
        hidden |= xp.tril(xp.ones((sequence, sequence), bool), -window)
    return hidden


@lru_cache(maxsize=2)
def _hidden_on_host(sequence: int, window: int) -> Array:
    """The same mask for all pieces of an attention kernel on the host."""
    return _hidden(np, sequence, window)


def _softmax(args: KernelArguments, scores: Array) -> tuple[Array, Array]:
    """The weights of every token and the logarithms of their row sums."""
    largest = scores.max(axis=4, keepdims=True)
    weights = args.xp.exp(scores - largest)
    total = weights.sum(axis=4, keepdims=True)
    return weights / total, largest + args.xp.log(total)


def _mask(args: KernelArguments, weights: Array) -> Array:
    """Whether dropout keeps each weight; its column is numbered over the heads of the model, then over the keys."""
    xp, (sequences, groups, heads, sequence, _) = args.xp, weights.shape
    tokens = xp.arange(sequences)[:, None] * sequence + xp.arange(sequence)[None, :]
    return mask_at(args, int(args.blocks[0].rows[0]) + tokens, (groups, heads), xp.arange(sequence))


def mask_at(args: KernelArguments, rows: Array, heads: tuple[int, int], keys: Array) -> Array:
    """Whether dropout keeps the weight of each query, head and key.

    Parameters
    ----------
    rows : rows of the microbatch, sequence by sequence, of the queries of each sequence
    heads : groups of heads, and heads of a group
    keys : positions of the keys
    """
    xp, (sequence, _, group) = args.xp, lengths_of(args)
    first_head = args.blocks[0].columns[0] // attention_columns(args.scalars)[0] * group
    head_numbers = first_head + xp.arange(heads[0])[:, None] * heads[1] + xp.arange(heads[1])[None, :]
    columns = head_numbers[None, :, :, None, None] * sequence + keys
    return kept(args, before_microbatch(args) + rows[:, None, None, :, None], columns)


def _factors(args: KernelArguments, weights: Array) -> Array | None:
    """The factors by which dropout multiplies the weights; None without dropout."""
    return factors_of(args, _mask(args, weights)) if "dropout" in args.scalars else None


def factors_of(args: KernelArguments, mask: Array) -> Array:
    """The factors of kept and of dropped elements."""
    return mask * scale(args)


def _dropped(weights: Array, factors: Array | None) -> Array:
    """The weights after dropout."""
    return weights if factors is None else weights * factors


def attention(args: KernelArguments) -> None:
    """softmax(q kᵀ / √head) v for every head, after dropout; it stores the logarithms of the row sums."""
    q, k, v = _queries_keys_values(args)
    weights, logarithms = _softmax(args, _scores(args, q, k)[0])
    args.into[0][...] = rows_of_heads(args.xp.matmul(_dropped(weights, _factors(args, weights)), v))
    args.into[1][...] = rows_of_heads(logarithms)


def attention_keeping(args: KernelArguments) -> None:
    """Attention that also stores its weights (the softmax), for `attention_keeping_gradient`."""
    q, k, v = _queries_keys_values(args)
    weights, _ = _softmax(args, _scores(args, q, k)[0])
    args.into[0][...] = rows_of_heads(args.xp.matmul(weights, v))
    args.into[1][...] = rows_of_heads(weights)


def attention_dropping(args: KernelArguments) -> None:
    """Attention with dropout that also stores its weights, the mask, and the weights after dropout."""
    q, k, v = _queries_keys_values(args)
    weights, _ = _softmax(args, _scores(args, q, k)[0])
    mask = _mask(args, weights)
    after = weights * (mask * scale(args))
    for into, stored in zip(args.into, (args.xp.matmul(after, v), weights, mask, after), strict=True):
        into[...] = rows_of_heads(stored)


def attention_gradient(args: KernelArguments) -> None:
    """The gradients of q, k and v; the weights are recomputed from the stored logarithms."""
    sequence, _, group = lengths_of(args)
    q, k, v = _queries_keys_values(args)
    y, g = (heads_of(array, sequence, _value(args), group) for array in (args.sources[1], args.sources[3]))
    log_sums = heads_of(args.sources[2], sequence, 1, group)
    scores, slopes = _scores(args, q, k)
    weights = args.xp.exp(scores - log_sums)
    row_sums = (g * y).sum(axis=4, keepdims=True)
    factors = _factors(args, weights)
    _write_gradients(args, (q, k, v), weights, g, row_sums, factors, _dropped(weights, factors), slopes)


def attention_keeping_gradient(args: KernelArguments) -> None:
    """The gradients of q, k and v, from the stored weights."""
    sequence, _, group = lengths_of(args)
    weights = heads_of(args.sources[1], sequence, sequence, group)
    g = heads_of(args.sources[2], sequence, _value(args), group)
    qkv = _queries_keys_values(args)
    _write_gradients(args, qkv, weights, g, None, None, weights, _slopes(args, qkv))


def attention_dropping_gradient(args: KernelArguments) -> None:
    """The gradients of q, k and v, from the stored weights before and after dropout and the stored mask."""
    sequence, _, group = lengths_of(args)
    weights, mask, after = (heads_of(array, sequence, sequence, group) for array in args.sources[1:4])
    g = heads_of(args.sources[4], sequence, _value(args), group)
    qkv = _queries_keys_values(args)
    _write_gradients(args, qkv, weights, g, None, mask * scale(args), after, _slopes(args, qkv))


def _slopes(args: KernelArguments, qkv: tuple[Array, Array, Array]) -> Array | None:
    """The slopes of the soft cap, from recomputed scores; None without a cap."""
    return _scores(args, qkv[0], qkv[1])[1] if "score_cap" in args.scalars else None


def _write_gradients(
    args: KernelArguments,
    qkv: tuple[Array, Array, Array],
    weights: Array,
    g: Array,
    row_sums: Array | None,
    factors: Array | None,
    after: Array,
    slopes: Array | None,
) -> None:
    """Write the gradients of q, k and v, from the weights and the gradient of the output.

    Parameters
    ----------
    row_sums : row sums of the weights times their gradients; computed if not given
    factors : factors by which dropout multiplies the weights; None without dropout
    after : weights after dropout
    slopes : slopes of the soft cap of the scores; None without a cap
    """
    of_q, of_k, of_v = gradients_of(args, qkv, weights, g, row_sums, factors, slopes, after)
    xp, gradients = args.xp, [rotated(args, of_q, -1), rotated(args, of_k, -1), of_v]
    if "value" not in args.scalars:
        args.into[0][...] = rows_of_heads(xp.concatenate(gradients, axis=2))
        return
    parts = [x.transpose(0, 3, 1, 2, 4).reshape(*x.shape[0:4:3], x.shape[1], -1) for x in gradients]
    args.into[0][...] = xp.concatenate(parts, axis=3).reshape(args.into[0].shape)


def gradients_of(
    args: KernelArguments,
    qkv: tuple[Array, Array, Array],
    weights: Array,
    g: Array,
    row_sums: Array | None,
    factors: Array | None,
    slopes: Array | None,
    after: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients of rotated queries and keys, and of values; see `_write_gradients`."""
    xp, (q, k, v) = args.xp, qkv
    gradient_weights = _dropped(xp.matmul(g, _transposed(v)), factors)
    if row_sums is None:
        row_sums = (weights * gradient_weights).sum(axis=4, keepdims=True)
    gradient_scores = weights * (gradient_weights - row_sums) / _score_root(args.scalars)
    if slopes is not None:
        gradient_scores = gradient_scores * slopes
    dropped = _dropped(weights, factors) if after is None else after
    return (
        xp.matmul(gradient_scores, k),
        _summed_over_group(xp.matmul(_transposed(gradient_scores), q)),
        _summed_over_group(xp.matmul(_transposed(dropped), g)),
    )


def apply_sinks(args: KernelArguments) -> None:
    """The output and the logarithms of attention with a sink in every head's softmax."""
    out, logarithms = args.updates
    with_sink = args.xp.logaddexp(logarithms, args.sources[0])
    out.reshape(*logarithms.shape, -1)[...] *= args.xp.exp(logarithms - with_sink)[:, :, None]
    logarithms[...] = with_sink


def sink_gradient(args: KernelArguments) -> None:
    """The gradient of the sinks: the sum over tokens of -exp(sink - logarithm) g · out."""
    out, logarithms, sinks, g = args.sources
    products = (out * g).reshape(*logarithms.shape, -1).sum(axis=2)
    args.into[0][0] = -(args.xp.exp(sinks - logarithms) * products).sum(axis=0)


def join_heads(args: KernelArguments) -> None:
    """QKV of latent attention, from queries, pairs of a key and a value, and the rotated columns of all keys."""
    head, rotated = int(args.scalars["head"]), int(args.scalars["rotated"])
    into, (queries, pairs) = (
        _by_head(args, args.into[0], "qkv"),
        (_by_head(args, array, word) for array, word in zip(args.sources[:2], ("head", "pair"), strict=True)),
    )
    into[..., :head] = queries
    into[..., head : head + rotated] = args.sources[2][:, None]
    into[..., head + rotated :] = pairs


def split_heads(args: KernelArguments) -> None:
    """The gradients of the three parts that `join_heads` joins; that of the shared columns is a sum over heads."""
    head, rotated = int(args.scalars["head"]), int(args.scalars["rotated"])
    g = _by_head(args, args.sources[0], "qkv")
    _by_head(args, args.into[0], "head")[...] = g[..., :head]
    _by_head(args, args.into[1], "pair")[...] = g[..., head + rotated :]
    args.into[2][...] = g[..., head : head + rotated].sum(axis=1)


def _by_head(args: KernelArguments, x: Array, word: str) -> Array:
    """Rows x columns as rows x heads x columns of a head; a view."""
    columns = attention_columns(args.scalars)[0] if word == "qkv" else int(args.scalars[word])
    return x.reshape(x.shape[0], x.shape[1] // columns, columns)


def _summed_over_group(x: Array) -> Array:
    """The sum over the queries of a group, for the key or value that they share."""
    return x.sum(axis=2, keepdims=True) if x.shape[2] > 1 else x
