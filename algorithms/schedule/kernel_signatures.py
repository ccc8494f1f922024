"""Local functions of a layer other than matrix products: operand shapes, partial sums and flop counts.

A shape is two words, rows and columns.  A letter is a range of a dimension, the same range wherever the line of a
function names it.  `3h` is a range that starts and ends at three times the bounds of h.  `(group+2)h` takes the factor
from the op's scalar of that name (1 without it) plus two.  A number is a length, `-` is any range.  `=` means the same
block as every other `=` of the line, so the function also works elementwise on flattened shards.

A function that sums over rows or columns of a source leaves a partial sum over the axes that cut them (`sums`).  Only a
linear function accepts partial sums.

Source: Vaswani et al., "Attention Is All You Need", 2017; Ba, Kiros, Hinton, "Layer Normalization", 2016; Hendrycks,
Gimpel, "Gaussian Error Linear Units", 2016 (the tanh form); Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU);
Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019; Ainslie et al., "GQA", 2023 (grouped queries); Kingma,
Ba, "Adam", 2015, algorithm 1; Dao et al., "FlashAttention", 2022 (only the logarithms of the row sums are stored).
"""

from dataclasses import dataclass
from typing import Literal

Function = Literal[
    "add_to",
    "transpose",
    "add_region",
    "cast",
    "add_bias",
    "column_sums",
    "gelu",
    "gelu_gradient",
    "swiglu",
    "swiglu_gradient",
    "row_moments",
    "normalise",
    "normalise_sums",
    "normalise_gradient",
    "normalise_parameter_sums",
    "row_squares",
    "rms_normalise",
    "rms_sums",
    "rms_gradient",
    "rms_parameter_sums",
    "attention",
    "attention_gradient",
    "attention_keeping",
    "attention_keeping_gradient",
    "embed",
    "embed_gradient",
    "add_positions",
    "position_sums",
    "row_maxima",
    "exponential_sums",
    "cross_entropy",
    "square_error",
    "square_sum",
    "clip",
    "adam",
]

Summed = Literal["rows", "columns", "both"]
BandContent = Literal["rows", "whole", "sum"]


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """Operand shapes and costs of a function.

    Parameters
    ----------
    into, updates, sources : shape of each tensor
    linear : whether partial sums among the sources give a partial sum
    sums : for each written tensor, the summed dimensions and the index of the source
    flops : flop for each element of the first source
    """

    into: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    linear: bool = False
    sums: tuple[tuple[Summed, int] | None, ...] = ()
    flops: int = 1


