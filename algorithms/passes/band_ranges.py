"""Bands of ops, and the order in which the bands of consecutive ops are written.

A band of rows of C = AB uses those rows of A.  A band of dW = HᵀdZ uses those rows of both and is added to the sum of
earlier bands.  Other layer ops follow `kernels.row_bands`.

The last band of a range that continues from a reduction waits longest, and after it the network idles until the next
range has multiplied something.  So independent ops come before it: the first band of the next range, and local work
from further down, such as a weight update:

    gelu, 2 of 3; multiply C, 2 of 3          sum C, 1 of 3
    multiply D, 1 of 3                        sum C, 2 of 3
    update W
    gelu, 3 of 3; multiply C, 3 of 3          sum D, 1 of 3
    multiply D, 2 of 3                        sum C, 3 of 3
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from quadrille.algorithms.analysis.storage import is_single_rank, views
from quadrille.algorithms.passes.rewriting import rename_tensors
from quadrille.algorithms.schedule.kernel_signatures import ATTENTION_PRODUCTS, BandContent, row_bands
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    Communication,
    Compute,
    Gemm,
    Kernel,
    Op,
    Pointwise,
    lane,
    reads,
    writes,
)
from quadrille.algorithms.schedule.program import Program, Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import ITEM_BYTES

LEAST_BYTES_ADDED = ITEM_BYTES["float32"]
"""Least bytes of an element of dW for accumulation by band; fewer would round too much."""
LEAST_ROWS_ADDED = 256
"""Least mean rows of a band for accumulation by band.  An element of dW takes 2 flop for each row, and its addition
moves 12 bytes: at 5 flop/byte, as on CPU cores, 300 rows take ten times as long as the addition.
"""


class BandedOps:
    """The ops of a schedule in `count` bands; `tensors` are those of the schedule and the bands made so far."""

    def __init__(self, schedule: Schedule, count: int) -> None:
        self._schedule, self.count = schedule, count
        self._last_place = schedule.coordinates(schedule.grid.size - 1)
        self._views = schedule.cached(views)
        self.tensors = dict(schedule.tensors)
        self._touched: dict[int, tuple[Op, set[str], set[str]]] = {}

    def cut_in(self, op: Op) -> tuple[str, ...]:
        """Tensors of which a band of the op uses a band; empty if the op cannot be cut."""
        names = self._by_rows(op)
        in_units = isinstance(op, Kernel) and op.function in ATTENTION_PRODUCTS
        return names if all(self._can_be_cut(name, in_units) for name in names) else ()

    def adds_ranks_up(self, op: Op) -> bool:
        """Whether the op is an all-reduce of several ranks that can be cut."""
        return isinstance(op, AllReduce) and not is_single_rank(self._schedule, op.axis) and bool(self.cut_in(op))

    def is_local(self, op: Op) -> bool:
        """Whether one rank executes the op alone."""
        return not isinstance(op, Communication) or is_single_rank(self._schedule, op.axis)

    def band(self, op: Op, index: int) -> Iterator[Op]:
        """Yields a band of an op and declares its tensors; from the second band on, contributions to sums over rows are
        added.
        """
        names = {name: self._declared(name, index) for name in self.cut_in(op)}
        of = f", {index + 1} of {self.count}"
        parts = {name: f"{name} of a band" for name in _tensors_with(op, "sum") if index}
        self.tensors |= {part: replace(self.tensors[name], name=part) for name, part in parts.items()}
        op = replace(op, name=op.name + of)
        if isinstance(op, Gemm) and op.layout == "TN":
            op = replace(op, accumulate=op.accumulate or index > 0)
        yield from ops(rename_tensors((op,), names | parts))
        for name, part in parts.items():
            yield Kernel(name=f"add {name}{of}", function="add_to", updates=(name,), sources=(part,))

    def conflicts(self, op: Op, *others: Op) -> bool:
        """Whether the op may not exchange places with another op, because either writes what both touch."""
        return Footprint(self, *others).conflicts(op)

    def go_together(self, op: Op, *others: Op) -> bool:
        """Whether bands of an op may interleave with bands of others: they share written tensors by rows only."""
        return all(self._shared(op, second) <= self._in_both(self.cut_in(op), self.cut_in(second)) for second in others)

    def _shared(self, op: Op, second: Op) -> set[str]:
        """Buffers that both ops touch and either writes."""
        read, written = self.touched(op)
        read_there, written_there = self.touched(second)
        return (written & (read_there | written_there)) | (read & written_there)

    def touched(self, op: Op) -> tuple[set[str], set[str]]:
        """Buffers that an op reads, and those that it modifies; a rank alone modifies nothing that it has."""
        if id(op) not in self._touched:
            read, written = self._buffers(reads(op)), self._buffers(writes(op))
            alone_with_it = isinstance(op, Communication) and self.is_local(op)
            self._touched[id(op)] = op, read, written - read if alone_with_it else written
        _, read, changed = self._touched[id(op)]
        return read, changed

    def _in_both(self, names: tuple[str, ...], others: tuple[str, ...]) -> set[str]:
        return self._buffers(names) & self._buffers(others)

    def _buffers(self, names: tuple[str, ...]) -> set[str]:
        """Buffers behind these tensors, views resolved."""
        return {self._views.get(name, name) for name in names}

    def _by_rows(self, op: Op) -> tuple[str, ...]:
        """Tensors of which a band of the op uses rows."""
        match op:
            case Gemm(layout="TN"):
                return (op.a, op.b) if op.a != op.b and self._may_be_added(op) else ()
            case Gemm():
                return (op.a, op.c) if op.a != op.b else ()
            case AllReduce():
                return () if op.more else (op.buffer,)
            case Pointwise():
                return (op.into, *op.sources)
            case Kernel():
                return _tensors_with(op, "rows")
            case _:
                return ()

    def _may_be_added(self, product: Gemm) -> bool:
        """Whether dW may be accumulated by band: rounding is small and additions are cheap."""
        rounds_little = self._schedule.item_bytes(product.c) >= LEAST_BYTES_ADDED
        return rounds_little and self._fewest_rows(product.a) >= LEAST_ROWS_ADDED * self.count

    def _can_be_cut(self, name: str, in_units: bool) -> bool:
        """Whether every rank has at least as many rows, or whole units of rows, as there are bands."""
        tensor = self._schedule.tensors[name]
        rows = tensor.rows
        a_window_has_rows = name not in self._views and not tensor.shards and rows.panel is None and not rows.rotated_by
        if not a_window_has_rows or (in_units and rows.finer):
            return False
        return self._fewest_rows(name) >= self.count * (rows.unit if in_units else 1)

    def _fewest_rows(self, name: str) -> int:
        """Rows on the last rank, whose parts are the shortest."""
        start, stop = self._schedule.tensors[name].rows.bounds(self._last_place)
        return stop - start

    def _declared(self, name: str, index: int) -> str:
        """Declares a band of a tensor and returns its name."""
        whole, band = self.tensors[name], f"{name} [{index + 1} of {self.count}]"
        rows = replace(whole.rows, band=(index, self.count))
        self.tensors[band] = replace(whole, name=band, rows=rows, band_of=name)
        return band


class Footprint:
    """Buffers that some ops read and write."""

    def __init__(self, bands: BandedOps, *passed: Op) -> None:
        self._bands = bands
        self._read: set[str] = set()
        self._written: set[str] = set()
        self.add(*passed)

    def add(self, *passed: Op) -> None:
        for op in passed:
            read, written = self._bands.touched(op)
            self._read |= read
            self._written |= written

    def fills(self, op: Op) -> bool:
        """Whether the op reads what these ops write."""
        read, _ = self._bands.touched(op)
        return not self._written.isdisjoint(read)

    def conflicts(self, op: Op) -> bool:
        """Whether the op may not exchange places with one of them."""
        _, written = self._bands.touched(op)
        return self.fills(op) or not (self._read | self._written).isdisjoint(written)


def _tensors_with(op: Op, has: BandContent) -> tuple[str, ...]:
    """Tensors of which a band of a kernel uses rows, the whole, or a part of a sum."""
    if not isinstance(op, Kernel) or not row_bands(op.function):
        return ()
    tensors = zip((*op.into, *op.updates, *op.sources), row_bands(op.function), strict=True)
    return tuple(name for name, here in tensors if here == has)


LEAST_BANDS_AHEAD = 3
"""Least bands for an early start of the next range, so that the reduction it continues from overlaps a product."""


@dataclass(slots=True)
class BandRange:
    """Ops that are written band by band.

    Parameters
    ----------
    goes_on_from : reduction whose bands the range uses
    before : later ops that use nothing of the range: weight gathers, local work
    ops : the ops of the range
    aside : ops after the bands: local work that needs all rows, gathers for it
    followed : whether the next range uses the last reduction row by row
    """

    goes_on_from: AllReduce | None = None
    before: list[Op] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    aside: list[Op] = field(default_factory=list)
    followed: bool = False

    @property
    def body(self) -> list[Op]:
        """Ops that an op before the range has passed."""
        return [*self.ops, *self.aside]

    @property
    def sum(self) -> AllReduce | None:
        """The reduction that ends the range, or None."""
        last = self.ops[-1]
        return last if isinstance(last, AllReduce) else None

    @property
    def awaited(self) -> bool:
        """Whether the final reduction ends before anything else begins."""
        return self.sum is not None and not (self.sum.concurrent or self.followed or self.aside)

    def band(self, bands: BandedOps, index: int) -> Iterator[Op]:
        """Yields one band of the ops."""
        for op in self.ops:
            beside = bands.adds_ranks_up(op) and not (self.awaited and index == bands.count - 1)
            yield from bands.band(replace(op, concurrent=True) if isinstance(op, AllReduce) and beside else op, index)


def may_come_before(op: Op, stretch: BandRange, bands: BandedOps) -> bool:
    """Whether an op is local work or a gather that uses nothing of a range, nor overtakes another op on its lane."""
    if not isinstance(op, Compute | AllGather) or bands.conflicts(op, *stretch.body):
        return False
    return isinstance(op, Compute) or lane(op) not in map(lane, stretch.body)


def banded_program(parts: Sequence[Op | Repeat | BandRange], bands: BandedOps) -> Program:
    """Returns the parts of a program in order, band ranges band by band."""
    program: list[Op | Repeat] = []
    left = list(parts)
    begun: BandRange | None = None
    in_flight = Footprint(bands)
    while left:
        part = left.pop(0)
        in_flight.add(*_released(part, bands))
        if not isinstance(part, BandRange):
            program.append(part)
            continue
        if part is not begun:
            program += [*part.before, *part.band(bands, 0)]
        for index in range(1, bands.count - 1):
            program += part.band(bands, index)
        following = left[0] if left else None
        if isinstance(following, BandRange) and _may_begin(following, part, bands):
            program += [*following.before, *following.band(bands, 0)]
            begun = following
        if part.goes_on_from is not None:
            meanwhile = _meanwhile(part, left, bands, in_flight)
            program += meanwhile
            left = [remaining for remaining in left if not any(remaining is op for op in meanwhile)]
        program += [*part.band(bands, bands.count - 1), *part.aside]
    return tuple(program)


def _ops(part: Op | Repeat | BandRange) -> Iterator[Op]:
    if isinstance(part, BandRange):
        yield from (*part.before, *part.body)
    else:
        yield from ops((part,))


def _released(part: Op | Repeat | BandRange, bands: BandedOps) -> Iterator[Op]:
    """Yields the communication that only users of its results wait for."""
    for op in _ops(part):
        if isinstance(op, Communication) and not bands.is_local(op) and (op.concurrent or isinstance(part, BandRange)):
            yield op


def _may_begin(following: BandRange, stretch: BandRange, bands: BandedOps) -> bool:
    """Whether a range may begin before the last band of the range that it continues from.

    Their reductions must be on different lanes; otherwise its own would queue behind the one that the last band waits
    for.
    """
    before, between = stretch.goes_on_from, stretch.sum
    if before is None or between is None or following.goes_on_from is not between or lane(before) == lane(between):
        return False
    if bands.count < LEAST_BANDS_AHEAD:
        return False
    return all(may_come_before(op, stretch, bands) for op in following.before) and all(
        bands.go_together(op, *stretch.ops) and not bands.conflicts(op, *stretch.aside) for op in following.ops
    )


def _meanwhile(
    stretch: BandRange, left: Sequence[Op | Repeat | BandRange], bands: BandedOps, in_flight: Footprint
) -> list[Op]:
    """Returns the local work up to the next loop that waits for nothing and uses nothing of the range nor of what it
    overtakes.
    """
    work: list[Op] = []
    passed = Footprint(bands, *stretch.body)
    for part in left:
        if isinstance(part, Repeat):
            break
        if isinstance(part, BandRange) or not bands.is_local(part) or passed.conflicts(part) or in_flight.fills(part):
            passed.add(*_ops(part))
        else:
            work.append(part)
    return work
