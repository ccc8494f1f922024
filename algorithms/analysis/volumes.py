"""Volumes of a schedule: bytes sent, flop and memory, counted exactly from the schedule without a run."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from quadrille.algorithms.analysis.coordinate_dependence import PerKind, lengths
from quadrille.algorithms.analysis.folded_walk import folded_walks
from quadrille.algorithms.analysis.rank_symmetry import EquivalentRanks, equivalent_ranks
from quadrille.algorithms.analysis.storage import Storage, storages
from quadrille.algorithms.analysis.traffic import OpAmounts
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.collectives.lowered_collective import CollectiveAlgorithm
from quadrille.algorithms.schedule.grid import EXPERT
from quadrille.algorithms.schedule.kernel_signatures import (
    ATTENTION_PRODUCTS,
    FUSED_ATTENTION,
    OF_BLOCKS,
    SIGNATURES,
    VALUE_PRODUCTS,
    Function,
    FusedAttention,
    attention_columns,
    seen_pairs,
)
from quadrille.algorithms.schedule.ops import Gemm, Kernel, Op, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates, cut, experts_of
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Tensor

if TYPE_CHECKING:
    from quadrille.algorithms.analysis.host_passes import KernelShape


@dataclass(frozen=True, slots=True)
class AttentionProducts:
    """The matrix products of attention on one rank.

    Parameters
    ----------
    count : sequences times query heads
    sequence, head : rows and columns of the queries of one head in a sequence
    item_bytes : bytes of an element
    function : attention kernel: forward or backward, with stored attention weights or without
    rotated_bytes : bytes of queries and keys that rotary positions rotate first, or 0
    drops : whether attention weights are dropped (dropout)
    window : tokens that a token sees; 0 for all before it
    capped : whether scores have a soft cap
    value : columns of the values of one head; 0 for those of queries and keys
    keys : keys of one head in a sequence, if they are not as many as the queries
    whole : tokens of the sequence, if the queries are only some
    kernel : kernel of fused attention; None for the device's usual kernel
    """

    count: int
    sequence: int
    head: int
    item_bytes: int
    function: Function
    rotated_bytes: int = 0
    drops: bool = False
    window: int = 0
    capped: bool = False
    value: int = 0
    keys: int = 0
    whole: int = 0
    kernel: FusedAttention | None = None

    @property
    def key_count(self) -> int:
        """Keys of one head in a sequence."""
        return self.keys or self.sequence

    @property
    def flops(self) -> int:
        """Flop of the causal half of every product, in a window if there is one."""
        whole = self.whole or self.sequence
        pairs = seen_pairs(whole, self.window) * self.sequence * self.key_count
        values = VALUE_PRODUCTS[self.function]
        sides = values * (self.value or self.head) + (ATTENTION_PRODUCTS[self.function] - values) * self.head
        return self.count * pairs * sides // whole**2

    @property
    def backward(self) -> bool:
        """Whether the kernel computes the gradient."""
        return self.function.endswith("gradient")

    @property
    def stores_weights(self) -> bool:
        """Whether the attention weights are stored for the backward pass, which is then not fused."""
        return self.function.startswith(("attention_keeping", "attention_dropping"))


def heads_per_group(op: Kernel) -> int:
    """Returns the query heads that share a key and a value in an attention kernel."""
    return int(dict(op.scalars).get("group", 1))


def attention_products(op: Kernel, schedule: Schedule, coordinates: Coordinates) -> AttentionProducts | None:
    """Returns the matrix products of an attention kernel, or None for another kernel."""
    if op.function not in ATTENTION_PRODUCTS:
        return None
    rows, columns = schedule.tensors[op.sources[0]].block(coordinates).rectangle_shape
    numbers = dict(op.scalars)
    sequence, head = int(numbers["sequence"]), int(numbers["head"])
    group = heads_per_group(op)
    groups, item_bytes = columns // attention_columns(numbers)[0], schedule.item_bytes(op.sources[0])
    whole, keys = 0, 0
    if op.function in OF_BLOCKS:
        whole, sequence = sequence, sequence // int(numbers["context"])
        key_rows, _ = schedule.tensors[op.sources[1]].block(coordinates).rectangle_shape
        keys = sequence * key_rows // rows
    count = rows // sequence * (groups * group)
    rotated_columns = int(numbers.get("rotated", head)) if "rotary_base" in numbers else 0
    return AttentionProducts(
        count,
        sequence,
        head,
        item_bytes,
        op.function,
        rows * groups * (group + 1) * rotated_columns * item_bytes,
        drops="dropout" in numbers,
        window=int(numbers.get("window", 0)),
        capped="score_cap" in numbers,
        value=int(numbers.get("value", 0)),
        keys=keys,
        whole=whole,
        kernel=FUSED_ATTENTION[int(numbers["kernel"]) - 1] if "kernel" in numbers else None,
    )


@dataclass(frozen=True, slots=True)
class OpVolume:
    """Bytes sent by all instances of an op: of the rank that sends most, and of all ranks.

    Parameters
    ----------
    algorithm : own algorithm of a collective, or the one that represents the library's; None for other ops
    """

    count: int
    sent_per_rank_max: int
    sent_total: int
    algorithm: CollectiveAlgorithm | None = None


@dataclass(frozen=True, slots=True)
class Volumes:
    """Bytes, flop and memory of a schedule; maxima are over ranks.

    Parameters
    ----------
    sent_per_rank_max, sent_total : bytes sent, by the rank that sends most and by all ranks [B]
    flops_per_rank_max : flop of matrix products
    peak_bytes_per_rank_max : buffers [B]
    by_op : bytes sent by each op, by op name
    """

    sent_per_rank_max: int
    sent_total: int
    flops_per_rank_max: int
    peak_bytes_per_rank_max: int
    by_op: dict[str, OpVolume]


def volumes(schedule: Schedule, choices: Choices) -> Volumes:
    """Returns the bytes, flop and memory of a schedule, from one representative of each class of ranks.

    Parameters
    ----------
    schedule : the schedule
    choices : implementation and algorithms of its collectives
    """
    classes, counts = equivalent_ranks(schedule, choices), _OpCounts(schedule, choices)
    sent = [_sent_by_op(counts, representative.coordinates) for representative in classes]
    totals = [sum(of_op.sent for of_op in by_op.values()) for by_op in sent]
    return Volumes(
        max(totals),
        sum(total * representative.count for total, representative in zip(totals, classes, strict=True)),
        max(_flops(counts, representative.coordinates) for representative in classes),
        max(storage.bytes for storage in storages_of_classes(schedule, choices)),
        _by_op(sent, classes),
    )


def storages_of_classes(schedule: Schedule, choices: Choices) -> list[Storage]:
    """Returns the buffers of a representative of each class of ranks [elements]."""
    ranks = [representative.coordinates for representative in equivalent_ranks(schedule, choices)]
    return storages(schedule, ranks, choices)


def storages_of_stages(schedule: Schedule, choices: Choices) -> list[Storage]:
    """Returns the buffers of the fullest ranks of each pipeline stage [elements].

    The first rank of a stage is the fullest, because cuts put longer parts first; with unequal loads of experts, the
    first rank or one whose experts have more rows.  All classes of ranks are examined in two cases: any block of a
    pruned matrix may cut tiles, and have room for more kept elements; and a rank that is second by each of several
    loads may have most rows by all.
    """
    grid, tensors = schedule.grid, schedule.tensors.values()
    loads = {tensor.rows.loads for tensor in tensors if tensor.rows.loads}
    if len(loads) > 1 or any(tensor.kept is not None and _cuts_tiles(tensor, schedule) for tensor in tensors):
        return storages_of_classes(schedule, choices)
    firsts = [grid.rank_at({"pipeline": stage}) for stage in range(grid.pipeline)]
    ranks = dict.fromkeys(firsts) | {
        rank: None for first in firsts for load in loads for rank in _ranks_with_more_rows(schedule, first, load)
    }
    return storages(schedule, [schedule.coordinates(rank) for rank in ranks], choices)


def _ranks_with_more_rows(schedule: Schedule, first: int, loads: tuple[int, ...]) -> Iterator[int]:
    """Yields each rank of a group of experts whose experts have more rows than those of all ranks before it."""
    most = -1
    for rank in schedule.grid.group(first, EXPERT):
        rows = sum(loads[slice(*experts_of(schedule.coordinates(rank), len(loads)))])
        if rows > most:
            most = rows
            yield rank


def _cuts_tiles(tensor: Tensor, schedule: Schedule) -> bool:
    """Whether compressed blocks may cut tiles, so that their sizes differ."""
    from quadrille.algorithms.analysis.compressed_sizes import distinct_axes

    return bool(distinct_axes(tensor, (lengths(tensor.rows, schedule), lengths(tensor.columns, schedule)), schedule))


class _OpCounts:
    """Bytes and flop of each op of a schedule, evaluated once for each kind of coordinates."""

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        self.walks = folded_walks(schedule, choices)
        self.amounts = schedule.cached(OpAmounts, choices)
        self.flops = PerKind(schedule, lambda op, coordinates: _product_flops(op, schedule, coordinates))


@dataclass(frozen=True, slots=True)
class _RankTotal:
    """Bytes sent, and number of instances, of one op on one rank."""

    sent: int = 0
    count: int = 0
    algorithm: CollectiveAlgorithm | None = None


def _by_op(sent: list[dict[str, _RankTotal]], classes: list[EquivalentRanks]) -> dict[str, OpVolume]:
    names = list(dict.fromkeys(name for by_op in sent for name in by_op))
    return {
        name: OpVolume(
            max(by_op[name].count for by_op in sent if name in by_op),
            max(by_op[name].sent for by_op in sent if name in by_op),
            sum(
                by_op[name].sent * representative.count
                for by_op, representative in zip(sent, classes, strict=True)
                if name in by_op
            ),
            next((by_op[name].algorithm for by_op in sent if name in by_op and by_op[name].algorithm), None),
        )
        for name in names
    }


def _sent_by_op(counts: _OpCounts, coordinates: Coordinates) -> dict[str, _RankTotal]:
    """Returns the bytes and instances of each op on one rank, by op name."""
    sent: dict[str, _RankTotal] = {}
    for instance in counts.walks.of(coordinates):
        op, before = instance.op, sent.get(instance.op.name, _RankTotal())
        amount = counts.amounts.of(op, instance.coordinates)
        after = replace(before, count=before.count + instance.count)
        if amount is not None:
            after = replace(after, sent=before.sent + amount.sent_bytes * instance.count, algorithm=amount.algorithm)
        sent[op.name] = after
    return sent


def bytes_sent(schedule: Schedule, rank: int, choices: Choices) -> int:
    """Returns the bytes that one rank sends in the whole schedule [B]."""
    return sum(of_op.sent for of_op in _sent_by_op(_OpCounts(schedule, choices), schedule.coordinates(rank)).values())


def flops(schedule: Schedule, coordinates: Coordinates) -> int:
    """Returns the flop of the products of one rank, attention included."""
    return _flops(_OpCounts(schedule, Choices()), coordinates)


def total_flops(schedule: Schedule, choices: Choices) -> int:
    """Returns the flop of the products of all ranks, from one representative of each class of ranks."""
    counts = _OpCounts(schedule, choices)
    return sum(
        representative.count * _flops(counts, representative.coordinates)
        for representative in equivalent_ranks(schedule, choices)
    )


def _flops(counts: _OpCounts, coordinates: Coordinates) -> int:
    return sum(
        counts.flops.of(instance.op, instance.coordinates) * instance.count for instance in counts.walks.of(coordinates)
    )


def _product_flops(op: Op, schedule: Schedule, coordinates: Coordinates) -> int:
    match op:
        case Gemm():
            m, k, n = gemm_sizes(op, schedule, coordinates)
            return 2 * m * k * n
        case Kernel():
            return kernel_work(op, schedule, coordinates).product_flops
        case _:
            return 0


def gemm_sizes(op: Gemm, schedule: Schedule, coordinates: Coordinates) -> tuple[int, int, int]:
    """Returns rows, inner dimension and columns of a local product; those of all experts' products together have the
    rows of all experts.
    """
    rows, columns = schedule.tensors[op.c].block(coordinates).rectangle_shape
    if op.counts and op.layout == "TN":
        return schedule.tensors[op.c].rows.unit, schedule.tensors[op.a].block(coordinates).rectangle_shape[0], columns
    a_rows, a_columns = schedule.tensors[op.a].block(coordinates).rectangle_shape
    return rows, a_rows if op.layout == "TN" else a_columns, columns


def expert_rows(op: Gemm, schedule: Schedule, coordinates: Coordinates) -> tuple[int, ...]:
    """Returns the expected rows of each of the rank's experts in their products; empty for another product.

    The rows of all experts add up to the rows of the activation.
    """
    if not op.counts:
        return ()
    rows, weights = schedule.tensors[op.activations], schedule.tensors[op.weights]
    total = rows.block(coordinates).rectangle_shape[0]
    experts = weights.block(coordinates).rectangle_shape[0] // weights.rows.unit
    if not rows.rows.loads:
        return tuple(stop - start for start, stop in (cut(total, experts, expert) for expert in range(experts)))
    loads = rows.rows.loads[slice(*experts_of(coordinates, len(rows.rows.loads)))]
    ends = [round(total * share / max(1, sum(loads))) for share in accumulate(loads, initial=0)]
    return tuple(stop - start for start, stop in pairwise(ends))


@dataclass(frozen=True, slots=True)
class Work:
    """The cost of a local function on one rank.

    Parameters
    ----------
    flops : flop outside of matrix products
    product_flops : flop of its matrix products (attention)
    touched : bytes read and written [B]
    squares : matrix products of an attention kernel; None for other functions
    shape : sizes of the passes that a host makes; None for a function without passes
    """

    flops: int
    product_flops: int
    touched: int
    squares: AttentionProducts | None = None
    shape: "KernelShape | None" = None


def kernel_work(op: Kernel, schedule: Schedule, coordinates: Coordinates) -> Work:
    """Returns the work of one instance of a layer's function; an updated tensor is read and written."""
    touched = _touched_bytes(op, schedule, coordinates)
    first = schedule.tensors[(*op.sources, *op.updates)[0]].block(coordinates)
    if op.function in ATTENTION_PRODUCTS:
        products = attention_products(op, schedule, coordinates)
        assert products is not None, op
        return Work(0, products.flops, touched, products, kernel_shape(op, schedule, coordinates, touched))
    shape = kernel_shape(op, schedule, coordinates, touched)
    return Work(SIGNATURES[op.function].flops * first.elements, 0, touched, shape=shape)