SIGNATURES: dict[Function, KernelSignature] = {
    "add_to": KernelSignature(updates=("=",), sources=("=",), linear=True),
    "add_region": KernelSignature(updates=("- -",), sources=("- -",), linear=True),
    "cast": KernelSignature(into=("=",), sources=("=",), linear=True),
    "transpose": KernelSignature(into=("n m",), sources=("m n",), linear=True),
    "add_bias": KernelSignature(updates=("m n",), sources=("1 n",)),
    "column_sums": KernelSignature(into=("1 n",), sources=("m n",), linear=True, sums=(("rows", 0),)),
    "gelu": KernelSignature(into=("=",), sources=("=",), flops=12),
    "gelu_gradient": KernelSignature(into=("=",), sources=("=", "="), flops=20),
    "swiglu": KernelSignature(into=("m n",), sources=("m 2n",), flops=6),
    "swiglu_gradient": KernelSignature(into=("m 2n",), sources=("m 2n", "m n"), flops=8),
    "row_moments": KernelSignature(into=("m 2",), sources=("m n",), sums=(("columns", 0),), flops=3),
    "normalise": KernelSignature(into=("m n",), sources=("m n", "m 2", "1 n", "1 n"), flops=5),
    "normalise_sums": KernelSignature(
        into=("m 2",), sources=("m n", "m 2", "1 n", "m n"), sums=(("columns", 0),), flops=6
    ),
    "normalise_gradient": KernelSignature(into=("m n",), sources=("m n", "m 2", "m 2", "1 n", "m n"), flops=9),
    "normalise_parameter_sums": KernelSignature(
        into=("1 n", "1 n"), sources=("m n", "m 2", "m n"), sums=(("rows", 0), ("rows", 0)), flops=5
    ),
    "row_squares": KernelSignature(into=("m 1",), sources=("m n",), sums=(("columns", 0),), flops=2),
    "rms_normalise": KernelSignature(into=("m n",), sources=("m n", "m 1", "1 n"), flops=2),
    "rms_sums": KernelSignature(into=("m 1",), sources=("m n", "m 1", "1 n", "m n"), sums=(("columns", 0),), flops=4),
    "rms_gradient": KernelSignature(into=("m n",), sources=("m n", "m 1", "m 1", "1 n", "m n"), flops=5),
    "rms_parameter_sums": KernelSignature(into=("1 n",), sources=("m n", "m 1", "m n"), sums=(("rows", 0),), flops=3),
    "attention": KernelSignature(into=("m (group)h", "m -"), sources=("m (group+2)h",)),
    "attention_gradient": KernelSignature(
        into=("m (group+2)h",), sources=("m (group+2)h", "m (group)h", "m -", "m (group)h")
    ),
    "attention_keeping": KernelSignature(into=("m (group)h", "m w"), sources=("m (group+2)h",)),
    "attention_keeping_gradient": KernelSignature(
        into=("m (group+2)h",), sources=("m (group+2)h", "m w", "m (group)h")
    ),
    "embed": KernelSignature(into=("m h",), sources=("m 1", "v h"), sums=(("rows", 1),)),
    "embed_gradient": KernelSignature(updates=("v h",), sources=("m 1", "m h"), linear=True, sums=(("rows", 1),)),
    "add_positions": KernelSignature(updates=("m h",), sources=("- h",)),
    "position_sums": KernelSignature(into=("- h",), sources=("m h",), linear=True, sums=(("rows", 0),)),
    "row_maxima": KernelSignature(into=("m 1",), sources=("m v",), sums=(("columns", 0),)),
    "exponential_sums": KernelSignature(into=("m 2",), sources=("m v", "m 1", "m 1"), sums=(("columns", 0),), flops=12),
    "cross_entropy": KernelSignature(
        into=("m v", "1 1"), sources=("m v", "m 1", "m 2", "m 1"), sums=(None, ("rows", 0)), flops=12
    ),
    "square_error": KernelSignature(into=("=", "1 1"), sources=("=", "="), sums=(None, ("both", 0)), flops=4),
    "square_sum": KernelSignature(into=("1 1",), sources=("=",), sums=(("both", 0),), flops=2),
    "clip": KernelSignature(updates=("=",), sources=("1 1",)),
    "adam": KernelSignature(updates=("=", "=", "="), sources=("=",), flops=16),
}


def row_bands(function: Function) -> tuple[BandContent, ...]:
    """What a band of rows of a function touches in each tensor: written, updated and read tensors, in this order.

    Each entry is `rows` (the rows of the band), `whole`, or `sum` (a contribution to a sum over rows).  The result is
    empty if the function cannot be cut into bands: a row needs other rows, or nothing is written row by row.  Rows of
    attention are rows of whole sequences.

    >>> row_bands("add_bias"), row_bands("square_error"), row_bands("column_sums")
    (('rows', 'whole'), ('rows', 'sum', 'rows', 'rows'), ())
    """
    facts = SIGNATURES[function]
    words = (*facts.into, *facts.updates, *facts.sources)
    shapes = [("=", "=") if word == "=" else tuple(word.split()) for word in words]
    if any(rows == "-" or columns == "m" for rows, columns in shapes):
        return ()
    has: list[BandContent] = ["rows" if rows in ("m", "=") else "whole" for rows, _ in shapes]
    for position, summed in enumerate(facts.sums):
        if summed is not None and summed[0] != "columns":
            has[position] = "sum"
    written = range(len(facts.into) + len(facts.updates))
    adds_to_all = any(has[position] == "sum" for position in written[len(facts.into) :])
    return () if adds_to_all or not any(has[position] == "rows" for position in written) else tuple(has)


ATTENTION_PRODUCTS: dict[Function, int] = {
    "attention": 2,
    "attention_gradient": 5,
    "attention_keeping": 2,
    "attention_keeping_gradient": 4,
}
"""Matrix products of each attention kernel; a gradient without stored attention weights recomputes the scores."""


def attention_flops(function: Function, rows: int, columns: int, sequence: int) -> int:
    """Returns the flop of causal attention with a rows × columns output: half of each matrix product.

    >>> attention_flops("attention", 8, 16, 4), attention_flops("attention_gradient", 8, 16, 4)
    (1024, 2560)
    """
    return ATTENTION_PRODUCTS[function] * rows * sequence * columns
