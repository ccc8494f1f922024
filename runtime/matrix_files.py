"""Matrices in .npy files: each rank reads its part, and many ranks write one file complete or not at all.

Reading maps the file into memory, so that a rank touches only its own pages.

Writing goes to a hidden file beside the target, which takes the target's name
in one step when all is written.  The ranks write by position (`pwrite`) and not
through a mapping: on a full disk that is an error and not a bus error, and on
network file systems two hosts may share a page.  The caller puts the barriers:

    every rank   check_writable            before the run
    rank 0       create          barrier
    every rank   write …, close  barrier
    rank 0       commit_all      (or discard, whatever went wrong)
"""

import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from algorithms.errors import InputError, RunError
from algorithms.tensors import Block, DType
from runtime.generator import Kind, check_exact
from runtime.operands import Matrix, Operands, Rectangle, split_block

WRITE_BYTES = 2**26
"""Most bytes given to the system in one write; Linux takes less than 2^31 at once."""


def file_dtype(dtype: DType) -> np.dtype[Any]:
    """Dtype of files in a run of `dtype`: the same, but float32 for bfloat16, which .npy does not know.

    >>> [str(file_dtype(dtype)) for dtype in ("float64", "float16", "bfloat16")]
    ['float64', 'float16', 'float32']
    """
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def open_matrix(path: str | Path, shape: tuple[int, int], dtype: DTypeLike, flag: str = "--a") -> NDArray[Any]:
    """The matrix in a .npy file, mapped into memory and read-only; C or Fortran order.

    Parameters
    ----------
    shape, dtype : what the file must hold; the byte order may differ
    flag : what the user called it, for the message

    Raises
    ------
    InputError : the file is missing, unreadable, truncated, no .npy, or holds something else
    """
    wanted = np.dtype(dtype)
    accepted = f"a .npy file of a {shape[0]} x {shape[1]} matrix of {wanted} is accepted"
    try:
        if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
            raise InputError(f"{flag} {path} is not a plain file; {accepted}")
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


def _fault(path: Path) -> str:
    """Why a file could not be mapped as .npy."""
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
    paths: Mapping[Matrix, str | Path | None] | None = None,
    training: bool = False,
) -> Operands:
    """The operands of a multiplication, its files opened and checked; what has no file is generated.

    Parameters
    ----------
    paths : file by matrix; `--a`, `--b` and `--dc` on the command line
    training : whether the gradients are computed too, which need dC and sum over n and m

    Raises
    ------
    InputError : a file that does not fit, or integers whose sums would not be exact
    """
    sizes = Operands(m, k, n, dtype)
    given = {matrix: path for matrix, path in (paths or {}).items() if path is not None}
    files: dict[Matrix, NDArray[Any]] = {
        matrix: open_matrix(path, sizes.shape(matrix), file_dtype(dtype), f"--{matrix.lower()}")
        for matrix, path in given.items()
    }
    operands = Operands(m, k, n, dtype, seed, kind, files)
    if operands.exact:
        for dimension, length in {"k": k, "n": n, "m": m}.items():
            if training or dimension == "k":
                check_exact(dimension, length, dtype)
    return operands


