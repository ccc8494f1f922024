"""Kernels of the two ends of a language model: embeddings of tokens and positions, and the cross entropy.

On a GPU, atomic additions sum the rows of an embedding's gradient in an order of the device's own, so the last bits may
differ from run to run.

Source: CuPy documentation, "Differences between CuPy and NumPy", and cupyx.scatter_add.
"""

import numpy as np

from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels.host_pieces import rows_of
from quadrille.runtime.kernels.kernel_arguments import KernelArguments


def _within(args: KernelArguments, tokens: Array, span: tuple[int, int]) -> tuple[Array, Array]:
    """A mask of the tokens in a range of the vocabulary, and their indices in it; index 0 for all other tokens."""
    first, stop = span
    here = (tokens >= first) & (tokens < stop)
    return here, args.xp.where(here, tokens - first, 0)


def embed(args: KernelArguments) -> None:
    """The table's row of each token; 0 for tokens whose rows are on other ranks."""
    tokens, table = args.sources
    here, index = _within(args, tokens[:, 0], args.blocks[1].rows)
    if table.shape[0]:
        args.into[0][...] = table[index] * here[:, None].astype(table.dtype)
    else:
        args.into[0][...] = 0


def embed_gradient(args: KernelArguments) -> None:
    tokens, g = args.sources
    (towards_table,) = args.updates
    here, index = _within(args, tokens[:, 0], args.blocks[-1].rows)
    if towards_table.shape[0]:
        args.xp.add.at(towards_table, index, args.xp.where(here[:, None], g, 0))


def add_positions(args: KernelArguments) -> None:
    """Adds the row of each token's position."""
    (table,) = args.sources
    args.updates[0][...] += table[args.batch_rows(-1) % table.shape[0]]


def position_sums(args: KernelArguments) -> None:
    """The sums over sequences; a block may begin and end within a sequence."""
    (into,), (g,) = args.into, args.sources
    first, stop = args.blocks[0].rows
    sequence = into.shape[0]
    into[...] = 0
    if "context" in args.scalars:
        args.xp.add.at(into, args.batch_rows() % sequence, g)
        return
    for start in range(first - first % sequence, stop, sequence):
        top, bottom = max(start, first), min(start + sequence, stop)
        into[top - start : bottom - start] += g[top - first : bottom - first]


def row_maxima(args: KernelArguments) -> None:
    (x,) = args.sources
    args.into[0][...] = x.max(axis=1, keepdims=True) if x.shape[1] else -args.xp.inf


def exponential_sums(args: KernelArguments) -> None:
    """The row sums of exp(x - maximum), and x - maximum of the target if it lies in this rank's columns."""
    x, maxima, targets = args.sources
    shifted = x - maxima
    args.into[0][:, 0] = args.xp.exp(shifted).sum(axis=1)
    here, index = _within(args, targets[:, 0], args.blocks[0].columns)
    rows = args.xp.arange(x.shape[0])
    args.into[0][:, 1] = shifted[rows, index] * here if x.shape[1] else 0


def cross_entropy(args: KernelArguments) -> None:
    """The gradient (softmax(x) - target) · weight, and the rows' part of the loss.

    The loss is weight · Σ (log Σ exp - x of target).
    """
    for part in rows_of("cross_entropy", args) if args.xp is np else (args,):
        _cross_entropy_gradient(part)
    sums = args.sources[2]
    args.into[1][...] = args.scalars["weight"] * (args.xp.log(sums[:, 0]) - sums[:, 1]).sum()


def _cross_entropy_gradient(args: KernelArguments) -> None:
    x, maxima, sums, targets = args.sources
    weight = args.scalars["weight"]
    towards_x = args.into[0]
    towards_x[...] = args.xp.exp(x - maxima) / sums[:, :1] * weight
    here, index = _within(args, targets[:, 0], args.blocks[0].columns)
    if x.shape[1]:
        towards_x[args.xp.arange(x.shape[0]), index] -= here * towards_x.dtype.type(weight)
