"""The MPI library's collectives behind products, on data just written, in all groups of a shape at once.

A library chooses its algorithm by the kind, the size of the group and the size of the
buffer, and its algorithms share links in their own ways.  So each is measured as it is
used, by ranks that lie on their hosts as those of a run do and that begin together.

The first of a run finds members that came together, one that follows another may not, and they stay
out of step: of two that gather 4 MB over 200 Mbit/s both have all after 89 ms, or one after 86 and the other
after 171, again and again (Open MPI 5, four hosts on a switch).  So both are measured, the first of every run
and the one that follows it.

Members that come together may end apart, for good: where summands go to one member, and sums from there to the
others, that one ends a third before these (a reduce-scatter of two, 178 and 263 ms).  Whoever waits for the last
of them next, waits for that.  Others end apart by chance, one this time and another the next, and count as if
they had not.

In broadcasts and reductions members run ahead of each other, so a single one says little:
seen from the last to come, one of 2 MiB to four hosts at 200 Mbit/s took 71 ms, in SUMMA 165.
So every member is the root once in a round, and a step takes its share of the round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from statistics import mean, median
from typing import assert_never

from mpi4py import MPI

from quadrille.algorithms.collectives.choices import Choices
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
from quadrille.runtime.host.progress_reports import report_progress
from quadrille.runtime.host.world import hosts
from quadrille.runtime.measuring import chained_transfers as chains
from quadrille.runtime.measuring.core_share import on_own_cores
from quadrille.runtime.operands.operands import Operands

KINDS: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter", "all_reduce")
LEAST_SEEN = 6
"""A lead counts if it was seen so often, groups of each run counted: one of two members has it by chance once in 32.

