"""Reading checkpoints: open a file, compare it with the model, check its checksums, and return any rank's blocks."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Block, ElementType
from quadrille.runtime.host.progress_reports import CollectiveWork, ProgressReporter, reporting
from quadrille.runtime.operands.rectangles import split_block
from quadrille.runtime.operands.sources import InputSource

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

from quadrille.runtime.files.checkpoint import (
    CODES,
    DTYPES,
    HEADER_BEGIN,
    LENGTH_BYTES,
    MOST_HEADER_BYTES,
    NO_SUM,
    SCHEMA,
    Stored,
    contents,
    share_of,
    sum_of,
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint.

    Parameters
    ----------
    path : path, as the user typed it
    steps : completed steps
    model : description of the model
    sums : SHA-256 of each tensor's bytes
    """

    path: str
    steps: int
    model: str
    header_bytes: int
    stored: Mapping[str, Stored]
    sums: Mapping[str, str]

    def check_fits(self, schedule: Schedule, names: Sequence[str], model: str) -> None:
        """Refuse a checkpoint of another model.

        Raises
        ------
        InputError : the first difference
        """
        if self.model != model:
            raise InputError(f"--load {self.path} is of {self.model}; one of {model} is accepted")
        wanted = contents(schedule, names)
        for name in sorted({*wanted, *self.stored}):
            if name not in self.stored:
                raise InputError(f"--load {self.path} has no {name!r}, which {model} needs")
            if name not in wanted:
                raise InputError(f"--load {self.path} has {name!r}, which {model} lacks")
            held, needed = self.stored[name], wanted[name]
            if held.shape != needed.shape:
                shapes = " x ".join(map(str, held.shape)), " x ".join(map(str, needed.shape))
                raise InputError(f"--load {self.path}: {name!r} has shape {shapes[0]}; {shapes[1]} is needed")
            if held.dtype != needed.dtype:
                raise InputError(f"--load {self.path}: {name!r} holds {held.dtype}; {needed.dtype} is needed")

    def check_sums(self, communicator: "Intracomm", reporter: ProgressReporter | None = None) -> None:
        """Refuse a damaged file. Each rank checks a share of the tensors, and all reach the same conclusion.

        Raises
        ------
        InputError : the first tensor whose bytes differ from those that were written
        """
        with reporting(reporter, "summing up what is loaded"):
            own_failures = [
                name
                for name in share_of(sorted(self.stored), communicator)
                if sum_of(Path(self.path), self.header_bytes, self.stored[name]) != self.sums[name]
            ]
        with reporting(reporter, CollectiveWork("comparing checksums")):
            failures = communicator.allgather(own_failures)
        wrong = sorted(name for names in failures for name in names)
        if wrong:
            raise InputError(
                f"--load {self.path}: the checksum of {wrong[0]!r} is wrong: its bytes are not those that were written"
            )

    def block(self, name: str, block: Block) -> NDArray[Any]:
        """A rank's block of a tensor, in its stored shape."""
        entry = self.stored[name]
        offset = self.header_bytes + entry.begin
        whole = np.memmap(self.path, DTYPES[CODES[entry.dtype]], "r", offset, entry.shape)
        filled = np.empty(block.shape, whole.dtype)
        for rectangle, part in split_block(block, filled):
            rows = slice(rectangle.row_start, rectangle.row_stop)
            part[...] = whole[rows, rectangle.column_start : rectangle.column_stop]
        return filled


class CheckpointSource:
    """An input source that reads the checkpoint's tensors from it and all others (batches) from another source."""

    def __init__(self, checkpoint: Checkpoint, otherwise: InputSource) -> None:
        self._checkpoint, self._otherwise = checkpoint, otherwise

    def stored(self, matrix: str, block: Block) -> Any:
        """The elements of a rank's block of the copy with that name."""
        if matrix in self._checkpoint.stored:
            return self._checkpoint.block(matrix, block)
        return self._otherwise.stored(matrix, block)


def open_checkpoint(path: str) -> Checkpoint:
    """The checkpoint at `path`, after a check of its header.

    Raises
    ------
    InputError : a file that is missing, unreadable, no checkpoint, of a newer version, damaged or truncated
    """
    file_path = Path(path)
    try:
        if file_path.exists() and not file_path.is_file():
            raise InputError(f"--load {path} is not a plain file; a checkpoint that --save wrote is accepted")
        with file_path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            text = file.read(min(length, MOST_HEADER_BYTES))
    except FileNotFoundError:
        raise InputError(f"--load {path}: there is no such file; a checkpoint that --save wrote is accepted") from None
    except OSError as error:
        raise InputError(f"--load {path} cannot be read ({error.strerror})") from None
    if len(text) < length and text.startswith(HEADER_BEGIN):
        raise InputError(
            f"--load {path} is truncated: its header alone has {length} bytes, of which {len(text)} are there"
        )
    try:
        described = json.loads(text)
        metadata = described.pop("__metadata__")
        schema = metadata["schema"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"--load {path} is no checkpoint: one that --save wrote is accepted") from None
    if schema != SCHEMA:
        raise InputError(f"--load {path} has schema {schema!r}: {SCHEMA} is accepted")
    written = str(metadata.get("sha256")).encode()
    if sha256(text.replace(written, NO_SUM.encode(), 1)).hexdigest().encode() != written:
        raise InputError(f"--load {path}: the checksum of its header is wrong: the file is damaged")
    return _checked(path, described, metadata, LENGTH_BYTES + length)


def _checked(path: str, described: Mapping[str, Any], metadata: Mapping[str, str], header_bytes: int) -> Checkpoint:
    """The checkpoint of a header with a correct checksum, after a check of the file's size."""
    stored = dict(_stored_of(described))
    expected = header_bytes + sum(entry.bytes for entry in stored.values())
    size = Path(path).stat().st_size
    if size != expected:
        fault = "truncated" if size < expected else "longer than it should be"
        raise InputError(f"--load {path} is {fault}: it has {size} bytes and its header says {expected}")
    sums = {name: metadata[f"sha256 of {name}"] for name in stored}
    return Checkpoint(path, int(metadata["steps"]), metadata["model"], header_bytes, stored, sums)


def _stored_of(described: Mapping[str, Any]) -> Iterator[tuple[str, Stored]]:
    names: dict[str, ElementType] = {code: dtype for dtype, code in CODES.items()}
    for name, entry in described.items():
        rows, columns = entry["shape"]
        yield name, Stored(names[entry["dtype"]], (rows, columns), entry["data_offsets"][0])
