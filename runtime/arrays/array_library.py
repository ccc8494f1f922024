"""The interface of array libraries: the functions on arrays that the executor needs, for NumPy and for CuPy.

    library       arrays                            module
    NumPy         host arrays                       numpy_library
    CuPy          arrays on one GPU                 cupy_library

Every function works on existing arrays. While a schedule runs, only kernels allocate memory, for temporaries.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np

from quadrille.algorithms.schedule.tensors import ElementType

Array = Any
"""A NumPy or CuPy array. Static types end here."""

Backend = Literal["numpy", "cupy"]


class Lane(Protocol):
    """An ordered queue of array work, as a CUDA stream: work runs in the order in which it is submitted."""

    def copy(self, into: Array, source: Array) -> None: ...

    def add(self, left: Array, right: Array, out: Array) -> None: ...

    def maximum(self, left: Array, right: Array, out: Array) -> None: ...

    def synchronise(self) -> None:
        """Wait until all submitted work has ended."""


class Marker(Protocol):
    """A point in the work submitted to a device."""

    def done(self) -> bool:
        """Whether the device has reached the point."""

    def wait(self) -> None:
        """Block until the device has reached the point."""


class ArrayLibrary(Protocol):
    """The functions on arrays that the executor calls; on a device, they are submitted to one stream.

    Functions with `out` or `into` write their result into that array.
    """

    name: Backend

    @property
    def module(self) -> Any:
        """The NumPy module, or CuPy's module with NumPy's interface."""

    def carry_out(self, work: Callable[[], None]) -> None:
        """Run a function that calls the module, in order with the other functions."""

    def empty(self, elements: int, dtype: ElementType) -> Array:
        """An uninitialised flat array."""

    def empty_on_host(self, elements: int, dtype: ElementType) -> Array:
        """An uninitialised flat host array, which a device copies at full speed."""

    def put(self, into: Array, host_values: np.ndarray[Any, Any]) -> None:
        """Copy host values into an array of the library."""

    def fetch(self, array: Array) -> np.ndarray[Any, Any]:
        """The values of an array as a host array."""

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        """Write the matrix product C_mn = A_mk B_kn."""

    def add(self, left: Array, right: Array, out: Array) -> None:
        """Write the elementwise sum."""

    def maximum(self, left: Array, right: Array, out: Array) -> None:
        """Write the elementwise maximum."""

    def copy(self, into: Array, source: Array) -> None:
        """Copy an array of the same shape."""

    def zero(self, array: Array) -> None:
        """Set every element to 0."""

    def copy_to_host(self, host: Array, source: Array) -> None:
        """Submit a copy of a contiguous array to a host array from `empty_on_host` of the same dtype."""

    def copy_to_device(self, into: Array, host: Array) -> None:
        """Submit a copy of a host array from `empty_on_host` to a contiguous array of the same dtype."""

    def mark(self) -> Marker | None:
        """A marker after all submitted work; None if functions end before they return."""

    def synchronise(self) -> None:
        """Wait until all submitted work has ended."""

    def lane(self) -> "ArrayLibrary":
        """The library on a stream of its own, for the communication of one lane; other work does not delay it."""


def matrix_layout(matrix: Array) -> tuple[bool, int]:
    """The layout of a matrix for BLAS: whether it is column-major, and its leading dimension [elements].

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
