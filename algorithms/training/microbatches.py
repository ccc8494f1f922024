"""Microbatches: a batch taken in parts, one after the other, whose gradients are added up before the optimizer's step.

    microbatches = batch / (micro-batch · data · z)

`micro-batch` counts the sequences (rows, of an MLP) of one microbatch on the
ranks of one coordinate along data and z, which cut the batch, as Megatron-LM
counts them for each data-parallel replica.  Microbatch j is sequences
j · micro-batch · data · z to the next of the batch, whatever the grid.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM", arXiv 2104.04473, section 2.2.
"""

from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid

MICROBATCH = "microbatch"


@dataclass(frozen=True, slots=True)
class Microbatches:
    """How a batch is taken.

    Parameters
    ----------
    count : of microbatches
    rows : sequences, or rows, of one of them over all ranks
    """

    count: int
    rows: int

    @property
    def copies(self) -> tuple[tuple[str, int], ...]:
        """The loop that tells their inputs apart, where there is more than one."""
        return ((MICROBATCH, self.count),) if self.count > 1 else ()


def microbatches(batch: int, micro_batch: int | None, grid: Grid, name: str = "batch") -> Microbatches:
    """The microbatches of a batch; without a size of theirs, one takes it all.

    >>> microbatches(24, 2, Grid(data=2, z=3))
    Microbatches(count=2, rows=12)

    Raises
    ------
    InputError : a size below 1, or a batch that they do not fill
    """
    if micro_batch is None:
        return Microbatches(1, batch)
    if micro_batch < 1:
        raise InputError(f"micro-batch {micro_batch}: a whole number from 1 is accepted")
    rows = micro_batch * grid.data * grid.z
    if batch % rows:
        raise InputError(
            f"{name} {batch}: a multiple of micro-batch {micro_batch} times data={grid.data} times z={grid.z}, "
            f"{rows}, is accepted"
        )
    return Microbatches(batch // rows, rows)