def _touched_bytes(op: Kernel, schedule: Schedule, coordinates: Coordinates) -> int:
    """Returns the bytes that an instance of a layer's function reads and writes.

    All buckets of a compressed vector together write all elements of the dense block that they are expanded into.
    """

    def size_of(name: str) -> int:
        return schedule.tensors[name].block(coordinates).elements * schedule.item_bytes(name)

    if op.function in ("take_keys_values", "put_keys_values"):
        return 2 * size_of((*op.into, *op.sources)[0])
    if op.function != "expand_bucket":
        return sum(map(size_of, (*reads(op), *writes(op))))
    buckets = schedule.tensors[op.sources[0]].buckets
    return sum(map(size_of, op.sources)) + sum(map(size_of, op.updates)) // (buckets[1] if buckets else 1)


def kernel_shape(op: Kernel, schedule: Schedule, coordinates: Coordinates, touched: int) -> "KernelShape | None":
    """Returns the sizes of the passes that a host makes for a kernel; None for a kernel that is measured whole.

    Parameters
    ----------
    touched : bytes of all operands [B]
    """
    from quadrille.algorithms.analysis.host_passes import BY_MATRIX, PASSED_OVER, TABLE_STREAMS, KernelShape

    if op.function not in BY_MATRIX and op.function not in ATTENTION_PRODUCTS:
        return None
    field, position = PASSED_OVER.get(op.function, ("sources", 0))
    rows, columns = schedule.tensors[getattr(op, field)[position]].block(coordinates).rectangle_shape
    numbers = dict(op.scalars)
    if op.function == "position_sums":
        sequence, _ = schedule.tensors[op.into[0]].block(coordinates).rectangle_shape
        return KernelShape(rows, columns, max(1, sequence), streamed_bytes=touched)
    if op.function not in ATTENTION_PRODUCTS:
        item_bytes = schedule.item_bytes(getattr(op, field)[position])
        streams = TABLE_STREAMS.get(op.function)
        return KernelShape(
            rows, columns, streamed_bytes=touched if streams is None else streams * rows * columns * item_bytes
        )
    head, group = int(numbers["head"]), heads_per_group(op)
    products = attention_products(op, schedule, coordinates)
    assert products is not None, op
    return KernelShape(
        rows,
        columns,
        products.sequence,
        head,
        group,
        columns // attention_columns(numbers)[0],
        rotary="rotary_base" in numbers,
        rotated=int(numbers.get("rotated", 0)),
        value=int(numbers.get("value", 0)),
        capped="score_cap" in numbers,
        drops="dropout" in numbers,
        streamed_bytes=touched,
        keys=products.keys,
        in_pieces="context" not in numbers,
    )
