"""ScaLAPACK's matmul (`p?gemm`), called through ctypes from an installed library (Debian: libscalapack-openmpi).

MPI.  The library needs an MPI with the soname libmpi.so.40.  The loader gives it the one that mpi4py has loaded: Open
MPI 4, with which Debian builds it, and Open MPI 5 of the wheel have the same soname.  The library calls only C
functions of MPI.  A separate process, which may crash, checks that the library and mpi4py use the same MPI.

Arrays.  ScaLAPACK's arrays are in Fortran order.  NumPy's arrays in C order are their transposes, so the module
computes C^T = B^T @ A^T and copies nothing.

Blocks.  C is cut into one block for each rank, A along m and B along n like C.  Along k, blocks are distributed
cyclically over the ranks, so that each block is on one column of ranks in A and on one row of ranks in B.  p?gemm is
called once for each block of k, which it broadcasts and multiplies as a whole.  A single call for all of k uses panels
of 32 instead (`pilaenv`, built into the library) and took 7 to 24 % longer with blocks of 128 and 256 (two ranks,
2048x2048x2048 and 4096x1024x4096).  Shorter blocks of k in separate calls gained nothing.

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

LIBRARY_NAMES = ("scalapack-openmpi", "scalapack")
"""Names of the library, without `lib` and `.so`."""
EXAMINE_PROGRAM = ("-P", "-m", "quadrille.studies.runtime_speed.scalapack")
EXAMINATION_SECONDS = 20
DENSE = 1
"""The kind of matrix in a ScaLAPACK descriptor: dense, block-cyclic."""
PREFIXES = {"float32": ("s", ctypes.c_float), "float64": ("d", ctypes.c_double)}


@dataclass(slots=True)
class ScaLapack:
    """The matmul by `p?gemm` on one rank, with one call for each block of k."""

    rows: slice
    columns: slice
    a: Any
    b: Any
    c: Any
    calls: list[Callable[[], object]]

    @classmethod
    def from_operands(cls, communicator: Any, sizes: Matmul, a: Any, b: Any) -> "ScaLapack":
        """The matmul on this rank, with its parts of the operands.

        Parameters
        ----------
        communicator : communicator of all ranks
        sizes : sizes and dtype of the matmul
        a, b : whole operands
        """
        library = ctypes.CDLL(library_name())
        ranks = communicator.Get_size()
        down, across = block_grid(sizes, ranks)
        row, column = divmod(communicator.Get_rank(), across)
        m_block, n_block = -(-sizes.m // down), -(-sizes.n // across)
        k_block = -(-sizes.k // lcm(down, across))
        rows, columns = _part(sizes.m, m_block, row), _part(sizes.n, n_block, column)
        my_a = np.ascontiguousarray(a[rows, _is_in_blocks(sizes.k, k_block, across, column)])
        my_b = np.ascontiguousarray(b[_is_in_blocks(sizes.k, k_block, down, row), columns])
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
        """Multiply once; all ranks call this together."""
        for call in self.calls:
            call()

    def product(self) -> tuple[slice, slice, Any]:
        """The rows and columns of this rank's block of C, and its elements."""
        return self.rows, self.columns, self.c


