"""Microbatches: a batch taken in parts, one after the other, whose gradients are added up before the optimizer's step.

    microbatches = batch / (micro-batch · data · z)

`micro-batch` counts the sequences (rows, of an MLP) of one microbatch on the
ranks of one coordinate along data and z, which cut the batch, as Megatron-LM
counts them for each data-parallel replica.  Microbatch j is sequences
j · micro-batch · data · z to the next of the batch, whatever the grid.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM", arXiv 2104.04473, section 2.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from algorithms.errors import InputError
from algorithms.grid import Grid
from algorithms.ops import Op
from algorithms.schedule import Program, Repeat

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


def renamed(program: Program, names: Mapping[str, str]) -> Program:
    """The program with other tensors in the places of some."""
    return tuple(
        replace(entry, body=renamed(entry.body, names)) if isinstance(entry, Repeat) else _renamed_op(entry, names)
        for entry in program
    )


OPERANDS = frozenset({"a", "b", "c", "into", "source", "sources", "updates", "buffer"})


def _renamed_op(op: Op, names: Mapping[str, str]) -> Op:
    changes: dict[str, object] = {}
    for one in fields(op):
        if one.name in OPERANDS:
            value = getattr(op, one.name)
            changes[one.name] = (
                tuple(names.get(name, name) for name in value) if isinstance(value, tuple) else names.get(value, value)
            )
    return replace(op, **changes)  # type: ignore[arg-type]
