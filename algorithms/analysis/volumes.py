"""What a schedule does in numbers: bytes sent, floating-point operations and memory, exactly, before anything runs."""

from dataclasses import dataclass, replace

from quadrille.algorithms.analysis.coordinate_dependence import PerKind
from quadrille.algorithms.analysis.folded_walk import FoldedWalks
from quadrille.algorithms.analysis.rank_symmetry import EquivalentRanks, equivalent_ranks
from quadrille.algorithms.analysis.storage import storages
from quadrille.algorithms.analysis.traffic import OpAmount, op_amount
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.collectives.lowered import Name
from quadrille.algorithms.schedule.kernels import ATTENTION_PRODUCTS, SIGNATURES, Function, attention_flops
from quadrille.algorithms.schedule.ops import Communication, Gemm, Kernel, Op, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class AttentionProducts:
    """The square products of attention on one rank.

    Parameters
    ----------
    count : sequences times query heads
    sequence, head : rows and columns of queries, keys and values of one
    item_bytes : of an element
    function : whose they are: forward or backward, with the weights kept between them or not
    rotated_bytes : of the queries and keys, where they are turned by their positions first; else 0
    """

    count: int
    sequence: int
    head: int
    item_bytes: int
    function: Function
    rotated_bytes: int = 0

    @property
    def flops(self) -> int:
        """Of the causal half of every product."""
        return self.count * ATTENTION_PRODUCTS[self.function] * self.sequence**2 * self.head

    @property
    def backward(self) -> bool:
        return self.function.endswith("gradient")

    @property
    def kept(self) -> bool:
        """Whether the softmax's weights are kept for the backward pass, which is then never fused."""
        return self.function.startswith("attention_keeping")


def heads_per_group(op: Kernel) -> int:
    """Query heads that share a key and a value in an attention kernel."""
    return int(dict(op.scalars).get("group", 1))


def attention_products(op: Kernel, schedule: Schedule, place: Coordinates) -> AttentionProducts | None:
    """What a kernel has of them; None for one that is not attention."""
    if op.function not in ATTENTION_PRODUCTS:
        return None
    rows, columns = schedule.tensors[op.sources[0]].block(place).rectangle_shape
    numbers = dict(op.scalars)
    sequence, head = int(numbers["sequence"]), int(numbers["head"])
    group = heads_per_group(op)
    groups, item_bytes = columns // ((group + 2) * head), schedule.item_bytes(op.sources[0])
    count = rows // sequence * (groups * group)
    rotated = rows * groups * (group + 1) * head * item_bytes if "rotary_base" in numbers else 0
    return AttentionProducts(count, sequence, head, item_bytes, op.function, rotated)


@dataclass(frozen=True, slots=True)
class OpVolume:
    """Bytes that all instances of an op put on the wire: of the rank that sends most, and of all ranks.

    Parameters
    ----------
    algorithm : of our own that carries out a collective, or stands for the library's, on some rank; None of other ops
    """

    count: int
    sent_per_rank_max: int
    sent_total: int
    algorithm: Name | None = None


@dataclass(frozen=True, slots=True)
class Volumes:
    """Bytes, flop and memory of a schedule; maxima are over ranks."""

    sent_per_rank_max: int
    sent_total: int
    flops_per_rank_max: int
    peak_bytes_per_rank_max: int
    by_op: dict[str, OpVolume]


def volumes(schedule: Schedule, choices: Choices) -> Volumes:
    """The numbers of a schedule, from one representative of each class of ranks."""
    classes, known = equivalent_ranks(schedule, choices), _Known(schedule, choices)
    sent = [_sent_by_op(known, one.coordinates) for one in classes]
    totals = [sum(of_op.sent for of_op in by_op.values()) for by_op in sent]
    return Volumes(
        max(totals),
        sum(total * one.count for total, one in zip(totals, classes, strict=True)),
        max(_flops(known, one.coordinates) for one in classes),
        max(found.bytes for found in storages(schedule, [one.coordinates for one in classes], choices)),
        _by_op(sent, classes),
    )


