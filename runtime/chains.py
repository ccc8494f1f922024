"""Steps of communication in a chain: between products, on data just written, through the executor itself.

A step timed alone after a barrier is not a step of a run: there the caches hold
the operands of the product before it, and the interpreter has slept.  The
schedules here are the smallest that have this context: write, multiply, send.
They are microbenchmarks of single steps; no algorithm is among them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Literal

from mpi4py import MPI

from algorithms.grid import Grid
from algorithms.ops import AllGather, Gemm, Op, Pointwise, Receive, Send, Shift
from algorithms.parts import Part
from algorithms.schedule import Repeat, Role, Schedule, declare, in_sequence
from algorithms.tensors import Tensor
from algorithms.timelines.spans import Span
from algorithms.timelines.timeline import Timeline
from runtime.execute import execute
from runtime.mpi import MpiCarrier
from runtime.operands import Operands

Pattern = Literal["shift", "exchange", "one_way"]
PRODUCT_SIZE = 384
WARM, STEPS = 3, 15
ITEM_BYTES = 8


@dataclass(frozen=True, slots=True)
class Overheads:
    """What an op costs beyond its work: between two ops, inside a compute op, inside a communication op of one rank."""

    issue_seconds: float
    compute_seconds: float
    alone_seconds: float


def chain(pattern: Pattern, ranks: int, size: int) -> Schedule:
    """Write, multiply, and send `size` bytes.

    `shift` sends around the ring of all ranks, `exchange` within pairs (an even
    number of ranks), `one_way` from rank 0 to rank 1 while the others multiply.
    """
    elements = max(1, size // ITEM_BYTES)
    m, payload = Part("m"), (Part("p"), Part("one"))
    tensors = declare(
        Tensor("A", m, Part("k")),
        Tensor("B", Part("k"), Part("n")),
        Tensor("C", m, Part("n")),
        Tensor("B again", Part("k"), Part("n")),
        Tensor("tiny", Part("one"), Part("one")),
        Tensor("sent", *payload),
        Tensor("room", *payload),
    )
    sizes = {"m": PRODUCT_SIZE, "k": PRODUCT_SIZE, "n": PRODUCT_SIZE, "p": elements, "one": 1}
    roles = tuple(_roles(pattern))
    grid = Grid(x=2, y=ranks // 2) if pattern == "exchange" else Grid(x=ranks)
    return Schedule("chain", sizes, grid, "float64", tensors, ("A", "B"), ("C",), roles)


def _roles(pattern: Pattern) -> Iterator[Role]:
    if pattern != "one_way":
        yield _role(Shift(name="step", axis="x", distance=1, source="sent", into="room"))
        return
    yield _role(Send(name="step", axis="x", to=1, source="sent"), 0, 1)
    yield _role(Receive(name="step", axis="x", sender=0, into="room"), 1, 2)
    yield _role(Pointwise(name="rest", function="zero", into="tiny"), 2)


def _role(step: Op, start: int = 0, stop: int | None = None) -> Role:
    body = (
        Pointwise(name="write", function="zero", into="sent"),
        Gemm(name="multiply", a="A", b="B", c="C"),
        Pointwise(name="tiny", function="zero", into="tiny"),
        AllGather(name="alone", axis="z", source="B", into="B again"),
        step,
    )
    return Role(in_sequence((Repeat("i", WARM + STEPS, body),)), "x", start, stop)


def measure_chain(communicator: MPI.Intracomm, pattern: Pattern, size: int) -> tuple[list[float], Overheads]:
    """Seconds of each step, from its last rank's start to the mean of its ends, and the overheads beside it.

    Every rank of the communicator calls it and gets the same.
    """
    schedule = chain(pattern, communicator.Get_size(), size)
    operands = Operands(PRODUCT_SIZE, PRODUCT_SIZE, PRODUCT_SIZE, "float64")
    carrier = MpiCarrier(communicator)
    timelines = execute(schedule, operands, carrier, repeats=1, warmups=1).timelines
    carrier.close()
    found = (_steps(timelines[0]), _overheads(timelines[0])) if timelines else None
    result: tuple[list[float], Overheads] = communicator.bcast(found, root=0)
    return result


def _steps(timeline: Timeline) -> list[float]:
    by_index: dict[int, list[Span]] = {}
    for span in timeline.spans:
        if span.op == "step" and span.index >= WARM:
            by_index.setdefault(span.index, []).append(span)
    return [mean(s.end for s in spans) - max(s.start for s in spans) for spans in by_index.values()]


def _overheads(timeline: Timeline) -> Overheads:
    spans = [span for span in timeline.spans if span.index >= WARM]
    gaps = [
        later.start - earlier.end
        for rank in {span.rank for span in spans}
        for own in [sorted((s for s in spans if s.rank == rank), key=lambda s: s.start)]
        for earlier, later in pairwise(own)
    ]
    return Overheads(
        max(0.0, median(gaps)),
        median(span.seconds for span in spans if span.op == "tiny"),
        median(span.end - span.start for span in spans if span.op == "alone"),
    )
