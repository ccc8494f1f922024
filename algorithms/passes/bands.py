"""Band pipelining: a product and the all-reduce of its result in bands of rows, so that they overlap.

One band is reduced while the next band is multiplied:

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


def in_bands(schedule: Schedule, count: int, *, least_rows: int | None = None) -> Schedule:
    """Returns the schedule with products, the all-reduces that follow them, and dependent row-wise ops in bands.

    Parameters
    ----------
    schedule : schedule without bands
    count : number of bands; 1 leaves the schedule as it is
    least_rows : least mean rows of a band for which dW is accumulated by band, by default `LEAST_ACCUMULATED_ROWS`

    Raises
    ------
    InputError : fewer than one band
    """
    if count < 1:
        raise InputError(f"bands {count}: a whole number from 1 is accepted")
    if count == 1:
        return schedule
    bands = BandedOps(schedule, count, least_rows=least_rows)
    changed = schedule.with_program(lambda program: in_sequence(_cut(without_edges(program), bands)))
    return replace(changed, tensors=bands.tensors)


def _cut(program: Program, bands: BandedOps) -> Program:
    """Returns the program in which all ops that can be cut are in bands."""
    builder = _BandBuilder(bands)
    for position, entry in enumerate(program, 1):
        if isinstance(entry, Repeat):
            builder.append_unchanged(replace(entry, body=_cut(entry.body, bands)))
        else:
            following = (entry_after for entry_after in program[position:] if not isinstance(entry_after, AllGather))
            builder.append(entry, next(following, None))
    return builder.program()


class _BandBuilder:
    """Collects the band ranges of one program, op by op, without descending into loops.

    A band range starts with a product that an all-reduce follows, or continues from an all-reduce.  It ends with an
    all-reduce, or where an op is neither cut nor moved.  Two ops change their order only if they share no buffer that
    either of them writes.  Ops on a lane stay in order, except for all-reduces of results of all rows, which are
    delayed to the end.  All ranks of a role have the same bands.
    """

    def __init__(self, bands: BandedOps) -> None:
        self._bands = bands
        self._parts: list[Op | Repeat | BandRange] = []
        self._open_range: BandRange | None = None
        # the range before, while its final all-reduce is available band by band
        self._last_range: BandRange | None = None
        # tensors of the open range, or of the last all-reduce, that are available band by band
        self._available_by_band: set[str] = set()
        # delayed ops: all-reduces of sums over all rows of a range (the loss), and the ops that use them
        self._late: list[Op] = []

    def append(self, op: Op, following: Op | Repeat | None) -> None:
        """Adds the next op of the program.

        Parameters
        ----------
        op : the op
        following : the op or loop after it, all-gathers skipped; None at the end
        """
        continues = self._continues(op)
        if not continues and self._is_late(op):
            self._late.append(op)
            return
        if self._bands.conflicts(op, *self._late):
            self._append_late()
            continues = self._continues(op)
        if continues or self._begins_range(op, following):
            self._add(op, continues)
        elif self._open_range and may_come_before(op, self._open_range, self._bands):
            self._open_range.before.append(op)
        elif self._open_range and isinstance(op, Compute | AllGather):
            self._open_range.trailing.append(op)
        else:
            self.append_unchanged(op)

    def append_unchanged(self, entry: Op | Repeat) -> None:
        """Adds the next op or loop unchanged."""
        self._close()
        if isinstance(entry, Repeat):
            self._append_late()
        self._parts.append(entry)
        if isinstance(entry, Repeat) or self._needs_whole_sum(entry):
            self._last_range, self._available_by_band = None, set()

    def program(self) -> Program:
        """The rewritten program."""
        self._append_late()
        return banded_program(self._parts, self._bands)

    def _continues(self, op: Op) -> bool:
        """Whether the op uses, row by row, a tensor that is available band by band."""
        if self._available_by_band.isdisjoint({*self._bands.banded_tensors(op)} & {*reads(op)}):
            return False
        current = self._open_range or BandRange()
        return self._bands.may_interleave(op, *current.ops) and not self._bands.conflicts(op, *current.trailing)

    def _begins_range(self, op: Op, following: Op | Repeat | None) -> bool:
        """Whether the op is a product by rows that its all-reduce follows."""
        if not isinstance(op, Gemm) or op.layout == "TN" or not self._bands.banded_tensors(op):
            return False
        return (
            isinstance(following, AllReduce)
            and following.buffer == op.c
            and self._bands.is_banded_all_reduce(following)
        )

    def _is_late(self, op: Op) -> bool:
        """Whether the op all-reduces a sum over all rows of the open range, or uses the result of such an op."""
        if isinstance(op, AllReduce | Compute) and self._bands.conflicts(op, *self._late):
            return True
        return (
            isinstance(op, AllReduce)
            and self._open_range is not None
            and self._bands.conflicts(op, *self._open_range.body)
        )

    def _add(self, op: Op, continues: bool) -> None:
        """Adds an op to the open range, or to a new one."""
        if not continues:
            self._close()
            self._available_by_band = set()
        if self._open_range is None:
            self._open_range = BandRange()
            if continues and self._last_range:
                self._last_range.is_continued = True
                self._open_range.continues_sum = self._last_range.sum
            self._parts.append(self._open_range)
        self._open_range.ops.append(op)
        self._available_by_band |= {*writes(op)} & {*self._bands.banded_tensors(op)}
        if self._bands.is_banded_all_reduce(op):
            self._last_range, self._open_range, self._available_by_band = self._open_range, None, {*writes(op)}

    def _close(self) -> None:
        """Ends the open range without an all-reduce."""
        if self._open_range is not None:
            self._open_range, self._last_range, self._available_by_band = None, None, set()

    def _append_late(self) -> None:
        late, self._late = self._late, []
        for op in late:
            self.append_unchanged(op)

    def _needs_whole_sum(self, op: Op) -> bool:
        """Whether the op ends after all bands of the last all-reduce."""
        return self._last_range is not None and (
            self._last_range.sum_is_awaited or not self._available_by_band.isdisjoint((*reads(op), *writes(op)))
        )
