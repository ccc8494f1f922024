"""How a matrix lies in memory, as the products of BLAS libraries want to be told."""

from quadrille.runtime.arrays.array_library import Array


def matrix_layout(matrix: Array) -> tuple[bool, int]:
    """Whether a matrix lies column by column, and the elements from one row (or column) to the next.

    >>> import numpy as np
    >>> a = np.zeros((3, 5))
    >>> matrix_layout(a), matrix_layout(a.T), matrix_layout(a[:, 1:3]), matrix_layout(a[1:, :1])
    ((False, 5), (True, 5), (False, 5), (False, 5))
    """
    rows, columns = matrix.shape
    row_step, column_step = (stride // matrix.itemsize for stride in matrix.strides)
    if column_step == 1 or columns == 1:
        return False, max(row_step, columns) if rows > 1 else columns
    assert row_step == 1 or rows == 1, f"no step of 1 in {matrix.strides}"
    return True, max(column_step, rows)
