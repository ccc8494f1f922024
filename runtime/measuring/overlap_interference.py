"""Overlap interference: the core time that messages take from concurrent products, and the delay of their notice.

The executor runs an all-gather and matrix products at once, and each of them alone. So the progress thread and its
Python work are included. These are microbenchmarks of two ops and contain no algorithm.
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
from quadrille.runtime.host.core_affinity import on_own_cores
from quadrille.runtime.host.progress_reports import report_progress
from quadrille.runtime.host.world import mpi_allows_threads
from quadrille.runtime.measuring.calibration_sizes import FULL, CalibrationSizes
from quadrille.runtime.measuring.microbenchmarks import Bench, measured_on_first
from quadrille.runtime.operands.operands import Operands

ITEM_BYTES, SMALL_BYTES = 4, 1 << 10
GATHERS_IN_ROW = 12
"""Gathers in a row of tiny buffers."""
MAX_SENT_BYTES = 64e6
"""Most bytes that a rank sends: the gathered data of all hosts of an emulated network share one machine's memory."""
PRODUCT_TIME_FACTOR = 1.5
"""Products last this many times as long as the communication beside them."""
LATE_STEP_SECONDS = 0.01
"""The products last longer than a step of one chunk could be delayed [s]."""


@dataclass(frozen=True, slots=True)
class OverlapCost:
    """The cost of messages that overlap matrix products.

    Parameters
    ----------
    core_seconds_per_byte : core time, over all cores, for a byte that goes from host to host [s/B]
    wakeup_delay_seconds : delay with which a computing rank notices arrived data [s]
    back_to_back_latency_seconds : time of a step with almost no bytes after other steps, no computation [s];
        None if not measured
    """

    core_seconds_per_byte: float = 0.0
    wakeup_delay_seconds: float = 0.0
    back_to_back_latency_seconds: float | None = None


