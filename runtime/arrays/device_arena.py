"""A device arena: NumPy arrays that stand for the memory of a device, with a limit on their bytes together."""

from quadrille.algorithms.errors import RunError
from quadrille.algorithms.schedule.tensors import ElementType
from quadrille.algorithms.units import format_bytes
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.arrays.numpy_library import NumpyLibrary


class DeviceArena(NumpyLibrary):
    """NumPy with a limit on the bytes of a rank's arrays; host arrays do not count.

    Parameters
    ----------
    limit_bytes : largest sum of the bytes of all arrays [B]

    >>> arena = DeviceArena(64)
    >>> _ = arena.empty(8, "float64"), arena.empty_on_host(1000, "float64")
    >>> arena.empty(1, "uint8")
    Traceback (most recent call last):
        ...
    quadrille.algorithms.errors.RunError: the device arena of 64 bytes has no room for 1 byte more
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self._used_bytes = limit_bytes, 0

    def empty(self, elements: int, dtype: ElementType) -> Array:
        array = super().empty(elements, dtype)
        self._used_bytes += int(array.nbytes)
        if self._used_bytes > self._limit_bytes:
            limit, size = (_bytes(count) for count in (self._limit_bytes, int(array.nbytes)))
            raise RunError(f"the device arena of {limit} has no room for {size} more")
        return array

    def empty_on_host(self, elements: int, dtype: ElementType) -> Array:
        return super().empty(elements, dtype)


def _bytes(count: int) -> str:
    return f"{count} byte{'' if count == 1 else 's'}" if count < 1024 else format_bytes(count)
