"""Products of host arrays by another BLAS than NumPy's: any shared library with a C interface that is installed.

NumPy's wheel brings OpenBLAS, which is not the fastest on every processor.  A library is looked for by name where
wheels, environments and systems keep theirs, or taken from a path.  Everything but products stays NumPy's.

Names of symbols say how wide the integers are: OpenBLAS built for 64-bit integers ends them in `64_`, that of
NumPy's wheel begins them with `scipy_` too.  A small product is made once, so that a library whose products are
wrong is refused before anything is timed; one whose integers are wider than its symbols say may crash there.

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
from quadrille.runtime.arrays.array_library import Array, ArrayLibrary
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.arrays.strides import matrix_layout

NUMPY_BLAS = "numpy"
"""The word for the BLAS that NumPy was built with."""
ROW_MAJOR, AS_IT_LIES, TRANSPOSED = 101, 111, 112
"""Of the C interface: CblasRowMajor, CblasNoTrans, CblasTrans."""
LETTERS = {"float32": ("s", ctypes.c_float), "float64": ("d", ctypes.c_double)}
NARROW, WIDE = ctypes.c_int32, ctypes.c_int64
SYMBOLS: tuple[tuple[str, type[Any]], ...] = (
    ("scipy_cblas_{}gemm64_", WIDE),
    ("cblas_{}gemm64_", WIDE),
    ("scipy_cblas_{}gemm", NARROW),
    ("cblas_{}gemm", NARROW),
)
"""Of a product, and how wide its integers are; the first that there is is taken."""
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
"""Functions that give a library's version in words."""
MKL_VERSION, MKL_VERSION_BYTES = "MKL_Get_Version_String", 198


@dataclass(frozen=True, slots=True)
class BlasFamily:
    """A BLAS known by name.

    Parameters
    ----------
    patterns : of its files
    system_name : by which the system's loader finds it
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
    path : of the shared library

    Raises
    ------
    InputError : no shared library, or none with products of the C interface that are right
    """

    def __init__(self, path: str) -> None:
        try:
            self._loaded = ctypes.CDLL(path)
        except OSError as error:
            raise InputError(f"blas {path!r}: cannot be loaded ({error})") from None
        self.path = path
        self._products = {dtype: _product(self._loaded, path, letter) for dtype, (letter, _) in LETTERS.items()}
        self._check()

    def matmul(self, a: Array, b: Array, out: Array) -> None:
        """C_mn = A_mk B_kn, each as it lies."""
        (rows, inner), columns = a.shape, b.shape[1]
        if out.size == 0:
            return
        if inner == 0:
            out.fill(0)
            return
        (turn_a, step_a), (turn_b, step_b), (turn_c, step_c) = matrix_layout(a), matrix_layout(b), matrix_layout(out)
        assert not turn_c, (out.shape, out.strides)
        product, most = self._products[str(out.dtype)]
        if max(rows, columns, inner, step_a, step_b, step_c) > most:
            raise InputError(f"blas {self.path!r}: {rows} x {inner} by {inner} x {columns} needs 64-bit integers")
        product(
            ROW_MAJOR, TRANSPOSED if turn_a else AS_IT_LIES, TRANSPOSED if turn_b else AS_IT_LIES,
            rows, columns, inner, 1.0, a.ctypes.data, step_a, b.ctypes.data, step_b, 0.0, out.ctypes.data, step_c,
        )  # fmt: skip

    def use_threads(self, threads: int) -> None:
        """Products go on so many threads from now on, where the library has any."""
        for name, integer in THREADS:
            if hasattr(self._loaded, name):
                function = getattr(self._loaded, name)
                function.argtypes, function.restype = [integer], None
                function(threads)
                return

    @property
    def version(self) -> str:
        """What the library says of itself, and where it is."""
        return " ".join([*_version(self._loaded), f"({Path(self.path).name})"])

    def _check(self) -> None:
        for dtype in LETTERS:
            a, b = np.arange(6.0).reshape(2, 3).astype(dtype), np.arange(12.0).reshape(4, 3).astype(dtype).T
            found = np.empty((2, 4), dtype)
            self.matmul(a, b, found)
            if not np.array_equal(found, a @ b):
                raise InputError(f"blas {self.path!r}: its {dtype} product of 2 x 3 by 3 x 4 is wrong")


