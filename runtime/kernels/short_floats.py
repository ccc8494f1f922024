"""16-bit elements: widened to float32 for sums and exponentials, and rounded back."""

from typing import Any

from quadrille.runtime.arrays.array_library import Array


def widened(xp: Any, array: Array) -> Array:
    """16-bit elements as float32; bfloat16 is stored as uint16, the upper half of its float32."""
    if array.dtype == xp.uint16:
        return (array.astype(xp.uint32) << 16).view(xp.float32)
    return array.astype(xp.float32) if array.dtype.itemsize == 2 else array


def narrowed(xp: Any, array: Array, dtype: Any) -> Array:
    """The nearest 16-bit elements, ties to even; NaN stays NaN."""
    if dtype == xp.uint16:
        bits = array.view(xp.uint32)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(xp.uint16)
        return xp.where(xp.isnan(array), xp.uint16(0x7FC0), nearest)  # a GPU's own, 0x7FFFFFFF, would become -0
    return array.astype(dtype, copy=False)
