"""Files that many ranks write together: after the write, the file is either complete or absent.

The ranks write a hidden file beside the target, which replaces the target in one step at the end. They write by
position (`pwrite`), not through a memory map: on a full disk `pwrite` returns an error where a map raises a bus error,
and on network file systems two hosts may share a page. The caller provides the barriers:

    every rank   check_writable            before the run
    rank 0       create          barrier
    every rank   write …, close  barrier
    rank 0       commit          (or discard after any failure)
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats.atomic_files import HiddenFile, remove_abandoned, target_of, writer_token
from quadrille.runtime.operands.rectangles import Rectangle

WRITE_BYTES = 2**26
"""Most bytes of one write; Linux accepts less than 2^31."""


class SharedFile:
    """A file that many ranks write together; every rank creates the object with the same arguments.

    Parameters
    ----------
    path : target that is replaced, or created, at the end
    header : first bytes of the file
    content_bytes : bytes after the header [B]
    flag : command line flag of the file, for messages
    kind : kind of the file, for messages
    token : text that is equal on all ranks and different in every run (`writer_token` of rank 0), so two runs
        that write the same target do not collide; a token of this process if empty

    Raises
    ------
    InputError : the path leads through a link that another user made
    """

    def __init__(
        self, path: str | Path, header: bytes, content_bytes: int, *, flag: str, kind: str, token: str = ""
    ) -> None:
        self.flag, self.given, self.kind = flag, path, kind
        try:
            self.target = target_of(path)  # a link stays a link, its target is replaced
        except InputError as error:
            raise InputError(f"{flag} {error}") from None
        self._hidden = HiddenFile(self.target, token or writer_token())
        self.header = header
        self.file_bytes = len(header) + content_bytes
        self._descriptor: int | None = None

    @property
    def partial(self) -> Path:
        """The hidden file."""
        return self._hidden.path

    def check_writable(self) -> None:
        """Refuse a target that cannot be written; leaves nothing behind.

        Raises
        ------
        InputError : no such folder, no permission, a target that is no plain file, too little space
        """
        try:
            objection = self._objection()
        except OSError as error:
            objection = f"cannot be written ({error.strerror})"
        if objection:
            raise InputError(f"{self.flag} {self.given} {objection}; {self.kind} in a writable folder is accepted")

    def _objection(self) -> str:
        """The reason why the target cannot be written; empty if none is found."""
        folder = self.target.parent
        if not str(self.given) or str(self.given).endswith(os.sep) or self.target.is_dir():
            return "is not the name of a file"
        if self.target.exists() and not self.target.is_file():
            return "is not a regular file"
        if not folder.is_dir():
            return f"cannot be written: there is no folder {folder}"
        self._hidden.check_space(len(self.header))
        space = os.statvfs(folder)
        free_bytes = space.f_bavail * space.f_frsize
        if free_bytes < self.file_bytes:
            return f"needs {self.file_bytes} bytes and its disk has {free_bytes} free"
        return ""

    def create(self) -> None:
        """Create the hidden file at its full size (rank 0, before the others write); remove those of killed runs."""
        remove_abandoned(self.target)
        try:
            self._descriptor = self._hidden.create()
            os.posix_fallocate(self._descriptor, 0, self.file_bytes)
            _write_at(self._descriptor, memoryview(self.header), 0)
        except OSError as error:
            self.discard()
            raise self._failure(error) from None

    def put(self, position: int, content: memoryview) -> None:
        """Write bytes at a position of the file.

        Raises
        ------
        RunError : the disk is full or fails
        """
        try:
            if self._descriptor is None:
                self._descriptor = self._hidden.open()
            _write_at(self._descriptor, content, position)
        except OSError as error:
            raise self._failure(error) from None

    def put_rectangle(
        self, begin: int, columns: int, rectangle: Rectangle, values: NDArray[Any], dtype: np.dtype[Any]
    ) -> None:
        """Write a rectangle of a matrix that begins at the position `begin` and has `columns` columns of `dtype`."""
        for position, run in _runs(columns, rectangle, values, dtype):
            self.put(begin + position, run)

    def close(self) -> None:
        """Flush this rank's writes to the disk (every rank, before rank 0 commits)."""
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
        """Rename the hidden file to the target (rank 0, when every rank has closed)."""
        try:
            self._hidden.replace_target()
        except OSError as error:
            self.discard()
            raise self._failure(error) from None

    def discard(self) -> None:
        """Remove the hidden file; the target stays unchanged. It may be called at any time, also after commit."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._hidden.remove()

    def _failure(self, error: OSError) -> RunError:
        return RunError(f"{self.flag} {self.given} could not be written: {error.strerror}; nothing was left there")


def _runs(
    columns: int, rectangle: Rectangle, values: NDArray[Any], dtype: np.dtype[Any]
) -> Iterator[tuple[int, memoryview]]:
    """The contiguous runs of a rectangle: position in the matrix [B] and bytes, converted slab by slab."""
    height, width = rectangle.shape
    if not rectangle.elements:
        return
    item_bytes = dtype.itemsize
    row_bytes = columns * item_bytes
    first = rectangle.row_start * row_bytes + rectangle.column_start * item_bytes
    slab = max(1, WRITE_BYTES // (width * item_bytes))
    for top in range(0, height, slab):
        rows = np.ascontiguousarray(values[top : top + slab], dtype)
        if width == columns:
            yield first + top * row_bytes, rows.data.cast("B")
            continue
        for index, row in enumerate(rows):
            yield first + (top + index) * row_bytes, row.data.cast("B")


def _write_at(descriptor: int, run: memoryview, position: int) -> None:
    """Write all of `run` at `position`; a single write may take less."""
    written = 0
    while written < len(run):
        written += os.pwrite(descriptor, run[written : written + WRITE_BYTES], position + written)
