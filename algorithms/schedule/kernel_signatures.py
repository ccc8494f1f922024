"""Kernel signatures: operand shapes, partial sums and flop counts of a layer's local functions (GELU, norms, Adam, …).

The table `SIGNATURES` covers all local functions except matrix products.  A shape is written as rows and columns:

    m n            two ranges of a dimension; a letter is the same range in all operands of the function
    m 2n           columns that start and end at twice the bounds of n
    m (group+2)h   the factor is the op's scalar `group` (1 if it is absent) plus 2
    m (qkv)h       the factor is the number of columns of QKV for a group of heads (`attention_columns`)
    m (attended)h  the same of attention's output
    m 1            one column; a number is a length
    - h            any rows
    =              the same block as every other `=` of the function: it works elementwise, also on flattened shards
    kept           the compressed vector of the kept elements of the block `=`, or one bucket of it

So `"swiglu": into=("m n",), sources=("m 2n",)` says that SwiGLU reads a block of 2n columns and writes n columns of the
same rows.

Small numbers (`small_numbers.py`): `cast_twice` writes a copy along rows and one along columns, `largest` finds the
largest magnitude, `to_columns` transposes the stored bytes of a block.

A function that sums over rows or columns of a source leaves a partial sum over the grid axes that cut them (`sums`).
Only a linear function accepts partial sums.

Source: Vaswani et al., "Attention Is All You Need", 2017; Ba, Kiros, Hinton, "Layer Normalization", 2016; Hendrycks,
Gimpel, "Gaussian Error Linear Units", 2016 (the tanh form); Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU);
Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019; Ainslie et al., "GQA", 2023 (grouped queries); Kingma,
Ba, "Adam", 2015, algorithm 1; Dao et al., "FlashAttention", 2022 (only the logarithms of the row sums are stored);
Henry et al., "Query-Key Normalization for Transformers", 2020; Gemma Team, "Gemma 2", arXiv 2408.00118 (soft caps);
OpenAI, arXiv 2508.10925 (sinks, clamped SwiGLU).
Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017 (routing).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Function = Literal[
    "add_to",
    "transpose",
    "add_region",
    "cast",
    "cast_twice",
    "largest",
    "to_columns",
    "add_bias",
    "column_sums",
    "gelu",
    "gelu_gradient",
    "swiglu",
    "swiglu_gradient",
    "geglu",
    "geglu_gradient",
    "scale",
    "soft_cap",
    "soft_cap_gradient",
    "head_norm",
    "head_norm_gradient",
    "qk_squares",
    "qk_normalise",
    "qk_sums",
    "qk_gradient",
    "qk_parameter_sums",
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
    "clamped_swiglu",
    "clamped_swiglu_gradient",
    "apply_sinks",
    "sink_gradient",
    "sigmoid_gate",
    "sigmoid_gate_gradient",
    "join_heads",
    "split_heads",
    "attention",
    "attention_gradient",
    "attention_keeping",
    "attention_keeping_gradient",
    "attention_dropping",
    "attention_dropping_gradient",
    "attention_apart",
    "attention_apart_gradient",
    "attention_merge",
    "attention_merge_gradient",
    "take_keys_values",
    "put_keys_values",
    "dropout",
    "dropout_gradient",
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
    "compress",
    "compress_add",
    "expand",
    "expand_bucket",
    "mask",
    "square_sum_kept",
    "route",
    "route_gradient",
    "sequence_loads",
    "route_gradient_by_loads",
    "permute",
    "permute_gradient",
    "combine",
    "combine_gradient",
    "add_expert_bias",
    "expert_column_sums",
    "add_gated",
    "add_gated_gradient",
]

PassOperation = Literal[
    "arithmetic",
    "elementwise",
    "exponential",
    "select",
    "row_maximum",
    "row_sum",
    "rearrange",
    "random",
    "gather",
    "scatter",
    "product_nn",
    "product_nt",
    "product_tn",
]
"""A pass over arrays, of which some functions consist on a host (`algorithms/analysis/host_passes.py`)."""
Summed = Literal["rows", "columns", "both"]
BandContent = Literal["rows", "whole", "sum"]


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """Operand shapes and costs of a local function.

    Parameters
    ----------
    into, updates, sources : shapes of the tensors that the function writes, updates in place, and reads
    linear : whether the function is linear, so that partial sums among the sources give a partial sum
    sums : for each written tensor, the summed dimensions and the index of the source that is summed; None for no sum
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
    "cast_twice": KernelSignature(into=("=", "="), sources=("=",)),
    "largest": KernelSignature(sources=("=",)),
    "to_columns": KernelSignature(into=("=",), sources=("=",)),
    "transpose": KernelSignature(into=("n m",), sources=("m n",), linear=True),
    "add_bias": KernelSignature(updates=("m n",), sources=("1 n",)),
    "column_sums": KernelSignature(into=("1 n",), sources=("m n",), linear=True, sums=(("rows", 0),)),
    "gelu": KernelSignature(into=("=",), sources=("=",), flops=12),
    "gelu_gradient": KernelSignature(into=("=",), sources=("=", "="), flops=20),
    "swiglu": KernelSignature(into=("m n",), sources=("m 2n",), flops=6),
    "swiglu_gradient": KernelSignature(into=("m 2n",), sources=("m 2n", "m n"), flops=8),
    "geglu": KernelSignature(into=("m n",), sources=("m 2n",), flops=7),
    "geglu_gradient": KernelSignature(into=("m 2n",), sources=("m 2n", "m n"), flops=12),
    "scale": KernelSignature(updates=("=",)),
    "soft_cap": KernelSignature(updates=("=",), flops=8),
    "soft_cap_gradient": KernelSignature(updates=("=",), sources=("=",), flops=4),
    "head_norm": KernelSignature(into=("m (group+2)h",), sources=("m (group+2)h", "1 d", "1 d"), flops=4),
    "head_norm_gradient": KernelSignature(
        into=("m (group+2)h", "1 d", "1 d"),
        sources=("m (group+2)h", "1 d", "1 d", "m (group+2)h"),
        sums=(None, ("both", 0), ("both", 0)),
        flops=10,
    ),
    "qk_squares": KernelSignature(into=("m 2",), sources=("m (group+2)h",), sums=(("columns", 0),), flops=2),
    "qk_normalise": KernelSignature(into=("m (group+2)h",), sources=("m (group+2)h", "m 2", "1 (group+1)h"), flops=2),
    "qk_sums": KernelSignature(
        into=("m 2",),
        sources=("m (group+2)h", "m 2", "1 (group+1)h", "m (group+2)h"),
        sums=(("columns", 0),),
        flops=4,
    ),
    "qk_gradient": KernelSignature(
        into=("m (group+2)h",), sources=("m (group+2)h", "m 2", "m 2", "1 (group+1)h", "m (group+2)h"), flops=5
    ),
    "qk_parameter_sums": KernelSignature(
        into=("1 (group+1)h",), sources=("m (group+2)h", "m 2", "m (group+2)h"), sums=(("rows", 0),), flops=3
    ),
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
    "clamped_swiglu": KernelSignature(into=("m n",), sources=("m 2n",), flops=9),
    "clamped_swiglu_gradient": KernelSignature(into=("m 2n",), sources=("m 2n", "m n"), flops=12),
    "apply_sinks": KernelSignature(updates=("m (columns)k", "m k"), sources=("1 k",), flops=4),
    "sink_gradient": KernelSignature(
        into=("1 k",), sources=("m (columns)k", "m k", "1 k", "m (columns)k"), sums=(("rows", 0),), flops=2
    ),
    "sigmoid_gate": KernelSignature(into=("=",), sources=("=", "="), flops=5),
    "sigmoid_gate_gradient": KernelSignature(into=("=", "="), sources=("=", "=", "="), flops=9),
    "join_heads": KernelSignature(into=("m (qkv)h",), sources=("m (head)h", "m (pair)h", "m r"), linear=True),
    "split_heads": KernelSignature(
        into=("m (head)h", "m (pair)h", "m r"),
        sources=("m (qkv)h",),
        linear=True,
        sums=(None, None, ("columns", 0)),
    ),
    "attention": KernelSignature(into=("m (attended)h", "m -"), sources=("m (qkv)h",)),
    "attention_gradient": KernelSignature(
        into=("m (qkv)h",), sources=("m (qkv)h", "m (attended)h", "m -", "m (attended)h")
    ),
    "attention_keeping": KernelSignature(into=("m (attended)h", "m w"), sources=("m (qkv)h",)),
    "attention_keeping_gradient": KernelSignature(into=("m (qkv)h",), sources=("m (qkv)h", "m w", "m (attended)h")),
    "attention_dropping": KernelSignature(into=("m (attended)h", "m w", "m w", "m w"), sources=("m (qkv)h",)),
    "attention_dropping_gradient": KernelSignature(
        into=("m (qkv)h",), sources=("m (qkv)h", "m w", "m w", "m w", "m (attended)h")
    ),
    "attention_apart": KernelSignature(into=("m (group)h", "m -"), sources=("m (group+2)h", "- 2h")),
    "attention_apart_gradient": KernelSignature(
        into=("m (group+2)h", "- 2h"),
        sources=("m (group+2)h", "- 2h", "m (group)h", "m -", "m (group)h"),
        sums=(None, ("rows", 0)),
    ),
    "attention_merge": KernelSignature(updates=("m (group)h", "m -"), sources=("m (group+2)h", "- 2h")),
    "attention_merge_gradient": KernelSignature(
        into=("- 2h",),
        updates=("m (group+2)h",),
        sources=("m (group+2)h", "- 2h", "m (group)h", "m -", "m (group)h"),
        sums=(("rows", 0), None),
    ),
    "take_keys_values": KernelSignature(into=("m 2h",), sources=("m (group+2)h",), linear=True, flops=0),
    "put_keys_values": KernelSignature(updates=("m (group+2)h",), sources=("m 2h",), flops=0),
    "dropout": KernelSignature(into=("m n",), updates=("m n",)),
    "dropout_gradient": KernelSignature(into=("m n",), sources=("m n", "m n")),
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
    "compress": KernelSignature(into=("kept",), sources=("kept", "="), linear=True),
    "compress_add": KernelSignature(updates=("kept",), sources=("kept", "="), linear=True),
    "expand": KernelSignature(into=("=",), sources=("kept", "kept"), linear=True),
    "expand_bucket": KernelSignature(updates=("=",), sources=("kept", "kept"), linear=True),
    "mask": KernelSignature(into=("=",), sources=("kept", "="), linear=True),
    "square_sum_kept": KernelSignature(into=("1 1",), sources=("kept", "="), sums=(("both", 1),), flops=2),
    "route": KernelSignature(into=("m k", "m k", "m k", "1 e"), sources=("m e",), flops=12),
    "route_gradient": KernelSignature(
        into=("m e", "1 1"), sources=("m e", "m k", "m k"), sums=(None, ("rows", 0)), flops=16
    ),
    "sequence_loads": KernelSignature(into=("- e",), sources=("m k",), sums=(("rows", 0),), flops=1),
    "route_gradient_by_loads": KernelSignature(
        into=("m e", "1 1"), sources=("m e", "m k", "m k", "- e"), sums=(None, ("rows", 0)), flops=16
    ),
    "permute": KernelSignature(into=("(top_k)m h",), sources=("m h", "m k"), flops=0),
    "permute_gradient": KernelSignature(into=("m h",), sources=("(top_k)m h", "m k")),
    "combine": KernelSignature(into=("m h",), sources=("(top_k)m h", "m k", "m k"), flops=2),
    "combine_gradient": KernelSignature(
        into=("(top_k)m h", "m k"), sources=("m h", "(top_k)m h", "m k", "m k"), flops=3
    ),
    "add_expert_bias": KernelSignature(updates=("m n",), sources=("e n", "- -")),
    "expert_column_sums": KernelSignature(into=("e n",), sources=("m n", "- -"), linear=True, sums=(("rows", 0),)),
    "add_gated": KernelSignature(updates=("m n",), sources=("m n", "m 1"), flops=2),
    "add_gated_gradient": KernelSignature(
        into=("m n", "m 1"), sources=("m n", "m 1", "m n"), sums=(None, ("columns", 0)), flops=3
    ),
}
ROUTING: tuple[Function, ...] = (
    "route", "route_gradient", "sequence_loads", "route_gradient_by_loads",
    "permute", "permute_gradient", "combine", "combine_gradient",
)  # fmt: skip
"""Functions that send tokens to experts: `chosen`, `shares` and `places` have a column for each chosen expert."""
OF_EXPERTS: tuple[Function, ...] = ("add_expert_bias", "expert_column_sums")
"""Functions of rows sorted by expert and of a row for each expert of a rank; the last source counts the rows."""
WHOLE_BLOCKS = ("=", "kept")
"""Shapes of tensors that a function takes as flat arrays."""


