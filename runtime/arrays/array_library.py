"""What the executor asks of arrays: a narrow set of verbs, which every array library has.

    library       its arrays                        module
    NumPy         the host's                        numpy_library
    CuPy          of one GPU                        cupy_library

Every verb works on arrays that exist: but for temporaries of kernels nothing is allocated while a schedule runs.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np

from quadrille.algorithms.schedule.tensors import ElementType

Array = Any
"""A NumPy or CuPy array: the boundary at which types end."""

Backend = Literal["numpy", "cupy"]


class Lane(Protocol):
    """Work on arrays, in the order in which it is handed over."""

    def copy(self, into: Array, source: Array) -> None: ...

    def add(self, one: Array, other: Array, out: Array) -> None: ...

    def maximum(self, one: Array, other: Array, out: Array) -> None: ...

    def synchronise(self) -> None:
        """Wait until everything handed over has ended."""


class Marker(Protocol):
    """A point in the work handed to a device."""

    def done(self) -> bool:
        """Whether the device has come that far."""

    def wait(self) -> None:
        """Block until it has."""


class ArrayLibrary(Protocol):
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

    def lane(self) -> "ArrayLibrary":
        """The same verbs on the same arrays for one lane's communication, which no other work holds up."""
