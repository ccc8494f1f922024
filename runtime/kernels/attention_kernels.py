"""Kernels of causal attention, forward and backward, with grouped-query heads and rotary positions.

The columns of a group are those of its query heads, then of the key and the value that they share. With rotary
positions, queries and keys are rotated before they are multiplied: columns i and i + head / 2 of position p by the
angle p · base^(-2 i / head).

Shapes: sequences × groups × heads of a group × tokens × columns of a head.

Source: Vaswani et al., "Attention Is All You Need", 2017; Dao et al., "FlashAttention", 2022; Ainslie et al., "GQA",
2023; Su et al., "RoFormer", 2021 (with the halves of a head as pairs, as GPT-NeoX and the `transformers` library have
them).
"""

from math import log, sqrt

from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels.kernel_arguments import KernelArguments

KEY_AND_VALUE = 2


def _lengths(args: KernelArguments) -> tuple[int, int, int]:
    """The tokens of a sequence, the columns of a head and the query heads of a group."""
    scalars = args.scalars
    return int(scalars["sequence"]), int(scalars["head"]), int(scalars.get("group", 1))


def _heads(x: Array, sequence: int, head: int, heads: int) -> Array:
    """Rows × (groups · heads · head) as sequences × groups × heads × sequence × head."""
    return x.reshape(-1, sequence, x.shape[1] // (heads * head), heads, head).transpose(0, 2, 3, 1, 4)


def _rows(x: Array) -> Array:
    """The inverse of `_heads`."""
    batch, groups, heads, sequence, head = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(batch * sequence, groups * heads * head)


def _rotated(args: KernelArguments, x: Array, direction: int) -> Array:
    """The queries or keys rotated by the angles of their positions (or back); unchanged without rotary positions."""
    base = args.scalars.get("rotary_base")
    if base is None:
        return x
    xp, half = args.xp, x.shape[4] // 2
    frequencies = xp.exp(xp.arange(half) * (-log(base) / half))
    angles = xp.arange(x.shape[3])[:, None] * frequencies * direction
    cosine, sine = xp.cos(angles).astype(x.dtype), xp.sin(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return xp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=4)


def _queries_keys_values(args: KernelArguments) -> tuple[Array, Array, Array]:
    """The rotated queries and keys, and the values."""
    sequence, head, group = _lengths(args)
    x = _heads(args.sources[0], sequence, head, group + KEY_AND_VALUE)
    q, k, v = x[:, :, :group], x[:, :, group : group + 1], x[:, :, group + 1 :]
    return _rotated(args, q, 1), _rotated(args, k, 1), v


def _transposed(x: Array) -> Array:
    """The array with its last two dimensions swapped."""
    return x.transpose(0, 1, 2, 4, 3)


def _scores(args: KernelArguments, q: Array, k: Array) -> Array:
    """The scores q kᵀ / √head, with -∞ where a token would see later ones."""
    sequence, head = q.shape[3:]
    scores = args.xp.matmul(q, _transposed(k)) / sqrt(head)
    later = args.xp.triu(args.xp.ones((sequence, sequence), bool), 1)
    return args.xp.where(later, -args.xp.inf, scores)


def _softmax(args: KernelArguments, v: Array, scores: Array) -> tuple[Array, Array]:
    """The weights of every token and the logarithms of their row sums; writes weights · v."""
    largest = scores.max(axis=4, keepdims=True)
    weights = args.xp.exp(scores - largest)
    total = weights.sum(axis=4, keepdims=True)
    weights = weights / total
    args.into[0][...] = _rows(args.xp.matmul(weights, v))
    return weights, largest + args.xp.log(total)


def attention(args: KernelArguments) -> None:
    """softmax(q kᵀ / √head) v for every head; it stores the logarithms of the row sums."""
    q, k, v = _queries_keys_values(args)
    args.into[1][...] = _rows(_softmax(args, v, _scores(args, q, k))[1])


def attention_keeping(args: KernelArguments) -> None:
    """Attention that also stores its weights (the softmax), for `attention_keeping_gradient`."""
    q, k, v = _queries_keys_values(args)
    args.into[1][...] = _rows(_softmax(args, v, _scores(args, q, k))[0])


def attention_gradient(args: KernelArguments) -> None:
    """The gradients of q, k and v; the weights are recomputed from the stored logarithms."""
    sequence, head, group = _lengths(args)
    q, k, v = _queries_keys_values(args)
    y, g = (_heads(array, sequence, head, group) for array in (args.sources[1], args.sources[3]))
    log_sums = _heads(args.sources[2], sequence, 1, group)
    weights = args.xp.exp(_scores(args, q, k) - log_sums)
    _write_gradients(args, (q, k, v), weights, g, (g * y).sum(axis=4, keepdims=True))


def attention_keeping_gradient(args: KernelArguments) -> None:
    """The gradients of q, k and v, from the stored weights."""
    sequence, head, group = _lengths(args)
    weights, g = _heads(args.sources[1], sequence, sequence, group), _heads(args.sources[2], sequence, head, group)
    _write_gradients(args, _queries_keys_values(args), weights, g, None)


def _write_gradients(
    args: KernelArguments, qkv: tuple[Array, Array, Array], weights: Array, g: Array, row_sums: Array | None
) -> None:
    """Write the gradients of q, k and v, from the weights and the gradient of the output.

    Parameters
    ----------
    row_sums : row sums of the weights times their gradients; computed if not given
    """
    xp, (q, k, v) = args.xp, qkv
    gradient_weights = xp.matmul(g, _transposed(v))
    if row_sums is None:
        row_sums = (weights * gradient_weights).sum(axis=4, keepdims=True)
    gradient_scores = weights * (gradient_weights - row_sums) / sqrt(q.shape[4])
    gradients = [
        _rotated(args, xp.matmul(gradient_scores, k), -1),
        _rotated(args, _summed_over_group(xp.matmul(_transposed(gradient_scores), q)), -1),
        _summed_over_group(xp.matmul(_transposed(weights), g)),
    ]
    args.into[0][...] = _rows(xp.concatenate(gradients, axis=2))


def _summed_over_group(x: Array) -> Array:
    """The sum over the queries of a group, for the key or value that they share."""
    return x.sum(axis=2, keepdims=True) if x.shape[2] > 1 else x
