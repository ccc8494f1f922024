"""Matrices in .npy files: each rank reads its part, and many ranks write one file, complete or not at all.

Files are read through a memory map, so a rank touches only its own pages. They are written by `shared_files`; several
files are committed together.
"""

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats.input_files import open_regular
from quadrille.algorithms.matmuls.matmul import Operand, Transposed
from quadrille.algorithms.schedule.tensors import Block, DType
from quadrille.runtime.files.shared_files import SharedFile
from quadrille.runtime.operands.generator import Kind, check_exact
from quadrille.runtime.operands.operands import Operands
from quadrille.runtime.operands.rectangles import Rectangle, split_block

READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Readers of the headers of .npy files that NumPy documents, by version."""


def file_dtype(dtype: DType) -> np.dtype[Any]:
    """The dtype of files in a run of `dtype`: the same, except float32 for bfloat16, which .npy lacks.

    >>> [str(file_dtype(dtype)) for dtype in ("float64", "float16", "bfloat16")]
    ['float64', 'float16', 'float32']
    """
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def open_matrix(path: str | Path, shape: tuple[int, int], dtype: DTypeLike, flag: str = "--a") -> NDArray[Any]:
    """The matrix in a .npy file, memory-mapped and read-only; C or Fortran order.

    Parameters
    ----------
    path : path of the file
    shape, dtype : required content; the byte order may differ
    flag : command line flag of the file, for messages

    Raises
    ------
    InputError : the file is missing, unreadable, truncated, no .npy, or holds something else
    """
    wanted = np.dtype(dtype)
    accepted = f"a .npy file of a {shape[0]} x {shape[1]} matrix of {wanted} is accepted"
    try:
        open_regular(path).close()  # a pipe would be waited for
        with warnings.catch_warnings(action="ignore"):  # NumPy warns of headers that Python 2 wrote
            _check_lengths(Path(path))
            array = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise InputError(f"{flag} {path}: there is no such file; {accepted}") from None
    except OSError as error:
        raise InputError(f"{flag} {path} cannot be read ({error.strerror or error}); {accepted}") from None
    except (ValueError, SyntaxError, TokenError, TypeError, EOFError, OverflowError, MemoryError):
        raise InputError(f"{flag} {path} {_fault(Path(path))}; {accepted}") from None
    if array.shape != shape:
        held = " x ".join(map(str, array.shape)) or "a single number"
        raise InputError(f"{flag} {path} holds an array of shape {held}; {accepted}")
    if array.dtype.newbyteorder("=") != wanted:
        raise InputError(f"{flag} {path} holds {array.dtype} elements; {accepted}")
    return array


def _check_lengths(path: Path) -> None:
    """Raises ValueError for a header with a negative or impossible length, for which NumPy prints a warning."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version not in READ_HEADER:
            return
        shape, _, dtype = READ_HEADER[version](file)
    if any(length < 0 for length in shape) or prod(shape) * dtype.itemsize > path.stat().st_size:
        raise ValueError(f"shape {shape} does not fit into the file")


def _fault(path: Path) -> str:
    """The reason why a file could not be mapped as .npy."""
    with path.open("rb") as file:
        magic = file.read(6)
    if not magic:
        return "is empty"
    if magic != b"\x93NUMPY":
        return "is not a .npy file"
    return "is truncated, or not a plain array"


def open_operands(
    m: int,
    k: int,
    n: int,
    dtype: DType,
    *,
    seed: int = 0,
    kind: Kind = "uniform",
    paths: Mapping[Operand, str | Path | None] | None = None,
    training: bool = False,
    transposed: Transposed = "none",
) -> Operands:
    """The operands of a multiplication: opened and checked files, and generated matrices for the rest.

    Parameters
    ----------
    paths : file by matrix; `--a`, `--b` and `--dc` on the command line
    training : whether the gradients are computed too; they need dC and sum over n and m
    transposed : which of A and B is stored transposed

    Raises
    ------
    InputError : a file that does not fit, or integers whose sums would not be exact
    """
    sizes = Operands(m, k, n, dtype, transposed=transposed)
    paths_by_matrix = {matrix: path for matrix, path in (paths or {}).items() if path is not None}
    files: dict[Operand, NDArray[Any]] = {
        matrix: open_matrix(path, sizes.shape(matrix), file_dtype(dtype), f"--{matrix.lower()}")
        for matrix, path in paths_by_matrix.items()
    }
    operands = Operands(m, k, n, dtype, seed, kind, files, transposed)
    if operands.exact:
        for dimension, length in {"k": k, "n": n, "m": m}.items():
            if training or dimension == "k":
                check_exact(dimension, length, dtype)
    return operands


class MatrixWriter(SharedFile):
    """The writer of one .npy file that many ranks write; every rank creates the object with the same arguments.

    Parameters
    ----------
    path, flag, token : as for `SharedFile`
    shape, dtype : shape and dtype of the whole matrix
    """

    def __init__(
        self, path: str | Path, shape: tuple[int, int], dtype: DTypeLike, *, flag: str = "--c", token: str = ""
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        content = shape[0] * shape[1] * self.dtype.itemsize
        super().__init__(path, _header(shape, self.dtype), content, flag=flag, kind="a .npy file", token=token)

    def write(self, rectangle: Rectangle, values: NDArray[Any]) -> None:
        """Write the elements of one rectangle, converted to the dtype of the file.

        Raises
        ------
        RunError : the disk is full or fails
        """
        assert values.shape == rectangle.shape, (values.shape, rectangle)
        assert rectangle.row_stop <= self.shape[0] and rectangle.column_stop <= self.shape[1], (rectangle, self.shape)
        self.put_rectangle(len(self.header), self.shape[1], rectangle, values, self.dtype)

    def write_block(self, block: Block, stored: NDArray[Any]) -> None:
        """Write a rank's block in its stored shape: a rectangle, or a flat shard of one."""
        for rectangle, values in split_block(block, stored):
            self.write(rectangle, values)


def check_writable(writers: Sequence[MatrixWriter]) -> None:
    """Refuse outputs that cannot be written, or two flags that name the same file.

    Raises
    ------
    InputError : the first such output
    """
    by_target: dict[Path, MatrixWriter] = {}
    for writer in writers:
        earlier = by_target.setdefault(writer.target, writer)
        if earlier is not writer:
            raise InputError(f"{earlier.flag} and {writer.flag} both name {writer.given}: give each its own file")
        writer.check_writable()


def commit_all(writers: Sequence[MatrixWriter]) -> None:
    """Rename all outputs to their targets, or none if one is missing (rank 0)."""
    missing = [writer for writer in writers if not writer.partial.is_file()]
    if missing:
        discard_all(writers)
        raise RunError(f"{missing[0].flag} {missing[0].given} was not written; no output was")
    try:
        for writer in writers:
            writer.commit()
    finally:
        discard_all(writers)


def discard_all(writers: Sequence[MatrixWriter]) -> None:
    """Remove all remaining hidden files."""
    for writer in writers:
        writer.discard()


def _header(shape: tuple[int, int], dtype: np.dtype[Any]) -> bytes:
    """The header of a .npy file of this matrix; the same on every rank."""
    header = BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()
