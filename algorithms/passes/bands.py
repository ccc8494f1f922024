"""Band pipelining: products in bands of rows, so that one band is reduced while the next is multiplied.

    multiply C            multiply C, 1 of 2
    sum C                 sum C, 1 of 2          multiply C, 2 of 2
    add b                 sum C, 2 of 2          add b, 1 of 2
    multiply D                                   multiply D, 1 of 2
    sum D                 sum D, 1 of 2          add b, 2 of 2
                                                 multiply D, 2 of 2
                          sum D, 2 of 2

Row-wise ops after a reduction (biases, activations, attention of whole sequences, products, and dW, which is
accumulated by band) continue in bands until an op needs all rows; `band_ranges.py` determines the order.  Two halves of
a batch do the same, each with weight gathers of its own (Singh, Sating, Bhatele, arXiv 2305.13525: overdecomposition;
Wang et al., "Domino", arXiv 2409.15241: slices of rows).

A band is a window of rows of the existing buffers.  Nothing is copied except that each band of dW is added to it, and
the bytes sent do not change.  Bands combine with any overlap.  The last bits of results may change: shorter products
may round differently, rings of more than two members add other pieces in other orders, and dW is the sum over bands in
order.
"""

from dataclasses import replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.band_ranges import BandedOps, BandRange, banded_program, may_come_before
from quadrille.algorithms.passes.overlap import without_edges
from quadrille.algorithms.schedule.ops import AllGather, AllReduce, Compute, Gemm, Op, reads, writes
from quadrille.algorithms.schedule.program import Program, Repeat, in_sequence
from quadrille.algorithms.schedule.schedule import Schedule


def in_bands(schedule: Schedule, count: int) -> Schedule:
    """Returns the schedule with products, the reductions that follow them, and dependent row-wise ops in `count` bands.

    Raises
    ------
    InputError : fewer than one band
    """
    if count < 1:
        raise InputError(f"bands {count}: a whole number from 1 is accepted")
    if count == 1:
        return schedule
    bands = BandedOps(schedule, count)
    changed = schedule.with_program(lambda program: in_sequence(_cut(without_edges(program), bands)))
    return replace(changed, tensors=bands.tensors)


def _cut(program: Program, bands: BandedOps) -> Program:
    """The program with what can be cut in bands."""
    cutter = _Cutter(bands)
    for position, entry in enumerate(program, 1):
        if isinstance(entry, Repeat):
            cutter.keep(replace(entry, body=_cut(entry.body, bands)))
        else:
            following = (entry_after for entry_after in program[position:] if not isinstance(entry_after, AllGather))
            cutter.take(entry, next(following, None))
    return cutter.program()


class _Cutter:
    """Collects the band ranges of one program, without descending into loops.

    A band range starts with a product whose reduction follows, or continues from a reduction.  It ends with a
    reduction, or where an op is neither cut nor moved.  Ops that exchange places share no buffer that either writes.
    Ops on a lane stay in order, except for reductions of results of all rows, which come late.  All ranks of a role do
    the same.
    """

    def __init__(self, bands: BandedOps) -> None:
        self._bands = bands
        self._parts: list[Op | Repeat | BandRange] = []
        self._open: BandRange | None = None
        self._summed: BandRange | None = None  # the last one that ended with a sum, while that comes band by band
        self._in_flow: set[str] = set()  # tensors that come band by band: of the open stretch, or of the last sum
        self._late: list[Op] = []  # sums of what all rows of a stretch give, and what uses them: the loss

    def take(self, op: Op, following: Op | Repeat | None) -> None:
        """Adds the next op.

        Parameters
        ----------
        following : op after it, weight gathers skipped
        """
        goes_on = self._goes_on(op)
        if not goes_on and self._is_late(op):
            self._late.append(op)
            return
        if self._bands.conflicts(op, *self._late):
            self._write_late()
            goes_on = self._goes_on(op)
        if goes_on or self._begins(op, following):
            self._add(op, goes_on)
        elif self._open and may_come_before(op, self._open, self._bands):
            self._open.before.append(op)
        elif self._open and isinstance(op, Compute | AllGather):
            self._open.aside.append(op)
        else:
            self.keep(op)

    def keep(self, entry: Op | Repeat) -> None:
        """Adds the next op or loop unchanged."""
        self._close()
        if isinstance(entry, Repeat):
            self._write_late()
        self._parts.append(entry)
        if isinstance(entry, Repeat) or self._waits(entry):
            self._summed, self._in_flow = None, set()

    def program(self) -> Program:
        """The rewritten program."""
        self._write_late()
        return banded_program(self._parts, self._bands)

    def _goes_on(self, op: Op) -> bool:
        """Whether the op uses, row by row, what is available band by band."""
        if self._in_flow.isdisjoint({*self._bands.cut_in(op)} & {*reads(op)}):
            return False
        there = self._open or BandRange()
        return self._bands.go_together(op, *there.ops) and not self._bands.conflicts(op, *there.aside)

    def _begins(self, op: Op, following: Op | Repeat | None) -> bool:
        """Whether the op is a product with the rows of its first operand whose reduction follows."""
        if not isinstance(op, Gemm) or op.layout == "TN" or not self._bands.cut_in(op):
            return False
        return isinstance(following, AllReduce) and following.buffer == op.c and self._bands.adds_ranks_up(following)

    def _is_late(self, op: Op) -> bool:
        """Whether the op reduces a result of all rows of the open range, or uses such a result."""
        if isinstance(op, AllReduce | Compute) and self._bands.conflicts(op, *self._late):
            return True
        return isinstance(op, AllReduce) and self._open is not None and self._bands.conflicts(op, *self._open.body)

    def _add(self, op: Op, goes_on: bool) -> None:
        """Adds an op to the open range, or to a new one."""
        if not goes_on:
            self._close()
            self._in_flow = set()
        if self._open is None:
            self._open = BandRange()
            if goes_on and self._summed:
                self._summed.followed = True
                self._open.goes_on_from = self._summed.sum
            self._parts.append(self._open)
        self._open.ops.append(op)
        self._in_flow |= {*writes(op)} & {*self._bands.cut_in(op)}
        if self._bands.adds_ranks_up(op):
            self._summed, self._open, self._in_flow = self._open, None, {*writes(op)}

    def _close(self) -> None:
        """Ends the open range without a reduction."""
        if self._open is not None:
            self._open, self._summed, self._in_flow = None, None, set()

    def _write_late(self) -> None:
        late, self._late = self._late, []
        for op in late:
            self.keep(op)

    def _waits(self, op: Op) -> bool:
        """Whether all bands of the last reduction are available before the op ends."""
        return self._summed is not None and (
            self._summed.awaited or not self._in_flow.isdisjoint((*reads(op), *writes(op)))
        )