def row_bands(function: Function) -> tuple[BandContent, ...]:
    """The part of each tensor that a band of rows of a function uses: `rows`, `whole` or `sum`.

    The tensors are those written, updated and read, in this order.  `rows` are the rows of the band, `whole` is the
    whole tensor, `sum` is a contribution to a sum over rows.  The result is empty if the function cannot be cut into
    bands: a row needs other rows, or nothing is written row by row.  Rows of attention are rows of whole sequences.

    >>> row_bands("add_bias"), row_bands("square_error"), row_bands("column_sums")
    (('rows', 'whole'), ('rows', 'sum', 'rows', 'rows'), ())
    """
    signature = SIGNATURES[function]
    texts = (*signature.into, *signature.updates, *signature.sources)
    if "kept" in texts or function in ROUTING:
        return ()
    shapes = [("=", "=") if text == "=" else tuple(text.split()) for text in texts]
    if any(rows == "-" or columns == "m" for rows, columns in shapes):
        return ()
    contents: list[BandContent] = ["rows" if rows in ("m", "=") else "whole" for rows, _ in shapes]
    for position, summed in enumerate(signature.sums):
        if summed is not None and summed[0] != "columns":
            contents[position] = "sum"
    written = range(len(signature.into) + len(signature.updates))
    adds_to_all = any(contents[position] == "sum" for position in written[len(signature.into) :])
    return () if adds_to_all or not any(contents[position] == "rows" for position in written) else tuple(contents)


