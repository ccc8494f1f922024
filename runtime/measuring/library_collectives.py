"""Benchmarks of the MPI library's collectives as a run uses them: after matrix products, on fresh data, in all groups.

A library chooses its algorithm by kind, group size and buffer size, and its algorithms share links differently. So each
collective is measured as runs use it, by ranks that are on their hosts as in a run and that begin together.

The members of a group (its ranks) start the first collective of a run together. They may start a following collective
at different times, and stay out of step: when two members gather 4 MB over 200 Mbit/s, both finish after 89 ms, or one
after 86 ms and the other after 171 ms, again and again (Open MPI 5, four hosts on a switch). So two values are
measured: the first collective of every run, and the one that follows it.

Members that start together may also end apart every time. Where one member combines all summands and returns the sums,
it ends a third earlier than the others (a reduce-scatter of two: 178 and 263 ms). The next operation of the last member
waits for it. Other differences are random, another member each time, and are not recorded.

In broadcasts and reductions the members run ahead of each other, so a single call says little: seen from the last
arrival, a broadcast of 2 MiB to four hosts at 200 Mbit/s took 71 ms alone and 165 ms in SUMMA. So every member is the
root once in a round, and a step takes its share of the round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from statistics import mean, median
from typing import assert_never

from mpi4py import MPI

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import (
    ROOTED,
    AllGather,
    AllReduce,
    Broadcast,
    Calls,
    Collective,
    CollectiveKind,
    Gemm,
    Op,
    Pointwise,
    Reduce,
    ReduceScatter,
)
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Repeat, in_sequence
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.timelines.spans import Span
from quadrille.runtime.carriers.message_options import default_message_options
from quadrille.runtime.carriers.mpi import MpiCarrier
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.host.core_affinity import on_own_cores
from quadrille.runtime.host.progress_reports import report_progress
from quadrille.runtime.host.world import hosts
from quadrille.runtime.measuring.calibration_sizes import FULL
from quadrille.runtime.operands.operands import Operands

KINDS: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter", "all_reduce")
LEAST_SEEN = 6
"""The fewest observations, over all groups and runs, from which a member's lead is recorded.

