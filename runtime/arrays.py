"""The only place that knows NumPy from CuPy.

`find_library` gives a narrow set of verbs on arrays; CuPy is imported when it
is asked for.  Every verb works on arrays that exist: nothing is allocated
while a schedule runs.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, get_args

import numpy as np

from algorithms.errors import InputError
from algorithms.tensors import DType, ElementType
from runtime.communicators import Array

Backend = Literal["numpy", "cupy"]
ACCUMULATION: dict[DType, DType] = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float32",
    "bfloat16": "float32",
}
"""Dtype in which a product is summed, by dtype of the matrices."""


class Marker(Protocol):
    """A point in the work handed to a device."""

    def done(self) -> bool:
        """Whether the device has come that far."""


class Library(Protocol):
    """What the executor asks of arrays."""

    name: Backend

    @property
    def module(self) -> Any:
        """NumPy, or the module that stands for it."""

    def carry_out(self, work: Callable[[], None]) -> None:
        """Work written for the module, in order with the other verbs."""

    def empty(self, elements: int, dtype: ElementType) -> Array:
        """A flat array, uninitialised."""

    def empty_on_host(self, elements: int, dtype: ElementType) -> Array:
        """A flat host array, uninitialised; the host's values of 16-bit types are float32."""

    def put(self, into: Array, host_values: np.ndarray[Any, Any]) -> None:
        """Copy host values into an array of the library."""

    def fetch(self, array: Array) -> np.ndarray[Any, Any]:
        """The values as a host array."""

    def matmul(self, a: Array, b: Array, out: Array) -> None: ...

    def add(self, one: Array, other: Array, out: Array) -> None: ...

    def maximum(self, one: Array, other: Array, out: Array) -> None: ...

    def copy(self, into: Array, source: Array) -> None: ...

    def zero(self, array: Array) -> None: ...

    def mark(self) -> Marker | None:
        """A marker behind everything handed over so far; None where verbs end before they return."""

    def synchronise(self) -> None:
        """Wait until everything handed over has ended."""

    def beside(self) -> "Library":
        """The same verbs on the same arrays for work beside the compute lane, which does not hold it up."""


class NumpyLibrary:
    """NumPy on the host: every verb has ended when it returns."""

    name: Backend = "numpy"

    @property
    def module(self) -> Any:
        return np

    def carry_out(self, work: Callable[[], None]) -> None:
        work()

    def empty(self, elements: int, dtype: ElementType) -> Array:
        return np.empty(elements, dtype)

    def empty_on_host(self, elements: int, dtype: ElementType) -> Array:
        return self.empty(elements, dtype)

    def put(self, into: Array, host_values: np.ndarray[Any, Any]) -> None:
        into[...] = host_values

    def fetch(self, array: Array) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = array
        return host

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        np.matmul(a, b, out=out)

    def add(self, one: Array, other: Array, out: Array) -> None:
        np.add(one, other, out=out)

    def maximum(self, one: Array, other: Array, out: Array) -> None:
        np.maximum(one, other, out=out)

    def copy(self, into: Array, source: Array) -> None:
        np.copyto(into, source)

    def zero(self, array: Array) -> None:
        array.fill(0)

    def mark(self) -> Marker | None:
        return None

    def synchronise(self) -> None:
        return None

    def beside(self) -> Library:
        return self


def find_library(backend: str, dtype: DType, *, rank_on_host: int = 0) -> Library:
    """The array library of that name, if it can multiply matrices of the dtype.

    Parameters
    ----------
    rank_on_host : chooses the GPU (`runtime.devices.rank_on_host`)

    Raises
    ------
    InputError : an unknown backend, one that is not installed or finds no device, or a dtype it does not have
    """
    if backend == "cupy":
        from runtime.cupy_library import open_cupy

        return open_cupy(dtype, rank_on_host)
    if backend != "numpy":
        raise InputError(f"backend {backend!r}: accepted are {', '.join(get_args(Backend))}")
    if dtype not in ("float64", "float32"):
        raise InputError(f"dtype {dtype!r}: numpy multiplies float64 and float32; float16 and bfloat16 need cupy")
    return NumpyLibrary()
