"""The operands A, B and dC of a multiplication, generated or read from files, and any rank's part of them.

    C_mn = A_mk B_kn        dA_mk = dC_mn B_nk^T        dB_kn = A_km^T dC_mn

or the same with A stored as k x m, or B as n x k (`algorithms/matmuls/matmul.py`).

A rank asks for a rectangle of a whole matrix (`rectangles.py`) and gets an array.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.matmuls.matmul import FORMS, Dimension, Operand, Transposed
from quadrille.algorithms.schedule.tensors import Block, DType
from quadrille.runtime.operands import generator
from quadrille.runtime.operands.generator import Kind
from quadrille.runtime.operands.rectangles import Rectangle, split_block


@dataclass(frozen=True, slots=True)
class Operands:
    """The matrices A (m x k), B (k x n) and dC (m x n) of a multiplication; A or B may be stored transposed.

    >>> operands = Operands(3, 5, 4, "float32", seed=7, kind="integers")
    >>> operands.shape("B"), operands.block("B", Rectangle(0, 5, 1, 3)).shape
    ((5, 4), (5, 2))

    Parameters
    ----------
    dtype : dtype of the multiplication; float16 and bfloat16 elements are returned as float32 arrays with exactly
        these values
    seed, kind : arguments of the generator, for every matrix without a file
    files : opened matrices (`matrix_files.open_matrix`) by name
    transposed : which of A and B is stored transposed
    """

    m: int
    k: int
    n: int
    dtype: DType
    seed: int = 0
    kind: Kind = "uniform"
    files: Mapping[Operand, NDArray[Any]] = field(default_factory=dict)
    transposed: Transposed = "none"

    def __post_init__(self) -> None:
        for matrix, array in self.files.items():
            assert array.shape == self.shape(matrix), (matrix, array.shape, self.shape(matrix))

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of the returned arrays: float64 or float32."""
        return np.dtype(np.float64 if self.dtype == "float64" else np.float32)

    @property
    def exact(self) -> bool:
        """Whether the products sum exactly in any order, because all operands are generated integers."""
        return self.kind == "integers" and not self.files

    @property
    def sizes(self) -> dict[Dimension, int]:
        return {"m": self.m, "k": self.k, "n": self.n}

    def shape(self, matrix: Operand) -> tuple[int, int]:
        """Rows and columns of a whole matrix."""
        rows, columns = FORMS[self.transposed].shape(matrix)
        return self.sizes[rows], self.sizes[columns]

    def block(self, matrix: Operand, rectangle: Rectangle, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The elements of one rectangle, C-contiguous unless `out` is not."""
        filled = np.empty(rectangle.shape, self.array_dtype) if out is None else out
        assert filled.shape == rectangle.shape and filled.dtype == self.array_dtype, (filled.shape, filled.dtype)
        if matrix in self.files:
            rows = slice(rectangle.row_start, rectangle.row_stop)
            columns = slice(rectangle.column_start, rectangle.column_stop)
            np.copyto(filled, self.files[matrix][rows, columns])
        else:
            shape = self.shape(matrix)
            generator.block(self.seed, matrix, *shape, rectangle, self.array_dtype, self.kind, out=filled)
        round_to(self.dtype, filled)
        return filled

    def stored(self, matrix: Operand, block: Block, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The elements of a rank's block in its stored shape: a rectangle, or a flat shard of one."""
        filled = np.empty(block.shape, self.array_dtype) if out is None else out
        for rectangle, part in split_block(block, filled):
            self.block(matrix, rectangle, out=part)
        return filled


def round_to(dtype: DType, values: NDArray[Any]) -> None:
    """Round float32 values in place to the nearest float16 or bfloat16 value, ties to even.

    float32 and float64 values stay unchanged.

    >>> values = np.array([1 + 2**-9, 3.0e38, 1 / 3], np.float32)
    >>> round_to("bfloat16", values)
    >>> values.tolist()[::2]
    [1.0, 0.333984375]
    """
    if dtype == "float16":
        with np.errstate(over="ignore"):
            np.copyto(values, values.astype(np.float16))
    elif dtype == "bfloat16":
        _round_to_bfloat16(values)


def _round_to_bfloat16(values: NDArray[Any]) -> None:
    """Keep the upper half of each float32, rounded; infinities and NaN stay unchanged."""
    finite = np.isfinite(values)
    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)
    np.copyto(values, rounded.view(np.float32), where=finite)
