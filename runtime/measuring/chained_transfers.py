"""Steps of communication in a chain: between products, on data just written, through the executor itself.

A step timed alone after a barrier is not a step of a run: there the caches hold
the operands of the product before it, and the interpreter has slept.  The
schedules here are the smallest that have this context: write, multiply, send.  Who has to wait for what is sent
one way has no product, where sends are buffered: else it would find the message there.
They are microbenchmarks of single steps; no algorithm is among them.
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
from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES, MessageOptions, default_message_options
from quadrille.runtime.carriers.mpi import MpiCarrier
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.host.world import hosts
from quadrille.runtime.measuring.core_share import on_own_cores
from quadrille.runtime.operands.operands import Operands

Pattern = Literal["shift", "exchange", "one_way"]
PRODUCT_SIZE = 384
WARM, STEPS = 3, 15
LEAST_STEPS = 4
ITEM_BYTES = 8


@dataclass(frozen=True, slots=True)
class Overheads:
    """What an op costs beyond its work.

    Parameters
    ----------
    issue_seconds, compute_seconds : between two ops, and inside a compute op
    alone_seconds : inside a communication op of one rank
    """

    issue_seconds: float
    compute_seconds: float
    alone_seconds: float


class ChainMeasurement(NamedTuple):
    """What a chain came to.

    Parameters
    ----------
    seconds : of each step
    overheads : of the ops beside it
    taken_seconds : how much later than its receiver who sends one way ends, of more than a chunk; None of others
    """

    seconds: list[float]
    overheads: Overheads
    taken_seconds: float | None = None


def chain(pattern: Pattern, ranks: int, size: int, steps: int = STEPS, *, waits: bool = False) -> Schedule:
    """Write, multiply, and send `size` bytes, so many times after some that warm up.

    `shift` sends around the ring of all ranks, `exchange` within pairs (an even
    number of ranks), `one_way` from each even rank to the next one; there
    an answer keeps the sender from running ahead.

    Parameters
    ----------
    waits : whether receivers do not multiply in `one_way`, and so wait for their messages
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
    roles = tuple(_roles(pattern, ranks, WARM + steps, waits=waits))
    grid = Grid(x=2, y=ranks // 2) if pattern == "exchange" else Grid(x=ranks)
    return Schedule("chain", sizes, grid, "float64", tensors, ("A", "B"), ("C",), roles)


def _roles(pattern: Pattern, ranks: int, turns: int, *, waits: bool) -> Iterator[Role]:
    if pattern != "one_way":
        yield _role((Shift(name="step", axis="x", distance=1, source="sent", into="room"),), turns)
        return
    for sender in range(0, ranks - 1, 2):
        receiver = sender + 1
        send, receive = (
            Send(name="step", axis="x", to=receiver, source="sent"),
            Receive(name="step", axis="x", sender=sender, into="room"),
        )
        answer, heard = (
            Send(name="answer", axis="x", to=sender, source="tiny"),
            Receive(name="answer", axis="x", sender=receiver, into="tiny"),
        )
        yield _role((send, heard), turns, sender, receiver)
        yield _role((receive, answer), turns, receiver, receiver + 1, multiplies=not waits)
    if ranks % 2:
        yield _role((Pointwise(name="rest", function="zero", into="tiny"),), turns, ranks - 1)


def _role(
    steps: tuple[Op, ...], turns: int, start: int = 0, stop: int | None = None, *, multiplies: bool = True
) -> Role:
    multiply = Gemm(name="multiply", a="A", b="B", c="C")
    body = (
        Pointwise(name="write", function="zero", into="sent"),
        multiply if multiplies else Pointwise(name="instead", function="zero", into="C"),
        Pointwise(name="tiny", function="zero", into="tiny"),
        AllGather(name="alone", axis="z", source="B", into="B again"),
        *steps,
    )
    return Role(in_sequence((Repeat("i", turns, body),)), "x", start, stop)


def measure_chain(
    communicator: MPI.Intracomm,
    pattern: Pattern,
    size: int,
    steps: int = STEPS,
    *,
    message_options: MessageOptions | None = None,
    library: ArrayLibrary | None = None,
    staging: Staging | None = None,
) -> ChainMeasurement:
    """Seconds of each step, and what is seen beside it.

    A rank's step lasts from when it and those that it sends to and receives from have come to it, to its end; a
    step is the mean of its ranks', of those that receive.  Where messages go in chunks they do so before anybody
    receives them: there a step is what it is for the ranks that were there before their senders, from when these
    came, and who receives one way waits for it.  (Who came late would find it there, and that it took no time.)

    Every rank of the communicator calls it and gets the same.  A chain of fewer steps than usual is slow: it is
    walked once, with its first steps to warm up.

    Parameters
    ----------
    message_options : how messages go, by default as usual between such hosts
    library, staging : of arrays of a device, and how they meet MPI
    """
    operands = Operands(PRODUCT_SIZE, PRODUCT_SIZE, PRODUCT_SIZE, "float64")
    if message_options is None:
        message_options = default_message_options(hosts(communicator)[0]) if library is None else WHOLE_MESSAGES
    buffered = message_options.chunk_bytes > 0
    schedule = chain(pattern, communicator.Get_size(), size, steps, waits=buffered)
    carrier = MpiCarrier(communicator, staging=staging, message_options=message_options)
    with on_own_cores(communicator):
        ran = execute(schedule, operands, carrier, repeats=1, warmups=int(steps >= STEPS), library=library)
    timelines = ran.timelines
    carrier.close()
    found = None
    if timelines:
        taken = taken_seconds(timelines[0]) if pattern == "one_way" and 0 < message_options.chunk_bytes < size else None
        found = ChainMeasurement(
            step_seconds(timelines[0], pattern, buffered=buffered), _overheads(timelines[0]), taken
        )
    return communicator.bcast(found, root=0)  # type: ignore[no-any-return]


def step_seconds(timeline: Timeline, pattern: Pattern, *, buffered: bool) -> list[float]:
    """Seconds of each step after those that warm up.

    Parameters
    ----------
    buffered : whether messages go before anybody receives them; steps in which all came late tell nothing then, unless
        there are no others
    """
    every = _steps(timeline)
    if buffered and (found := [mean(times) for spans in every if (times := _of_waiting(spans, pattern))]):
        return found
    return [_between_all(spans, pattern) for spans in every]


def _steps(timeline: Timeline) -> list[dict[int, Span]]:
    """Of each step after those that warm up, the span of each rank."""
    by_index: dict[int, dict[int, Span]] = {}
    for span in timeline.spans:
        if span.op == "step" and span.index >= WARM:
            by_index.setdefault(span.index, {})[span.rank] = span
    return list(by_index.values())


def _between_all(spans: Mapping[int, Span], pattern: Pattern) -> float:
    return mean(
        span.end - max(spans[other].start for other in (rank, *partners(pattern, rank, len(spans))))
        for rank, span in spans.items()
        if pattern != "one_way" or rank % 2  # a sender may be done before anything has arrived
    )


def _of_waiting(spans: Mapping[int, Span], pattern: Pattern) -> list[float]:
    """Seconds from when a sender came to when its receiver had all, of receivers that were there before."""
    found = []
    for rank, span in spans.items():
        sender = spans[partners(pattern, rank, len(spans))[-1]]
        if (pattern != "one_way" or rank % 2) and span.start <= sender.start:
            found.append(span.end - sender.start)
    return found


def partners(pattern: Pattern, rank: int, ranks: int) -> tuple[int, ...]:
    """Whom a rank sends to and, last, whom it receives from, of the ranks that take part.

    >>> partners("shift", 0, 4), partners("exchange", 3, 4), partners("one_way", 1, 2)
    ((1, 3), (2,), (0,))
    """
    if pattern == "shift":
        return (rank + 1) % ranks, (rank - 1) % ranks
    return (rank ^ 1,)


def taken_seconds(timeline: Timeline) -> float | None:
    """How much later than its receiver, which was there before it, a sender ends; None where none was."""
    found = [
        spans[rank - 1].end - span.end
        for spans in _steps(timeline)
        for rank, span in spans.items()
        if rank % 2 and span.start <= spans[rank - 1].start
    ]
    return max(0.0, median(found)) if found else None


def _overheads(timeline: Timeline) -> Overheads:
    """Of ranks that multiply: who only waits has kept its caches."""
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
