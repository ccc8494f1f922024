"""The only place that knows NumPy from CuPy, which is imported when it is asked for."""

from typing import get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.arrays.array_library import ArrayLibrary, Backend
from quadrille.runtime.arrays.numpy_library import NumpyLibrary


def find_array_library(backend: str, dtype: DType, *, rank_on_host: int = 0) -> ArrayLibrary:
    """The array library of that name, if it can multiply matrices of the dtype.

    Parameters
    ----------
    rank_on_host : chooses the GPU (`quadrille.runtime.host.devices.device_number`)

    Raises
    ------
    InputError : an unknown backend, one that is not installed or finds no device, or a dtype it does not have
    """
    if backend == "cupy":
        from quadrille.runtime.arrays.cupy_library import open_cupy

        return open_cupy(dtype, rank_on_host)
    if backend != "numpy":
        raise InputError(f"backend {backend!r}: accepted are {', '.join(get_args(Backend))}")
    if dtype not in ("float64", "float32"):
        raise InputError(f"dtype {dtype!r}: numpy multiplies float64 and float32; float16 and bfloat16 need cupy")
    return NumpyLibrary()
