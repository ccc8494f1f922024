"""Layer functions of pruned training: compressed vectors of kept elements from dense blocks, and back.

An index has the position of each kept element in the flattened block.  A cut tile may have room for more elements than
it keeps (`algorithms/schedule/kept_elements.py`).  Such an entry has the complement -p - 1 of the position p of a
pruned element, and its value is zero.

On the host the functions run piece by piece, so that positions and temporaries stay in the cache.
"""

from collections.abc import Iterator
from typing import Any

from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels.kernel_arguments import KernelArguments
from quadrille.runtime.kernels.short_floats import narrowed, widened

PIECE = 1 << 14
"""Entries of an index that are processed at a time on the host."""


def _in_parts(xp: Any, index: Array) -> Iterator[tuple[slice, Array, Array | None]]:
    """Yields slices of the index with their positions, and whether an entry is kept, unless all entries are."""
    on_host = xp.__name__ == "numpy"
    step = PIECE if on_host else max(1, index.size)
    for start in range(0, index.size, step):
        part = slice(start, start + step)
        entries = index[part]
        if on_host and int(entries.min()) >= 0:
            yield part, entries, None
        else:
            kept = entries >= 0
            yield part, xp.where(kept, entries, ~entries), kept


def _taken(xp: Any, dense: Array, positions: Array, kept: Array | None) -> Array:
    """The dense elements at the positions, and zero where an entry is not kept."""
    values = dense[positions]
    return values if kept is None else xp.where(kept, values, values.dtype.type(0))


def compress(args: KernelArguments) -> None:
    """Writes the kept elements of a dense block."""
    index, dense = args.sources
    (into,) = args.into
    for part, positions, kept in _in_parts(args.xp, index):
        values = widened(args.xp, _taken(args.xp, dense, positions, kept))
        into[part] = narrowed(args.xp, values, into.dtype)


def compress_add(args: KernelArguments) -> None:
    """Adds the kept elements of a dense block."""
    index, dense = args.sources
    (total,) = args.updates
    for part, positions, kept in _in_parts(args.xp, index):
        values = widened(args.xp, _taken(args.xp, dense, positions, kept))
        total[part] = narrowed(args.xp, widened(args.xp, total[part]) + values, total.dtype)


def expand(args: KernelArguments) -> None:
    """Writes a dense block: kept elements from a compressed vector, and zeros."""
    args.into[0][...] = 0
    _write_kept(args, args.into[0])


def expand_bucket(args: KernelArguments) -> None:
    """Writes the kept elements of one bucket of a compressed vector into a dense block; other elements stay."""
    _write_kept(args, args.updates[0])


def _write_kept(args: KernelArguments, dense: Array) -> None:
    index, packed = args.sources
    for part, positions, _ in _in_parts(args.xp, index):
        dense[positions] = narrowed(args.xp, widened(args.xp, packed[part]), dense.dtype)


def mask(args: KernelArguments) -> None:
    """Sets the pruned elements of a dense block to zero, in place too."""
    index, dense = args.sources
    (into,) = args.into
    held = [(positions, _taken(args.xp, dense, positions, kept)) for _, positions, kept in _in_parts(args.xp, index)]
    into[...] = 0
    for positions, values in held:
        into[positions] = values


def square_sum_kept(args: KernelArguments) -> None:
    """The sum of squares of the kept elements, in the order in which `square_sum` adds a compressed vector."""
    xp, (index, dense) = args.xp, args.sources
    values = [widened(xp, _taken(xp, dense, positions, kept)) for _, positions, kept in _in_parts(xp, index)]
    kept_values = xp.concatenate(values) if values else widened(xp, dense[:0])
    args.into[0][...] = (kept_values * kept_values).sum()
