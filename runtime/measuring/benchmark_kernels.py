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


def arguments(function: Function, dtype: DType, elements: int, most_columns: int = COLUMNS) -> KernelArguments:
    """Arguments for a function whose matrix has about this many elements, and at most this many columns.

    >>> [update.shape for update in arguments("add_bias", "float32", 1 << 14).updates]
    [(16, 1024)]
    """
    columns = min(most_columns, elements)
    rows, signature = max(1, elements // columns), SIGNATURES[function]
    lengths = {"m": rows, "n": columns, "2n": 2 * columns, "1": 1, "2": 2}

    def arrays(words: Sequence[str]) -> tuple[Any, ...]:
        flat = {"=": (rows * columns,), "kept": (max(1, rows * columns // KEPT),)}
        shapes = [flat.get(word) or tuple(lengths[part] for part in word.split()) for word in words]
        return tuple(np.full(shape, 0.5, dtype) for shape in shapes)

    scalars = SCALARS | {"columns": float(columns)}
    sources = arrays(signature.sources)
    if "kept" in signature.sources:
        sources = (_index(sources[0].size, rows * columns), *sources[1:])
    return KernelArguments(np, arrays(signature.into), arrays(signature.updates), sources, (), scalars, 0)


def _index(kept: int, elements: int) -> NDArray[np.int32]:
    """Positions of kept elements, spread at random."""
    positions = np.random.default_rng(0).permutation(elements)[:kept]
    return np.sort(positions).astype(np.int32)
