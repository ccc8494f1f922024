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
until an op needs all rows.  Two halves of a batch do the same, each with its own
gathers of weights (Singh, Sating, Bhatele, arXiv 2305.13525: overdecomposition;
Wang et al., "Domino", arXiv 2409.15241: slices of rows).

A band is a window of rows of the buffers that are there: nothing is copied, and
all ranks together send as many bytes as before.  This goes with any overlap.
The last bits of results may change: a product of fewer rows may be rounded
otherwise, a ring of more than two adds other pieces in other orders, and dW is
the sum of what the bands give, in their order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from algorithms.errors import InputError
from algorithms.kernels import ATTENTION_PRODUCTS, OfRows, by_rows
from algorithms.ops import AllGather, AllReduce, Compute, Gemm, Kernel, Op, Pointwise, reads, writes
from algorithms.program import Program, Repeat, in_sequence, ops, runs_beside
from algorithms.reordering.overlap import without_edges
from algorithms.reordering.rewriting import renamed
from algorithms.schedule import Schedule, all_ops
from algorithms.storage import alone, view_sources
from algorithms.tensors import ITEM_BYTES

SUMMED_BYTES = ITEM_BYTES["float32"]
"""Bytes of an element from which a dW may be added up band by band: with fewer, every addition would round it much."""


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
    bands = _Bands(schedule, count)
    changed = schedule.with_program(lambda program: in_sequence(_cut(without_edges(program), bands)))
    return replace(changed, tensors=bands.tensors)


def _cut(program: Program, bands: "_Bands") -> Program:
    """The program with what can be cut in bands."""
    cutter = _Cutter(bands)
    for position, entry in enumerate(program, 1):
        if isinstance(entry, Repeat):
            cutter.keep(replace(entry, body=_cut(entry.body, bands)))
        else:
            following = (one for one in program[position:] if not isinstance(one, AllGather))
            cutter.take(entry, next(following, None))
    return cutter.written()


class _Bands:
    """Which tensors and ops can be cut, and their bands."""

    def __init__(self, schedule: Schedule, count: int) -> None:
        self._schedule, self.count = schedule, count
        self._views = view_sources(schedule, tuple(all_ops(schedule)))
        self.tensors = dict(schedule.tensors)

    def of(self, op: Op) -> tuple[str, ...]:
        """The tensors of which a band of the op has a band; none where it cannot be cut."""
        found: tuple[str, ...] = ()
        match op:
            case Gemm(layout="TN"):
                in_full = ITEM_BYTES[self._schedule.tensors[op.c].dtype or self._schedule.dtype] >= SUMMED_BYTES
                found = (op.a, op.b) if in_full else ()
            case Gemm():
                found = (op.a, op.c)
            case AllReduce():
                found = () if op.more else (op.buffer,)
            case Pointwise():
                found = (op.into, *op.sources)
            case Kernel():
                found = _with(op, "rows")
            case _:
                pass
        in_units = isinstance(op, Kernel) and op.function in ATTENTION_PRODUCTS
        return found if all(self._can_be_cut(name, in_units) for name in found) else ()

    def is_sum(self, op: Op | Repeat | None) -> bool:
        """Whether ranks add up something, in bands."""
        return isinstance(op, AllReduce) and not alone(self._schedule, op.axis) and bool(self.of(op))

    def of_op(self, op: Op, index: int) -> Iterator[Op]:
        """A band of an op, its tensors declared; from the second on, what it has of a sum over rows is added."""
        names = {name: self._declared(name, index) for name in self.of(op)}
        of = f", {index + 1} of {self.count}"
        op = replace(op, name=op.name + of)
        if isinstance(op, Gemm) and op.layout == "TN":
            op = replace(op, accumulate=op.accumulate or index > 0)
        parts = {name: f"{name} of a band" for name in _with(op, "sum") if index}
        self.tensors |= {part: replace(self.tensors[name], name=part) for name, part in parts.items()}
        yield from ops(renamed((op,), names | parts))
        for name, part in parts.items():
            yield Kernel(name=f"add {name}{of}", function="add_to", updates=(name,), sources=(part,))

    def _can_be_cut(self, name: str, in_units: bool) -> bool:
        """Whether every rank has as many rows, or whole units of rows, as there are bands."""
        tensor = self._schedule.tensors[name]
        rows, place = tensor.rows, self._schedule.place(self._schedule.grid.size - 1)  # its parts are the shortest
        if (
            name in self._views
            or tensor.shards
            or rows.panel is not None
            or rows.rotated_by
            or (in_units and rows.finer)
        ):
            return False
        start, stop = rows.bounds(place)
        return stop - start >= self.count * (rows.each if in_units else 1)

    def _declared(self, name: str, index: int) -> str:
        """A band of a tensor, declared."""
        whole, band = self.tensors[name], f"{name} [{index + 1} of {self.count}]"
        rows = replace(whole.rows, band=(index, self.count))
        self.tensors[band] = replace(whole, name=band, rows=rows, band_of=name)
        return band


