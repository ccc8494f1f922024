"""Kernels of dropout on the hidden states: forward, which writes the mask, and the gradient."""

from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels.dropout_masks import kept_elements
from quadrille.runtime.kernels.kernel_arguments import KernelArguments


def before_microbatch(args: KernelArguments) -> int:
    """The rows of the batch before those of the microbatch, whose rows a schedule numbers."""
    return int(args.indices.get("microbatch", 0)) * int(args.scalars["tokens"])


def kept(args: KernelArguments, rows: Array, columns: Array) -> Array:
    """Whether the kernel's dropout keeps each element.

    Parameters
    ----------
    rows, columns : rows in the batch and columns of the elements
    """
    scalars = args.scalars
    return kept_elements(
        args.xp,
        rows,
        columns,
        share=scalars["dropout"],
        place=int(scalars["place"]),
        layer=args.indices.get("layer", 0),
        step=args.iteration,
    )


def scale(args: KernelArguments) -> float:
    """The factor of the kept elements."""
    return 1 / (1 - args.scalars["dropout"])


def dropout(args: KernelArguments) -> None:
    """Sets some elements to zero, scales the others, and writes the mask: 1 for a kept element."""
    (mask,), (x,), xp = args.into, args.updates, args.xp
    rows, columns = before_microbatch(args) + args.batch_rows(), xp.arange(*args.blocks[0].columns)
    mask[...] = kept(args, rows[:, None], columns[None, :])
    x *= mask * scale(args)


def dropout_gradient(args: KernelArguments) -> None:
    """The gradient before dropout: zero for a dropped element."""
    g, mask = args.sources
    args.into[0][...] = g * (mask * scale(args))
