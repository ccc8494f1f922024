"""Benchmarks of point-to-point transfers in chains: each transfer follows a matrix product, as in a run.

The executor runs the chain. A step timed alone after a barrier differs from a step of a run: in a run, the caches hold
the operands of the product before it, and the interpreter has been idle. The schedules here are the smallest with this
context: write, multiply, send. With eager sends, the receiver of one-way messages skips the product; otherwise it would
find the message already there. They are microbenchmarks of single steps and contain no algorithm.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Literal, NamedTuple

from mpi4py import MPI

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllGather, Gemm, Op, Pointwise, Receive, Send, Shift
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Repeat, in_sequence
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.runtime.arrays.array_library import ArrayLibrary
from quadrille.runtime.carriers.communicators import Staging
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES, MessageOptions, default_message_options
from quadrille.runtime.carriers.mpi import MpiCarrier
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.host.core_affinity import on_own_cores
from quadrille.runtime.host.world import hosts
from quadrille.runtime.measuring.calibration_sizes import FULL
from quadrille.runtime.operands.operands import Operands

Pattern = Literal["shift", "exchange", "one_way"]
WARM, STEPS = 3, 15
FILLS = 64
LEAST_STEPS = 4
ITEM_BYTES = 8


@dataclass(frozen=True, slots=True)
class Overheads:
    """The overheads of an op: the time beyond its work.

    Parameters
    ----------
    issue_seconds, compute_seconds : time between two ops, and inside a compute op [s]
    alone_seconds : time inside a communication op of a group of one [s]
    """

    issue_seconds: float
    compute_seconds: float
    alone_seconds: float


class ChainMeasurement(NamedTuple):
    """The results of a chain.

    Parameters
    ----------
    seconds : time of each step [s]
    overheads : overheads of the ops beside it
    sender_ack_delay_seconds : delay between the end of a receive and the end of its one-way send of more than a chunk
        [s]; None for other patterns
    """

    seconds: list[float]
    overheads: Overheads
    sender_ack_delay_seconds: float | None = None


def chain(
    pattern: Pattern,
    ranks: int,
    size: int,
    steps: int = STEPS,
    *,
    waits: bool = False,
    product_size: int = FULL.chain_product,
) -> Schedule:
    """A schedule that writes, multiplies and sends `size` bytes, `steps` times after `WARM` warm-up steps.

    - `shift` sends around the ring of all ranks.
    - `exchange` sends within pairs; it needs an even number of ranks.
    - `one_way` sends from each even rank to the next rank; an answer keeps the sender from running ahead.

    Parameters
    ----------
    waits : whether receivers skip the product in `one_way`, and so wait for their messages
    product_size : rows and columns of the products
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
    sizes = {"m": product_size, "k": product_size, "n": product_size, "p": elements, "one": 1}
    roles = tuple(_roles(pattern, ranks, WARM + steps, waits=waits))
    grid = Grid(x=2, y=ranks // 2) if pattern == "exchange" else Grid(x=ranks)
    return Schedule("chain", sizes, grid, "float64", tensors, ("A", "B"), ("C",), roles)


def _roles(pattern: Pattern, ranks: int, iterations: int, *, waits: bool) -> Iterator[Role]:
    if pattern != "one_way":
        yield _role((Shift(name="step", axis="x", distance=1, source="sent", into="room"),), iterations)
        return
    for sender in range(0, ranks - 1, 2):
        receiver = sender + 1
        send, receive = (
            Send(name="step", axis="x", to=receiver, source="sent"),
            Receive(name="step", axis="x", sender=sender, into="room"),
        )
        answer, answer_receive = (
            Send(name="answer", axis="x", to=sender, source="tiny"),
            Receive(name="answer", axis="x", sender=receiver, into="tiny"),
        )
        yield _role((send, answer_receive), iterations, sender, receiver)
        yield _role((receive, answer), iterations, receiver, receiver + 1, multiplies=not waits)
    if ranks % 2:
        yield _role((Pointwise(name="rest", function="zero", into="tiny"),), iterations, ranks - 1)


def _role(
    steps: tuple[Op, ...], iterations: int, start: int = 0, stop: int | None = None, *, multiplies: bool = True
) -> Role:
    multiply = Gemm(name="multiply", a="A", b="B", c="C")
    body = (
        Pointwise(name="write", function="zero", into="sent"),
        multiply if multiplies else Pointwise(name="instead", function="zero", into="C"),
        Pointwise(name="tiny", function="zero", into="tiny"),
        AllGather(name="alone", axis="z", source="B", into="B again"),
        *steps,
    )
    return Role(in_sequence((Repeat("i", iterations, body),)), "x", start, stop)


def measure_chain(
    communicator: MPI.Intracomm,
    pattern: Pattern,
    size: int,
    steps: int = STEPS,
    *,
    message_options: MessageOptions | None = None,
    library: ArrayLibrary | None = None,
    staging: Staging | None = None,
    product_size: int = FULL.chain_product,
) -> ChainMeasurement:
    """The time of each step and the overheads beside it; a collective call with the same result on every rank.

    A rank's step lasts from the arrival of the rank and its partners to the rank's end. A step's time is the mean over
    the receiving ranks. With chunked messages, data arrive before the receive starts. Then the step counts only the
    ranks that arrived before their senders, from the senders' arrival; a rank that arrives late would find the message
    there.

    A chain with fewer steps than usual is slow: it is executed once, and its first steps are the warm-up.

    Parameters
    ----------
    communicator : communicator of all ranks
    pattern : pattern of the transfers (`chain`)
    size : bytes of each message [B]
    steps : number of steps after the warm-up
    message_options : chunk size and polling of the messages; by default those of a run on such hosts
    library, staging : array library of a device, and the staging of its messages
    product_size : rows and columns of the products
    """
    operands = Operands(product_size, product_size, product_size, "float64")
    if message_options is None:
        message_options = default_message_options(hosts(communicator)[0]) if library is None else WHOLE_MESSAGES
    buffered = message_options.chunk_bytes > 0
    schedule = chain(pattern, communicator.Get_size(), size, steps, waits=buffered, product_size=product_size)
    carrier = MpiCarrier(communicator, staging=staging, message_options=message_options)
    with on_own_cores(communicator):
        execution = execute(schedule, operands, carrier, repeats=1, warmups=int(steps >= STEPS), library=library)
    timelines = execution.timelines
    carrier.close()
    measurement = None
    if timelines:
        ack_delay = (
            sender_ack_delay_seconds(timelines[0])
            if pattern == "one_way" and 0 < message_options.chunk_bytes < size
            else None
        )
        measurement = ChainMeasurement(
            step_seconds(timelines[0], pattern, buffered=buffered), _overheads(timelines[0]), ack_delay
        )
    return communicator.bcast(measurement, root=0)  # type: ignore[no-any-return]


def fills() -> Schedule:
    """A schedule of small fills that follow each other, as those of gradients and optimizer states do."""
    tensors = declare(Tensor("tiny", Part("one"), Part("one")))
    fill = Pointwise(name="tiny", function="zero", into="tiny")
    role = Role(in_sequence((Repeat("i", FILLS, (fill,)),)), "x", 0, None)
    return Schedule("fills", {"one": 1}, Grid(), "float64", tensors, (), (), (role,))


def measure_fills() -> float:
    """The median seconds of a small fill that follows another one, on this rank alone.

    A fill after a product takes longer: the product has displaced the interpreter from the caches.
    """
    execution = execute(fills(), {}, InProcess(1), repeats=1, warmups=1)
    return median(span.seconds for span in execution.timelines[0].spans)


def step_seconds(timeline: Timeline, pattern: Pattern, *, buffered: bool) -> list[float]:
    """The time of each step after the warm-up.

    Parameters
    ----------
    buffered : whether messages arrive before a receive starts; then steps in which all receivers came late are ignored,
        unless there are no others
    """
    steps_spans = _steps(timeline)
    if buffered and (
        waiting := [mean(times) for spans in steps_spans if (times := _waiting_receiver_seconds(spans, pattern))]
    ):
        return waiting
    return [_mean_step_seconds(spans, pattern) for spans in steps_spans]


def _steps(timeline: Timeline) -> list[dict[int, Span]]:
    """The spans of each step after the warm-up, by rank."""
    by_index: dict[int, dict[int, Span]] = {}
    for span in timeline.spans:
        if span.op == "step" and span.index >= WARM:
            by_index.setdefault(span.index, {})[span.rank] = span
    return list(by_index.values())


def _mean_step_seconds(spans: Mapping[int, Span], pattern: Pattern) -> float:
    """The mean time from the arrival of the last partner to the end, over the receiving ranks [s]."""
    return mean(
        span.end - max(spans[partner].start for partner in (rank, *partners(pattern, rank, len(spans))))
        for rank, span in spans.items()
        if pattern != "one_way" or rank % 2  # a sender may be done before anything has arrived
    )


def _waiting_receiver_seconds(spans: Mapping[int, Span], pattern: Pattern) -> list[float]:
    """The times from a sender's arrival to its receiver's end, for receivers that arrived first."""
    seconds = []
    for rank, span in spans.items():
        sender = spans[partners(pattern, rank, len(spans))[-1]]
        if (pattern != "one_way" or rank % 2) and span.start <= sender.start:
            seconds.append(span.end - sender.start)
    return seconds


def partners(pattern: Pattern, rank: int, ranks: int) -> tuple[int, ...]:
    """The rank that a rank sends to and, last, the rank that it receives from.

    >>> partners("shift", 0, 4), partners("exchange", 3, 4), partners("one_way", 1, 2)
    ((1, 3), (2,), (0,))
    """
    if pattern == "shift":
        return (rank + 1) % ranks, (rank - 1) % ranks
    return (rank ^ 1,)


def sender_ack_delay_seconds(timeline: Timeline) -> float | None:
    """The delay from a receiver's end to its sender's end, where the receiver arrived first; None if it never did."""
    delays = [
        spans[rank - 1].end - span.end
        for spans in _steps(timeline)
        for rank, span in spans.items()
        if rank % 2 and span.start <= spans[rank - 1].start
    ]
    return max(0.0, median(delays)) if delays else None


def _overheads(timeline: Timeline) -> Overheads:
    """The overheads of ranks that multiply; ranks that only wait keep their caches."""
    multiplying = {span.rank for span in timeline.spans if span.op == "multiply"}
    spans = [span for span in timeline.spans if span.index >= WARM and span.rank in multiplying]
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
