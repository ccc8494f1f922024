"""Matrix products on the host by another BLAS than NumPy's: any shared library with the C interface (CBLAS).

NumPy's wheel brings OpenBLAS, which is not the fastest BLAS on every processor. A library is found by its name in
wheels, environments and system folders, or by its path. Only products use it; everything else stays with NumPy.

Symbol names tell the integer width: an OpenBLAS with 64-bit integers ends its symbols in `64_`, and NumPy's wheel also
adds the prefix `scipy_`. A small product is computed when the library is loaded, so a library with wrong products is
refused before any measurement. A library whose integers are wider than its symbols claim may crash at this point.

Sources: "Quick Reference Guide to the BLAS", netlib.org, C interface; OpenBLAS, interface/gemm.c and
cblas.h; Intel, "oneMKL developer reference for C", mkl_set_num_threads; BLIS, docs/Multithreading.md.
"""

import ctypes
import ctypes.util
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.runtime.arrays.array_library import Array, ArrayLibrary, matrix_layout
from quadrille.runtime.arrays.numpy_library import NumpyLibrary

NUMPY_BLAS = "numpy"
"""The name of the BLAS with which NumPy was built."""
ROW_MAJOR, NOT_TRANSPOSED, TRANSPOSED = 101, 111, 112
"""Constants of the C interface: CblasRowMajor, CblasNoTrans, CblasTrans."""
LETTERS = {"float32": ("s", ctypes.c_float), "float64": ("d", ctypes.c_double)}
NARROW, WIDE = ctypes.c_int32, ctypes.c_int64
SYMBOLS: tuple[tuple[str, type[Any]], ...] = (
    ("scipy_cblas_{}gemm64_", WIDE),
    ("cblas_{}gemm64_", WIDE),
    ("scipy_cblas_{}gemm", NARROW),
    ("cblas_{}gemm", NARROW),
)
"""Symbols of the product and their integer types; the first symbol that exists is used."""
THREADS: tuple[tuple[str, type[Any]], ...] = (
    ("scipy_openblas_set_num_threads64_", NARROW),
    ("scipy_openblas_set_num_threads", NARROW),
    ("openblas_set_num_threads64_", NARROW),
    ("openblas_set_num_threads", NARROW),
    ("MKL_Set_Num_Threads", NARROW),
    ("bli_thread_set_num_threads", WIDE),
)
CONFIGURATIONS = (
    "scipy_openblas_get_config64_",
    "scipy_openblas_get_config",
    "openblas_get_config64_",
    "openblas_get_config",
    "bli_info_get_version_str",
)
"""Functions that return a library's version as text."""
MKL_VERSION, MKL_VERSION_BYTES = "MKL_Get_Version_String", 198


@dataclass(frozen=True, slots=True)
class BlasFamily:
    """A BLAS that is known by name.

    Parameters
    ----------
    patterns : file name patterns
    system_name : name under which the system's loader finds it
    """

    patterns: tuple[str, ...]
    system_name: str


BY_NAME = {
    "mkl": BlasFamily(("libmkl_rt.so*", "libmkl_rt*.dylib"), "mkl_rt"),
    "openblas": BlasFamily(("libscipy_openblas*", "libopenblas*.so*", "libopenblas*.dylib"), "openblas"),
    "blis": BlasFamily(("libblis*.so*", "libblis*.dylib"), "blis"),
}


class BlasLibrary(NumpyLibrary):
    """NumPy on the host, with products by another BLAS.

    Parameters
    ----------
    path : path of the shared library

    Raises
    ------
    InputError : the file cannot be loaded, or has no correct products with the C interface
    """

    def __init__(self, path: str) -> None:
        try:
            self._library_handle = ctypes.CDLL(path)
        except OSError as error:
            raise InputError(f"blas {path!r}: cannot be loaded ({error})") from None
        self.path = path
        self._products = {dtype: _product(self._library_handle, path, letter) for dtype, (letter, _) in LETTERS.items()}
        self._check()

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        """C_mn = A_mk B_kn, for matrices in row-major or column-major layout."""
        (rows, inner), columns = a.shape, b.shape[1]
        if out.size == 0:
            return
        if inner == 0:
            out.fill(0)
            return
        (transposed_a, leading_a), (transposed_b, leading_b), (transposed_c, leading_c) = (
            matrix_layout(a),
            matrix_layout(b),
            matrix_layout(out),
        )
        assert not transposed_c, (out.shape, out.strides)
        product, largest_integer = self._products[str(out.dtype)]
        if max(rows, columns, inner, leading_a, leading_b, leading_c) > largest_integer:
            raise InputError(f"blas {self.path!r}: {rows} x {inner} by {inner} x {columns} needs 64-bit integers")
        product(
            ROW_MAJOR, TRANSPOSED if transposed_a else NOT_TRANSPOSED, TRANSPOSED if transposed_b else NOT_TRANSPOSED,
            rows, columns, inner, 1.0, a.ctypes.data, leading_a, b.ctypes.data, leading_b,
            0.0, out.ctypes.data, leading_c,
        )  # fmt: skip

    def use_threads(self, threads: int) -> None:
        """Set the number of threads of a product, if the library has threads."""
        for name, integer in THREADS:
            if hasattr(self._library_handle, name):
                function = getattr(self._library_handle, name)
                function.argtypes, function.restype = [integer], None
                function(threads)
                return

    @property
    def version(self) -> str:
        """The version that the library reports, and its file name."""
        return " ".join([*_version(self._library_handle), f"({Path(self.path).name})"])

    def _check(self) -> None:
        for dtype in LETTERS:
            a, b = np.arange(6.0).reshape(2, 3).astype(dtype), np.arange(12.0).reshape(4, 3).astype(dtype).T
            product = np.empty((2, 4), dtype)
            self.matmul(a, b, product)
            if not np.array_equal(product, a @ b):
                raise InputError(f"blas {self.path!r}: its {dtype} product of 2 x 3 by 3 x 4 is wrong")