FusedAttention = Literal["flash1", "flash2", "flash3", "cudnn"]
"""Kernels of fused attention: FlashAttention 1, 2 and 3, and cuDNN's."""
FUSED_ATTENTION: tuple[FusedAttention, ...] = get_args(FusedAttention)
"""The scalar `kernel` of an attention op is a place in this list, counted from 1."""
ATTENTION_PRODUCTS: dict[Function, int] = {
    "attention": 2,
    "attention_gradient": 5,
    "attention_keeping": 2,
    "attention_keeping_gradient": 4,
    "attention_dropping": 2,
    "attention_dropping_gradient": 4,
    "attention_apart": 2,
    "attention_apart_gradient": 5,
    "attention_merge": 2,
    "attention_merge_gradient": 5,
}
"""Matrix products of each attention kernel; a gradient without stored attention weights recomputes the scores."""
OF_BLOCKS: tuple[Function, ...] = (
    "attention_apart",
    "attention_apart_gradient",
    "attention_merge",
    "attention_merge_gradient",
)
"""Attention of some queries of a sequence to some of its keys, which are a tensor of their own."""


VALUE_PRODUCTS: dict[Function, int] = {
    function: 2 if function.endswith("gradient") else 1 for function in ATTENTION_PRODUCTS
}
"""Products of each attention kernel whose third side is the columns of a value; that of the others is a query's."""


