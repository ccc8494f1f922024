"""The passes over arrays that a calibration measures: the NumPy calls of which kernels on a host consist.

The arrays of one pass fit into the cache, as the pieces of a kernel do. Heads are views of a matrix of tokens, so their
rows are not adjacent in memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from quadrille.algorithms.schedule.kernel_signatures import PassOperation
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.kernels.dropout_masks import kept_elements

Sizes = tuple[int, int, int]
"""Matrices, rows and columns of a pass; of a product, matrices, tokens of a sequence and columns of a head."""
OF_ARRAYS: tuple[Sizes, ...] = ((1, 64, 16), (1, 4096, 16), (1, 64, 1024), (1, 512, 128))
OF_PRODUCTS: tuple[Sizes, ...] = (
    (1, 16, 16),
    (32, 16, 16),
    (32, 32, 64),
    (16, 64, 32),
    (8, 64, 64),
    (4, 128, 32),
    (2, 128, 128),
    (1, 256, 64),
)
TABLE_ROWS = 1024
SETS = 3
"""Sets of operands that a pass takes cyclically: the temporaries of a kernel compete for a core's own cache, too."""


def sizes_of(operation: PassOperation) -> tuple[Sizes, ...]:
    """The measured sizes of a pass."""
    return OF_PRODUCTS if operation.startswith("product") else OF_ARRAYS


def pass_call(operation: PassOperation, dtype: DType, sizes: Sizes) -> Callable[[int], object]:
    """A function that makes one pass over the set of operands with this number.

    >>> pass_call("product_nt", "float32", (3, 5, 4))(0).shape, pass_call("row_sum", "float32", (1, 8, 4))(1).shape
    ((3, 5, 5), (8, 1))
    """
    of_operation = _product if operation.startswith("product") else _array_pass
    sets = [of_operation(operation, dtype, sizes, number) for number in range(SETS)]
    results: list[object] = [None]

    def make_pass(repeat: int) -> object:
        result = sets[repeat % SETS]()
        results[0] = result  # the last result exists while the next one is made
        return result

    return make_pass


def _array_pass(operation: PassOperation, dtype: DType, sizes: Sizes, number: int) -> Callable[[], object]:
    """A pass over an array of its own."""
    _, rows, columns = sizes
    random = np.random.default_rng(number)
    x = random.random((rows, columns)).astype(dtype)
    column, factor = x[:, :1].copy(), x.copy()
    if operation in ("gather", "scatter"):
        table, index = np.zeros((TABLE_ROWS, columns), dtype), random.integers(0, TABLE_ROWS, rows)
        return (lambda: table[index]) if operation == "gather" else (lambda: np.add.at(table, index, x))
    turned = np.ascontiguousarray(x.reshape(4, rows // 4, columns).transpose(1, 0, 2)).transpose(1, 0, 2)
    numbers = np.arange(rows)[:, None], np.arange(columns)[None, :]
    later = numbers[1] > numbers[0] % columns
    calls: dict[PassOperation, Callable[[], object]] = {
        "arithmetic": lambda: x - column,
        "elementwise": lambda: x * factor,
        "exponential": lambda: np.exp(x),
        "select": lambda: np.where(later, -np.inf, x),
        "row_maximum": lambda: x.max(axis=1, keepdims=True),
        "row_sum": lambda: x.sum(axis=1, keepdims=True),
        "rearrange": lambda: turned.reshape(rows, columns),
        "random": lambda: kept_elements(np, *numbers, share=0.1, place=0),
    }
    return calls[operation]


def _product(operation: PassOperation, dtype: DType, sizes: Sizes, number: int) -> Callable[[], object]:
    """A batch of products of small matrices; the heads lie beside each other in the rows of one matrix."""
    matrices, tokens, head = sizes
    heads: Any = np.full((tokens, 2, matrices, head), number + 0.5, dtype).transpose(1, 2, 0, 3)
    if operation == "product_nt":
        return lambda: np.matmul(heads[0], heads[1].transpose(0, 2, 1))
    scores: Any = np.full((matrices, tokens, tokens), 0.5, dtype)
    left = scores if operation == "product_nn" else scores.transpose(0, 2, 1)
    return lambda: np.matmul(left, heads[0])
