"""Inputs of training, any block on any rank: parameters from the generator, batches from the generator or a text.

A parameter's element is keyed by (seed, name, element). The name includes the layer, so the element is the same on
every grid and under every scheme:

    moments    zeros
    normal     uniform with standard deviation 0.02 (GPT) or 1/√rows (linear layers), so within ±√3 of it
    zeros      biases, β
    ones       γ

A GPT reads bytes of a text. Sequence i of step t begins at a position keyed by (seed, t, i), and its targets are the
next bytes. A stack of linear layers takes X from the generator and learns a fixed function of it, the cubic
T_ij = 3 x - 4 x³ of x = X_i,(j mod width): only products, so all ranks round alike.

Text: the poems "Jabberwocky" and "The Walrus and the Carpenter", Lewis Carroll, "Through the
Looking-Glass", 1871; in the public domain.  Deviation 0.02: Radford et al.,
"Language Models are Unsupervised Multitask Learners", 2019 (GPT-2).
"""

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Block, Tensor
from quadrille.algorithms.training.adam import STEP, is_moment
from quadrille.algorithms.training.context import natural_rows
from quadrille.algorithms.training.layers import Start
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.algorithms.training.sparsity import PruneMethod
from quadrille.runtime.operands import generator
from quadrille.runtime.operands.generator import INCREMENT, MASK, mix, stream_key
from quadrille.runtime.operands.operands import round_to
from quadrille.runtime.operands.rectangles import Rectangle, split_block
from quadrille.runtime.training.pruned_blocks import Mask, tile_mask
from quadrille.runtime.training.pruned_source import pruned_block
from quadrille.runtime.training.tensor_copies import PrunedCopy, TensorCopy, pruned_copy, shape_of, tensor_copy

TEXT = Path(__file__).parent / "texts" / "through_the_looking_glass.txt"
DEVIATION = 0.02
"""Standard deviation of a GPT's initial weights."""
STARTS: dict[str, Start] = {"γ": "ones", "β": "zeros", "b": "zeros"}
"""Initial values of parameters by the last word of their names; all others are normal."""


