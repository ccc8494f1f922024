"""Even shards: replaces shards that differ by an element or a row by shards of the mean size, with an error bound.

80 shards of a block with a remainder are 80 different members of a ring: because of
one element no two ranks are equivalent. With *even* shards every part of a
dimension has the mean length, a fraction, and the symmetry is restored.

The error
---------
Let every piece of work (a product, a copy, a message) have at least 1 - ε and at
most 1 + ε times its size with even shards, and let its time grow with its size, at
most in proportion. If all work and all latencies took 1 + ε times as long, so
would everything, exactly, whatever is shared, because rates do not change. The exact
run has no more work than that anywhere, so it ends no later, provided that less
work never makes anything end later. Without contention this holds, because times
are sums and maxima. Likewise the exact run ends no sooner than 1 - ε times the
even one. Hence, without contention,

    |exact - even| <= ε even

Where messages share links this is no theorem: a message that ends a little sooner
may change which messages share, as less work can make a list scheduler slower. The
largest error in random cases is 1.01 ε (30 x 19 x 274, 4d on 24 ranks under six
leaves). The stated bound is therefore 2 ε.

A pipeline whose number of chunks depends on the size may have c chunks with exact
and c' chunks with even shards; the ratio of the two is added to the bound.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import cast

from quadrille.algorithms.analysis.compressed_sizes import compressed_sizes, whole_compressed
from quadrille.algorithms.analysis.coordinate_dependence import lengths
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.collectives.lowering import lower
from quadrille.algorithms.schedule.ops import (
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Gemm,
    Op,
    Reduce,
    collective_kind,
    reads,
    writes,
)
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import Tensor

CONTENTION = 2
"""Factor on the bound without contention, because links are shared."""


def with_even_shards(schedule: Schedule) -> Schedule:
    """The schedule with shards of mean size; dimensions that are cut in panels stay as they are."""
    panelled = {
        part.dimension
        for tensor in schedule.tensors.values()
        for part in (tensor.rows, tensor.columns)
        if part.panel is not None
    }
    sizes = {name: size if name in panelled else Fraction(size) for name, size in schedule.sizes.items()}
    return replace(schedule, sizes=cast(dict[str, int], sizes))  # fractions count as whole numbers do


def even_bound(schedule: Schedule, choices: Choices) -> float:
    """Bound of the difference between the makespans with exact and even shards, relative to the even one."""
    even = with_even_shards(schedule)
    worst = Fraction(0)
    for op in all_ops(schedule):
        for ratio in _sizes(op, schedule, even, choices):
            worst = max(worst, ratio.high - 1, 1 - ratio.low)
    return CONTENTION * float(worst)


@dataclass(frozen=True, slots=True)
class SizeRatio:
    """Smallest and largest size, divided by the mean size."""

    low: Fraction = Fraction(1)
    high: Fraction = Fraction(1)

    def __mul__(self, other: "SizeRatio") -> "SizeRatio":
        return SizeRatio(self.low * other.low, self.high * other.high)


def _sizes(op: Op, schedule: Schedule, even: Schedule, choices: Choices) -> Iterator[SizeRatio]:
    """The ratios of all sizes in an op to the even sizes, in each kind of iteration."""
    variants = {name: schedule.tensors[name].variants for name in (*reads(op), *writes(op))}
    for kind in range(max(map(len, variants.values()), default=0)):
        tensors = {name: of_tensor[min(kind, len(of_tensor) - 1)] for name, of_tensor in variants.items()}
        yield from _sizes_of(op, tensors, schedule, even, choices)


def _sizes_of(
    op: Op, tensors: Mapping[str, Tensor], schedule: Schedule, even: Schedule, choices: Choices
) -> Iterator[SizeRatio]:
    """The ratios of the sizes in an op to the even sizes."""
    for tensor in tensors.values():
        yield _elements(tensor, schedule, even).ratio
    match op:
        case Gemm():
            c, a = tensors[op.c], tensors[op.a]
            inner = a.rows if op.layout == "TN" else a.columns
            yield _part(c.rows, schedule, even) * _part(inner, schedule, even) * _part(c.columns, schedule, even)
        case AllToAll() if not op.counts:
            yield (
                _elements(tensors[op.source], schedule, even).ratio * _elements(tensors[op.into], schedule, even).ratio
            )
        case AllReduce():
            yield _chunked(op, [tensors[name] for name in op.buffers], schedule, even, choices)
        case Broadcast():
            yield _chunked(op, [tensors[op.into]], schedule, even, choices)
        case Reduce():
            yield _chunked(op, [tensors[op.source]], schedule, even, choices)
        case _:
            pass


@dataclass(frozen=True, slots=True)
class _Elements:
    """Elements of the smallest, the mean and the largest block."""

    least: int
    mean: Fraction
    most: int

    def __add__(self, other: "_Elements") -> "_Elements":
        return _Elements(self.least + other.least, self.mean + other.mean, self.most + other.most)

    @property
    def ratio(self) -> SizeRatio:
        """Smallest and largest block, divided by the mean block."""
        return SizeRatio(self.least / self.mean, self.most / self.mean) if self.mean else SizeRatio()


def _elements(tensor: Tensor, schedule: Schedule, even: Schedule) -> _Elements:
    """Elements of the blocks of a tensor."""
    rows, columns = lengths(tensor.rows, schedule), lengths(tensor.columns, schedule)
    mean_rows, mean_columns = (_mean(part, even) for part in (tensor.rows, tensor.columns))
    least, mean, most = min(rows) * min(columns), mean_rows * mean_columns, max(rows) * max(columns)
    if tensor.kept is not None:
        return _compressed_elements(tensor, (rows, columns), schedule, even)
    if not tensor.shards and tensor.buckets is None:
        return _Elements(least, mean, most)
    shards = prod(schedule.grid.length(axis) for axis in tensor.shards)
    shards *= tensor.buckets[1] if tensor.buckets is not None else 1
    return _Elements(least // shards, mean / shards, -(-most // shards))


def _compressed_elements(
    tensor: Tensor, lengths_of: tuple[set[int], set[int]], schedule: Schedule, even: Schedule
) -> _Elements:
    """Elements of the compressed blocks of a pruned matrix."""
    sizes = compressed_sizes(tensor, lengths_of, schedule)
    mean = Fraction(whole_compressed(replace(tensor, stages=None)).block(even.coordinates(0)).elements)
    shards = schedule.grid.data if "data" in tensor.shards else 1
    shards *= tensor.buckets[1] if tensor.buckets is not None else 1
    return _Elements(min(sizes) // shards, mean / shards, -(-max(sizes) // shards))


def _part(part: Part, schedule: Schedule, even: Schedule) -> SizeRatio:
    """Smallest and largest length of a part, divided by the mean length."""
    mean = _mean(part, even)
    return SizeRatio(min(lengths(part, schedule)) / mean, max(lengths(part, schedule)) / mean)


def _mean(part: Part, even: Schedule) -> Fraction:
    """The length of a part with even shards; of a dimension that is cut in panels, the longest panel."""
    return Fraction(max(lengths(part, even)))


def _chunked(
    op: Collective, tensors: Sequence[Tensor], schedule: Schedule, even: Schedule, choices: Choices
) -> SizeRatio:
    """The ratio of the chunks into which a collective cuts its buffers."""
    elements = sum((_elements(tensor, schedule, even) for tensor in tensors), _Elements(0, Fraction(0), 0))
    members = schedule.grid.length(op.axis)
    if isinstance(op, Barrier) or members == 1 or not elements.mean:
        return SizeRatio()
    item, kind = schedule.item_bytes(tensors[0].name), collective_kind(op)
    pieces = [
        lower(
            kind,
            choices.of(op.name).algorithm(kind),
            members,
            size_bytes=int(elements * item),
            per_node=choices.of(op.name).ranks_per_node(op.axis),
            chunk_bytes=choices.of(op.name).chunk_bytes,
            elements=cast(int, elements) if isinstance(op, AllReduce) else None,
        ).pieces
        for elements in (elements.least, elements.mean, elements.most)
    ]
    chunks = Fraction(max(pieces), min(pieces))
    least = Fraction(elements.least // pieces[0]) / (elements.mean / pieces[0])
    most = Fraction(-(-elements.most // pieces[2])) / (elements.mean / pieces[2])
    return SizeRatio(least / chunks, most * chunks)
