"""The array library of NumPy: host arrays, on which every function has ended when it returns."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from quadrille.algorithms.schedule.tensors import ElementType
from quadrille.runtime.arrays.array_library import Array, ArrayLibrary, Backend, Marker

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Options of `mallopt`.  Source: glibc, malloc.h (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)."""
LARGEST_HEAP_ARRAY = 32 << 20
"""Largest array that comes from the heap, the limit of glibc [B]."""
KEPT_BYTES = 1 << 30
"""Freed memory that the process keeps at the end of its heap [B]."""


@cache
def keep_freed_memory() -> bool:
    """Keep the memory of freed arrays in this process, and return whether the C library can.

    By default glibc returns the temporaries of a kernel to the system, and the next kernel faults in each page again: a
    gradient of attention then takes more than twice as long.

    Source: `man 3 mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_HEAP_ARRAY) and mallopt(TRIM_THRESHOLD, KEPT_BYTES))


class NumpyLibrary:
    """NumPy on the host: every function has ended when it returns."""

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

    def add(self, left: Array, right: Array, out: Array) -> None:
        np.add(left, right, out=out)

    def maximum(self, left: Array, right: Array, out: Array) -> None:
        np.maximum(left, right, out=out)

    def copy(self, into: Array, source: Array) -> None:
        np.copyto(into, source)

    def zero(self, array: Array) -> None:
        array.fill(0)

    def copy_to_host(self, host: Array, source: Array) -> None:
        np.copyto(host, source)

    def copy_to_device(self, into: Array, host: Array) -> None:
        np.copyto(into, host)

    def mark(self) -> Marker | None:
        return None

    def synchronise(self) -> None:
        return None

    def lane(self) -> ArrayLibrary:
        return self
