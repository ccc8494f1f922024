"""Checkpoints: what one training run leaves to the next, in one file that any grid, scheme or program can read.

    8 bytes     length of the header, little-endian
    header      JSON: of each tensor its dtype, shape and where its bytes are; what the file is; padded with spaces
    content     the tensors, whole, row by row, one behind the other

This is the layout of safetensors files, so other programs read them too.  Under
`__metadata__` stand the schema, the model, how many steps were done, and a
SHA-256 of each tensor's bytes and of the header itself (taken with zeros in its
place).  There are the parameters as the optimizer has them and its two
moments, each under the name of its copy ("QKV W layer 3"): no name, shape or
byte depends on the grid, so every rank writes and reads its own blocks.

Source of the layout: https://huggingface.co/docs/safetensors, "Format".
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
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
from quadrille.runtime.operands.rectangles import split_block

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

SCHEMA = "quadrille/checkpoint/1"
CODES: dict[ElementType, str] = {"float64": "F64", "float32": "F32"}
DTYPES = {code: np.dtype(dtype) for dtype, code in CODES.items()}
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
SUM_LENGTH = 64
NO_SUM = "0" * SUM_LENGTH
ALIGNED = 8
READ_BYTES = 2**24
HEADER_BEGIN = b'{"__metadata__"'


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor's bytes are, behind the header."""

    dtype: ElementType
    shape: tuple[int, int]
    begin: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def copies_of(schedule: Schedule, names: Sequence[str]) -> dict[str, Tensor]:
    """The tensor of each copy of these, by the name of the copy, whichever pipeline stage has it."""
    found: dict[str, Tensor] = {}
    for stage in range(schedule.grid.pipeline):
        place = schedule.coordinates(schedule.grid.rank_at({"pipeline": stage}))
        for name in names:
            tensor = schedule.tensors[name]
            if tensor.stages is None or stage in tensor.stages:
                found |= {tensor.copy_name(moment): tensor for moment in tensor.copy_coordinates(place)}
    return found


def contents(schedule: Schedule, names: Sequence[str]) -> dict[str, Stored]:
    """What a checkpoint of these tensors holds, in the order of the names of copies."""
    found, begin = {}, 0
    for name, tensor in sorted(copies_of(schedule, names).items()):
        shape = (
            schedule.sizes[tensor.rows.dimension] * tensor.rows.unit,
            schedule.sizes[tensor.columns.dimension] * tensor.columns.unit,
        )
        found[name] = Stored(tensor.dtype or schedule.dtype, shape, begin)
        begin += found[name].bytes
    return found


def header_of(stored: Mapping[str, Stored], steps: int, model: str, sums: Mapping[str, str] | None = None) -> bytes:
    """The length and the header, as long without sums as with them."""
    given = sums or {}
    metadata = {"schema": SCHEMA, "model": model, "steps": str(steps), "sha256": NO_SUM}
    metadata |= {f"sha256 of {name}": given.get(name, NO_SUM) for name in stored}
    described = {
        name: {
            "dtype": CODES[one.dtype],
            "shape": list(one.shape),
            "data_offsets": [one.begin, one.begin + one.bytes],
        }
        for name, one in stored.items()
    }
    text = _padded(json.dumps({"__metadata__": metadata, **described}, ensure_ascii=False).encode())
    if sums is not None:
        text = text.replace(NO_SUM.encode(), sha256(text).hexdigest().encode(), 1)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _padded(text: bytes) -> bytes:
    return text + b" " * (-(len(text) + LENGTH_BYTES) % ALIGNED)


class CheckpointWriter(SharedFile):
    """One checkpoint being written by many ranks; every rank makes one with the same arguments.

    Parameters
    ----------
    names : the tensors of the schedule that it holds
    steps : how many were done
    model : what it is of, in words
    """

    def __init__(
        self, path: str | Path, schedule: Schedule, names: Sequence[str], steps: int, model: str, *, token: str = ""
    ) -> None:
        self._schedule, self._names, self._steps, self._model = schedule, names, steps, model
        self._stored = contents(schedule, names)
        content = sum(one.bytes for one in self._stored.values())
        header = header_of(self._stored, steps, model)
        super().__init__(path, header, content, flag="--save", kind="a file", token=token)

    def write(self, place: Coordinates, outputs: Mapping[str, Any], fetch: Callable[[Any], NDArray[Any]]) -> None:
        """Put the blocks of one rank in their places; of repeated blocks the first rank writes its own."""
        for name in self._names:
            tensor = self._schedule.tensors[name]
            if not _writes(tensor, place):
                continue
            found = outputs[name]
            blocks = found if isinstance(found, list) else [found]
            for moment, block in zip(tensor.copy_coordinates(place), blocks, strict=True):
                self._write_block(tensor.copy_name(moment), tensor.block(moment), fetch(block))
        self.close()

    def _write_block(self, name: str, block: Block, values: NDArray[Any]) -> None:
        stored = self._stored[name]
        for rectangle, part in split_block(block, values):
            begin = len(self.header) + stored.begin
            self.put_rectangle(begin, stored.shape[1], rectangle, part, np.dtype(stored.dtype))

    def seal(self, communicator: "Intracomm", watcher: ProgressReporter | None = None) -> None:
        """Sum up what is on the disk, a share of the tensors on each rank, and put the sums in the header (rank 0)."""
        mine = share_of(list(self._stored), communicator)
        with reporting(watcher, "summing up what was written"):
            sums = {name: sum_of(self.partial, len(self.header), self._stored[name]) for name in mine}
        with reporting(watcher, CollectiveWork("gathering checksums")):
            gathered = communicator.gather(sums)
        if gathered is None:
            return
        every = {name: one for sums in gathered for name, one in sums.items()}
        self.put(0, memoryview(header_of(self._stored, self._steps, self._model, every)))
        self.close()


def _writes(tensor: Tensor, place: Coordinates) -> bool:
    """Whether the rank at `place` is the first of those that hold its block."""
    if tensor.stages is not None and place.along["pipeline"] != tensor.stages[0]:
        return False
    return all(place.along[axis] == 0 for axis in tensor.repeated_over)


def share_of(names: Sequence[str], communicator: "Intracomm") -> list[str]:
    """The tensors that fall to this rank."""
    return list(names[communicator.rank :: communicator.size])


def sum_of(path: Path, header_bytes: int, stored: Stored) -> str:
    """SHA-256 of a tensor's bytes in a file."""
    digest, left = sha256(), stored.bytes
    with path.open("rb") as file:
        file.seek(header_bytes + stored.begin)
        while left and (chunk := file.read(min(left, READ_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()
