"""Microbenchmarks of one host: GEMMs, memory-bound kernels, transfers between ranks and the overheads of ops.

All ranks of a communicator measure at the same time, as the ranks of a run compute. `measured_on_first` lets some ranks
measure while the others sleep. Operands rotate through a pool larger than the cache, because a run finds its operands
so. Communication steps are measured in chains (`chained_transfers.py`). A reference product beside each point tells
whether another process ran; such a point is measured again.

Nothing here knows an algorithm, and nothing is fitted.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean, median
from typing import Any, TypeVar, cast

import numpy as np
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from quadrille.algorithms.formats.measured_rows import KernelRow, MemoryRow, PassRow, StreamOperation
from quadrille.algorithms.formats.percentiles import spread
from quadrille.algorithms.schedule.kernel_signatures import Function, PassOperation
from quadrille.algorithms.schedule.ops import Calls, CollectiveKind
from quadrille.algorithms.schedule.tensors import DType
from quadrille.runtime.arrays.array_library import ArrayLibrary
from quadrille.runtime.arrays.numpy_library import NumpyLibrary, keep_freed_memory
from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.host.progress_reports import report_progress
from quadrille.runtime.kernels.layer_kernels import carry_out
from quadrille.runtime.measuring.benchmark_kernels import HOST_COLUMNS, OF_STATES, arguments
from quadrille.runtime.measuring.calibration_sizes import FULL, CalibrationSizes
from quadrille.runtime.measuring.chained_transfers import STEPS, ChainMeasurement, Overheads, Pattern, measure_chain
from quadrille.runtime.measuring.library_collectives import CollectiveTimes, GroupShape, measure_collective
from quadrille.runtime.measuring.measured_points import CollectivePoint, GemmPoint, TransferPoint
from quadrille.runtime.measuring.pass_benchmarks import pass_call, sizes_of
from quadrille.runtime.measuring.reference_kernels import ReferenceBenchmark, Times, seconds

Result = TypeVar("Result")
DISTURBED = 1.08
"""A reference product that takes this many times its usual time was disturbed, and so was the point beside it."""
USUAL_PERCENTILE = 25
"""The percentile of all reference products that is the usual time, even if most of them were disturbed."""
SECOND_TRIES = 2
MAX_POLL_SLEEP_SECONDS = 1e-3
LEAST_SECONDS = 1e-6


@dataclass(slots=True)
class Bench:
    """The microbenchmarks of one communicator; every method is a collective call.

    Parameters
    ----------
    communicator : communicator of the ranks that measure
    kernels : reference kernels that detect disturbances
    library : array library of the products
    message_options : chunk size and polling of messages; by default those of a run on such hosts
    sizes : sizes of the benchmarks
    disturbed : number of disturbed measurements
    started : start time of the calibration [s]
    """

    communicator: MPI.Intracomm
    kernels: ReferenceBenchmark = field(default_factory=ReferenceBenchmark)
    library: ArrayLibrary = field(default_factory=NumpyLibrary)
    message_options: MessageOptions | None = None
    sizes: CalibrationSizes = FULL
    disturbed: int = 0
    started: float = field(default_factory=time.perf_counter)
    _usual: dict[int, list[float]] = field(default_factory=dict)
    _pools: list[Any] = field(default_factory=list)

    @classmethod
    def of_sizes(
        cls, communicator: MPI.Intracomm, sizes: CalibrationSizes, message_options: MessageOptions | None = None
    ) -> "Bench":
        """The microbenchmarks of a communicator with these sizes."""
        keep_freed_memory()  # as every run does
        return cls(communicator, ReferenceBenchmark(sizes), message_options=message_options, sizes=sizes)

    @property
    def operands(self) -> Any:
        """The pool of operands, allocated at first use."""
        return self._pool(0)

    @property
    def results(self) -> Any:
        """The pool of results."""
        return self._pool(1)

    def _pool(self, which: int) -> Any:
        if not self._pools:
            self._pools = [np.ones(self.sizes.pool_bytes // 8) for _ in range(2)]
        return self._pools[which]

    @property
    def ranks(self) -> int:
        return self.communicator.Get_size()

    def reference(self, rounds: int = 5) -> list[Times]:
        """The times of the reference kernels on all ranks at once, mean over ranks, once for each round."""
        rounds_seconds = []
        for _ in range(rounds):
            self.communicator.Barrier()
            times_of_ranks = self.communicator.allgather(self.kernels.measure())
            rounds_seconds.append(
                (
                    mean(t[0] for t in times_of_ranks),
                    mean(t[1] for t in times_of_ranks),
                    mean(t[2] for t in times_of_ranks),
                )
            )
        return rounds_seconds

    def gemm(self, point: GemmPoint, repeats: int = 3) -> GemmPoint:
        """The point with its measured time, on all ranks at once with `point.threads` BLAS threads each."""
        kernel = self._product(point)

        def measure() -> list[float]:
            kernel(0)
            own = [seconds(partial(kernel, repeat)) for repeat in range(1, repeats + 1)]
            return [mean(times) for times in zip(*self.communicator.allgather(own), strict=True)]

        times, calm = self.undisturbed(measure, point.threads)
        return _timed(point, times, calm=calm)

    def undisturbed(self, measure: Callable[[], list[float]], threads: int = 1) -> tuple[list[float], bool]:
        """The seconds that `measure` returns, and whether the measurement was undisturbed."""
        (times, _), calm = self.undisturbed_with(lambda: (measure(), None), threads)
        return times, calm

    def undisturbed_with(
        self, measure: Callable[[], tuple[list[float], Result]], threads: int = 1
    ) -> tuple[tuple[list[float], Result], bool]:
        """The seconds and further results that `measure` returns, and whether the measurement was undisturbed.

        It is repeated if the reference product beside it, on as many BLAS threads, shows that another process ran. If
        all tries were disturbed, the fastest one is returned.
        """
        tries: list[tuple[list[float], Result]] = []
        for _ in range(1 + SECOND_TRIES):
            report_progress()
            with threadpool_limits(threads, user_api="blas"):
                self.communicator.Barrier()
                before = self.kernels.product()
                tries.append(measure())
                reference = (before + self.kernels.product()) / 2
            if self._is_calm(reference, threads):
                return tries[-1], True
            self.disturbed += 1
            if not self.may_retry():
                break
        return min(tries, key=lambda attempt: median(attempt[0])), False

    def may_retry(self) -> bool:
        """Whether disturbed points are still measured again; the same answer on every rank.

        A calibration must also end on a busy machine.
        """
        spent = time.perf_counter() - self.started
        return bool(max(self.communicator.allgather(spent)) < self.sizes.patience_seconds)

    def _is_calm(self, reference: float, threads: int) -> bool:
        """Whether the reference products of all ranks took their usual time; the same answer on every rank."""
        now = mean(self.communicator.allgather(reference))
        seen = self._usual.setdefault(threads, [])
        seen.append(now)
        usual = float(np.percentile(seen, USUAL_PERCENTILE))
        return bool(now <= DISTURBED * usual)

    def _product(self, point: GemmPoint) -> Callable[[int], object]:
        shape_a = (point.k, point.m) if point.layout == "TN" else (point.m, point.k)
        shape_b = (point.n, point.k) if point.layout == "NT" else (point.k, point.n)
        rooms, ends = _Rotation(self.operands.view(point.dtype)), _Rotation(self.results.view(point.dtype))
        sets = [(rooms.take(shape_a), rooms.take(shape_b), ends.take((point.m, point.n))) for _ in range(4)]

        def kernel(repeat: int) -> None:
            a, b, c = sets[repeat % len(sets)]
            self.library.matmul(a.T if point.layout == "TN" else a, b.T if point.layout == "NT" else b, c)

        return kernel

    def stream(self, operation: StreamOperation, size: int, repeats: int = 7) -> MemoryRow:
        """The rate of memory-bound work on all ranks at once."""
        self.results.fill(1.0)
        rooms, ends = _Rotation(self.operands), _Rotation(self.results)
        shape = (max(1, size // 8),)
        # a step fills a state once, so that it is not in the cache; copies and sums follow their sources
        sets = [(ends.take(shape), rooms.take(shape)) for _ in range(1 + repeats if operation == "zero" else 4)]
        verbs: dict[StreamOperation, Callable[[Any, Any], object]] = {
            "copy": np.copyto,
            "add": lambda into, source: np.add(into, source, out=into),
            "zero": lambda into, _: into.fill(0),
        }
        verb = verbs[operation]

        def measure() -> list[float]:
            verb(*sets[0])
            own = [seconds(partial(verb, *sets[repeat % len(sets)])) for repeat in range(repeats)]
            return [mean(times) for times in zip(*self.communicator.allgather(own), strict=True)]

        times, _ = self.undisturbed(measure)
        return MemoryRow(
            operation=operation,
            bytes=size,
            busy_ranks=self.ranks,
            bytes_per_second=size / median(times),
            spread=spread(times),
        )

    def kernel(self, function: Function, dtype: DType, elements: int, repeats: int = 5) -> KernelRow:
        """The time of a layer function on a matrix of about `elements` elements, on all ranks at once.

        Every repeat of a function of states has operands of its own, which are not in the cache.
        """
        is_cold = function in OF_STATES
        sets = [arguments(function, dtype, elements, HOST_COLUMNS) for _ in range(1 + repeats if is_cold else 1)]
        function_arguments = sets[0]
        updates = sum(array.nbytes for array in function_arguments.updates)
        touched = (
            sum(
                array.nbytes
                for array in (*function_arguments.into, *function_arguments.updates, *function_arguments.sources)
            )
            + updates
        )

        def measure() -> list[float]:
            if is_cold:
                self.results.fill(1.0)
            carry_out(function, sets[0])
            own = [seconds(partial(carry_out, function, sets[repeat % len(sets)])) for repeat in range(1, 1 + repeats)]
            return [mean(times) for times in zip(*self.communicator.allgather(own), strict=True)]

        times, _ = self.undisturbed(measure)
        return KernelRow(
            function=function,
            dtype=dtype,
            bytes=touched,
            busy_ranks=self.ranks,
            seconds=median(times),
            spread=spread(times),
        )

    def passes(self, operation: PassOperation, dtype: DType, repeats: int = 7) -> list[PassRow]:
        """The times of a pass of every measured size, on all ranks at once."""
        sizes = sizes_of(operation)
        calls = [pass_call(operation, dtype, size) for size in sizes]

        def measure() -> tuple[list[float], list[list[float]]]:
            own = [_seconds_of_call(call, repeats) for call in calls]
            of_ranks = self.communicator.allgather(own)
            by_size = [[mean(times) for times in zip(*of_size, strict=True)] for of_size in zip(*of_ranks, strict=True)]
            return [median(times) for times in by_size], by_size

        (_, by_size), _ = self.undisturbed_with(measure)
        return [
            PassRow(
                operation=operation,
                dtype=dtype,
                matrices=matrices,
                rows=rows,
                columns=columns,
                busy_ranks=self.ranks,
                seconds=median(times),
                spread=spread(times),
            )
            for (matrices, rows, columns), times in zip(sizes, by_size, strict=True)
        ]

    def transfer(self, pattern: Pattern, size: int, steps: int = STEPS) -> tuple[TransferPoint, Overheads]:
        """The time of one step of the pattern in a chain of `steps` steps, and the overheads of the chain's ops."""

        def measure() -> tuple[list[float], ChainMeasurement]:
            chain = measure_chain(
                self.communicator,
                pattern,
                size,
                steps,
                message_options=self.message_options,
                product_size=self.sizes.chain_product,
            )
            # a small message may end before its receiver starts
            return [max(LEAST_SECONDS, step) for step in chain.seconds], chain

        (times, chain), _ = self.undisturbed_with(measure)
        point = TransferPoint(pattern, self.ranks, size, median(times), spread(times), chain.sender_ack_delay_seconds)
        return point, chain.overheads

    def collective(
        self, kind: CollectiveKind, shape: GroupShape, size: int, runs: int, calls: Calls | None
    ) -> CollectivePoint:
        """The time of an MPI library collective over `runs` runs, and of the collective that follows it."""

        def measure() -> tuple[list[float], CollectiveTimes]:
            measured = measure_collective(self.communicator, kind, shape, size, runs, calls, self.sizes.chain_product)
            return [max(LEAST_SECONDS, seconds_of_run) for seconds_of_run in measured.seconds], measured

        (times, measured), _ = self.undisturbed_with(measure)
        later = max(LEAST_SECONDS, median(measured.following)) if measured.following else None
        return CollectivePoint(kind, shape, size, median(times), spread(times), later, measured.shares, calls)


