"""Writing of training checkpoints: one safetensors file, which any grid, scheme or program can read.

    8 bytes     length of the header, little-endian
    header      JSON: dtype, shape and position of each tensor, and metadata; padded with spaces
    content     the whole tensors, row by row, one after the other

This is the safetensors format, so other programs can read the files. `__metadata__` holds the schema, the model, the
number of completed steps, and a SHA-256 of each tensor's bytes and of the header (computed with zeros in its place).
The file holds the optimizer's parameters and its two moments, each under the name of its copy ("QKV W layer 3"). No
name, shape or byte depends on the grid, so every rank writes and reads its own blocks.

Of a pruned matrix, the file holds the kept elements only, in the order of the tiles of the whole matrix
(`algorithms/schedule/kept_elements.py`), and an index ("QKV W index layer 3") with their positions in the flattened
matrix.  Runs with dense and with compressed states write and read the same file.

Source of the format: https://huggingface.co/docs/safetensors, "Format".
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise, repeat
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, Block, ElementType, Tensor
from quadrille.runtime.files.shared_files import SharedFile
from quadrille.runtime.host.progress_reports import CollectiveWork, ProgressReporter, reporting
from quadrille.runtime.operands.rectangles import Rectangle, split_block
from quadrille.runtime.training.pruned_source import MaskOf, kept_elements
from quadrille.runtime.training.tensor_copies import PrunedCopy, pruned_copy, shape_of

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

SCHEMA = "quadrille/checkpoint/1"
CODES: dict[ElementType, str] = {"float64": "F64", "float32": "F32", "int32": "I32"}
DTYPES = {code: np.dtype(dtype) for dtype, code in CODES.items()}
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
SUM_LENGTH = 64
ZERO_CHECKSUM = "0" * SUM_LENGTH
ALIGNMENT_BYTES = 8
READ_BYTES = 2**24
HEADER_BEGIN = b'{"__metadata__"'


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The position of a whole tensor in the file.

    Parameters
    ----------
    dtype, shape : dtype, and rows and columns
    begin : first byte, counted from the end of the header [B]
    """

    dtype: ElementType
    shape: tuple[int, int]
    begin: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def copies_of(schedule: Schedule, names: Sequence[str]) -> dict[str, Tensor]:
    """The tensor of each copy (such as that of a layer) of the named tensors, by the copy's name, over all stages."""
    copies: dict[str, Tensor] = {}
    for stage in range(schedule.grid.pipeline):
        coordinates = schedule.coordinates(schedule.grid.rank_at({"pipeline": stage}))
        for name in names:
            tensor = schedule.tensors[name]
            if tensor.stages is None or stage in tensor.stages:
                copies |= {tensor.copy_name(copy): tensor for copy in tensor.copy_coordinates(coordinates)}
    return copies


def contents(schedule: Schedule, names: Sequence[str]) -> dict[str, StoredTensor]:
    """The positions of all copies of these tensors in a checkpoint, by the copy's name, in the order of the names."""
    layout, begin = {}, 0
    for name, tensor in sorted(copies_of(schedule, names).items()):
        pruned = pruned_copy(schedule, name)
        shape = shape_of(schedule, tensor) if pruned is None else (1, pruned.kept_elements)
        layout[name] = StoredTensor(tensor.dtype or schedule.dtype, shape, begin)
        begin += layout[name].bytes
    return layout


def header_of(
    stored: Mapping[str, StoredTensor], steps: int, model: str, sums: Mapping[str, str] | None = None
) -> bytes:
    """The header with its length field. The size of the header is the same with and without checksums.

    Parameters
    ----------
    stored : position of each tensor
    steps : completed steps
    model : description of the model
    sums : SHA-256 of each tensor; zeros if not given
    """
    checksums = sums or {}
    metadata = {"schema": SCHEMA, "model": model, "steps": str(steps), "sha256": ZERO_CHECKSUM}
    metadata |= {f"sha256 of {name}": checksums.get(name, ZERO_CHECKSUM) for name in stored}
    tensor_entries = {
        name: {
            "dtype": CODES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [entry.begin, entry.begin + entry.bytes],
        }
        for name, entry in stored.items()
    }
    text = _padded(json.dumps({"__metadata__": metadata, **tensor_entries}, ensure_ascii=False).encode())
    if sums is not None:
        text = text.replace(ZERO_CHECKSUM.encode(), sha256(text).hexdigest().encode(), 1)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _padded(text: bytes) -> bytes:
    return text + b" " * (-(len(text) + LENGTH_BYTES) % ALIGNMENT_BYTES)


