"""The microbenchmarks of a calibration: products, memory streams, layer functions, messages, MPI collectives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, cast, get_args

from quadrille.algorithms.formats.measured_rows import KernelRow, MemoryRow, PassRow, StreamOperation
from quadrille.algorithms.schedule.kernel_signatures import PassOperation
from quadrille.algorithms.schedule.ops import GemmLayout
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType
from quadrille.experiments.calibrate.calibration_parts import SILENT, CalibrationParts
from quadrille.experiments.calibrate.library_collectives import library_points
from quadrille.experiments.calibrate.network_benchmarks import (
    LinksAgree,
    NetworkMeasurements,
    measure_network,
    pattern_points,
)
from quadrille.runtime.arrays.blas import NUMPY_BLAS, open_blas
from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.host import world
from quadrille.runtime.measuring.benchmark_kernels import MEASURED
from quadrille.runtime.measuring.calibration_sizes import FULL, CalibrationSizes
from quadrille.runtime.measuring.chained_transfers import Overheads, measure_chain, measure_fills
from quadrille.runtime.measuring.measured_points import CollectivePoint, GemmPoint, TransferPoint
from quadrille.runtime.measuring.microbenchmarks import Bench, measured_on_first, product_shapes
from quadrille.runtime.measuring.reference_kernels import Times
from quadrille.simulator.machine.compute_model import LEAST_ROWS_IN_PAGES, PAGE_BYTES

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

DTYPES: tuple[DType, ...] = ("float64", "float32")
LAYOUTS: tuple[GemmLayout, ...] = get_args(GemmLayout)
STREAM_OPERATIONS: tuple[StreamOperation, ...] = get_args(StreamOperation)
PASS_OPERATIONS: tuple[PassOperation, ...] = get_args(PassOperation)
REMEASURE_ROUNDS = 2
"""Rounds at the end in which disturbed points are measured again."""


@dataclass(frozen=True, slots=True)
class LocalMeasurements:
    """The measurements of local work on ranks of one host.

    Parameters
    ----------
    gemm : products
    streams : copies and sums
    kernels : layer functions
    passes : passes over arrays, of which the other layer functions consist
    reference : times of the reference kernels, which show the speed of the machine during the calibration
    disturbed : number of measurements that were discarded because of other load
    """

    gemm: list[GemmPoint]
    streams: list[MemoryRow]
    kernels: list[KernelRow]
    passes: list[PassRow]
    reference: list[Times]
    disturbed: int = 0


@dataclass(frozen=True, slots=True)
class CalibrationMeasurements:
    """All measurements of one calibration.

    Parameters
    ----------
    together, alone : local work on as many ranks as a host has cores, and on one of them; None if these are the same
    host_transfers : steps between the ranks of a host
    between : measurements between hosts; None for one host
    library : collectives of the MPI library
    overheads : costs of ops beyond their work
    following_seconds : time of a small fill that follows another one [s]; None if it was not measured
    """

    together: LocalMeasurements
    alone: LocalMeasurements | None
    host_transfers: list[TransferPoint]
    between: NetworkMeasurements | None
    library: list[CollectivePoint]
    overheads: Overheads
    following_seconds: float | None = None

    @property
    def local(self) -> LocalMeasurements:
        """The local measurements of both settings; the reference kernels are those of ranks that compute together."""
        together, alone = self.together, self.alone or LocalMeasurements([], [], [], [], [])
        return LocalMeasurements(
            gemm=together.gemm + alone.gemm,
            streams=together.streams + alone.streams,
            kernels=together.kernels + alone.kernels,
            passes=together.passes + alone.passes,
            reference=together.reference,
            disturbed=together.disturbed + alone.disturbed,
        )

    @property
    def reference_alone(self) -> list[Times]:
        """The reference kernels on one rank."""
        return (self.alone or self.together).reference


def measure(
    communicator: "Intracomm",
    hosts: Sequence[world.ComputeHost],
    message_options: MessageOptions,
    *,
    agree: LinksAgree = lambda _link, _flows: True,
    blas: str = NUMPY_BLAS,
    sizes: CalibrationSizes = FULL,
    parts: CalibrationParts = SILENT,
) -> CalibrationMeasurements:
    """All microbenchmarks, in the same order on every rank; a collective call.

    Local work is measured on as many ranks as a host has cores and on one alone. Steps are measured between all ranks
    of a host and between two, then between hosts. The library's collectives are measured with all ranks.

    Parameters
    ----------
    communicator : all ranks of the launch
    hosts : hosts of the launch, with their ranks
    message_options : chunk size and progress of messages between hosts
    agree : function that says whether all-pairs flows have the rates that follow from the link speed
    blas : BLAS whose products are measured, see `open_blas`
    sizes : sizes of the benchmarks
    parts : reporter of the parts and their seconds
    """
    rank = communicator.Get_rank()
    host = next(host for host in hosts if rank in host.ranks)
    local = cast("Intracomm", communicator.Split(color=hosts.index(host), key=rank))
    together, alone = _local_work(
        communicator, communicator if host.sharing else local, host, blas=blas, sizes=sizes, parts=parts
    )
    transfers, overheads = _within_host(local, sizes, parts)
    between = None
    if len(hosts) > 1:
        between = measure_network(communicator, hosts, message_options, agree, sizes, parts)
        if host.sharing:
            overheads = overheads or between.overheads
    return CalibrationMeasurements(
        together=together,
        alone=alone,
        host_transfers=transfers,
        between=between,
        library=_library(communicator, sizes, parts),
        overheads=_median_overheads(
            overheads or [measure_chain(local, "shift", 8, product_size=sizes.chain_product).overheads]
        ),
        following_seconds=measure_fills(),
    )


def _local_work(
    communicator: "Intracomm",
    sharing: "Intracomm",
    host: world.ComputeHost,
    *,
    blas: str,
    sizes: CalibrationSizes,
    parts: CalibrationParts,
) -> tuple[LocalMeasurements, LocalMeasurements | None]:
    """Local work on as many ranks as the host has cores, and on one rank alone if that is another number.

    Parameters
    ----------
    sharing : ranks that share the cores with this rank
    """

    def work(bench: Bench) -> LocalMeasurements:
        threads = max(1, host.cores // bench.ranks)
        bench.library = bench.library if blas == NUMPY_BLAS else open_blas(blas, threads)
        with parts.part(f"products, {setting(bench.ranks, threads)}"):
            points, reference = _products(bench, threads)
        with parts.part(f"copies, sums and layer functions, {setting(bench.ranks)}"):
            streams, kernels, passes = _streams(bench), _kernels(bench), _passes(bench)
        return LocalMeasurements(points, streams, kernels, passes, reference + bench.reference(), bench.disturbed)

    computing = min(sharing.Get_size(), host.cores)
    together = measured_on_first(sharing, computing, work, sizes=sizes)
    if communicator.bcast(computing) == 1:  # the same on all
        return together, None
    return together, measured_on_first(communicator, 1, _reference_alone if host.sharing else work, sizes=sizes)


def setting(ranks: int, threads: int | None = None) -> str:
    """The number of ranks and of their threads as text.

    >>> setting(1, 2), setting(2)
    ('1 rank with 2 threads', '2 ranks')
    """
    words = f"{ranks} rank{'s' if ranks > 1 else ''}"
    return words if threads is None else f"{words} with {threads} thread{'s' if threads > 1 else ''}"


def _library(communicator: "Intracomm", sizes: CalibrationSizes, parts: CalibrationParts) -> list[CollectivePoint]:
    """The collectives of the MPI library; empty for one rank."""
    if communicator.Get_size() == 1:
        return []
    with parts.part(f"collectives of the MPI library, {setting(communicator.Get_size())}"):
        return list(library_points(Bench.of_sizes(communicator, sizes)))


def _within_host(
    local: "Intracomm", sizes: CalibrationSizes, parts: CalibrationParts
) -> tuple[list[TransferPoint], list[Overheads]]:
    """Message steps between two ranks of a host and between all its ranks, and the overheads of the latter."""
    if local.Get_size() == 1:
        return [], []
    with parts.part(f"messages between {local.Get_size()} ranks of a host"):
        transfers, overheads = _transfers(Bench.of_sizes(local, sizes))
        if local.Get_size() > 2:
            transfers = measured_on_first(local, 2, lambda bench: _transfers(bench)[0], sizes=sizes) + transfers
    return transfers, overheads


def _reference_alone(bench: Bench) -> LocalMeasurements:
    """The reference kernels on one rank of an emulated network; its ranks compute together."""
    return LocalMeasurements([], [], [], [], bench.reference())


def _products(bench: Bench, threads: int) -> tuple[list[GemmPoint], list[Times]]:
    """Products of every dtype and layout, and the reference kernels beside each group of them."""
    points, reference = [], bench.reference()
    for dtype in DTYPES:
        for layout in LAYOUTS:
            for m, k, n in _shapes(bench.sizes, dtype, threads):
                points.append(bench.gemm(GemmPoint(m, k, n, dtype, layout, threads, bench.ranks)))
            reference += bench.reference(rounds=2)
    return _remeasured(bench, points), reference


def _shapes(sizes: CalibrationSizes, dtype: DType, threads: int) -> Iterator[tuple[int, int, int]]:
    """m, k and n of products: spread evenly, and about half as many whose results have rows of whole pages."""
    in_pages = max(LEAST_ROWS_IN_PAGES, sizes.products // 2)
    for columns, products in ((1, sizes.products), (PAGE_BYTES // ITEM_BYTES[dtype], in_pages)):
        most = sizes.most_flops[dtype] * threads
        yield from product_shapes(
            products, smallest=sizes.smallest, largest=sizes.largest, most_flops=most, columns=columns
        )


def _remeasured(bench: Bench, points: list[GemmPoint]) -> list[GemmPoint]:
    """The points; points that other load disturbed are measured again at the end."""
    for _ in range(REMEASURE_ROUNDS):
        if not bench.may_retry():
            break
        again = {number: bench.gemm(point) for number, point in enumerate(points) if not point.calm}
        for number, point in again.items():
            if point.calm or point.seconds < points[number].seconds:
                points[number] = point
    return points


def _streams(bench: Bench) -> list[MemoryRow]:
    return [bench.stream(operation, size) for operation in STREAM_OPERATIONS for size in bench.sizes.stream_bytes]


def _kernels(bench: Bench) -> list[KernelRow]:
    return [
        bench.kernel(function, dtype, elements)
        for dtype in DTYPES
        for function in MEASURED
        for elements in bench.sizes.kernel_elements
    ]


def _passes(bench: Bench) -> list[PassRow]:
    return [row for dtype in DTYPES for operation in PASS_OPERATIONS for row in bench.passes(operation, dtype)]


def _transfers(bench: Bench) -> tuple[list[TransferPoint], list[Overheads]]:
    """Steps of every pattern and size, and the overheads beside each."""
    results = pattern_points(bench, bench.sizes.transfer_bytes)
    return [point for point, _ in results], [overheads for _, overheads in results]


def _median_overheads(overheads: Sequence[Overheads]) -> Overheads:
    return Overheads(
        median(sample.issue_seconds for sample in overheads),
        median(sample.compute_seconds for sample in overheads),
        median(sample.alone_seconds for sample in overheads),
    )