class TrainingSource:
    """The inputs and initial parameters of a training schedule, block by block.

    Parameters
    ----------
    seed : seed of all values
    sequence : tokens of a sequence; 0 if rows are no tokens
    prune : which elements of a pruned matrix are kept
    """

    def __init__(self, schedule: Schedule, *, seed: int, sequence: int = 0, prune: PruneMethod = "magnitude") -> None:
        self._schedule, self._seed, self._sequence, self._prune = schedule, seed, sequence, prune
        self._dtype = schedule.dtype

    def stored(self, name: str, block: Block) -> NDArray[Any]:
        """The elements of a rank's block of the copy with that name, in the stored shape."""
        pruned = pruned_copy(self._schedule, name)
        if pruned is not None:
            return pruned_block(pruned, block, self._region, self.mask)
        copy = tensor_copy(self._schedule, name)
        filled = np.empty(block.shape, self._array_dtype(copy.tensor))
        for rectangle, part in split_block(block, filled):
            part[...] = self._values(name, copy, rectangle)
        if copy.tensor.dtype is None:
            round_to(self._dtype, filled)
        return filled

    def mask(self, copy: PrunedCopy, region: Rectangle) -> Mask:
        """The kept elements of a region of whole tiles: of the largest initial weights, or of random numbers."""
        if self._prune == "magnitude":
            return tile_mask(np.abs(self._region(copy.matrix, region)), region, copy.kept)
        scores = generator.block(self._seed, f"mask of {copy.matrix}", *copy.shape, region, np.float64)
        return tile_mask(scores, region, copy.kept)

    def _region(self, name: str, rectangle: Rectangle) -> NDArray[Any]:
        """Initial weights before pruning."""
        copy = tensor_copy(self._schedule, name)
        values = self._values(name, copy, rectangle)
        if copy.tensor.dtype is None:
            round_to(self._dtype, values)
        return values

    def whole(self, name: str) -> NDArray[Any]:
        """The whole copy with that name."""
        rows, columns = shape_of(self._schedule, tensor_copy(self._schedule, name).tensor)
        return self.stored(name, Block((0, rows), (0, columns)))

    def _array_dtype(self, tensor: Tensor) -> np.dtype[Any]:
        if tensor.dtype == "int32":
            return np.dtype(np.int32)
        return np.dtype(np.float64 if (tensor.dtype or self._dtype) == "float64" else np.float32)

    def _values(self, name: str, copy: TensorCopy, rectangle: Rectangle) -> NDArray[Any]:
        tensor = copy.tensor
        if tensor.name in ("tokens", "targets"):
            return self._tokens(copy, rectangle)
        if tensor.name == "T":
            return self._target(copy, rectangle)
        if tensor.name == "H0":
            return self._input(copy, rectangle)
        if is_moment(tensor.name):
            return np.zeros(rectangle.shape, self._array_dtype(tensor))
        match STARTS.get(tensor.name.rpartition(" ")[2], "normal"):
            case "zeros":
                return np.zeros(rectangle.shape, self._array_dtype(tensor))
            case "ones":
                return np.ones(rectangle.shape, self._array_dtype(tensor))
            case _:
                shape = shape_of(self._schedule, tensor)
                deviation = DEVIATION if self._sequence else shape[0] ** -0.5
                uniform = generator.block(self._seed, name, *shape, rectangle, self._array_dtype(tensor))
                values: NDArray[Any] = uniform * uniform.dtype.type(3**0.5 * deviation)
                return values

    # Batches

    def tokens(self, step: int, batch: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The tokens and targets of all sequences of a step."""
        rows = np.arange(batch * self._sequence)
        shape = (batch, self._sequence)
        return self._read(step, rows, 0).reshape(shape), self._read(step, rows, 1).reshape(shape)

    def rows(self, rows: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """X and T of all rows of a batch, in float64."""
        matrices = []
        for name in ("H0", "T"):
            columns = shape_of(self._schedule, self._schedule.tensors[name])[1]
            whole = Rectangle(0, rows, 0, columns)
            values = self._values(name, TensorCopy(self._schedule.tensors[name], {}), whole)
            round_to(self._dtype, values)
            matrices.append(values.astype(np.float64))
        return matrices[0], matrices[1]

    def _first_row(self, copy: TensorCopy) -> int:
        """The number of batch rows before this microbatch."""
        rows, _ = shape_of(self._schedule, copy.tensor)
        return copy.indices.get(MICROBATCH, 0) * rows

    def _input(self, copy: TensorCopy, rectangle: Rectangle) -> NDArray[Any]:
        """Rows of X in the whole batch, whatever the microbatch."""
        width = shape_of(self._schedule, copy.tensor)[1]
        return self._generated(copy, rectangle, width)

    def _generated(self, copy: TensorCopy, rectangle: Rectangle, width: int) -> NDArray[Any]:
        first = self._first_row(copy)
        top, bottom = rectangle.row_start + first, rectangle.row_stop + first
        wanted = Rectangle(top, bottom, rectangle.column_start, rectangle.column_stop)
        return generator.block(self._seed, "H0", bottom, width, wanted, self._array_dtype(copy.tensor))

    def _target(self, copy: TensorCopy, rectangle: Rectangle) -> NDArray[Any]:
        width = self._schedule.sizes["width0"]
        rows = Rectangle(rectangle.row_start, rectangle.row_stop, 0, width)
        x = self._generated(copy, rows, width)
        round_to(self._dtype, x)
        x = x[:, np.arange(rectangle.column_start, rectangle.column_stop) % width]
        target: NDArray[Any] = x * (3 - 4 * (x * x))
        return target

    def _tokens(self, copy: TensorCopy, rectangle: Rectangle) -> NDArray[Any]:
        """Bytes of the text; targets are shifted by one."""
        first, step = self._first_row(copy), copy.indices.get(STEP, 0)
        numbers = np.arange(rectangle.row_start, rectangle.row_stop)
        rows = rows_in_batch(self._schedule, copy, numbers, self._sequence) + first
        return self._read(step, rows, 1 if copy.tensor.name == "targets" else 0).reshape(rectangle.shape)

    def _read(self, step: int, rows: NDArray[np.int64], shift: int) -> NDArray[np.int32]:
        """Rows of a step's batch, token by token, shifted by `shift` positions in the text."""
        key = stream_key(self._seed, f"batch of step {step}")
        sequences, positions = np.divmod(rows, self._sequence)
        text = text_bytes()
        last = text.size - self._sequence
        starts = {int(i): mix((key + int(i) * INCREMENT) & MASK) % last for i in np.unique(sequences)}
        begin = np.array([starts[int(i)] for i in sequences], np.int64)
        return text[begin + positions + shift].astype(np.int32)


def rows_in_batch(schedule: Schedule, copy: TensorCopy, rows: NDArray[np.int64], sequence: int) -> NDArray[np.int64]:
    """The rows of a microbatch, sequence by sequence, that rows of its tokens are.

    Ranks along context hold tokens in an order of their own (`algorithms/training/context.py`).

    Parameters
    ----------
    copy : tokens or targets of a microbatch
    rows : rows as the schedule numbers them
    sequence : tokens of a sequence
    """
    grid, result = schedule.grid, rows.copy()
    if grid.context == 1:
        return result
    whole = replace(copy.tensor.rows, finer=())
    for coordinates in product(*(range(grid.length(axis)) for axis in whole.axes)):
        along = dict(zip(whole.axes, coordinates, strict=True))
        first, stop = whole.bounds(Coordinates(grid, schedule.sizes, along, copy.indices))
        held = (rows >= first) & (rows < stop)
        result[held] = natural_rows(rows[held], first, stop, sequence, grid.context)
    return result


@cache
def text_bytes() -> NDArray[np.uint8]:
    """The text that a GPT reads."""
    return np.frombuffer(TEXT.read_bytes(), np.uint8)


def check_text(sequence: int, vocabulary: int) -> None:
    """Refuse a model that cannot read the text.

    Raises
    ------
    InputError : a vocabulary without some of its bytes, or a sequence longer than the text
    """
    text = text_bytes()
    if vocabulary <= int(text.max()):
        raise InputError(f"vocabulary {vocabulary}: the text that is read has bytes up to {text.max()}: 256 is usual")
    if sequence >= text.size:
        raise InputError(f"sequence {sequence}: the text that is read has {text.size} bytes: fewer are accepted")