class CheckpointWriter(SharedFile):
    """The writer of one checkpoint; every rank creates the object with the same arguments.

    Parameters
    ----------
    path : path of the file
    schedule : schedule of the run, for names and shapes of the tensors
    names : names of the schedule's tensors that it holds
    steps : completed steps
    model : description of the model
    token : text that is equal on all ranks and different in every run
    """

    def __init__(
        self, path: str | Path, schedule: Schedule, names: Sequence[str], steps: int, model: str, *, token: str = ""
    ) -> None:
        self._schedule, self._names, self._steps, self._model = schedule, names, steps, model
        self._stored = contents(schedule, names)
        content = sum(entry.bytes for entry in self._stored.values())
        header = header_of(self._stored, steps, model)
        super().__init__(path, header, content, flag="--save", kind="a file", token=token)

    def write(
        self,
        coordinates: Coordinates,
        outputs: Mapping[str, Any],
        fetch: Callable[[Any], NDArray[Any]],
        mask_of: MaskOf | None = None,
    ) -> None:
        """Write the blocks of one rank. If several ranks hold the same block, only the first of them writes it.

        Parameters
        ----------
        coordinates : grid coordinates of the rank
        outputs : blocks of the rank by tensor name
        fetch : function that returns the host values of a block
        mask_of : kept elements of pruned matrices
        """
        for name in self._names:
            tensor = self._schedule.tensors[name]
            if not _writes(tensor, coordinates):
                continue
            output = outputs.get(name)
            blocks = output if isinstance(output, list) else repeat(output)
            for copy, block in zip(tensor.copy_coordinates(coordinates), blocks, strict=False):
                copy_name = tensor.copy_name(copy)
                pruned = pruned_copy(self._schedule, copy_name)
                if pruned is not None and mask_of is not None:
                    values = None if pruned.is_index else fetch(block)
                    self._write_kept(pruned, tensor.block(copy), values, mask_of)
                else:
                    self._write_block(copy_name, tensor.block(copy), fetch(block))
        self.close()

    def _write_kept(self, copy: PrunedCopy, block: Block, values: NDArray[Any] | None, mask_of: MaskOf) -> None:
        """Write the kept elements of a block, or their positions, to their places in the file."""
        places, elements = kept_elements(copy, block, values, mask_of)
        stored = self._stored[copy.name]
        begin = len(self.header) + stored.begin
        ends = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), places.size]
        for start, stop in pairwise(ends):
            if start < stop:
                run = Rectangle(0, 1, int(places[start]), int(places[start]) + stop - start)
                self.put_rectangle(begin, stored.shape[1], run, elements[None, start:stop], np.dtype(stored.dtype))

    def _write_block(self, name: str, block: Block, values: NDArray[Any]) -> None:
        stored = self._stored[name]
        for rectangle, part in split_block(block, values):
            begin = len(self.header) + stored.begin
            self.put_rectangle(begin, stored.shape[1], rectangle, part, np.dtype(stored.dtype))

    def seal(self, communicator: "Intracomm", reporter: ProgressReporter | None = None) -> None:
        """Compute the checksums of the written file, each rank a share of them, and write the header (rank 0)."""
        own_names = share_of(list(self._stored), communicator)
        with reporting(reporter, "summing up what was written"):
            sums = {name: sum_of(self.partial, len(self.header), self._stored[name]) for name in own_names}
        with reporting(reporter, CollectiveWork("gathering checksums")):
            gathered = communicator.gather(sums)
        if gathered is None:
            return
        checksums = {name: checksum for sums in gathered for name, checksum in sums.items()}
        self.put(0, memoryview(header_of(self._stored, self._steps, self._model, checksums)))
        self.close()


def _writes(tensor: Tensor, coordinates: Coordinates) -> bool:
    """Whether the rank at these coordinates is the first of the ranks that hold its block."""
    if tensor.stages is not None and coordinates.along["pipeline"] != tensor.stages[0]:
        return False
    return all(coordinates.along[axis] == 0 for axis in tensor.repeated_over)


def share_of(names: Sequence[str], communicator: "Intracomm") -> list[str]:
    """The share of the tensors whose checksums this rank computes."""
    return list(names[communicator.rank :: communicator.size])


def sum_of(path: Path, header_bytes: int, stored: StoredTensor) -> str:
    """The SHA-256 of a tensor's bytes in a file."""
    digest, left = sha256(), stored.bytes
    with path.open("rb") as file:
        file.seek(header_bytes + stored.begin)
        while left and (chunk := file.read(min(left, READ_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()