def block_grid(sizes: Matmul, ranks: int) -> tuple[int, int]:
    """The numbers of parts of m and of n with which a rank receives the fewest elements; ties go to more parts of m.

    On an r x c grid a rank receives the missing elements of its rows of A and of its columns of B:

        m / r * k * (c - 1) / c + k * n / c * (r - 1) / r = k / p * (m * (c - 1) + n * (r - 1))

    >>> [block_grid(Matmul(m, k, n), ranks) for m, k, n, ranks in ((8192, 4096, 1024, 2), (64, 64, 64, 4))]
    [(2, 1), (2, 2)]
    """
    pairs = [(ranks // across, across) for across in range(1, ranks + 1) if ranks % across == 0]
    return min(pairs, key=lambda pair: sizes.m * (pair[1] - 1) + sizes.n * (pair[0] - 1))


def _part(size: int, block: int, index: int) -> slice:
    """The only block of a rank; empty if there are fewer blocks than ranks.

    >>> [_part(5, 2, index) for index in range(4)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None), slice(5, 5, None)]
    """
    return slice(min(size, index * block), min(size, (index + 1) * block))


def _is_in_blocks(size: int, block: int, parts: int, index: int) -> Any:
    """Whether each element is in the blocks of rank `index`, with blocks distributed cyclically over `parts` ranks.

    >>> np.flatnonzero(_is_in_blocks(10, 2, 2, 1)).tolist()
    [2, 3, 6, 7]
    """
    return np.arange(size) // block % parts == index


def _context(library: ctypes.CDLL, communicator: Any, down: int, across: int) -> int:
    """The BLACS context of the ranks' grid, transposed like the matrices: `across` rows, `down` columns."""
    from mpi4py import MPI

    library.Csys2blacs_handle.argtypes = [ctypes.c_void_p]
    context = ctypes.c_int(library.Csys2blacs_handle(MPI._handleof(communicator)))
    library.Cblacs_gridinit(ctypes.byref(context), b"Column-major", across, down)
    return context.value


def _descriptor(context: int, rows: int, columns: int, row_block: int, column_block: int, part: Any) -> Any:
    """The ScaLAPACK descriptor of a matrix whose part on this rank is `part` in C order, the transposed part."""
    leading = max(1, part.shape[1])
    return (ctypes.c_int * 9)(DENSE, context, rows, columns, row_block, column_block, 0, 0, leading)


def _call(
    library: ctypes.CDLL, sizes: Matmul, operands: Sequence[tuple[Any, Any]], start: int, block: int
) -> Callable[[], object]:
    """The function that multiplies a block of k; the first block sets C, later blocks add to C.

    Parameters
    ----------
    library : ScaLAPACK
    sizes : sizes and dtype of the matmul
    operands : part of B, A and C on this rank, each with its descriptor
    start, block : first index and length of the block of k
    """
    letter, number = PREFIXES[sizes.dtype]
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
    """A whole number as a Fortran argument: a pointer to a C int."""
    return ctypes.byref(ctypes.c_int(value))


# Availability of the library


def library_name() -> str | None:
    """The soname of the installed library; None if none is installed."""
    return next(filter(None, map(ctypes.util.find_library, LIBRARY_NAMES)), None)


def missing_reason() -> str:
    """The reason why ScaLAPACK cannot be used here; empty if it can."""
    name = library_name()
    return f"lib{LIBRARY_NAMES[0]} is not installed" if name is None else availability(name).why


def version() -> str:
    """The names of the library and its BLAS; empty if ScaLAPACK cannot be used here."""
    name = library_name()
    return "" if name is None else availability(name).version


@dataclass(frozen=True, slots=True)
class Availability:
    """The reason why a library cannot be used, or its version."""

    why: str = ""
    version: str = ""


@cache
def availability(
    name: str, program: tuple[str, ...] = EXAMINE_PROGRAM, limit_seconds: float = EXAMINATION_SECONDS
) -> Availability:
    """The availability of a library, as a separate process determines it.

    Parameters
    ----------
    name : soname of the library
    program : Python arguments of the process, which prints what it finds out about the library
    limit_seconds : time after which the process is ended
    """
    try:
        answer = subprocess.run(
            [sys.executable, *program, name],
            capture_output=True,
            text=True,
            check=False,
            env=without_rank(os.environ),
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired:
        return Availability(f"{name} was not loaded within {limit_seconds:g} s")
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        return Availability(f"{name} cannot be loaded ({last})")
    return availability_of(name, *json.loads(answer.stdout))


def availability_of(name: str, its_mpi: str, our_mpi: str, blas: str) -> Availability:
    """The availability of a library, from the output of `examine`.

    Parameters
    ----------
    name : soname of the library
    its_mpi, our_mpi : version texts of the library's MPI and of mpi4py's
    blas : name and version of the library's BLAS; empty if its threads cannot be set
    """
    if its_mpi != our_mpi:
        return Availability(f"{name} is bound to {_short(its_mpi)}, but mpi4py to {_short(our_mpi)}")
    if not blas:
        return Availability(f"{name} has a BLAS whose threads cannot be set: install Debian's libopenblas0-pthread")
    return Availability(version=f"{name} on {blas}")


def examine(name: str) -> tuple[str, str, str]:
    """The MPI of a library, the MPI of mpi4py, and the library's BLAS if its threads can be set.

    The library is loaded into this process together with mpi4py's MPI, which is not initialised.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI
    from threadpoolctl import threadpool_info

    before = [pool["filepath"] for pool in threadpool_info()]
    library = ctypes.CDLL(name)
    text, length = ctypes.create_string_buffer(MPI.MAX_LIBRARY_VERSION_STRING), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(length))
    blas = [pool for pool in threadpool_info() if pool["user_api"] == "blas" and pool["filepath"] not in before]
    words = [str(blas[0].get(key) or "") for key in ("internal_api", "version", "architecture")] if blas else []
    return text.value.decode(errors="replace"), MPI.Get_library_version().rstrip("\0"), " ".join(filter(None, words))


def _short(mpi: str) -> str:
    """The name and version number of an MPI, from its version text.

    >>> _short("Open MPI v5.0.11, package: Open MPI"), _short("MPICH Version:      4.2.1")
    ('Open MPI v5.0.11', 'MPICH Version: 4.2.1')
    """
    return " ".join(mpi.partition("\n")[0].partition(",")[0].split())


if __name__ == "__main__":
    print(json.dumps(examine(sys.argv[1])))
