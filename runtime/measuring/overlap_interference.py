"""What messages cost where they go beside products on cores that hosts share, and how late a rank hears of them.

Both are measured through the executor itself, by a gather beside products and by each alone, so
the thread that looks after messages and what it does to them in Python are in it.  They are
microbenchmarks of two ops; no algorithm is among them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from statistics import mean, median

from mpi4py import MPI

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllGather, Gemm, Op, Pointwise
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Repeat, in_sequence
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.runtime.carriers.message_options import CHUNK_BYTES, MessageOptions
from quadrille.runtime.carriers.mpi import MpiCarrier
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.host.progress_reports import report_progress
from quadrille.runtime.host.world import mpi_allows_threads
from quadrille.runtime.measuring.core_share import on_own_cores
from quadrille.runtime.operands.operands import Operands

SIZE = 1024
PRODUCTS, REPEATS = 4, 7
ITEM_BYTES, SMALL_BYTES = 4, 1 << 10
ROW = 12
"""Gathers of so little, one behind the other."""
CARRIED_SECONDS = 0.3
"""How long a gather lasts that shows what messages take of cores."""
MOST_CARRIED_BYTES = 64e6
"""By each rank: all ranks of a laboratory have what is gathered in the memory of one machine."""
LONGER = 1.5
"""Products last so many times as long as what is beside them."""
LATE_STEP_SECONDS = 0.01
"""More than a step of a chunk is late beside products."""


@dataclass(frozen=True, slots=True)
class OverlapCost:
    """What messages beside products come to.

    Parameters
    ----------
    core_seconds_per_byte : what all cores together spend on a byte that goes from host to host
    late_seconds : how much later a rank that computes hears of what has come
    following_seconds : a step with hardly a byte behind others, where nobody computes; None: not measured
    """

    core_seconds_per_byte: float = 0.0
    late_seconds: float = 0.0
    following_seconds: float | None = None


def overlapped_gather(
    ranks: int, gathered_bytes: int, products: int, *, members: int | None = None, gathers: int = 1
) -> Schedule:
    """So many bytes, of which each member has an equal part, are gathered while each rank multiplies so often.

    Parameters
    ----------
    gathered_bytes : nothing is gathered where there are none
    members : of a group that gathers; all ranks are one group where nothing is said
    gathers : one behind the other, of so many bytes each
    """
    members = members or ranks
    one = Part("one")
    square = Part("m"), Part("m")
    tensors = declare(
        Tensor("A", *square),
        Tensor("B", *square),
        Tensor("C", *square),
        Tensor("part", Part("e", ("x",)), one),
        Tensor("whole", Part("e"), one),
    )
    ops: list[Op] = [Pointwise(name="write", function="zero", into="part")]
    for number in range(gathers if gathered_bytes else 0):
        name = f"gather {number + 1}" if number else "gather"
        ops.append(AllGather(name=name, axis="x", source="part", into="whole", concurrent=True))
    for number in range(products):
        a, b = "AB" if number % 2 == 0 else "BA"
        ops.append(Gemm(name=f"multiply {number + 1}", a=a, b=b, c="C"))
    sizes = {"m": SIZE, "e": max(1, gathered_bytes // ITEM_BYTES), "one": 1}
    grid = Grid(x=members, z=ranks // members)
    return Schedule("beside", sizes, grid, "float32", tensors, ("A", "B"), ("C",), (Role(in_sequence(tuple(ops))),))


def gathers_in_a_row(ranks: int, gathered_bytes: int) -> Schedule:
    """So many bytes are gathered by all ranks, again and again, and nobody computes between."""
    one = Part("one")
    tensors = declare(Tensor("part", Part("e", ("x",)), one), Tensor("whole", Part("e"), one))
    write = Pointwise(name="write", function="zero", into="part")
    gather = AllGather(name="gather", axis="x", source="part", into="whole")
    sizes = {"e": max(1, gathered_bytes // ITEM_BYTES), "one": 1}
    program = in_sequence((write, Repeat("i", ROW, (gather,))))
    return Schedule("row", sizes, Grid(x=ranks), "float32", tensors, (), ("whole",), (Role(program),))


def makespan(timeline: Timeline) -> float:
    return timeline.makespan


def median_seconds(
    communicator: MPI.Intracomm,
    message_options: MessageOptions,
    gathered_bytes: int,
    products: int,
    *,
    repeats: int,
    members: int | None = None,
    gathers: int = 1,
    what: Callable[[Timeline], float] = makespan,
) -> float:
    """Median over repeats of a gather and products at once, at rank 0, and 0.0 on other ranks; all call it."""
    ranks = communicator.Get_size()
    schedule = overlapped_gather(ranks, gathered_bytes, products, members=members, gathers=gathers)
    return _median_of_runs(communicator, message_options, schedule, repeats=repeats, what=what)


def _median_of_runs(
    communicator: MPI.Intracomm,
    message_options: MessageOptions,
    schedule: Schedule,
    *,
    repeats: int,
    what: Callable[[Timeline], float],
) -> float:
    """Median over repeats of what a timeline tells, at rank 0, and 0.0 on other ranks; all call it."""
    carrier = MpiCarrier(communicator, message_options=message_options)
    with on_own_cores(communicator):
        found = execute(
            schedule,
            Operands(SIZE, SIZE, SIZE, "float32"),
            carrier,
            repeats=repeats,
            warmups=1,
            between=report_progress,
            progress=message_options.progress,
        )
    carrier.close()
    return median(map(what, found.timelines)) if found.timelines else 0.0


def measure_overlap_cost(
    communicator: MPI.Intracomm, cores: int, bytes_per_second: float, message_options: MessageOptions
) -> OverlapCost:
    """What messages come to beside products of the ranks, one on each host; all call it and get the same.

    Parameters
    ----------
    bytes_per_second : of the links, both ways at once
    message_options : how messages go; a thread looks after them
    """
    beside = OverlapBenchmark(communicator, replace(message_options, progress="thread"))
    if not mpi_allows_threads():
        return OverlapCost(following_seconds=beside.following_seconds())
    ranks, product = communicator.Get_size(), beside.products_seconds(PRODUCTS) / PRODUCTS
    sent = min(MOST_CARRIED_BYTES, bytes_per_second * CARRIED_SECONDS)
    products = ceil(LONGER * CARRIED_SECONDS / product)
    gathered = round(sent * ranks / (ranks - 1))
    spent = beside.seconds(gathered, products) - beside.products_seconds(products)
    cost = max(0.0, spent) * min(cores, ranks) / (ranks * sent)
    enough = cores / (ranks * bytes_per_second)  # cores suffice to keep all links busy, as steps between hosts show
    return OverlapCost(min(cost, enough), beside.late_seconds(product), beside.following_seconds())


def row_seconds(timeline: Timeline) -> float:
    """Of a gather in a row behind the first, as the mean rank saw it."""
    ends: dict[int, list[float]] = {}
    for span in timeline.spans:
        if span.op == "gather":
            ends.setdefault(span.rank, []).append(span.end)
    return mean((max(of_rank) - min(of_rank)) / (len(of_rank) - 1) for of_rank in ends.values())


def _of_gather(timeline: Timeline) -> float:
    return median(span.seconds for span in timeline.spans if span.op == "gather")


@dataclass(frozen=True, slots=True)
class OverlapBenchmark:
    """Gathers of all ranks beside products, and either alone, by one delivery; every rank gets what is measured."""

    communicator: MPI.Intracomm
    message_options: MessageOptions

    def seconds(self, gathered_bytes: int, products: int, what: Callable[[Timeline], float] = makespan) -> float:
        """Median over repeats."""
        found = median_seconds(
            self.communicator, self.message_options, gathered_bytes, products, repeats=REPEATS, what=what
        )
        return self.communicator.bcast(found, root=0)  # type: ignore[no-any-return]

    def products_seconds(self, products: int) -> float:
        """Of so many products of every rank, one after the other."""
        return self.seconds(0, products)

    def late_seconds(self, product_seconds: float) -> float:
        """How much longer a step of one chunk takes beside products."""
        ranks, chunk_bytes = self.communicator.Get_size(), self.message_options.chunk_bytes or CHUNK_BYTES
        products = ceil(LATE_STEP_SECONDS * ranks / product_seconds) + 1
        alone, beside = (self.seconds(ranks * chunk_bytes, count, _of_gather) for count in (0, products))
        return max(0.0, beside - alone) / (ranks - 1)

    def following_seconds(self) -> float:
        """A step of gathers of hardly anything, one behind the other.

        Of a single one it would be of ranks that have all come at once, which find each other's messages at a look or
        two; behind others they have not.
        """
        ranks, alone = self.communicator.Get_size(), replace(self.message_options, progress="none")
        row = gathers_in_a_row(ranks, ranks * SMALL_BYTES)
        found = _median_of_runs(self.communicator, alone, row, repeats=REPEATS, what=row_seconds)
        return self.communicator.bcast(found, root=0) / (ranks - 1)  # type: ignore[no-any-return]
