"""Microbatches: a batch is processed in parts, and their gradients are accumulated before the optimizer step.

    microbatches = ⌈batch / (micro-batch · data · z)⌉

`micro-batch` counts the sequences (MLP: rows) of one microbatch on the ranks of one coordinate along data and z, which
cut the batch, as Megatron-LM counts them for each data-parallel replica.  Microbatch j consists of sequences j ·
micro-batch · data · z and following, on any grid.  The last microbatch has what remains: a batch of 10 in microbatches
of 4 is processed as 4, 4 and 2.  So the number of rows of a pass depends on its microbatch (`Part.in_iteration`), and
buffers have room for the largest.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", arXiv
2104.04473, section 2.2.
"""

from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.parts import Part

MICROBATCH = "microbatch"


@dataclass(frozen=True, slots=True)
class Microbatches:
    """Division of a batch.

    Parameters
    ----------
    count : number of microbatches
    rows : sequences, or rows, of each microbatch but the last over all ranks
    last : sequences, or rows, of the last microbatch
    """

    count: int
    rows: int
    last: int

    def part(self, dimension: str, unit: int = 1) -> Part:
        """The rows of a microbatch; in the last microbatch another dimension, if it is smaller."""
        if not self.smaller_last:
            return Part(dimension, unit=unit)
        return Part(dimension, unit=unit, in_iteration=(MICROBATCH, self.count - 1, f"last {dimension}"))

    def sizes(self, dimension: str) -> dict[str, int]:
        """Lengths of the dimensions of `part`."""
        smaller = {f"last {dimension}": self.last} if self.smaller_last else {}
        return {dimension: self.rows, **smaller}

    @property
    def smaller_last(self) -> bool:
        """Whether the last microbatch is smaller than the others."""
        return self.last < self.rows

    def smallest(self, whole: str) -> str:
        """The smallest microbatch as the subject of a message; `whole` is the word for a single one."""
        if self.count == 1:
            return f"{whole} {self.rows}"
        return f"last microbatch of {self.last}" if self.smaller_last else f"microbatch of {self.rows}"

    @property
    def copies(self) -> tuple[tuple[str, int], ...]:
        """Loop over the copies of the inputs, if there is more than one microbatch."""
        return ((MICROBATCH, self.count),) if self.count > 1 else ()


def microbatches(batch: int, micro_batch: int | None, grid: Grid) -> Microbatches:
    """Returns the microbatches of a batch; one for the whole batch if no size is given.

    >>> microbatches(24, 2, Grid(data=2, z=3))
    Microbatches(count=2, rows=12, last=12)
    >>> microbatches(10, 4, Grid())
    Microbatches(count=3, rows=4, last=2)

    Raises
    ------
    InputError : a size below 1, or above the share of the batch
    """
    if micro_batch is None:
        return Microbatches(1, batch, batch)
    if micro_batch < 1:
        raise InputError(f"micro-batch {micro_batch}: a whole number from 1 is accepted")
    share = -(-batch // (grid.data * grid.z))
    if micro_batch > share:
        raise InputError(
            f"micro-batch {micro_batch}: at most {share} is accepted, the share of batch {batch} on each of "
            f"data={grid.data} times z={grid.z} parts"
        )
    rows = min(batch, micro_batch * grid.data * grid.z)
    count = -(-batch // rows)
    return Microbatches(count, rows, batch - (count - 1) * rows)
