"""Kernels of attention under context parallelism: of some queries of every sequence to some of its keys.

The rows of queries are those of one member of the group along context, in the order of `algorithms/training/context`.
The rows of keys and values are those of one or of all members.  Every query sees at least its own key in the block of
its own member; it may see none in another block, whose logarithm is then -∞.

Shapes: sequences × groups × heads of a group × tokens × columns of a head, as in `attention_kernels`.

Source: Dao et al., "FlashAttention", 2022; Liu et al., "Ring Attention", arXiv 2310.01889 (merging of blocks).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from quadrille.algorithms.training.context import natural_rows
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels.attention_kernels import (
    KEY_AND_VALUE,
    factors_of,
    gradients_of,
    heads_of,
    lengths_of,
    mask_at,
    rotated,
    rows_of_heads,
    scores_of,
)
from quadrille.runtime.kernels.kernel_arguments import KernelArguments


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries of one member, and keys and values of one or several members, of the same sequences.

    Parameters
    ----------
    q, k, v : rotated queries and keys, and values
    queries, keys : their positions in a sequence
    members : members whose keys these are
    """

    q: Array
    k: Array
    v: Array
    queries: Array
    keys: Array
    members: int


def _positions(args: KernelArguments, position: int, members: int) -> Array:
    """The positions in a sequence of a block's tokens, which are the same in every sequence."""
    sequence, context = int(args.scalars["sequence"]), int(args.scalars["context"])
    first, stop = args.sequences[position]
    share, tokens, xp = (stop - first) // context, sequence // context, args.xp
    begin = args.blocks[position].rows[0]
    rows = begin + xp.arange(members)[:, None] * share + xp.arange(tokens)[None, :]
    return (natural_rows(rows, first, stop, sequence, context) - first).reshape(-1)


