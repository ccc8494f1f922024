"""The arguments of a kernel: of one call of a layer function such as softmax on the arrays of a rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quadrille.algorithms.schedule.tensors import Block
from quadrille.algorithms.training.context import natural_rows
from quadrille.runtime.arrays.array_library import Array


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """The arguments of one call of a kernel (a layer function).

    Parameters
    ----------
    xp : array module, numpy or cupy
    into, updates, sources : written, updated and read arrays, in the order of the op
    blocks : row and column ranges of the sources and updates in their whole matrices
    scalars : parameters of the function by name, such as "epsilon"
    iteration : iteration of the loop that the op counts, from 0; Adam corrects its moments by it
    indices : index of every loop around the op, by its name; dropout numbers layers and microbatches by them
    sequences : rows of the whole sequences that the rows of each block are cut from; empty without context parallelism
    written : row and column ranges of the written arrays in their whole matrices
    """

    xp: Any
    into: tuple[Array, ...]
    updates: tuple[Array, ...]
    sources: tuple[Array, ...]
    blocks: tuple[Block, ...]
    scalars: Mapping[str, float]
    iteration: int
    indices: Mapping[str, int] = field(default_factory=dict)
    sequences: tuple[tuple[int, int], ...] = ()
    written: tuple[Block, ...] = ()

    def batch_rows(self, position: int = 0) -> Array:
        """The row of the batch, sequence by sequence, that each row of a block is; rows of one microbatch.

        Parameters
        ----------
        position : which of the blocks
        """
        rows: Array = self.xp.arange(*self.blocks[position].rows)
        if "context" not in self.scalars:
            return rows
        sizes = int(self.scalars["sequence"]), int(self.scalars["context"])
        return natural_rows(rows, *self.sequences[position], *sizes)