def _product(library_handle: ctypes.CDLL, path: str, letter: str) -> tuple[Callable[..., None], int]:
    """The library's product for the type letter (s or d), and its largest integer."""
    scalar_type = next(scalar_type for candidate, scalar_type in LETTERS.values() if candidate == letter)
    for pattern, integer in SYMBOLS:
        name = pattern.format(letter)
        if hasattr(library_handle, name):
            function: Any = getattr(library_handle, name)
            layout_arguments, matrix_arguments = [ctypes.c_int] * 3, [ctypes.c_void_p, integer]
            function.argtypes = [
                *layout_arguments,
                *[integer] * 3,
                scalar_type,
                *matrix_arguments,
                *matrix_arguments,
                scalar_type,
                *matrix_arguments,
            ]
            function.restype = None
            return function, (1 << 8 * ctypes.sizeof(integer) - 1) - 1
    raise InputError(f"blas {path!r}: has no product of the C interface, cblas_{letter}gemm or one ending in 64_")


def _version(library_handle: ctypes.CDLL) -> Iterator[str]:
    for name in CONFIGURATIONS:
        if hasattr(library_handle, name):
            function = getattr(library_handle, name)
            function.restype = ctypes.c_char_p
            yield " ".join(function().decode(errors="replace").split())
            return
    if hasattr(library_handle, MKL_VERSION):
        buffer = ctypes.create_string_buffer(MKL_VERSION_BYTES)
        getattr(library_handle, MKL_VERSION)(buffer, MKL_VERSION_BYTES)
        yield " ".join(buffer.value.decode(errors="replace").split())


def describe_blas(library: ArrayLibrary) -> str:
    """The BLAS that multiplies host arrays, for a record; empty for device arrays.

    >>> describe_blas(NumpyLibrary()).split()[0]
    'openblas'
    """
    if library.name != "numpy":
        return ""
    if isinstance(library, BlasLibrary):
        return library.version
    from threadpoolctl import threadpool_info

    pools = sorted(
        (pool for pool in threadpool_info() if pool["user_api"] == "blas"),
        key=lambda pool: "numpy" not in pool["filepath"],
    )
    words = [str(pools[0].get(key) or "") for key in ("internal_api", "version", "architecture")] if pools else []
    return " ".join(filter(None, words))


# Search for installed libraries


def open_blas(name: str, threads: int) -> ArrayLibrary:
    """NumPy with products by the BLAS of that name, or by the shared library at that path.

    Parameters
    ----------
    threads : threads of one product

    Raises
    ------
    InputError : no such library here, or a library without correct products
    """
    check_blas(name)
    path = name if "/" in name else _path(BY_NAME[name])
    if path is None:
        missing = f"there is no {BY_NAME[name].patterns[0]} in this environment or on this system"
        raise InputError(f"blas {name!r}: {missing}; found here: {_installed_names()}")
    library = BlasLibrary(path)
    library.use_threads(threads)
    return library


def check_blas(name: str) -> None:
    """Refuse a text that is neither a known BLAS name nor a path. Whether it is installed is not checked.

    Raises
    ------
    InputError : an unknown name
    """
    if "/" not in name and name not in (NUMPY_BLAS, *BY_NAME):
        accepted = f"{NUMPY_BLAS}, {', '.join(BY_NAME)} and the path of a shared library, with a /"
        raise InputError(f"blas {name!r}: accepted are {accepted}; found here: {_installed_names()}")


def _installed_names() -> str:
    return ", ".join([NUMPY_BLAS, *(f"{name} ({path})" for name, path in installed_libraries().items())])


def installed_libraries() -> dict[str, str]:
    """The installed libraries that are known by name, each with the path or name by which it is loaded."""
    paths = {name: _path(family) for name, family in BY_NAME.items()}
    return {name: path for name, path in paths.items() if path is not None}


def _path(family: BlasFamily) -> str | None:
    """The path or system name of a library: first in wheels, then in the environment, then by the system's loader."""
    for folder in _folders():
        for pattern in family.patterns:
            for path in sorted(folder.glob(pattern)):
                return str(path)
    return ctypes.util.find_library(family.system_name)


def _folders() -> Iterator[Path]:
    packages = Path(sysconfig.get_path("platlib"))
    yield from sorted(packages.glob("*.libs"))
    yield from sorted(packages.glob("*/lib"))
    yield Path(sys.prefix) / "lib"
