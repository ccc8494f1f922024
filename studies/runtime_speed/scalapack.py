"""ScaLAPACK's product, called by ctypes where a shared library of it is installed (Debian: libscalapack-openmpi).

The MPI.  The library names the MPI that it needs by soname, libmpi.so.40, and the loader gives it the one of that
soname that mpi4py has loaded: Open MPI 4, with which Debian builds it, and 5, as in the wheel, have the same.  It
calls MPI by its C functions only.  Whether it got mpi4py's is looked at in a process of its own, which may crash.

The arrays.  ScaLAPACK's are in Fortran order.  NumPy's, in C order, are their transposes as they lie: what is asked
for is C^T = B^T @ A^T, and nothing is copied.

The blocks.  C is cut into one block for each rank; A is cut along m and B along n as C is.  Along k the blocks go
round the ranks, so that each is on one column of ranks in A and on one row of ranks in B.  p?gemm is called once for
each block of k, which it passes on as a whole and multiplies once.  One call for all of k multiplies panels of 32
instead (`pilaenv`, built into the library) and took 7 to 24 % longer, whether blocks were 128 or 256 long (two ranks,
2048x2048x2048 and 4096x1024x4096); shorter blocks of k in calls of their own gained nothing.

Sources: Choi et al., "A proposal for a set of parallel basic linear algebra subprograms", LAPACK working note 100,
1995; ScaLAPACK 2.2, PBLAS/SRC/PTOOLS/PB_CpgemmAB.c, PBLAS/SRC/pilaenv.f; BLACS/SRC/sys2blacs_.c.
"""

import ctypes
import ctypes.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import lcm
from typing import Any

import numpy as np

from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.runtime.launching.mpirun import without_rank

NAMES = ("scalapack-openmpi", "scalapack")
"""Of the library, without lib and .so."""
EXAMINE = ("-P", "-m", "quadrille.studies.runtime_speed.scalapack")
EXAMINATION_SECONDS = 20
DENSE = 1
"""The kind of matrix that a descriptor describes."""
LETTERS = {"float32": ("s", ctypes.c_float), "float64": ("d", ctypes.c_double)}