def attention_columns(scalars: Mapping[str, float]) -> tuple[int, int]:
    """Returns the columns of QKV and of attention's output for each group of heads, from the scalars of a kernel.

    >>> attention_columns({"head": 4.0, "group": 3.0}), attention_columns({"head": 6.0, "value": 4.0})
    ((20, 12), (16, 4))
    """
    head, group = int(scalars["head"]), int(scalars.get("group", 1))
    value = int(scalars.get("value", head))
    return (group + 1) * head + value, group * value


def attention_flops(function: Function, rows: int, columns: int, sequence: int, window: int = 0) -> int:
    """Returns the flop of causal attention: half of each of its matrix products, since later tokens are masked.

    With a window, tokens farther back are masked too.

    Parameters
    ----------
    function : attention kernel, forward or gradient
    rows, columns : shape of the output of attention
    sequence : tokens of a sequence
    window : tokens that a token sees; 0 for all before it

    >>> attention_flops("attention", 8, 16, 4), attention_flops("attention_gradient", 8, 16, 4)
    (1024, 2560)
    >>> attention_flops("attention", 8, 16, 4, window=2)
    768
    """
    return ATTENTION_PRODUCTS[function] * (rows // sequence) * seen_pairs(sequence, window) * columns


def seen_pairs(sequence: int, window: int = 0) -> int:
    """Returns twice the pairs of a token and a token that it sees: s² for causal attention, s² - (s - w)² in a window.

    A token counts as half a pair with itself, as in the count of half a square.

    >>> seen_pairs(4), seen_pairs(4, 2), seen_pairs(4, 9)
    (16, 12, 16)
    """
    unseen = sequence - window if 0 < window < sequence else 0
    return sequence**2 - unseen**2