def _product(loaded: ctypes.CDLL, path: str, letter: str) -> tuple[Callable[..., None], int]:
    """The library's product of elements that the letter stands for, and the largest of its integers."""
    factor = next(factor for one, factor in LETTERS.values() if one == letter)
    for pattern, integer in SYMBOLS:
        name = pattern.format(letter)
        if hasattr(loaded, name):
            function: Any = getattr(loaded, name)
            choice, where = [ctypes.c_int] * 3, [ctypes.c_void_p, integer]
            function.argtypes = [*choice, *[integer] * 3, factor, *where, *where, factor, *where]
            function.restype = None
            return function, (1 << 8 * ctypes.sizeof(integer) - 1) - 1
    raise InputError(f"blas {path!r}: has no product of the C interface, cblas_{letter}gemm or one ending in 64_")


def _version(loaded: ctypes.CDLL) -> Iterator[str]:
    for name in CONFIGURATIONS:
        if hasattr(loaded, name):
            function = getattr(loaded, name)
            function.restype = ctypes.c_char_p
            yield " ".join(function().decode(errors="replace").split())
            return
    if hasattr(loaded, MKL_VERSION):
        room = ctypes.create_string_buffer(MKL_VERSION_BYTES)
        getattr(loaded, MKL_VERSION)(room, MKL_VERSION_BYTES)
        yield " ".join(room.value.decode(errors="replace").split())


def describe_blas(library: ArrayLibrary) -> str:
    """Which BLAS multiplies host arrays, for a record; empty where none does.

    >>> describe_blas(NumpyLibrary()).split()[0]
    'openblas'
    """
    if library.name != "numpy":
        return ""
    if isinstance(library, BlasLibrary):
        return library.version
    from threadpoolctl import threadpool_info

    loaded = sorted(
        (one for one in threadpool_info() if one["user_api"] == "blas"), key=lambda one: "numpy" not in one["filepath"]
    )
    words = [str(loaded[0].get(key) or "") for key in ("internal_api", "version", "architecture")] if loaded else []
    return " ".join(filter(None, words))


# Where libraries are


def open_blas(name: str, threads: int) -> ArrayLibrary:
    """NumPy with products by the BLAS of that name, or in the shared library at that path.

    Parameters
    ----------
    threads : of a product

    Raises
    ------
    InputError : none of that name here, naming those that are; a library without right products
    """
    check_blas(name)
    found = name if "/" in name else _path(BY_NAME[name])
    if found is None:
        missing = f"there is no {BY_NAME[name].patterns[0]} in this environment or on this system"
        raise InputError(f"blas {name!r}: {missing}; found here: {_found_here()}")
    library = BlasLibrary(found)
    library.use_threads(threads)
    return library


def check_blas(name: str) -> None:
    """Refuse what is no BLAS known by name and no path; whether it is installed is not looked at.

    Raises
    ------
    InputError : such a name
    """
    if "/" not in name and name not in (NUMPY_BLAS, *BY_NAME):
        accepted = f"{NUMPY_BLAS}, {', '.join(BY_NAME)} and the path of a shared library, with a /"
        raise InputError(f"blas {name!r}: accepted are {accepted}; found here: {_found_here()}")


def _found_here() -> str:
    return ", ".join([NUMPY_BLAS, *(f"{name} ({path})" for name, path in installed().items())])


def installed() -> dict[str, str]:
    """The libraries known by name that are here, each with the path, or the name, by which it is loaded."""
    found = {name: _path(known) for name, known in BY_NAME.items()}
    return {name: path for name, path in found.items() if path is not None}


def _path(known: BlasFamily) -> str | None:
    """In wheels first, then in the environment, then where the system's loader looks."""
    for folder in _folders():
        for pattern in known.patterns:
            for path in sorted(folder.glob(pattern)):
                return str(path)
    return ctypes.util.find_library(known.system_name)


def _folders() -> Iterator[Path]:
    packages = Path(sysconfig.get_path("platlib"))
    yield from sorted(packages.glob("*.libs"))
    yield from sorted(packages.glob("*/lib"))
    yield Path(sys.prefix) / "lib"
