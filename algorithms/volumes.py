"""What a schedule does in numbers: bytes sent, floating-point operations and memory, exactly, before anything runs."""

from collections import defaultdict
from dataclasses import dataclass

from algorithms.alike import Alike, alike
from algorithms.choices import Choices
from algorithms.ops import Communication, Gemm
from algorithms.parts import Place
from algorithms.schedule import Schedule, walk
from algorithms.storage import storage
from algorithms.traffic import traffic


@dataclass(frozen=True, slots=True)
class OpVolume:
    """Bytes that all instances of an op put on the wire: of the rank that sends most, and of all ranks."""

    count: int
    sent_per_rank_max: int
    sent_total: int


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
    classes = alike(schedule, choices)
    sent = [_sent_by_op(schedule, one.place, choices) for one in classes]
    totals = [sum(volume for volume, _ in by_op.values()) for by_op in sent]
    return Volumes(
        max(totals),
        sum(total * one.count for total, one in zip(totals, classes, strict=True)),
        max(flops(schedule, one.place) for one in classes),
        max(storage(schedule, one.place, choices).bytes for one in classes),
        _by_op(sent, classes),
    )


def _by_op(sent: list[dict[str, tuple[int, int]]], classes: list[Alike]) -> dict[str, OpVolume]:
    names = list(dict.fromkeys(name for by_op in sent for name in by_op))
    return {
        name: OpVolume(
            max(by_op[name][1] for by_op in sent if name in by_op),
            max(by_op[name][0] for by_op in sent if name in by_op),
            sum(by_op[name][0] * one.count for by_op, one in zip(sent, classes, strict=True) if name in by_op),
        )
        for name in names
    }


def _sent_by_op(schedule: Schedule, place: Place, choices: Choices) -> dict[str, tuple[int, int]]:
    """Bytes sent and instances run by one rank, for each op."""
    sent: dict[str, int] = defaultdict(int)
    count: dict[str, int] = defaultdict(int)
    for op, moment in walk(schedule.program(place), place):
        moved = traffic(op, schedule, moment, choices) if isinstance(op, Communication) else None
        sent[op.name] += moved.bytes_sent if moved is not None else 0
        count[op.name] += 1
    return {name: (sent[name], count[name]) for name in sent}


def bytes_sent(schedule: Schedule, rank: int, choices: Choices) -> int:
    """Bytes that one rank puts on the wire."""
    return sum(volume for volume, _ in _sent_by_op(schedule, schedule.place(rank), choices).values())


def flops(schedule: Schedule, place: Place) -> int:
    """Floating-point operations of the products of one rank."""
    return sum(
        2 * m * k * n
        for op, moment in walk(schedule.program(place), place)
        if isinstance(op, Gemm)
        for m, k, n in [gemm_sizes(op, schedule, moment)]
    )


def gemm_sizes(op: Gemm, schedule: Schedule, place: Place) -> tuple[int, int, int]:
    """Rows, inner dimension and columns of a local product."""
    rows, columns = schedule.tensors[op.c].block(place).rectangle_shape
    a_rows, a_columns = schedule.tensors[op.a].block(place).rectangle_shape
    return rows, a_rows if op.layout == "TN" else a_columns, columns