@dataclass(slots=True)
class _Rotation:
    """Arrays taken from a pool one after the other, cyclically."""

    pool: Any
    position: int = 0

    def take(self, shape: tuple[int, ...]) -> Any:
        size = int(np.prod(shape))
        if size > self.pool.size:
            return np.ones(shape, self.pool.dtype)
        if self.position + size > self.pool.size:
            self.position = 0
        room = self.pool[self.position : self.position + size].reshape(shape)
        self.position += size
        return room


def _seconds_of_call(call: Callable[[int], object], repeats: int) -> list[float]:
    """The seconds of a call, once for each repeat, after a call that warms it up."""
    call(0)
    return [seconds(partial(call, repeat)) for repeat in range(1, repeats + 1)]


def _timed(point: GemmPoint, times: Sequence[float], *, calm: bool) -> GemmPoint:
    return replace(point, seconds=median(times), spread=spread(times), calm=calm)


def measured_on_first(
    communicator: MPI.Intracomm,
    ranks: int,
    measure: Callable[[Bench], Result],
    message_options: MessageOptions | None = None,
    sizes: CalibrationSizes = FULL,
) -> Result:
    """The result of `measure` on the first `ranks` ranks while all others sleep; every rank gets it."""
    inside = communicator.Get_rank() < ranks
    group = cast(MPI.Intracomm, communicator.Split(color=0 if inside else 1, key=communicator.Get_rank()))
    result = measure(Bench.of_sizes(group, sizes, message_options)) if inside else None
    group.Free()
    request = communicator.Ibarrier()
    while not request.Test():
        time.sleep(MAX_POLL_SLEEP_SECONDS)
    return cast(Result, communicator.bcast(result, root=0))


def product_shapes(
    count: int, *, smallest: int, largest: int, most_flops: float, columns: int = 1
) -> Iterator[tuple[int, int, int]]:
    """Product shapes spread evenly over the logarithms of their dimensions, none above `most_flops`.

    The shapes are the same every time: an additive recurrence with the cubic relative of the plastic number, which
    leaves no large gaps.

    Parameters
    ----------
    columns : n is rounded to a multiple of this number, and spread from there

    Source: Roberts, "The unreasonable effectiveness of quasirandom sequences", 2018.
    """
    root = 1.2207440846057596  # of x^4 = x + 1
    accepted = index = 0
    while accepted < count:
        index += 1
        m, k, n = (
            least * (largest / least) ** ((0.5 + index * root ** -(axis + 1)) % 1)
            for axis, least in enumerate((smallest, smallest, max(smallest, columns)))
        )
        m, k, n = round(m), round(k), max(1, round(n / columns)) * columns
        if 2.0 * m * k * n <= most_flops:
            accepted += 1
            yield m, k, n