class MatrixWriter:
    """One .npy file being written by many ranks; every rank makes one with the same arguments.

    Parameters
    ----------
    path : the file that will be replaced, or appear, at the end
    flag : what the user called it, for messages
    token : the same on all ranks and different in every run (`writing_token` of
        rank 0): two runs that write the same target do not meet
    """

    def __init__(
        self, path: str | Path, shape: tuple[int, int], dtype: DTypeLike, *, flag: str = "--c", token: str = ""
    ) -> None:
        self.flag, self.given = flag, path
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.target = Path(os.path.realpath(path))  # a link stays a link, its target is replaced
        self.partial = self.target.with_name(f".{self.target.name[:200]}.{token or 'quadrille'}.partial")
        self._header = _header(shape, self.dtype)
        self._descriptor: int | None = None

    @property
    def file_bytes(self) -> int:
        """Size of the complete file [B]."""
        return len(self._header) + self.shape[0] * self.shape[1] * self.dtype.itemsize

    def check_writable(self) -> None:
        """Refuse a target that could not be written, without leaving anything behind.

        Raises
        ------
        InputError : no such folder, no permission, a target that is no plain file, too little space
        """
        try:
            objection = self._objection()
        except OSError as error:
            objection = f"cannot be written ({error.strerror})"
        finally:
            self.discard()
        if objection:
            raise InputError(f"{self.flag} {self.given} {objection}; a .npy file in a writable folder is accepted")

    def _objection(self) -> str:
        """Why the target could not be written, if one can tell; makes the hidden file to find out."""
        folder = self.target.parent
        if not str(self.given) or str(self.given).endswith(os.sep) or self.target.is_dir():
            return "is not the name of a file"
        if self.target.exists() and not self.target.is_file():
            return "is not a plain file"
        if not folder.is_dir():
            return f"cannot be written: there is no folder {folder}"
        self._reserve(len(self._header))
        space = os.statvfs(folder)
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes < self.file_bytes:
            return f"needs {self.file_bytes} bytes and its disk has {free_bytes} free"
        return ""

    def create(self) -> None:
        """Make the hidden file at its full size (rank 0, before the others write); remove those of killed runs."""
        self._sweep()
        try:
            self._reserve(self.file_bytes)
        except OSError as error:
            self.discard()
            raise self._failure(error) from None

    def _sweep(self) -> None:
        """Remove hidden files of this target whose writer, a process of this host, is no more."""
        before = f".{self.target.name[:200]}."
        with suppress(OSError):  # what cannot be removed is only in the way
            for path in self.target.parent.iterdir():
                token = path.name.removeprefix(before).removesuffix(".partial")
                if path.name == f"{before}{token}.partial" and _is_abandoned(token):
                    path.unlink(missing_ok=True)

    def _reserve(self, file_bytes: int) -> None:
        descriptor = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            os.posix_fallocate(descriptor, 0, file_bytes)
            _write_at(descriptor, memoryview(self._header), 0)
        finally:
            os.close(descriptor)

    def write(self, rectangle: Rectangle, values: NDArray[Any]) -> None:
        """Put the elements of one rectangle in their place, converted to the dtype of the file.

        Raises
        ------
        RunError : the disk is full or fails
        """
        assert values.shape == rectangle.shape, (values.shape, rectangle)
        assert rectangle.row_stop <= self.shape[0] and rectangle.column_stop <= self.shape[1], (rectangle, self.shape)
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self.partial, os.O_RDWR)
            for position, run in self._runs(rectangle, values):
                _write_at(self._descriptor, run, position)
        except OSError as error:
            raise self._failure(error) from None

    def write_block(self, block: Block, stored: NDArray[Any]) -> None:
        """Put a rank's block in its place, as it is stored: a rectangle, or a flat piece of one."""
        for rectangle, values in split_block(block, stored):
            self.write(rectangle, values)

    def _runs(self, rectangle: Rectangle, values: NDArray[Any]) -> Iterator[tuple[int, memoryview]]:
        """Contiguous runs of the file: position [B] and bytes."""
        height, width = rectangle.shape
        if not rectangle.elements:
            return
        item_bytes = self.dtype.itemsize
        row_bytes = self.shape[1] * item_bytes
        first = len(self._header) + rectangle.row_start * row_bytes + rectangle.column_start * item_bytes
        slab = max(1, WRITE_BYTES // (width * item_bytes))
        for top in range(0, height, slab):
            rows = np.ascontiguousarray(values[top : top + slab], self.dtype)
            if width == self.shape[1]:
                yield first + top * row_bytes, rows.data.cast("B")
                continue
            for index, row in enumerate(rows):
                yield first + (top + index) * row_bytes, row.data.cast("B")

    def close(self) -> None:
        """Bring what this rank wrote to the disk (every rank, before rank 0 commits)."""
        if self._descriptor is None:
            return
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failure(error) from None
        finally:
            os.close(self._descriptor)
            self._descriptor = None

    def commit(self) -> None:
        """Give the hidden file its name (rank 0, when every rank has closed)."""
        try:
            self.partial.replace(self.target)
        except OSError as error:
            self.discard()
            raise self._failure(error) from None

    def discard(self) -> None:
        """Remove the hidden file; the target is as it was.  May be called at any time, also after commit."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        with suppress(OSError):  # a folder that has gone, or never let us in
            self.partial.unlink(missing_ok=True)

    def _failure(self, error: OSError) -> RunError:
        return RunError(f"{self.flag} {self.given} could not be written: {error.strerror}; nothing was left there")


def writing_token() -> str:
    """A token for the files that this process is about to write: its host, its id, and a word drawn by chance."""
    return f"{_host_word()}-{os.getpid()}-{secrets.token_hex(4)}"


def _is_abandoned(token: str) -> bool:
    """Whether a token is of a process of this host that has ended."""
    found = re.fullmatch(r"([0-9a-f]{8})-(\d+)-[0-9a-f]{8}", token)
    if found is None or found[1] != _host_word():
        return False
    try:
        os.kill(int(found[2]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _host_word() -> str:
    """A short word for this host: names of files have little room."""
    return sha256(socket.gethostname().encode()).hexdigest()[:8]


def check_writable(writers: Sequence[MatrixWriter]) -> None:
    """Refuse outputs that cannot be written, or that two flags send to one file.

    Raises
    ------
    InputError : by the first that cannot
    """
    by_target: dict[Path, MatrixWriter] = {}
    for writer in writers:
        other = by_target.setdefault(writer.target, writer)
        if other is not writer:
            raise InputError(f"{other.flag} and {writer.flag} both name {writer.given}: give each its own file")
        writer.check_writable()


def commit_all(writers: Sequence[MatrixWriter]) -> None:
    """Give all outputs their names, one right after the other, or none if one is missing (rank 0)."""
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
    """Remove every hidden file that is left."""
    for writer in writers:
        writer.discard()


def _header(shape: tuple[int, int], dtype: np.dtype[Any]) -> bytes:
    """What a .npy file of this matrix begins with: the same on every rank."""
    header = BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()


def _write_at(descriptor: int, run: memoryview, position: int) -> None:
    """Write all of `run` at `position`; a single write may take less."""
    written = 0
    while written < len(run):
        written += os.pwrite(descriptor, run[written : written + WRITE_BYTES], position + written)
