"""Pinned host memory: a pool of reusable buffers, and double-buffered copies of large arrays.

Allocating pinned memory takes as long as copying megabytes, so buffers are kept by size class. A buffer becomes free
when neither MPI nor the device uses it. Inputs and outputs may be larger than the pinned memory should be. So they are
copied in chunks of a few MiB through two buffers: the host fills or empties one buffer while the device uses the other.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quadrille.runtime.arrays.array_library import Array, Marker

Bytes = NDArray[np.uint8]
SMALLEST_BYTES = 4096
PINNED_CHUNK_BYTES = 4 << 20


def size_class(size_bytes: int) -> int:
    """The size of the pooled buffer for a request of `size_bytes`: at most a quarter larger [B].

    >>> [size_class(size) for size in (1, 4096, 5000, 6145, 1_000_000)]
    [4096, 4096, 5120, 7168, 1048576]
    """
    if size_bytes <= SMALLEST_BYTES:
        return SMALLEST_BYTES
    step = 1 << ((size_bytes - 1).bit_length() - 3)
    return -(-size_bytes // step) * step


class PinnedPool:
    """A pool of pinned host buffers.

    Parameters
    ----------
    allocate : returns a buffer of the given bytes; by default CUDA's pinned memory
    """

    def __init__(self, allocate: Callable[[int], Any] | None = None) -> None:
        self._allocate = allocate or _pinned
        self._free: dict[int, list[Bytes]] = defaultdict(list)
        self.allocated_bytes = 0

    def take(self, size_bytes: int) -> Bytes:
        """A buffer of at least `size_bytes`, reserved until it is given back."""
        size = size_class(size_bytes)
        if self._free[size]:
            return self._free[size].pop()
        self.allocated_bytes += size
        return np.frombuffer(self._allocate(size), np.uint8, size)

    def give_back(self, buffer: Bytes) -> None:
        """Return a buffer to the pool: neither MPI nor the device uses it any more."""
        self._free[buffer.size].append(buffer)


def _pinned(size_bytes: int) -> Any:
    import cupy

    return cupy.cuda.alloc_pinned_memory(size_bytes)


class DeviceCopier(Protocol):
    """The copy functions of a device's array library."""

    @property
    def pinned(self) -> PinnedPool: ...
    def copy_bytes_to_device(self, address: int, pinned: Bytes) -> None: ...
    def copy_bytes_to_host(self, pinned: Bytes, address: int) -> None: ...
    def mark(self) -> Marker: ...
    def synchronise(self) -> None: ...


def put_in_chunks(
    library: DeviceCopier, into: Array, host_values: Bytes, chunk_bytes: int = PINNED_CHUNK_BYTES
) -> None:
    """Copy host bytes into a contiguous device array: the host fills one chunk while the device reads the other."""
    chunks = _DoubleBuffer(library, min(chunk_bytes, host_values.size))
    for start in range(0, host_values.size, chunk_bytes):
        part = host_values[start : start + chunk_bytes]
        chunk = chunks.next()[: part.size]
        np.copyto(chunk, part)
        library.copy_bytes_to_device(into.data.ptr + start, chunk)
        chunks.mark()
    chunks.give_back()


def fetch_in_chunks(library: DeviceCopier, into: Bytes, source: Array, chunk_bytes: int = PINNED_CHUNK_BYTES) -> None:
    """Copy a contiguous device array into host bytes: the host empties one chunk while the device writes the other."""
    chunks = _DoubleBuffer(library, min(chunk_bytes, into.size))
    waiting: list[tuple[Bytes, Bytes]] = []
    for start in range(0, into.size, chunk_bytes):
        part = into[start : start + chunk_bytes]
        chunk = chunks.next()[: part.size]
        library.copy_bytes_to_host(chunk, source.data.ptr + start)
        chunks.mark()
        waiting.append((part, chunk))
        if len(waiting) == 2:
            chunks.wait_for_older()
            np.copyto(*waiting.pop(0))
    library.synchronise()
    for part, chunk in waiting:
        np.copyto(part, chunk)
    chunks.give_back()


class _DoubleBuffer:
    """Two pinned buffers used alternately, with a marker for the device's use of each."""

    def __init__(self, library: DeviceCopier, size_bytes: int) -> None:
        self._library = library
        self._buffers = [library.pinned.take(size_bytes) for _ in range(2)]
        self._markers: list[Marker | None] = [None, None]
        self._used = 0

    def next(self) -> Bytes:
        """The next buffer, after the device has released it."""
        self._wait(self._used % 2)
        return self._buffers[self._used % 2]

    def mark(self) -> None:
        """Record that the device now uses the buffer."""
        self._markers[self._used % 2] = self._library.mark()
        self._used += 1

    def wait_for_older(self) -> None:
        """Wait until the device has released the older buffer."""
        self._wait(self._used % 2)

    def _wait(self, which: int) -> None:
        marker = self._markers[which]
        if marker is not None:
            marker.wait()
            self._markers[which] = None

    def give_back(self) -> None:
        """Return both buffers, after the device has released them."""
        for which in range(2):
            self._wait(which)
            self._library.pinned.give_back(self._buffers[which])