def _block(args: KernelArguments) -> _Block:
    sequence, head, group = lengths_of(args)
    tokens = sequence // int(args.scalars["context"])
    own, others = args.sources[:2]
    members = others.shape[0] // own.shape[0]
    queries, keys = _positions(args, 0, 1), _positions(args, 1, members)
    q = heads_of(own, tokens, head, group + KEY_AND_VALUE)[:, :, :group]
    pairs = _by_sequence(others, members, own.shape[0] // tokens)
    both = heads_of(pairs, members * tokens, head, KEY_AND_VALUE)
    k, v = both[:, :, :1], both[:, :, 1:]
    return _Block(rotated(args, q, 1, queries), rotated(args, k, 1, keys), v, queries, keys, members)


def _by_sequence(x: Array, members: int, sequences: int) -> Array:
    """Rows member by member, as rows sequence by sequence."""
    return x.reshape(members, sequences, -1, x.shape[1]).transpose(1, 0, 2, 3).reshape(x.shape)


def _by_member(x: Array, members: int, sequences: int) -> Array:
    """The inverse of `_by_sequence`."""
    return x.reshape(sequences, members, -1, x.shape[1]).transpose(1, 0, 2, 3).reshape(x.shape)


def _scores(args: KernelArguments, block: _Block) -> tuple[Array, Array | None]:
    """The scores, with -∞ where a query does not see a key, and their slopes under a soft cap."""
    distance = block.queries[:, None] - block.keys[None, :]
    window = int(args.scalars.get("window", 0))
    hidden = (distance < 0) | (distance >= window) if window else distance < 0
    scores, slopes = scores_of(args, block.q, block.k)
    return args.xp.where(hidden, -args.xp.inf, scores), slopes


def _factors(args: KernelArguments, block: _Block) -> Array | None:
    """The factors by which dropout multiplies the weights; None without dropout."""
    if "dropout" not in args.scalars:
        return None
    rows = args.batch_rows().reshape(block.q.shape[0], -1)
    return factors_of(args, mask_at(args, rows, block.q.shape[1:3], block.keys))


def _attended(args: KernelArguments) -> tuple[Array, Array]:
    """The output of the block's attention and the logarithms of its row sums, as rows."""
    xp, block = args.xp, _block(args)
    scores, _ = _scores(args, block)
    largest = scores.max(axis=4, keepdims=True)
    largest = xp.where(largest > -xp.inf, largest, 0)
    weights = xp.exp(scores - largest)
    total = weights.sum(axis=4, keepdims=True)
    sees = total > 0
    divisor = xp.where(sees, total, 1)
    factors = _factors(args, block)
    kept = weights / divisor if factors is None else weights / divisor * factors
    logarithms = xp.where(sees, largest + xp.log(divisor), -xp.inf)
    return rows_of_heads(xp.matmul(kept, block.v)), rows_of_heads(logarithms)


def attention_apart(args: KernelArguments) -> None:
    """Attention to the keys and values of the second source."""
    for into, computed in zip(args.into, _attended(args), strict=True):
        into[...] = computed


def attention_merge(args: KernelArguments) -> None:
    """Attention to more keys and values, merged with that to others by the logarithms of the row sums."""
    xp, (a, logarithms) = args.xp, args.updates
    more, more_logarithms = _attended(args)
    largest = xp.maximum(logarithms, more_logarithms)
    both = largest + xp.log(xp.exp(logarithms - largest) + xp.exp(more_logarithms - largest))
    a[...] = _scaled(a, xp.exp(logarithms - both)) + _scaled(more, xp.exp(more_logarithms - both))
    logarithms[...] = both


def _scaled(a: Array, factors: Array) -> Array:
    """The columns of every head times the factor of its row."""
    heads = factors.shape[1]
    return (a.reshape(a.shape[0], heads, -1) * factors[:, :, None]).reshape(a.shape)


def _block_gradients(args: KernelArguments) -> tuple[Array, Array]:
    """The gradients of the queries (sequence by sequence) and of the block's keys and values, as rows."""
    _, head, group = lengths_of(args)
    xp, block = args.xp, _block(args)
    tokens = block.q.shape[3]
    y, g = (heads_of(array, tokens, head, group) for array in (args.sources[2], args.sources[4]))
    log_sums = heads_of(args.sources[3], tokens, 1, group)
    scores, slopes = _scores(args, block)
    weights = xp.exp(scores - log_sums)
    factors = _factors(args, block)
    row_sums = (g * y).sum(axis=4, keepdims=True)
    towards_q, towards_k, towards_v = gradients_of(
        args, (block.q, block.k, block.v), weights, g, row_sums, factors, slopes
    )
    towards_q, towards_k = rotated(args, towards_q, -1, block.queries), rotated(args, towards_k, -1, block.keys)
    of_keys = rows_of_heads(xp.concatenate([towards_k, towards_v], axis=2))
    return rows_of_heads(towards_q), _by_member(of_keys, block.members, block.q.shape[0])


def attention_apart_gradient(args: KernelArguments) -> None:
    """The gradients of the queries, beside zeros for keys and values, and of the block's keys and values."""
    of_queries, of_keys = _block_gradients(args)
    args.into[0][...] = 0
    _queries(args, args.into[0])[...] = _queries_of(args, of_queries)
    args.into[1][...] = of_keys


def attention_merge_gradient(args: KernelArguments) -> None:
    """The gradients of the queries are added to; those of the block's keys and values are written."""
    of_queries, args.into[0][...] = _block_gradients(args)
    _queries(args, args.updates[0])[...] += _queries_of(args, of_queries)


def _grouped(args: KernelArguments, x: Array, heads: int) -> Array:
    """Rows × groups × columns of these heads of a group."""
    return x.reshape(x.shape[0], -1, heads * int(args.scalars["head"]))


def _queries(args: KernelArguments, qkv: Array) -> Array:
    """The columns of the queries in every group, as a view."""
    group = int(args.scalars.get("group", 1))
    return _grouped(args, qkv, group + KEY_AND_VALUE)[:, :, : group * int(args.scalars["head"])]


def _queries_of(args: KernelArguments, x: Array) -> Array:
    return _grouped(args, x, int(args.scalars.get("group", 1)))


def _keys_values(args: KernelArguments, qkv: Array) -> Array:
    """The columns of the key and the value of every group, as a view."""
    group = int(args.scalars.get("group", 1))
    return _grouped(args, qkv, group + KEY_AND_VALUE)[:, :, group * int(args.scalars["head"]) :]


def take_keys_values(args: KernelArguments) -> None:
    """The columns of keys and values."""
    _grouped(args, args.into[0], KEY_AND_VALUE)[...] = _keys_values(args, args.sources[0])


def put_keys_values(args: KernelArguments) -> None:
    """The columns of keys and values are replaced."""
    _keys_values(args, args.updates[0])[...] = _grouped(args, args.sources[0], KEY_AND_VALUE)


def in_batch_order(kernel: Callable[[KernelArguments], None]) -> Callable[[KernelArguments], None]:
    """The kernel of whole sequences on rows in the order of the members; their rows are sorted, and sorted back."""

    def sorted_kernel(args: KernelArguments) -> None:
        if "context" not in args.scalars:
            kernel(args)
            return
        order = args.xp.argsort(args.batch_rows())
        into = tuple(args.xp.empty_like(array) for array in args.into)
        kernel(replace(args, into=into, sources=tuple(array[order] for array in args.sources)))
        for array, computed in zip(args.into, into, strict=True):
            array[order] = computed

    return sorted_kernel
