"""The layer functions that a calibration measures, and their arguments: functions of a matrix, its rows or its columns.

Attention and the vocabulary functions are products or depend on the data, so they are not measured here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

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
)
COLUMNS = 1024
SCALARS = {"weight": 1.0, "limit": 1.0, "rate": 1e-3, "epsilon": 1e-8, "decay": 0.1, "beta1": 0.9, "beta2": 0.95}


def arguments(function: Function, dtype: DType, elements: int) -> KernelArguments:
    """Arguments for a function whose matrix has about this many elements.

    >>> [update.shape for update in arguments("add_bias", "float32", 1 << 14).updates]
    [(16, 1024)]
    """
    columns = min(COLUMNS, elements)
    rows, signature = max(1, elements // columns), SIGNATURES[function]
    lengths = {"m": rows, "n": columns, "2n": 2 * columns, "1": 1, "2": 2}

    def arrays(words: Sequence[str]) -> tuple[Any, ...]:
        shapes = [(rows * columns,) if word == "=" else tuple(lengths[part] for part in word.split()) for word in words]
        return tuple(np.full(shape, 0.5, dtype) for shape in shapes)

    scalars = SCALARS | {"columns": float(columns)}
    return KernelArguments(
        np, arrays(signature.into), arrays(signature.updates), arrays(signature.sources), (), scalars, 0
    )
