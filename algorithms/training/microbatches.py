"""Microbatches: a batch is processed in parts, and their gradients are accumulated before the optimizer step.

    microbatches = batch / (micro-batch · data · z)

`micro-batch` counts the sequences (MLP: rows) of one microbatch on the ranks of one coordinate along data and z, which
cut the batch, as Megatron-LM counts them for each data-parallel replica.  Microbatch j consists of sequences j ·
micro-batch · data · z and following, on any grid.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", arXiv
2104.04473, section 2.2.
"""

from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid

MICROBATCH = "microbatch"


@dataclass(frozen=True, slots=True)
class Microbatches:
    """Division of a batch.

    Parameters
    ----------
    count : number of microbatches
    rows : sequences, or rows, of one microbatch over all ranks
    """

    count: int
    rows: int

    @property
    def copies(self) -> tuple[tuple[str, int], ...]:
        """Loop over the copies of the inputs, if there is more than one microbatch."""
        return ((MICROBATCH, self.count),) if self.count > 1 else ()


def microbatches(batch: int, micro_batch: int | None, grid: Grid) -> Microbatches:
    """Returns the microbatches of a batch; one for the whole batch if no size is given.

    >>> microbatches(24, 2, Grid(data=2, z=3))
    Microbatches(count=2, rows=12)

    Raises
    ------
    InputError : a size below 1, or a batch that is no multiple of it
    """
    if micro_batch is None:
        return Microbatches(1, batch)
    if micro_batch < 1:
        raise InputError(f"micro-batch {micro_batch}: a whole number from 1 is accepted")
    rows = micro_batch * grid.data * grid.z
    if batch % rows:
        raise InputError(
            f"batch {batch}: a multiple of micro-batch {micro_batch} times data={grid.data} times z={grid.z}, "
            f"{rows}, is accepted"
        )
    return Microbatches(batch // rows, rows)
