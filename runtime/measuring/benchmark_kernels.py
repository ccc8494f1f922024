"""The layer functions that a calibration measures, and their arguments: functions of a matrix, its rows or its columns.

Attention and the vocabulary functions are products or depend on the data, so they are not measured here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.schedule.kernel_signatures import SIGNATURES, Function
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.kernels.kernel_arguments import KernelArguments

MEASURED: tuple[Function, ...] = (
    "add_to",
    "add_bias",
    "column_sums",
    "gelu",
    "gelu_gradient",
    "swiglu",
    "swiglu_gradient",
    "geglu",
    "geglu_gradient",
    "clamped_swiglu",
    "clamped_swiglu_gradient",
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
    "apply_sinks",
    "sink_gradient",
    "sigmoid_gate",
    "sigmoid_gate_gradient",
    "join_heads",
    "split_heads",
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
    "square_error",
    "square_sum",
    "clip",
    "adam",
    "compress",
    "compress_add",
    "expand",
    "mask",
)
OF_STATES: tuple[Function, ...] = ("square_sum", "clip", "adam", "compress", "compress_add", "expand", "mask")
"""Functions of gradients and optimizer states, which a step touches once: they are not in the cache."""
COLUMNS = 1024
HOST_COLUMNS = 256
"""Columns of matrices on a host, where reductions of rows have a cost for each row and models are small."""
KEPT = 10
"""Elements for each kept element of a compressed vector, a sparsity of 0.9."""
SCALARS = {"weight": 1.0, "limit": 1.0, "rate": 1e-3, "epsilon": 1e-8, "decay": 0.1, "beta1": 0.9, "beta2": 0.95}
SCALARS |= {"factor": 1.0, "cap": 1.0}
HEADS = 2
"""Heads of matrices of queries, keys and values; every head has its own key."""


def arguments(function: Function, dtype: DType, elements: int, most_columns: int = COLUMNS) -> KernelArguments:
    """Arguments for a function whose matrix has about this many elements, and at most this many columns.

    >>> [update.shape for update in arguments("add_bias", "float32", 1 << 14).updates]
    [(16, 1024)]
    """
    columns = min(most_columns, elements)
    rows, signature = max(1, elements // columns), SIGNATURES[function]
    head = max(1, columns // (3 * HEADS))
    lengths = {"m": rows, "n": columns, "2n": 2 * columns, "1": 1, "2": 2} | _head_columns(head)

    def arrays(words: Sequence[str]) -> tuple[Any, ...]:
        flat = {"=": (rows * columns,), "kept": (max(1, rows * columns // KEPT),)}
        shapes = [flat.get(word) or tuple(lengths[part] for part in word.split()) for word in words]
        return tuple(np.full(shape, 0.5, dtype) for shape in shapes)

    scalars = SCALARS | {"columns": float(columns)} | _head_scalars(head)
    sources = arrays(signature.sources)
    if "kept" in signature.sources:
        sources = (_index(sources[0].size, rows * columns), *sources[1:])
    return KernelArguments(np, arrays(signature.into), arrays(signature.updates), sources, (), scalars, 0)


def _head_columns(head: int) -> dict[str, int]:
    """Columns of matrices of heads, by the words of signatures; half of a head's columns are rotated."""
    rotated = (head + 1) // 2
    of_a_head = {
        "(group+2)h": 3 * head,
        "(group+1)h": 2 * head,
        "(qkv)h": 3 * head,
        "(head)h": head,
        "(pair)h": 2 * head - rotated,
        "(columns)k": head,
        "k": 1,
    }
    return {word: HEADS * columns for word, columns in of_a_head.items()} | {"d": head, "r": rotated}


def _head_scalars(head: int) -> dict[str, float]:
    """Scalars of functions of heads."""
    rotated = (head + 1) // 2
    all_heads = float(HEADS * head)
    scalars = {"head": head, "group": 1, "value": head, "rotated": rotated, "pair": 2 * head - rotated}
    return {name: float(value) for name, value in scalars.items()} | {
        "query_columns": all_heads,
        "key_columns": all_heads,
    }


def _index(kept: int, elements: int) -> NDArray[np.int32]:
    """Positions of kept elements, spread at random."""
    positions = np.random.default_rng(0).permutation(elements)[:kept]
    return np.sort(positions).astype(np.int32)
