"""The reader of checkpoints: it checks the header, the model and the checksums, and returns any rank's blocks."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import open_regular, parse_json
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Block, ElementType
from quadrille.runtime.host.progress_reports import CollectiveWork, ProgressReporter, reporting
from quadrille.runtime.operands.input_sources import InputSource
from quadrille.runtime.operands.rectangles import Rectangle, split_block
from quadrille.runtime.training.pruned_blocks import Mask, is_in_tiles, places_in
from quadrille.runtime.training.pruned_source import pruned_block
from quadrille.runtime.training.tensor_copies import PrunedCopy, pruned_copy

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

from quadrille.runtime.files.checkpoint import (
    CODES,
    DTYPES,
    HEADER_BEGIN,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    SCHEMA,
    ZERO_CHECKSUM,
    StoredTensor,
    contents,
    share_of,
    sum_of,
)

Length = Annotated[int, msgspec.Meta(ge=0)]
ACCEPTED = "a checkpoint that --save wrote is accepted"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint.

    Parameters
    ----------
    path : path as typed by the user
    steps : completed steps
    model : description of the model
    header_bytes : size of the header with its length field [B]
    stored : position of each tensor
    sums : SHA-256 of each tensor's bytes
    """

    path: str
    steps: int
    model: str
    header_bytes: int
    stored: Mapping[str, StoredTensor]
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
            copy = pruned_copy(schedule, name)
            if copy is not None and copy.is_index and held.shape != needed.shape:
                raise InputError(f"--load {self.path}: {_other_mask(copy, held.shape[1], needed.shape[1])}")
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

    def check_masks(self, schedule: Schedule, communicator: "Intracomm") -> None:
        """Refuse an index with a position outside of its tile. Each rank checks a share of the indices.

        Raises
        ------
        InputError : the first such index
        """
        copies = [copy for name in sorted(self.stored) if (copy := pruned_copy(schedule, name)) is not None]
        indices = {copy.name: copy for copy in copies if copy.is_index}
        own_failures = [
            name
            for name in share_of(list(indices), communicator)
            if not is_in_tiles(self._values(name)[0], indices[name].kept, indices[name].shape)
        ]
        wrong = sorted(name for names in communicator.allgather(own_failures) for name in names)
        if wrong:
            raise InputError(f"--load {self.path}: {wrong[0]!r} has positions that do not rise inside of their tiles")

    def _values(self, name: str) -> NDArray[Any]:
        """The whole tensor, which is read where it is used."""
        entry = self.stored[name]
        offset = self.header_bytes + entry.begin
        return np.memmap(self.path, DTYPES[CODES[entry.dtype]], "r", offset, entry.shape)

    def mask(self, copy: PrunedCopy, region: Rectangle) -> Mask:
        """The kept elements of a region of whole tiles of a pruned matrix."""
        mask = np.zeros(region.shape, np.bool_)
        for rows, columns, _ in self._kept(copy, region):
            mask[rows, columns] = True
        return mask

    def kept_values(self, copy: PrunedCopy, region: Rectangle) -> NDArray[Any]:
        """The elements of a region of whole tiles of a pruned matrix, with zeros."""
        vector = self._values(copy.name)[0]
        values = np.zeros(region.shape, vector.dtype)
        for rows, columns, places in self._kept(copy, region):
            values[rows, columns] = vector[places]
        return values

    def _kept(
        self, copy: PrunedCopy, region: Rectangle
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], slice]]:
        """Yields rows and columns of the kept elements in the region, with their places in the file."""
        index = self._values(copy.index)[0]
        for places in places_in(region, copy.kept, copy.shape):
            rows, columns = np.divmod(index[places].astype(np.int64), copy.shape[1])
            yield rows - region.row_start, columns - region.column_start, places

    def block(self, name: str, block: Block) -> NDArray[Any]:
        """A rank's block of a tensor, in its stored shape."""
        whole = self._values(name)
        filled = np.empty(block.shape, whole.dtype)
        for rectangle, part in split_block(block, filled):
            rows = slice(rectangle.row_start, rectangle.row_stop)
            part[...] = whole[rows, rectangle.column_start : rectangle.column_stop]
        return filled


def _other_mask(copy: PrunedCopy, held: int, needed: int) -> str:
    """The difference between two numbers of kept elements, as text."""
    size = copy.shape[0] * copy.shape[1]
    return (
        f"{copy.name!r} keeps {held} of {size} elements, a sparsity of {1 - held / size:.3g}; "
        f"{needed} are needed at --sparsity {copy.kept.sparsity:g}"
    )