def overlapped_gather(
    ranks: int,
    gathered_bytes: int,
    products: int,
    *,
    members: int | None = None,
    gathers: int = 1,
    product_size: int = FULL.overlap_product,
) -> Schedule:
    """A schedule in which a buffer is gathered while each rank computes some products.

    Parameters
    ----------
    gathered_bytes : size of the gathered buffer; 0 for no gather [B]
    members : size of the gathering groups; by default all ranks form one group
    gathers : gathers in a row, each of that size
    """
    members = members or ranks
    single = Part("one")
    square = Part("m"), Part("m")
    tensors = declare(
        Tensor("A", *square),
        Tensor("B", *square),
        Tensor("C", *square),
        Tensor("part", Part("e", ("x",)), single),
        Tensor("whole", Part("e"), single),
    )
    ops: list[Op] = [Pointwise(name="write", function="zero", into="part")]
    for number in range(gathers if gathered_bytes else 0):
        name = f"gather {number + 1}" if number else "gather"
        ops.append(AllGather(name=name, axis="x", source="part", into="whole", concurrent=True))
    for number in range(products):
        a, b = "AB" if number % 2 == 0 else "BA"
        ops.append(Gemm(name=f"multiply {number + 1}", a=a, b=b, c="C"))
    sizes = {"m": product_size, "e": max(1, gathered_bytes // ITEM_BYTES), "one": 1}
    grid = Grid(x=members, z=ranks // members)
    return Schedule("beside", sizes, grid, "float32", tensors, ("A", "B"), ("C",), (Role(in_sequence(tuple(ops))),))


def gathers_in_a_row(ranks: int, gathered_bytes: int) -> Schedule:
    """A schedule in which all ranks gather a buffer several times without computing."""
    single = Part("one")
    tensors = declare(Tensor("part", Part("e", ("x",)), single), Tensor("whole", Part("e"), single))
    write = Pointwise(name="write", function="zero", into="part")
    gather = AllGather(name="gather", axis="x", source="part", into="whole")
    sizes = {"e": max(1, gathered_bytes // ITEM_BYTES), "one": 1}
    program = in_sequence((write, Repeat("i", GATHERS_IN_ROW, (gather,))))
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
    product_size: int = FULL.overlap_product,
    figure: Callable[[Timeline], float] = makespan,
) -> float:
    """The median time of overlapped gathers and products at rank 0, and 0.0 on other ranks; a collective call."""
    ranks = communicator.Get_size()
    schedule = overlapped_gather(
        ranks, gathered_bytes, products, members=members, gathers=gathers, product_size=product_size
    )
    return _median_of_runs(communicator, message_options, schedule, product_size, repeats=repeats, figure=figure)


def _median_of_runs(
    communicator: MPI.Intracomm,
    message_options: MessageOptions,
    schedule: Schedule,
    product_size: int,
    *,
    repeats: int,
    figure: Callable[[Timeline], float],
) -> float:
    """The median over repeats of a figure of the timeline at rank 0, and 0.0 on other ranks; a collective call."""
    carrier = MpiCarrier(communicator, message_options=message_options)
    with on_own_cores(communicator):
        execution = execute(
            schedule,
            Operands(product_size, product_size, product_size, "float32"),
            carrier,
            repeats=repeats,
            warmups=1,
            between=report_progress,
            progress=message_options.progress,
        )
    carrier.close()
    return median(map(figure, execution.timelines)) if execution.timelines else 0.0


def measure_overlap_cost(
    communicator: MPI.Intracomm,
    cores: int,
    bytes_per_second: float,
    message_options: MessageOptions,
    sizes: CalibrationSizes = FULL,
) -> OverlapCost:
    """The cost of messages beside the products of ranks on one host each; a collective call.

    Parameters
    ----------
    bytes_per_second : rate of the links, both directions at once
    message_options : how messages are sent; a progress thread polls them
    """
    benchmark = OverlapBenchmark(communicator, replace(message_options, progress="thread"), sizes)
    if not mpi_allows_threads():
        return OverlapCost(back_to_back_latency_seconds=benchmark.back_to_back_latency_seconds())
    ranks, product = (
        communicator.Get_size(),
        benchmark.products_seconds(sizes.overlap_products) / sizes.overlap_products,
    )
    sent = min(MAX_SENT_BYTES, bytes_per_second * sizes.overlap_seconds)
    products = ceil(PRODUCT_TIME_FACTOR * sizes.overlap_seconds / product)
    gathered = round(sent * ranks / (ranks - 1))
    spent = benchmark.seconds(gathered, products) - benchmark.products_seconds(products)
    cost = max(0.0, spent) * min(cores, ranks) / (ranks * sent)
    largest_cost = cores / (
        ranks * bytes_per_second
    )  # cores suffice to keep all links busy, as steps between hosts show
    return OverlapCost(
        min(cost, largest_cost), benchmark.wakeup_delay_seconds(product), benchmark.back_to_back_latency_seconds()
    )


def row_seconds(timeline: Timeline) -> float:
    """The time of one gather in a row of gathers, without the first, mean over ranks [s]."""
    ends: dict[int, list[float]] = {}
    for span in timeline.spans:
        if span.op == "gather":
            ends.setdefault(span.rank, []).append(span.end)
    return mean((max(of_rank) - min(of_rank)) / (len(of_rank) - 1) for of_rank in ends.values())


def _of_gather(timeline: Timeline) -> float:
    return median(span.seconds for span in timeline.spans if span.op == "gather")


@dataclass(frozen=True, slots=True)
class OverlapBenchmark:
    """Gathers of all ranks beside products, and each alone, with fixed message options; every rank gets the results."""

    communicator: MPI.Intracomm
    message_options: MessageOptions
    sizes: CalibrationSizes = FULL

    def seconds(self, gathered_bytes: int, products: int, figure: Callable[[Timeline], float] = makespan) -> float:
        """The median over repeats."""
        median_at_root = median_seconds(
            self.communicator,
            self.message_options,
            gathered_bytes,
            products,
            repeats=self.sizes.overlap_repeats,
            product_size=self.sizes.overlap_product,
            figure=figure,
        )
        return self.communicator.bcast(median_at_root, root=0)  # type: ignore[no-any-return]

    def products_seconds(self, products: int) -> float:
        """The time of some products in a row on every rank."""
        return self.seconds(0, products)

    def wakeup_delay_seconds(self, product_seconds: float) -> float:
        """The extra time of a step of one chunk beside products."""
        ranks, chunk_bytes = self.communicator.Get_size(), self.message_options.chunk_bytes or CHUNK_BYTES
        products = ceil(LATE_STEP_SECONDS * ranks / product_seconds) + 1
        alone, benchmark = (self.seconds(ranks * chunk_bytes, count, _of_gather) for count in (0, products))
        return max(0.0, benchmark - alone) / (ranks - 1)

    def back_to_back_latency_seconds(self) -> float:
        """The time of a step in a row of gathers of almost nothing.

        In a single gather all ranks arrive at once and find each other's messages within a poll or two; in a row they
        do not.
        """
        ranks, without_thread = self.communicator.Get_size(), replace(self.message_options, progress="none")
        row = gathers_in_a_row(ranks, ranks * SMALL_BYTES)
        median_at_root = _median_of_runs(
            self.communicator,
            without_thread,
            row,
            self.sizes.overlap_product,
            repeats=self.sizes.overlap_repeats,
            figure=row_seconds,
        )
        return self.communicator.bcast(median_at_root, root=0) / (ranks - 1)  # type: ignore[no-any-return]


PRODUCTS = 1, 2, 3, 1, 2, 3
"""Products in a row without a wait: 15 to 100 ms. In longer series the kernel moves ranks by itself."""


def measure_idle_cores(
    communicator: MPI.Intracomm, cores: int, message_options: MessageOptions, sizes: CalibrationSizes = FULL
) -> float:
    """The idle time of cores when more ranks than cores run products [s]; a collective call.

    It is 0 if there are no more ranks than cores, or one core.

    Parameters
    ----------
    message_options : how ranks wait for each other
    """
    if not 1 < cores < communicator.Get_size():
        return 0.0

    def seconds(bench: Bench) -> list[float]:
        products = OverlapBenchmark(bench.communicator, message_options, sizes)
        return [products.products_seconds(count) for count in PRODUCTS]

    alone, oversubscribed = (measured_on_first(communicator, ranks, seconds) for ranks in (cores, cores + 1))
    return max(0.0, median(2 * last - 3 * first for first, last in zip(alone, oversubscribed, strict=True)))
