"""Products in bands of rows: one band is summed while the next is multiplied, and goes on while others are summed.

    multiply C            multiply C, 1 of 2
    sum C                 sum C, 1 of 2          multiply C, 2 of 2
    add b                 sum C, 2 of 2          add b, 1 of 2
    multiply D                                   multiply D, 1 of 2
    sum D                 sum D, 1 of 2          add b, 2 of 2
                                                 multiply D, 2 of 2
                          sum D, 2 of 2

What follows a sum and goes row by row (biases, activations, attention of whole
sequences, products, and dW, which is added up band by band) goes on in bands,
until an op needs all rows; `band_ranges.py` says in which order.  Two halves of a batch do the same, each with its own
gathers of weights (Singh, Sating, Bhatele, arXiv 2305.13525: overdecomposition;
Wang et al., "Domino", arXiv 2409.15241: slices of rows).

A band is a window of rows of the buffers that are there: nothing is copied, but
that each band of dW is added to it, and all ranks together send as many bytes as
before.  This goes with any overlap.  The last bits of results may change: a
product of fewer rows may be rounded otherwise, a ring of more than two adds other
pieces in other orders, and dW is the sum of what the bands give, in their order.
"""

from dataclasses import replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.band_ranges import BandedOps, BandRange, banded_program, may_come_before
from quadrille.algorithms.passes.overlap import without_edges
from quadrille.algorithms.schedule.ops import AllGather, AllReduce, Compute, Gemm, Op, reads, writes
from quadrille.algorithms.schedule.program import Program, Repeat, in_sequence
from quadrille.algorithms.schedule.schedule import Schedule


def in_bands(schedule: Schedule, count: int) -> Schedule:
    """The schedule with products that are summed right after, their sums, and what goes on from them, in so many bands.

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
            following = (one for one in program[position:] if not isinstance(one, AllGather))
            cutter.take(entry, next(following, None))
    return cutter.program()


class _Cutter:
    """Goes through one program, but not into its loops, and collects stretches of ops that are cut together.

    A stretch begins with a product whose sum comes next, or goes on from a sum; it ends with a sum, or where an op is
    neither cut nor got out of the way.  Ops that change places share no buffer that either writes; on a lane they
    stay in order, but for sums of what all rows give, which come late.  All ranks of a role do the same.
    """

    def __init__(self, bands: BandedOps) -> None:
        self._bands = bands
        self._parts: list[Op | Repeat | BandRange] = []
        self._open: BandRange | None = None
        self._summed: BandRange | None = None  # the last one that ended with a sum, while that comes band by band
        self._in_flow: set[str] = set()  # tensors that come band by band: of the open stretch, or of the last sum
        self._late: list[Op] = []  # sums of what all rows of a stretch give, and what uses them: the loss

    def take(self, op: Op, following: Op | Repeat | None) -> None:
        """The next op.

        Parameters
        ----------
        following : what comes after it, but for gathers of weights
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
        """The next op or loop as it is."""
        self._close()
        if isinstance(entry, Repeat):
            self._write_late()
        self._parts.append(entry)
        if isinstance(entry, Repeat) or self._waits(entry):
            self._summed, self._in_flow = None, set()

    def program(self) -> Program:
        """The program, cut."""
        self._write_late()
        return banded_program(self._parts, self._bands)

    def _goes_on(self, op: Op) -> bool:
        """Whether the op uses, row by row, what comes band by band."""
        if self._in_flow.isdisjoint({*self._bands.cut_in(op)} & {*reads(op)}):
            return False
        there = self._open or BandRange()
        return self._bands.go_together(op, *there.ops) and not self._bands.conflicts(op, *there.aside)

    def _begins(self, op: Op, following: Op | Repeat | None) -> bool:
        """Whether the op is a product whose rows are those of its first operand, and is summed next."""
        if not isinstance(op, Gemm) or op.layout == "TN" or not self._bands.cut_in(op):
            return False
        return isinstance(following, AllReduce) and following.buffer == op.c and self._bands.adds_ranks_up(following)

    def _is_late(self, op: Op) -> bool:
        """Whether the op adds up what all rows of the open stretch give, or uses what does."""
        if isinstance(op, AllReduce | Compute) and self._bands.conflicts(op, *self._late):
            return True
        return isinstance(op, AllReduce) and self._open is not None and self._bands.conflicts(op, *self._open.body)

    def _add(self, op: Op, goes_on: bool) -> None:
        """Cut an op with the open stretch, or with a new one."""
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
        """End the open stretch without a sum: its ops are over when the next local work begins."""
        if self._open is not None:
            self._open, self._summed, self._in_flow = None, None, set()

    def _write_late(self) -> None:
        late, self._late = self._late, []
        for op in late:
            self.keep(op)

    def _waits(self, op: Op) -> bool:
        """Whether all bands of the last sum are there before the op ends."""
        return self._summed is not None and (
            self._summed.awaited or not self._in_flow.isdisjoint((*reads(op), *writes(op)))
        )