Groups of all ranks are one in each run, and runs are fewer: they count as if all ended together.  What comes next in
such a group waits for the last of them anyway.
"""
LEAST_LEAD = 0.1
"""A member is ahead that ends before the last one by more than this part of that one's seconds."""
STEADY = 0.8
"""A lead is the same each time that is never less than this part of the longest."""
CLOCKS_SECONDS = 1e-4
"""Ends nearer to each other are not told apart: clocks of two hosts differ by half of a round trip."""
ROUNDS = 2
"""In which every member is the root once, after one that warms up."""
ITEM_BYTES, WARM = 4, 1
IN_A_ROW = 2
"""Steps of a run.  With four of them a calibration takes a third longer, and tells no more of training steps."""
FEW_RANKS = 8
"""Of more ranks not all shapes are measured: a world of 64 has 21."""


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """What was measured of a collective.

    Parameters
    ----------
    seconds : of the first of each run in the slowest group; with roots of one in each round
    following : of the one behind it; with roots of none
    shares : what each member of the first takes of the last one's seconds; none where they end together [members]
    """

    seconds: list[float]
    following: list[float] = field(default_factory=list)
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Groups of so many members, so many ranks apart, of so many ranks in all.

    >>> GroupShape(2, 2, 8).grid().group(3, "y")
    (1, 3)
    """

    members: int
    apart: int
    ranks: int

    def grid(self) -> Grid:
        """The grid whose groups along y they are."""
        return Grid(x=self.apart, y=self.members, z=self.ranks // (self.apart * self.members))


def group_shapes(ranks: int) -> Iterator[GroupShape]:
    """Shapes that groups along an axis of a grid of so many ranks can have: all, or a few where there are many.

    The few are those of the grid of two axes that is most like a square, and all ranks.

    >>> [(shape.members, shape.apart) for shape in group_shapes(6)]
    [(2, 1), (2, 3), (3, 1), (3, 2), (6, 1)]
    >>> [(shape.members, shape.apart) for shape in group_shapes(24)], len(list(group_shapes(13)))
    ([(4, 1), (6, 4), (24, 1)], 1)
    """
    if ranks > FEW_RANKS:
        side = max(one for one in range(1, isqrt(ranks) + 1) if ranks % one == 0)
        few = ((side, 1), (ranks // side, side), (ranks, 1)) if side > 1 else ((ranks, 1),)
        yield from (GroupShape(members, apart, ranks) for members, apart in few)
        return
    for members in range(2, ranks + 1):
        for apart in range(1, ranks // members + 1):
            if ranks % members == 0 and (ranks // members) % apart == 0:
                yield GroupShape(members, apart, ranks)


def collective_chain(kind: CollectiveKind, shape: GroupShape, size: int, rounds: int) -> Schedule:
    """Write, multiply, and a collective on a buffer of about `size` bytes, in equal pieces, and once more.

    With roots it is so many rounds after one that warms up, in which every member is the root in turn.
    """
    m, one = Part("m"), Part("one")
    tensors = declare(
        Tensor("A", m, Part("k")),
        Tensor("B", Part("k"), Part("n")),
        Tensor("C", m, Part("n")),
        Tensor("part", Part("e", ("y",)), one),
        Tensor("whole", Part("e"), one),
        Tensor("other", Part("e"), one),
    )
    side = chains.PRODUCT_SIZE
    piece = max(1, size // ITEM_BYTES // shape.members)
    sizes = {"m": side, "k": side, "n": side, "e": piece * shape.members, "one": 1}
    write = Pointwise(name="write", function="zero", into="part" if kind == "all_gather" else "whole")
    multiply = Gemm(name="multiply", a="A", b="B", c="C")
    body: tuple[Op, ...] = (write, multiply, _step(kind))
    if kind in ROOTED:
        body = tuple(op for root in range(shape.members) for op in _turn(write, multiply, kind, root))
    turns = WARM + rounds if kind in ROOTED else IN_A_ROW
    roles = (Role(in_sequence((Repeat("i", turns, body),)), "x"),)
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
        case "all_to_all" | "barrier":
            raise AssertionError(f"{kind} is not measured")
        case _:
            assert_never(kind)


def _turn(write: Pointwise, multiply: Gemm, kind: CollectiveKind, root: int) -> tuple[Op, ...]:
    """What is done for one root, by names of its own."""
    return tuple(replace(op, name=f"{op.name} {root}") for op in (write, multiply, _step(kind, root)))


def measure_collective(
    communicator: MPI.Intracomm,
    kind: CollectiveKind,
    shape: GroupShape,
    size: int,
    runs: int,
    calls: Calls | None = None,
) -> CollectiveTimes:
    """So many runs of two steps, or with roots so many rounds.

    Every rank of the communicator calls it and gets the same.

    Parameters
    ----------
    calls : MPI's, of a kind that has two
    """
    schedule = collective_chain(kind, shape, size, runs)
    side = chains.PRODUCT_SIZE
    carrier = MpiCarrier(communicator, message_options=default_message_options(hosts(communicator)[0]))
    operands = Operands(side, side, side, "float32")
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
        found = CollectiveTimes([seconds for timeline in timelines for seconds in round_seconds(shape, timeline.spans)])
    else:
        first, following = (
            [told(shape, one.spans) for one in timelines] for told in (first_seconds, following_seconds)
        )
        found = CollectiveTimes(first, following, member_shares(shape, [one.spans for one in timelines]))
    result: CollectiveTimes = communicator.bcast(found, root=0)
    return result


def first_seconds(shape: GroupShape, spans: tuple[Span, ...]) -> float:
    """Of the first step of a run: from when the last member has come to it, to the last end.

    Of groups that share links some may be faster; whoever comes next waits for the slowest.
    """
    return max(map(max, _of_groups(shape, spans, 0)))


def following_seconds(shape: GroupShape, spans: tuple[Span, ...]) -> float:
    """Of the step that follows it: to the mean end, since of members out of step the first to end goes on."""
    return max(map(mean, _of_groups(shape, spans, 1)))


def member_shares(shape: GroupShape, runs: Sequence[tuple[Span, ...]]) -> tuple[float, ...]:
    """Of the first step: what each member takes of the last one's seconds; none where no one is ahead.

    Ahead is who was so in every run and group, by about as much in each, since by chance it is now one and now another;
    of groups seen less than `LEAST_SEEN` times nothing is said.
    """
    groups = [ends for spans in runs for ends in _of_groups(shape, spans, 0)]
    if len(groups) < LEAST_SEEN:
        return ()
    shares = tuple(_share([(ends[member], max(ends)) for ends in groups]) for member in range(shape.members))
    return shares if min(shares) < 1 else ()


def _share(seen: Sequence[tuple[float, float]]) -> float:
    """What a member takes of the last one's seconds, from both as they were seen."""
    if min(own for own, _ in seen) <= 0:  # none ends before the last has come: clocks of hosts say so
        return 1.0
    leads = [1 - own / last for own, last in seen]
    late = min(last - own for own, last in seen) > CLOCKS_SECONDS
    ahead = late and min(leads) > LEAST_LEAD and min(leads) > STEADY * max(leads)
    return 1 - median(leads) if ahead else 1.0


def round_seconds(shape: GroupShape, spans: tuple[Span, ...]) -> list[float]:
    """Of a step in each round after the first: what all steps together add to the work of the mean rank."""
    rounds: dict[int, list[Span]] = {}
    for span in spans:
        rounds.setdefault(span.index, []).append(span)
    ends = {index: max(span.end for span in told) for index, told in rounds.items()}
    work = {index: sum(span.end - span.start for span in told if span.axis is None) for index, told in rounds.items()}
    return [
        (ends[index] - ends[index - 1] - work[index] / shape.ranks) / shape.members
        for index in sorted(rounds)
        if index >= WARM
    ]


def _of_groups(shape: GroupShape, spans: tuple[Span, ...], index: int) -> Iterator[tuple[float, ...]]:
    """Of a step in each group: from when the last member had come to each member's end, by coordinate."""
    steps = {span.rank: span for span in spans if span.op == "step" and span.index == index}
    for group in shape.grid().groups("y"):
        come = max(steps[rank].start for rank in group)
        yield tuple(steps[rank].end - come for rank in group)
