"""Band ranges: consecutive ops that a schedule runs band by band, and the order in which their bands are written.

A band is a range of the rows of a matrix.  A band of C = AB uses the same rows of A.  A band of dW = HᵀdZ uses the same
rows of H and dZ, and is added to the sum of earlier bands.  For other layer functions `kernel_signatures.row_bands`
says which tensors are used by rows.

A *band range* is a sequence of ops that are written band by band, and that usually ends with an all-reduce.  If the
range uses the result of the previous all-reduce, its last band waits longest, and after it the network idles until the
next range has multiplied something.  So independent ops come before the last band: the first band of the next range,
and local work from further down, such as a weight update:

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

LEAST_ACCUMULATED_BYTES = ITEM_BYTES["float32"]
"""Least bytes of an element of dW for accumulation by band; fewer would round too much."""
LEAST_ACCUMULATED_ROWS = 256
"""Least mean rows of a band for accumulation by band.  An element of dW takes 2 flop for each row, and its addition
moves 12 bytes: at 5 flop/byte, as on CPU cores, the product of 300 rows takes ten times as long as the addition.
"""


class BandedOps:
    """The rules by which the ops of a schedule are cut into bands, and the tensors of the bands.

    Parameters
    ----------
    schedule : the schedule without bands
    count : number of bands of each tensor
    least_rows : least mean rows of a band for accumulation by band, by default `LEAST_ACCUMULATED_ROWS`

    Attributes
    ----------
    tensors : the tensors of the schedule, and those of the bands that were declared so far
    """

    def __init__(self, schedule: Schedule, count: int, *, least_rows: int | None = None) -> None:
        self._schedule, self.count = schedule, count
        self._least_rows = LEAST_ACCUMULATED_ROWS if least_rows is None else least_rows
        self._last_rank = schedule.coordinates(schedule.grid.size - 1)
        self._views = schedule.cached(views)
        self.tensors = dict(schedule.tensors)
        self._touched: dict[int, tuple[Op, set[str], set[str]]] = {}

    def banded_tensors(self, op: Op) -> tuple[str, ...]:
        """Returns the tensors of which a band of the op uses a band; empty if the op cannot be cut into bands."""
        names = self._by_rows(op)
        keeps_units = isinstance(op, Kernel) and op.function in ATTENTION_PRODUCTS
        return names if all(self._has_enough_rows(name, keeps_units) for name in names) else ()

    def is_banded_all_reduce(self, op: Op) -> bool:
        """Whether the op is an all-reduce of several ranks that can be cut into bands."""
        return (
            isinstance(op, AllReduce) and not is_single_rank(self._schedule, op.axis) and bool(self.banded_tensors(op))
        )

    def is_local(self, op: Op) -> bool:
        """Whether one rank executes the op alone."""
        return not isinstance(op, Communication) or is_single_rank(self._schedule, op.axis)

    def band(self, op: Op, index: int) -> Iterator[Op]:
        """Yields a band of an op and declares its tensors; from the second band on, contributions to sums over rows are
        added.
        """
        names = {name: self._declare_band(name, index) for name in self.banded_tensors(op)}
        suffix = f", {index + 1} of {self.count}"
        parts = {name: f"{name} of a band" for name in _tensors_with(op, "sum") if index}
        self.tensors |= {part: replace(self.tensors[name], name=part) for name, part in parts.items()}
        op = replace(op, name=op.name + suffix)
        if isinstance(op, Gemm) and op.layout == "TN":
            op = replace(op, accumulate=op.accumulate or index > 0)
        yield from ops(rename_tensors((op,), names | parts))
        for name, part in parts.items():
            yield Kernel(name=f"add {name}{suffix}", function="add_to", updates=(name,), sources=(part,))

    def conflicts(self, op: Op, *others: Op) -> bool:
        """Whether the op must keep its order relative to another op, because either writes a buffer that both use."""
        return Footprint(self, *others).conflicts(op)

    def may_interleave(self, op: Op, *others: Op) -> bool:
        """Whether bands of an op may interleave with bands of others: they share written tensors by rows only."""
        return all(
            self._shared(op, second) <= self._common_buffers(self.banded_tensors(op), self.banded_tensors(second))
            for second in others
        )

    def _shared(self, op: Op, second: Op) -> set[str]:
        """Buffers that both ops use and at least one of them writes."""
        read, written = self.touched(op)
        read_there, written_there = self.touched(second)
        return (written & (read_there | written_there)) | (read & written_there)

    def touched(self, op: Op) -> tuple[set[str], set[str]]:
        """Buffers that an op reads, and buffers that it modifies; a single-rank group modifies no source."""
        if id(op) not in self._touched:
            read, written = self._buffers(reads(op)), self._buffers(writes(op))
            alone_with_it = isinstance(op, Communication) and self.is_local(op)
            self._touched[id(op)] = op, read, written - read if alone_with_it else written
        _, read, changed = self._touched[id(op)]
        return read, changed

    def _common_buffers(self, names: tuple[str, ...], others: tuple[str, ...]) -> set[str]:
        return self._buffers(names) & self._buffers(others)

    def _buffers(self, names: tuple[str, ...]) -> set[str]:
        """Buffers behind these tensors, views resolved."""
        return {self._views.get(name, name) for name in names}

    def _by_rows(self, op: Op) -> tuple[str, ...]:
        """Tensors of which a band of the op uses rows."""
        match op:
            case Gemm() if op.counts:
                return ()
            case Gemm(layout="TN"):
                return (op.a, op.b) if op.a != op.b and self._may_accumulate_by_band(op) else ()
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

    def _may_accumulate_by_band(self, product: Gemm) -> bool:
        """Whether dW may be accumulated by band: rounding is small and additions are cheap."""
        rounds_little = self._schedule.item_bytes(product.c) >= LEAST_ACCUMULATED_BYTES
        return rounds_little and self._fewest_rows(product.a) >= self._least_rows * self.count

    def _has_enough_rows(self, name: str, keeps_units: bool) -> bool:
        """Whether every rank has at least as many rows, or whole units of rows, as there are bands."""
        tensor = self._schedule.tensors[name]
        rows = tensor.rows
        a_window_has_rows = name not in self._views and not tensor.shards and rows.panel is None and not rows.rotated_by
        if not a_window_has_rows or (keeps_units and rows.finer):
            return False
        return self._fewest_rows(name) >= self.count * (rows.unit if keeps_units else 1)

    def _fewest_rows(self, name: str) -> int:
        """Rows in the smallest microbatch on the last rank, whose parts are the shortest."""
        variants = self._schedule.tensors[name].rows.variants
        return min(stop - start for start, stop in (rows.bounds(self._last_rank) for rows in variants))

    def _declare_band(self, name: str, index: int) -> str:
        """Declares a band of a tensor and returns its name."""
        whole, band = self.tensors[name], f"{name} [{index + 1} of {self.count}]"
        rows = replace(whole.rows, band=(index, self.count))
        self.tensors[band] = replace(whole, name=band, rows=rows, band_of=name)
        return band


class Footprint:
    """The buffers that a set of ops reads and writes."""

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
        """Whether the op must keep its order relative to at least one of these ops."""
        _, written = self._bands.touched(op)
        return self.fills(op) or not (self._read | self._written).isdisjoint(written)


def _tensors_with(op: Op, content: BandContent) -> tuple[str, ...]:
    """Tensors of which a band of a kernel uses rows, the whole, or a part of a sum."""
    if not isinstance(op, Kernel) or not row_bands(op.function):
        return ()
    tensors = zip((*op.into, *op.updates, *op.sources), row_bands(op.function), strict=True)
    return tuple(name for name, tensor_content in tensors if tensor_content == content)


LEAST_BANDS_AHEAD = 3
"""Least bands for an early start of the next range, so that the reduction it continues from overlaps a product."""


@dataclass(slots=True)
class BandRange:
    """A sequence of ops that is written band by band.

    Parameters
    ----------
    continues_sum : all-reduce of the previous range whose bands this range uses; None if it uses none
    before : ops that come before the bands because they use nothing of the range: weight gathers, local work
    ops : the ops of the range, each cut into bands
    trailing : ops that come after the bands: local work that needs all rows, and gathers for it
    is_continued : whether the next range uses the final all-reduce band by band
    """

    continues_sum: AllReduce | None = None
    before: list[Op] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    trailing: list[Op] = field(default_factory=list)
    is_continued: bool = False

    @property
    def body(self) -> list[Op]:
        """All ops of the range that an op overtakes when it moves before the range."""
        return [*self.ops, *self.trailing]

    @property
    def sum(self) -> AllReduce | None:
        """The all-reduce that ends the range, or None."""
        last = self.ops[-1]
        return last if isinstance(last, AllReduce) else None

    @property
    def sum_is_awaited(self) -> bool:
        """Whether all later ops wait for the final all-reduce."""
        return self.sum is not None and not (self.sum.concurrent or self.is_continued or self.trailing)

    def band(self, bands: BandedOps, index: int) -> Iterator[Op]:
        """Yields one band of the ops."""
        for op in self.ops:
            is_last = self.sum_is_awaited and index == bands.count - 1
            if isinstance(op, AllReduce) and bands.is_banded_all_reduce(op) and not is_last:
                yield from bands.band(replace(op, concurrent=True), index)
            else:
                yield from bands.band(op, index)


def may_come_before(op: Op, band_range: BandRange, bands: BandedOps) -> bool:
    """Whether an op may move before a range: a local op or all-gather that uses no result of the range and overtakes no
    op on its lane.
    """
    if not isinstance(op, Compute | AllGather) or bands.conflicts(op, *band_range.body):
        return False
    return isinstance(op, Compute) or lane(op) not in map(lane, band_range.body)


def banded_program(parts: Sequence[Op | Repeat | BandRange], bands: BandedOps) -> Program:
    """Returns the program in which every band range of `parts` is written band by band.

    Parameters
    ----------
    parts : ops, loops and band ranges in order of execution
    bands : rules by which ops are cut into bands
    """
    program: list[Op | Repeat] = []
    left = list(parts)
    begun_range: BandRange | None = None
    in_flight = Footprint(bands)
    while left:
        part = left.pop(0)
        in_flight.add(*_released(part, bands))
        if not isinstance(part, BandRange):
            program.append(part)
            continue
        if part is not begun_range:
            program += [*part.before, *part.band(bands, 0)]
        for index in range(1, bands.count - 1):
            program += part.band(bands, index)
        following = left[0] if left else None
        if isinstance(following, BandRange) and _may_begin(following, part, bands):
            program += [*following.before, *following.band(bands, 0)]
            begun_range = following
        if part.continues_sum is not None:
            independent = _independent_work(part, left, bands, in_flight)
            program += independent
            left = [remaining for remaining in left if not any(remaining is op for op in independent)]
        program += [*part.band(bands, bands.count - 1), *part.trailing]
    return tuple(program)


def _ops(part: Op | Repeat | BandRange) -> Iterator[Op]:
    if isinstance(part, BandRange):
        yield from (*part.before, *part.body)
    else:
        yield from ops((part,))


def _released(part: Op | Repeat | BandRange, bands: BandedOps) -> Iterator[Op]:
    """Yields the communication ops for which only ops that use their results wait."""
    for op in _ops(part):
        if isinstance(op, Communication) and not bands.is_local(op) and (op.concurrent or isinstance(part, BandRange)):
            yield op


def _may_begin(following: BandRange, band_range: BandRange, bands: BandedOps) -> bool:
    """Whether the next range may begin before the last band of a range whose final all-reduce it continues.

    The final all-reduce of `band_range` and the all-reduce that `band_range` continues must be on different lanes.
    Otherwise the former would queue behind the latter, for which the last band waits.
    """
    continued, final = band_range.continues_sum, band_range.sum
    if continued is None or final is None or following.continues_sum is not final or lane(continued) == lane(final):
        return False
    if bands.count < LEAST_BANDS_AHEAD:
        return False
    return all(may_come_before(op, band_range, bands) for op in following.before) and all(
        bands.may_interleave(op, *band_range.ops) and not bands.conflicts(op, *band_range.trailing)
        for op in following.ops
    )


def _independent_work(
    band_range: BandRange, left: Sequence[Op | Repeat | BandRange], bands: BandedOps, in_flight: Footprint
) -> list[Op]:
    """Returns the local ops up to the next loop that wait for no communication and conflict with no op that they
    overtake.
    """
    work: list[Op] = []
    passed = Footprint(bands, *band_range.body)
    for part in left:
        if isinstance(part, Repeat):
            break
        if isinstance(part, BandRange) or not bands.is_local(part) or passed.conflicts(part) or in_flight.fills(part):
            passed.add(*_ops(part))
        else:
            work.append(part)
    return work
