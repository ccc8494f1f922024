"""Kernels on the host run piece by piece: the temporaries of a piece stay in the cache and need no new pages of memory.

A piece is a range of elements, of rows, or of sequences and groups of heads. Every element and every row is computed as
in the whole matrix, so pieces change no bit of the result.
"""

from collections.abc import Iterator
from dataclasses import replace

from quadrille.algorithms.analysis.host_passes import attention_piece, piece_rows
from quadrille.algorithms.schedule.kernel_signatures import ATTENTION_PRODUCTS, SIGNATURES, Function, attention_columns
from quadrille.runtime.kernels.kernel_arguments import KernelArguments

BY_ELEMENT: tuple[Function, ...] = ("gelu", "gelu_gradient", "adam")
"""Elementwise functions of flat arrays."""
BY_ROWS: tuple[Function, ...] = (
    "swiglu",
    "swiglu_gradient",
    "row_moments",
    "normalise",
    "normalise_sums",
    "normalise_gradient",
    "row_squares",
    "rms_normalise",
    "rms_sums",
    "rms_gradient",
    "clamped_swiglu",
    "clamped_swiglu_gradient",
    "join_heads",
    "split_heads",
    "exponential_sums",
    "embed",
)
"""Functions whose rows are independent, and which use no row numbers."""
PIECE = 1 << 14
"""Elements of a piece of an elementwise function."""


def cut_arguments(function: Function, args: KernelArguments) -> Iterator[KernelArguments]:
    """The arguments of each piece of a function; the arguments themselves if it does not run by pieces."""
    if function in BY_ELEMENT:
        yield from _of_elements(args)
    elif function in BY_ROWS:
        yield from rows_of(function, args)
    elif function in ATTENTION_PRODUCTS and "context" not in args.scalars:
        yield from _of_heads(args)
    else:
        yield args


def _of_elements(args: KernelArguments) -> Iterator[KernelArguments]:
    size = (*args.into, *args.updates)[0].size
    for start in range(0, size, PIECE):
        part = slice(start, start + PIECE)
        into, updates, sources = (
            tuple(array[part] for array in arrays) for arrays in (args.into, args.updates, args.sources)
        )
        yield replace(args, into=into, updates=updates, sources=sources)


def rows_of(function: Function, args: KernelArguments) -> Iterator[KernelArguments]:
    """Pieces of rows; an array with other rows, such as γ or the table of an embedding, is whole in every piece."""
    signature = SIGNATURES[function]
    rows = args.sources[0].shape[0]
    into, sources = (
        [(array, shape.split()[0] == "m") for array, shape in zip(arrays, shapes, strict=True)]
        for arrays, shapes in ((args.into, signature.into), (args.sources, signature.sources))
    )
    step = piece_rows(max(array.shape[1] for array, _ in (*into, *sources)))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        yield replace(
            args,
            into=tuple(array[part] if divides else array for array, divides in into),
            sources=tuple(array[part] if divides else array for array, divides in sources),
        )


def _of_heads(args: KernelArguments) -> Iterator[KernelArguments]:
    """Pieces of whole sequences and whole groups of heads; an array's columns divide evenly among the groups."""
    scalars = args.scalars
    length, group = int(scalars["sequence"]), int(scalars.get("group", 1))
    rows, columns = args.sources[0].shape
    groups = columns // attention_columns(scalars)[0]
    sequences, groups_of_piece = attention_piece(length, group, groups)
    for top in range(0, rows, sequences * length):
        for left in range(0, groups, groups_of_piece):
            lines, heads = (top, min(rows, top + sequences * length)), (left, min(groups, left + groups_of_piece))
            yield _part(args, lines, heads, groups)


def _part(args: KernelArguments, lines: tuple[int, int], heads: tuple[int, int], groups: int) -> KernelArguments:
    """The arguments of these rows and groups, with the place of the first source's block."""
    into, sources = (
        tuple(
            array[lines[0] : lines[1], heads[0] * (array.shape[1] // groups) : heads[1] * (array.shape[1] // groups)]
            for array in arrays
        )
        for arrays in (args.into, args.sources)
    )
    blocks = args.blocks
    if blocks:
        (row, _), (column, _), width = blocks[0].rows, blocks[0].columns, args.sources[0].shape[1] // groups
        first = replace(
            blocks[0],
            rows=(row + lines[0], row + lines[1]),
            columns=(column + heads[0] * width, column + heads[1] * width),
        )
        blocks = (first, *blocks[1:])
    return replace(args, into=into, sources=sources, blocks=blocks)
