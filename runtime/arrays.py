"""The only place that knows NumPy from CuPy.

`find_library` gives a narrow set of verbs on arrays; CuPy is imported when it
is asked for.  Every verb works on arrays that exist: nothing is allocated
while a schedule runs.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np

from algorithms.errors import InputError
from algorithms.tensors import DType
from runtime.communicators import Array

Backend = Literal["numpy", "cupy"]


class Marker(Protocol):
    """A point in the work handed to a device."""

    def done(self) -> bool:
        """Whether the device has come that far."""


class Library(Protocol):
    """What the executor asks of arrays."""

    name: Backend

    def empty(self, elements: int, dtype: DType) -> Array:
        """A flat array, uninitialised."""

    def put(self, into: Array, host_values: np.ndarray[Any, Any]) -> None:
        """Copy host values into an array of the library."""

    def fetch(self, array: Array) -> np.ndarray[Any, Any]:
        """The values as a host array."""

    def matmul(self, a: Array, b: Array, out: Array) -> None: ...

    def add(self, one: Array, other: Array, out: Array) -> None: ...

    def copy(self, into: Array, source: Array) -> None: ...

    def zero(self, array: Array) -> None: ...

    def mark(self) -> Marker | None:
        """A marker behind everything handed over so far; None where verbs end before they return."""

    def synchronise(self) -> None:
        """Wait until everything handed over has ended."""


class NumpyLibrary:
    """NumPy on the host: every verb has ended when it returns."""

    name: Backend = "numpy"

    def empty(self, elements: int, dtype: DType) -> Array:
        return np.empty(elements, dtype)

    def put(self, into: Array, host_values: np.ndarray[Any, Any]) -> None:
        into[...] = host_values

    def fetch(self, array: Array) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = array
        return host

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        np.matmul(a, b, out=out)

    def add(self, one: Array, other: Array, out: Array) -> None:
        np.add(one, other, out=out)

    def copy(self, into: Array, source: Array) -> None:
        np.copyto(into, source)

    def zero(self, array: Array) -> None:
        array.fill(0)

    def mark(self) -> Marker | None:
        return None

    def synchronise(self) -> None:
        return None


def find_library(backend: str, dtype: DType) -> Library:
    """The array library of that name, if it can multiply matrices of the dtype.

    Raises
    ------
    InputError : an unknown backend, one that is not installed, or a dtype it does not have
    """
    libraries: dict[str, Callable[[], Library]] = {"numpy": NumpyLibrary}
    if backend not in libraries:
        raise InputError(f"backend {backend!r}: accepted are {', '.join(libraries)}")
    if backend == "numpy" and dtype not in ("float64", "float32"):
        raise InputError(f"dtype {dtype!r}: numpy multiplies float64 and float32; float16 and bfloat16 need cupy")
    return libraries[backend]()