@dataclass(slots=True)
class _Stretch:
    """Ops that are written band by band.

    Parameters
    ----------
    aside : what comes after them: local work that needs all rows or none of this, gathers into what they use
    goes_on : whether what follows uses the last sum row by row
    """

    ops: list[Op] = field(default_factory=list)
    aside: list[Op] = field(default_factory=list)
    goes_on: bool = False

    def touches(self, op: Op) -> bool:
        """Whether an op may not come before this."""
        return _conflict(op, *self.ops, *self.aside)

    def written(self, bands: _Bands) -> Iterator[Op]:
        for index in range(bands.count):
            for op in self.ops:
                if isinstance(op, AllReduce) and bands.is_sum(op):
                    waited_for = index == bands.count - 1 and not self.goes_on and not self.aside
                    yield from bands.of_op(replace(op, concurrent=op.concurrent or not waited_for), index)
                else:
                    yield from bands.of_op(op, index)
        yield from self.aside


class _Cutter:
    """Goes through one program, but not into its loops, and collects stretches of ops that are cut together.

    A stretch begins with a product whose sum comes next, or goes on from a sum; it ends with a sum, or where an op is
    neither cut nor got out of the way.
    """

    def __init__(self, bands: _Bands) -> None:
        self._bands = bands
        self._parts: list[Op | Repeat | _Stretch] = []
        self._open: _Stretch | None = None
        self._late: list[Op] = []  # sums of what all rows of a stretch give, until something uses them: the loss
        self._summed: _Stretch | None = None  # the last one that ended with a sum, while that comes band by band
        self._in_flow: set[str] = set()  # tensors that come band by band: of the open stretch, or of the last sum

    def take(self, op: Op, following: Op | Repeat | None) -> None:
        """The next op.

        Parameters
        ----------
        following : what comes after it, but for gathers of weights
        """
        if self._is_late(op):
            self._late.append(op)
            return
        if _conflict(op, *self._late):
            self._write_late()
        if self._goes_on(op) or self._begins(op, following):
            self._add(op)
        elif self._open and isinstance(op, AllGather) and not self._open.touches(op):
            self._parts.insert(-1, op)  # of weights: before the stretch that may use them
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

    def written(self) -> Program:
        """The program, cut."""
        self._write_late()
        return tuple(
            one for part in self._parts for one in (part.written(self._bands) if isinstance(part, _Stretch) else [part])
        )

    def _goes_on(self, op: Op) -> bool:
        """Whether the op uses, row by row, what comes band by band."""
        used = set(self._bands.of(op)) & set(reads(op))
        return not used.isdisjoint(self._in_flow) and not (self._open and _conflict(op, *self._open.aside))

    def _is_late(self, op: Op) -> bool:
        """Whether the op adds up what all rows of the open stretch give."""
        if not isinstance(op, AllReduce) or self._goes_on(op):
            return False
        return _conflict(op, *self._late) or (self._open is not None and self._open.touches(op))

    def _begins(self, op: Op, following: Op | Repeat | None) -> bool:
        """Whether the op is a product whose rows are those of its first operand, and is summed next; others end."""
        if not isinstance(op, Gemm) or op.layout == "TN" or not self._bands.of(op):
            return False
        if not isinstance(following, AllReduce) or following.buffer != op.c or not self._bands.is_sum(following):
            return False
        self._close()
        self._in_flow = set()
        return True

    def _add(self, op: Op) -> None:
        """Cut an op with the open stretch, or with a new one."""
        if self._open is None:
            if self._summed and self._in_flow:
                self._summed.goes_on = True
            self._open = _Stretch()
            self._parts.append(self._open)
        self._open.ops.append(op)
        self._in_flow |= set(writes(op)) & set(self._bands.of(op))
        if self._bands.is_sum(op):
            self._summed, self._open, self._in_flow = self._open, None, set(writes(op))

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
        if self._summed is None:
            return False
        last = self._summed.ops[-1]
        chained = not (runs_beside(last) or self._summed.aside)
        return chained or not self._in_flow.isdisjoint((*reads(op), *writes(op)))


def _with(op: Op, has: OfRows) -> tuple[str, ...]:
    """The tensors of which a band of a kernel has rows, the whole, or a part of a sum."""
    if not isinstance(op, Kernel) or not by_rows(op.function):
        return ()
    tensors = zip((*op.into, *op.updates, *op.sources), by_rows(op.function), strict=True)
    return tuple(name for name, here in tensors if here == has)


def _conflict(op: Op, *others: Op) -> bool:
    """Whether the op may not change places with one of the others: either writes what both touch."""
    return any({*writes(op)} & {*reads(other), *writes(other)} or {*reads(op)} & {*writes(other)} for other in others)