@dataclass(slots=True)
class ScaLapack:
    """The product by `p?gemm`, one call for each block of k."""

    rows: slice
    columns: slice
    a: Any
    b: Any
    c: Any
    calls: list[Callable[[], object]]

    @classmethod
    def of(cls, communicator: Any, sizes: Matmul, a: Any, b: Any) -> "ScaLapack":
        library = ctypes.CDLL(installed())
        ranks = communicator.Get_size()
        down, across = cuts(sizes, ranks)
        row, column = divmod(communicator.Get_rank(), across)
        m_block, n_block = -(-sizes.m // down), -(-sizes.n // across)
        k_block = -(-sizes.k // lcm(down, across))
        rows, columns = _part(sizes.m, m_block, row), _part(sizes.n, n_block, column)
        my_a = np.ascontiguousarray(a[rows, _every(sizes.k, k_block, across, column)])
        my_b = np.ascontiguousarray(b[_every(sizes.k, k_block, down, row), columns])
        my_c = np.empty((rows.stop - rows.start, columns.stop - columns.start), a.dtype)

        context = _context(library, communicator, down, across)
        operands = (
            (my_b, _descriptor(context, sizes.n, sizes.k, n_block, k_block, my_b)),
            (my_a, _descriptor(context, sizes.k, sizes.m, k_block, m_block, my_a)),
            (my_c, _descriptor(context, sizes.n, sizes.m, n_block, m_block, my_c)),
        )
        calls = [_call(library, sizes, operands, start, k_block) for start in range(0, sizes.k, k_block)]
        return cls(rows, columns, my_a, my_b, my_c, calls)

    def multiply(self) -> None:
        for call in self.calls:
            call()

    def product(self) -> tuple[slice, slice, Any]:
        return self.rows, self.columns, self.c


def cuts(sizes: Matmul, ranks: int) -> tuple[int, int]:
    """Into how many parts m and n are cut, so that the fewest words are sent; among equals m is cut.

    A rank of r x c receives what it lacks of its rows of A and its columns of B:

        m / r * k * (c - 1) / c + k * n / c * (r - 1) / r = k / p * (m * (c - 1) + n * (r - 1))

    >>> cuts(Matmul(8192, 4096, 1024), 2), cuts(Matmul(1024, 4096, 8192), 2), cuts(Matmul(64, 64, 64), 4)
    ((2, 1), (1, 2), (2, 2))
    """
    pairs = [(ranks // across, across) for across in range(1, ranks + 1) if ranks % across == 0]
    return min(pairs, key=lambda pair: sizes.m * (pair[1] - 1) + sizes.n * (pair[0] - 1))


def _part(size: int, block: int, index: int) -> slice:
    """The only block of a rank; empty where there are fewer blocks than ranks.

    >>> [_part(5, 2, index) for index in range(4)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None), slice(5, 5, None)]
    """
    return slice(min(size, index * block), min(size, (index + 1) * block))


def _every(size: int, block: int, parts: int, index: int) -> Any:
    """Which elements are in the blocks of a rank, where blocks go round the ranks.

    >>> np.flatnonzero(_every(10, 2, 2, 1)).tolist()
    [2, 3, 6, 7]
    """
    return np.arange(size) // block % parts == index


def _context(library: ctypes.CDLL, communicator: Any, down: int, across: int) -> int:
    """A grid of ranks in ScaLAPACK's sense, transposed as the matrices are: `across` rows, `down` columns."""
    from mpi4py import MPI

    library.Csys2blacs_handle.argtypes = [ctypes.c_void_p]
    context = ctypes.c_int(library.Csys2blacs_handle(MPI._handleof(communicator)))
    library.Cblacs_gridinit(ctypes.byref(context), b"Column-major", across, down)
    return context.value


def _descriptor(context: int, rows: int, columns: int, row_block: int, column_block: int, mine: Any) -> Any:
    """What ScaLAPACK is told of a matrix of which this rank has `mine`, the transpose of its part in C order."""
    leading = max(1, mine.shape[1])
    return (ctypes.c_int * 9)(DENSE, context, rows, columns, row_block, column_block, 0, 0, leading)


def _call(
    library: ctypes.CDLL, sizes: Matmul, operands: Sequence[tuple[Any, Any]], start: int, block: int
) -> Callable[[], object]:
    """A function that computes the product over a block of k; the first block sets C, later blocks add to C."""
    letter, number = LETTERS[sizes.dtype]
    function = getattr(library, f"p{letter}gemm_")
    (b, of_b), (a, of_a), (c, of_c) = ((mine.ctypes.data_as(ctypes.c_void_p), of) for mine, of in operands)
    unit, first = _number(1), _number(start + 1)
    inner = _number(min(block, sizes.k - start))
    before = ctypes.byref(number(1 if start else 0))
    arguments = (
        *(b"N", b"N", _number(sizes.n), _number(sizes.m), inner, ctypes.byref(number(1))),
        *(b, unit, first, of_b),
        *(a, first, unit, of_a),
        *(before, c, unit, unit, of_c),
    )
    return lambda: function(*arguments)


def _number(value: int) -> Any:
    """A whole number as Fortran takes it."""
    return ctypes.byref(ctypes.c_int(value))


# Whether it can take part


def installed() -> str | None:
    """The library's soname; None if there is none."""
    return next(filter(None, map(ctypes.util.find_library, NAMES)), None)


def missing() -> str:
    """Why it cannot take part; empty where it can."""
    name = installed()
    return f"lib{NAMES[0]} is not installed" if name is None else examined(name).why


def version() -> str:
    """The library and its BLAS, in words; empty where it cannot take part."""
    name = installed()
    return "" if name is None else examined(name).version


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a library cannot take part, or else which it is."""

    why: str = ""
    version: str = ""


@cache
def examined(name: str) -> Verdict:
    """The verdict on a library, from what a process of its own found."""
    try:
        answer = subprocess.run(
            [sys.executable, *EXAMINE, name],
            capture_output=True,
            text=True,
            check=False,
            env=without_rank(os.environ),
            timeout=EXAMINATION_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Verdict(f"{name} was not loaded within {EXAMINATION_SECONDS} s")
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        return Verdict(f"{name} cannot be loaded ({last})")
    return verdict(name, *json.loads(answer.stdout))


def verdict(name: str, its_mpi: str, our_mpi: str, blas: str) -> Verdict:
    """What follows from what `examine` found."""
    if its_mpi != our_mpi:
        return Verdict(f"{name} is bound to {_short(its_mpi)}, but mpi4py to {_short(our_mpi)}")
    if not blas:
        return Verdict(f"{name} has a BLAS whose threads cannot be set: install Debian's libopenblas0-pthread")
    return Verdict(version=f"{name} on {blas}")


def examine(name: str) -> tuple[str, str, str]:
    """The MPI of a library, the MPI of mpi4py, and the library's BLAS if its threads can be set.

    The library is loaded into this process, beside mpi4py's MPI, which is not started.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI
    from threadpoolctl import threadpool_info

    before = [pool["filepath"] for pool in threadpool_info()]
    library = ctypes.CDLL(name)
    room, length = ctypes.create_string_buffer(MPI.MAX_LIBRARY_VERSION_STRING), ctypes.c_int()
    library.MPI_Get_library_version(room, ctypes.byref(length))
    blas = [pool for pool in threadpool_info() if pool["user_api"] == "blas" and pool["filepath"] not in before]
    words = [str(blas[0].get(key) or "") for key in ("internal_api", "version", "architecture")] if blas else []
    return room.value.decode(errors="replace"), MPI.Get_library_version().rstrip("\0"), " ".join(filter(None, words))


def _short(mpi: str) -> str:
    """The first words of an MPI's version.

    >>> _short("Open MPI v5.0.11, package: Open MPI"), _short("MPICH Version:      4.2.1")
    ('Open MPI v5.0.11', 'MPICH Version: 4.2.1')
    """
    return " ".join(mpi.partition("\n")[0].partition(",")[0].split())


if __name__ == "__main__":
    print(json.dumps(examine(sys.argv[1])))