class CheckpointSource:
    """An input source that reads the checkpoint's tensors from it and all others (batches) from another source.

    Parameters
    ----------
    schedule : schedule of the run
    """

    def __init__(self, checkpoint: Checkpoint, otherwise: InputSource, schedule: Schedule) -> None:
        self._checkpoint, self._otherwise, self._schedule = checkpoint, otherwise, schedule
        self.mask = checkpoint.mask

    def stored(self, matrix: str, block: Block) -> Any:
        """The elements of a rank's block of the copy with that name."""
        if matrix in self._checkpoint.stored:
            copy = pruned_copy(self._schedule, matrix)
            if copy is not None:
                checkpoint = self._checkpoint
                return pruned_block(copy, block, lambda _, region: checkpoint.kept_values(copy, region), self.mask)
            return self._checkpoint.block(matrix, block)
        return self._otherwise.stored(matrix, block)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The header's entry of a tensor; a vector is a matrix of one row."""

    dtype: str
    shape: Annotated[list[Length], msgspec.Meta(min_length=1, max_length=2)]
    data_offsets: tuple[Length, Length]


def open_checkpoint(path: str) -> Checkpoint:
    """The checkpoint at `path`, after a check of its header.

    Raises
    ------
    InputError : a file that is missing, unreadable, no checkpoint, of a newer version, damaged or truncated
    """
    try:
        text, size = _header_text(path)
        described, metadata = _tables(text)
        return _checked(path, described, metadata, LENGTH_BYTES + len(text), size)
    except FileNotFoundError:
        raise InputError(f"--load {path}: there is no such file; {ACCEPTED}") from None
    except OSError as error:
        raise InputError(f"--load {path} cannot be read ({error.strerror}); {ACCEPTED}") from None
    except ValueError as error:
        raise InputError(f"--load {path} {error}") from None


def _header_text(path: str) -> tuple[bytes, int]:
    """The header, and the size of the file [B]."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        text = file.read(min(length, MAX_HEADER_BYTES))
    if len(text) < length and text.startswith(HEADER_BEGIN):
        raise ValueError(f"is truncated: its header alone has {length} bytes, of which {len(text)} are there")
    if len(text) < length or not text:
        raise ValueError(f"is no checkpoint; {ACCEPTED}")
    return text, size


def _tables(text: bytes) -> tuple[dict[str, _Entry], dict[str, str]]:
    """The header's entry of each tensor, and the metadata, after a check of the schema and the header's checksum."""
    try:
        described = parse_json(text)
        metadata = msgspec.convert(described.pop("__metadata__"), dict[str, str])
    except (ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError):
        raise ValueError(f"is no checkpoint; {ACCEPTED}") from None
    if (schema := metadata.get("schema")) != SCHEMA:
        if schema is None:
            raise ValueError(f"is a safetensors file of another program, without a model and checksums; {ACCEPTED}")
        raise ValueError(f"has schema {schema!r:.60}: {SCHEMA} is accepted")
    written = metadata.get("sha256", "").encode()
    if sha256(text.replace(written, ZERO_CHECKSUM.encode(), 1)).hexdigest().encode() != written:
        raise ValueError("has a header whose checksum is wrong: the file is damaged")
    entries = {}
    for name, entry in described.items():
        try:
            entries[name] = msgspec.convert(entry, _Entry)
        except msgspec.ValidationError as error:
            raise ValueError(f"says of {name!r:.60} what cannot be: {error}") from None
    return entries, metadata


def _checked(
    path: str, described: Mapping[str, _Entry], metadata: Mapping[str, str], header_bytes: int, size: int
) -> Checkpoint:
    """The checkpoint of a header with a correct checksum, after a check of its entries and of the file's size [B]."""
    stored = {name: _stored(name, entry) for name, entry in described.items()}
    expected = header_bytes + _check_places(described, stored)
    if size != expected:
        fault = "truncated" if size < expected else "longer than it should be"
        raise ValueError(f"is {fault}: it has {size} bytes and its header says {expected}")
    for name in stored:
        if f"sha256 of {name}" not in metadata:
            raise ValueError(f"has no checksum of {name!r:.60}")
    steps = metadata.get("steps", "")
    if not re.fullmatch(r"[0-9]{1,12}", steps):
        raise ValueError(f"says that {steps!r:.30} steps are done: a whole number of up to 12 digits is accepted")
    sums = {name: metadata[f"sha256 of {name}"] for name in stored}
    return Checkpoint(path, int(steps), metadata.get("model", ""), header_bytes, stored, sums)


def _stored(name: str, entry: _Entry) -> StoredTensor:
    names: dict[str, ElementType] = {code: dtype for dtype, code in CODES.items()}
    if entry.dtype not in names:
        raise ValueError(f"says that {name!r:.60} holds {entry.dtype!r:.20}: accepted are {', '.join(names)}")
    *rows, columns = entry.shape
    return StoredTensor(names[entry.dtype], (rows[0] if rows else 1, columns), entry.data_offsets[0])


def _check_places(described: Mapping[str, _Entry], stored: Mapping[str, StoredTensor]) -> int:
    """The total size of all tensors, after a check that they follow each other without gaps [B].

    Raises
    ------
    ValueError : a gap, an overlap, or a byte range of another size than the tensor
    """
    end = 0
    for name, entry in sorted(described.items(), key=lambda item: item[1].data_offsets):
        begin, stop = entry.data_offsets
        needed = stored[name].bytes
        if begin != end or stop - begin != needed:
            raise ValueError(
                f"places {name!r:.60} at bytes {begin} to {stop}: {needed} bytes from byte {end} on are accepted"
            )
        end = stop
    return end