class _Known:
    """What each op of a schedule sends and computes, found once for each kind of place."""

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        self._schedule, self._choices = schedule, choices
        self.walks = FoldedWalks(schedule, choices)
        self.amounts = PerKind(schedule, self._amount)
        self.flops = PerKind(schedule, lambda op, place: _product_flops(op, schedule, place))

    def _amount(self, op: Op, place: Coordinates) -> OpAmount | None:
        return op_amount(op, self._schedule, place, self._choices) if isinstance(op, Communication) else None


@dataclass(frozen=True, slots=True)
class _Sent:
    """Bytes sent and instances run by one rank."""

    sent: int = 0
    count: int = 0
    algorithm: Name | None = None


def _by_op(sent: list[dict[str, _Sent]], classes: list[EquivalentRanks]) -> dict[str, OpVolume]:
    names = list(dict.fromkeys(name for by_op in sent for name in by_op))
    return {
        name: OpVolume(
            max(by_op[name].count for by_op in sent if name in by_op),
            max(by_op[name].sent for by_op in sent if name in by_op),
            sum(by_op[name].sent * one.count for by_op, one in zip(sent, classes, strict=True) if name in by_op),
            next((by_op[name].algorithm for by_op in sent if name in by_op and by_op[name].algorithm), None),
        )
        for name in names
    }


def _sent_by_op(known: _Known, place: Coordinates) -> dict[str, _Sent]:
    """What one rank sends in each op."""
    found: dict[str, _Sent] = {}
    for one in known.walks.of(place):
        op, before = one.op, found.get(one.op.name, _Sent())
        moved = known.amounts.of(op, one.coordinates)
        after = replace(before, count=before.count + one.count)
        if moved is not None:
            after = replace(after, sent=before.sent + moved.sent_bytes * one.count, algorithm=moved.algorithm)
        found[op.name] = after
    return found


def bytes_sent(schedule: Schedule, rank: int, choices: Choices) -> int:
    """Bytes that one rank puts on the wire."""
    return sum(of_op.sent for of_op in _sent_by_op(_Known(schedule, choices), schedule.coordinates(rank)).values())


def flops(schedule: Schedule, place: Coordinates) -> int:
    """Floating-point operations of the products of one rank, those of attention among them."""
    return _flops(_Known(schedule, Choices()), place)


def _flops(known: _Known, place: Coordinates) -> int:
    return sum(known.flops.of(one.op, one.coordinates) * one.count for one in known.walks.of(place))


def _product_flops(op: Op, schedule: Schedule, place: Coordinates) -> int:
    match op:
        case Gemm():
            m, k, n = gemm_sizes(op, schedule, place)
            return 2 * m * k * n
        case Kernel():
            return kernel_work(op, schedule, place).product_flops
        case _:
            return 0


def gemm_sizes(op: Gemm, schedule: Schedule, place: Coordinates) -> tuple[int, int, int]:
    """Rows, inner dimension and columns of a local product."""
    rows, columns = schedule.tensors[op.c].block(place).rectangle_shape
    a_rows, a_columns = schedule.tensors[op.a].block(place).rectangle_shape
    return rows, a_rows if op.layout == "TN" else a_columns, columns


@dataclass(frozen=True, slots=True)
class Work:
    """What a local function costs: flop, those of products apart, bytes read and written, and attention's products."""

    flops: int
    product_flops: int
    touched: int
    squares: AttentionProducts | None = None


def kernel_work(op: Kernel, schedule: Schedule, place: Coordinates) -> Work:
    """The work of one instance of a layer's function; an update is read and written."""
    names = (*reads(op), *writes(op))
    touched = sum(schedule.tensors[name].block(place).elements * schedule.item_bytes(name) for name in names)
    first = schedule.tensors[(*op.sources, *op.updates)[0]].block(place)
    if op.function in ATTENTION_PRODUCTS:
        rows, columns = first.rectangle_shape
        sequence, group = int(dict(op.scalars)["sequence"]), heads_per_group(op)
        product_flops = attention_flops(op.function, rows, columns // (group + 2) * group, sequence)
        return Work(0, product_flops, touched, attention_products(op, schedule, place))
    return Work(SIGNATURES[op.function].flops * first.elements, 0, touched)