A lead in six observations happens by chance in one of 32 cases. A group of all ranks occurs once per run, and runs are
few: it counts as if all members ended together. The next operation of such a group waits for the last member anyway.
"""
LEAST_LEAD = 0.1
"""A member is ahead if it ends earlier than the last one by more than this fraction of the last one's seconds."""
STEADY = 0.8
"""A lead is constant if its smallest value is at least this fraction of its largest."""
CLOCKS_SECONDS = 1e-4
"""Ends nearer than this are not distinguished: the clocks of two hosts differ by half a round trip [s]."""
ITEM_BYTES, WARM = 4, 1
IN_A_ROW = 2
"""Steps of a run. Four steps make a calibration a third longer and predict training steps no better."""
FEW_RANKS = 8
"""With more ranks, not all group shapes are measured: a world of 64 has 21."""


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """The measured times of a collective.

    Parameters
    ----------
    seconds : the first collective of each run in the slowest group; with roots, one value per round [s]
    following : the collective that follows it; empty for collectives with roots [s]
    shares : time of each member as a fraction of the last member's time; empty if they end together [members]
    """

    seconds: list[float]
    following: list[float] = field(default_factory=list)
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A division of all ranks into equal groups.

    Parameters
    ----------
    members : number of ranks of each group
    apart : difference of the rank numbers of neighbours in a group
    ranks : number of all ranks

    >>> GroupShape(2, 2, 8).grid().group(3, "y")
    (1, 3)
    """

    members: int
    apart: int
    ranks: int

    def grid(self) -> Grid:
        """The grid whose groups along y have this shape."""
        return Grid(x=self.apart, y=self.members, z=self.ranks // (self.apart * self.members))


def group_shapes(ranks: int) -> Iterator[GroupShape]:
    """The group shapes along an axis of a grid with `ranks` ranks.

    With more than `FEW_RANKS` ranks, only the shapes of the two-axis grid nearest to a square, and the group of all
    ranks.

    >>> [(shape.members, shape.apart) for shape in group_shapes(6)]
    [(2, 1), (2, 3), (3, 1), (3, 2), (6, 1)]
    >>> [(shape.members, shape.apart) for shape in group_shapes(24)], len(list(group_shapes(13)))
    ([(4, 1), (6, 4), (24, 1)], 1)
    """
    if ranks > FEW_RANKS:
        side = max(divisor for divisor in range(1, isqrt(ranks) + 1) if ranks % divisor == 0)
        shapes = ((side, 1), (ranks // side, side), (ranks, 1)) if side > 1 else ((ranks, 1),)
        yield from (GroupShape(members, apart, ranks) for members, apart in shapes)
        return
    for members in range(2, ranks + 1):
        for apart in range(1, ranks // members + 1):
            if ranks % members == 0 and (ranks // members) % apart == 0:
                yield GroupShape(members, apart, ranks)


def collective_chain(
    kind: CollectiveKind, shape: GroupShape, size: int, rounds: int, product_size: int = FULL.chain_product
) -> Schedule:
    """A schedule that writes, multiplies and calls a collective on equal shards, twice.

    For a kind with a root it has `rounds` rounds after one warm-up round; in each round every member is the root once.

    Parameters
    ----------
    kind : kind of collective
    shape : groups in which it runs
    size : approximate size of the buffer [B]
    rounds : number of rounds, for a kind with a root
    product_size : rows and columns of the products
    """
    m, single = Part("m"), Part("one")
    tensors = declare(
        Tensor("A", m, Part("k")),
        Tensor("B", Part("k"), Part("n")),
        Tensor("C", m, Part("n")),
        Tensor("part", Part("e", ("y",)), single),
        Tensor("whole", Part("e"), single),
        Tensor("other", Part("e"), single),
    )
    side = product_size
    piece = max(1, size // ITEM_BYTES // shape.members)
    sizes = {"m": side, "k": side, "n": side, "e": piece * shape.members, "one": 1}
    write = Pointwise(name="write", function="zero", into="part" if kind == "all_gather" else "whole")
    multiply = Gemm(name="multiply", a="A", b="B", c="C")
    body: tuple[Op, ...] = (write, multiply, _step(kind))
    if kind in ROOTED:
        body = tuple(op for root in range(shape.members) for op in _ops_of_root(write, multiply, kind, root))
    iterations = WARM + rounds if kind in ROOTED else IN_A_ROW
    roles = (Role(in_sequence((Repeat("i", iterations, body),)), "x"),)
    return Schedule("library chain", sizes, shape.grid(), "float32", tensors, ("A", "B"), ("C",), roles)


def _step(kind: CollectiveKind, root: int = 0) -> Collective:
    match kind:
        case "all_gather":
            return AllGather(name="step", axis="y", source="part", into="whole")
        case "reduce_scatter":
            return ReduceScatter(name="step", axis="y", source="whole", into="part")
        case "all_reduce":
            return AllReduce(name="step", axis="y", buffer="whole")
        case "broadcast":
            return Broadcast(name="step", axis="y", source="whole", into="other", root=root)
        case "reduce":
            return Reduce(name="step", axis="y", source="whole", into="other", root=root)
        case "all_to_all" | "send_receive" | "barrier":
            raise AssertionError(f"{kind} is not measured")
        case _:
            assert_never(kind)


def _ops_of_root(write: Pointwise, multiply: Gemm, kind: CollectiveKind, root: int) -> tuple[Op, ...]:
    """The ops for one root, under names of their own."""
    return tuple(replace(op, name=f"{op.name} {root}") for op in (write, multiply, _step(kind, root)))


def measure_collective(
    communicator: MPI.Intracomm,
    kind: CollectiveKind,
    shape: GroupShape,
    size: int,
    runs: int,
    calls: Calls | None = None,
    product_size: int = FULL.chain_product,
) -> CollectiveTimes:
    """The times of `runs` runs of two steps, or of `runs` rounds for collectives with roots.

    A collective call with the same result on every rank of the communicator.

    Parameters
    ----------
    communicator : communicator of all ranks
    kind : kind of collective
    shape : groups in which it runs
    size : approximate size of the buffer [B]
    runs : number of runs or rounds
    calls : MPI calls ("regular" or "vector"), for a kind that has both
    product_size : rows and columns of the products
    """
    schedule = collective_chain(kind, shape, size, runs, product_size)
    carrier = MpiCarrier(communicator, message_options=default_message_options(hosts(communicator)[0]))
    operands = Operands(product_size, product_size, product_size, "float32")
    in_rounds = kind in ROOTED
    repeats, warmups = (1, 0) if in_rounds else (runs, WARM)
    with on_own_cores(communicator):
        timelines = execute(
            schedule,
            operands,
            carrier,
            repeats=repeats,
            warmups=warmups,
            choices=Choices("library", calls=calls or "regular"),
            between=report_progress,
        ).timelines
    carrier.close()
    if in_rounds:
        times = CollectiveTimes([seconds for timeline in timelines for seconds in round_seconds(shape, timeline.spans)])
    else:
        first, following = (
            [measure(shape, timeline.spans) for timeline in timelines]
            for measure in (first_seconds, back_to_back_seconds)
        )
        times = CollectiveTimes(first, following, member_shares(shape, [timeline.spans for timeline in timelines]))
    result: CollectiveTimes = communicator.bcast(times, root=0)
    return result


def first_seconds(shape: GroupShape, spans: tuple[Span, ...]) -> float:
    """The time of the first step of a run: from the last member's arrival to the last end, in the slowest group.

    Groups that share links may differ; the next operation waits for the slowest.
    """
    return max(map(max, _group_ends(shape, spans, 0)))


def back_to_back_seconds(shape: GroupShape, spans: tuple[Span, ...]) -> float:
    """The time of the following step: to the mean end, since among members out of step the first to end goes on."""
    return max(map(mean, _group_ends(shape, spans, 1)))


def member_shares(shape: GroupShape, runs: Sequence[tuple[Span, ...]]) -> tuple[float, ...]:
    """For the first step: each member's time as a fraction of the last member's; empty if no member is ahead.

    A member is ahead if it is so in every run and group, by about the same amount; otherwise the lead is random. Groups
    with fewer than `LEAST_SEEN` observations give no result.
    """
    groups = [ends for spans in runs for ends in _group_ends(shape, spans, 0)]
    if len(groups) < LEAST_SEEN:
        return ()
    shares = tuple(_share([(ends[member], max(ends)) for ends in groups]) for member in range(shape.members))
    return shares if min(shares) < 1 else ()


def _share(seen: Sequence[tuple[float, float]]) -> float:
    """A member's fraction of the last member's time, from observed pairs (own, last)."""
    if min(own for own, _ in seen) <= 0:  # none ends before the last has come: clocks of hosts say so
        return 1.0
    leads = [1 - own / last for own, last in seen]
    late = min(last - own for own, last in seen) > CLOCKS_SECONDS
    ahead = late and min(leads) > LEAST_LEAD and min(leads) > STEADY * max(leads)
    return 1 - median(leads) if ahead else 1.0


def round_seconds(shape: GroupShape, spans: tuple[Span, ...]) -> list[float]:
    """The time of one step in each round after the first: what all steps together add to the mean rank's work."""
    rounds: dict[int, list[Span]] = {}
    for span in spans:
        rounds.setdefault(span.index, []).append(span)
    ends = {index: max(span.end for span in spans_of_round) for index, spans_of_round in rounds.items()}
    work = {
        index: sum(span.end - span.start for span in spans_of_round if span.axis is None)
        for index, spans_of_round in rounds.items()
    }
    return [
        (ends[index] - ends[index - 1] - work[index] / shape.ranks) / shape.members
        for index in sorted(rounds)
        if index >= WARM
    ]


def _group_ends(shape: GroupShape, spans: tuple[Span, ...], index: int) -> Iterator[tuple[float, ...]]:
    """For each group, the time from the last member's arrival to each member's end of a step, by coordinate."""
    steps = {span.rank: span for span in spans if span.op == "step" and span.index == index}
    for group in shape.grid().groups("y"):
        last_arrival = max(steps[rank].start for rank in group)
        yield tuple(steps[rank].end - last_arrival for rank in group)
