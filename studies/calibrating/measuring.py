"""All microbenchmarks of a calibration, in the same order on every rank."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, cast, get_args

from algorithms.ops import GemmLayout
from algorithms.tensors import ITEM_BYTES, DType
from runtime import world
from runtime.blas import NUMPYS, open_blas
from runtime.delivery import Delivery
from runtime.measuring.chains import Overheads, measure_chain
from runtime.measuring.measured_kernels import MEASURED
from runtime.measuring.microbenchmarks import Bench, apart, shapes
from runtime.measuring.points import CollectivePoint, GemmPoint, KernelPoint, StreamPoint, TransferPoint
from runtime.measuring.reference_kernels import Times
from simulator.local_work.compute_model import LEAST_ROWS_IN_PAGES, PAGE_BYTES
from studies.calibrating.between_hosts import Agree, BetweenHosts, measure_between, patterns
from studies.calibrating.library import LIBRARY_BYTES, library_points

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

DTYPES: tuple[DType, ...] = ("float64", "float32")
LAYOUTS: tuple[GemmLayout, ...] = get_args(GemmLayout)
PRODUCTS = 24
"""Products of all sizes measured for each dtype, layout and setting; see `_sizes`."""
MOST_FLOPS = {"float64": 3.2e9, "float32": 6.4e9}
SMALLEST, LARGEST = 128, 4096
STREAM_BYTES = (1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
KERNEL_ELEMENTS = (1 << 12, 1 << 17, 1 << 20)
TRANSFER_BYTES = (8, 1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 3 << 24)
LATER_TRIES = 2
"""Rounds at the end in which points that were disturbed at every try are measured again."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All rows of one calibration."""

    gemm: list[GemmPoint]
    streams: list[StreamPoint]
    kernels: list[KernelPoint]
    host_transfers: list[TransferPoint]
    between: BetweenHosts | None
    library: list[CollectivePoint]
    reference: list[Times]
    reference_alone: list[Times]
    overheads: Overheads
    disturbed: int


@dataclass(frozen=True, slots=True)
class Local:
    """What some ranks of one host measured together."""

    gemm: list[GemmPoint]
    streams: list[StreamPoint]
    kernels: list[KernelPoint]
    reference: list[Times]
    disturbed: int


def measure(
    communicator: "Intracomm",
    hosts: Sequence[world.Host],
    delivery: Delivery,
    *,
    agree: Agree = lambda _link, _flows: True,
    quick: bool = False,
    blas: str = NUMPYS,
) -> Measured:
    """All microbenchmarks, in the same order on every rank.

    Local work is measured on as many ranks as a host has cores and on one
    alone, steps between all ranks of a host and between two, then between hosts, and
    the library's collectives of all ranks.

    Parameters
    ----------
    delivery : how messages go between hosts
    agree : whether links between them are as one message showed them
    blas : whose products they are, see `open_blas`
    """
    rank, products = communicator.Get_rank(), PRODUCTS // 3 if quick else PRODUCTS
    speaks = rank == 0
    number = next(i for i, host in enumerate(hosts) if rank in host.ranks)
    local = cast("Intracomm", communicator.Split(color=number, key=rank))
    sharing = communicator if hosts[number].sharing else local
    cores, computing = hosts[number].cores, min(sharing.Get_size(), hosts[number].cores)

    def work(bench: Bench) -> Local:
        threads = max(1, cores // bench.ranks)
        bench.library = bench.library if blas == NUMPYS else open_blas(blas, threads)
        points, reference = _products(bench, products, threads=threads, say=speaks)
        _say(speaks, f"copies, sums and layer functions, {bench.ranks} ranks")
        streams, kernels = _streams(bench), _kernels(bench)
        return Local(points, streams, kernels, reference + bench.reference(), bench.disturbed)

    together = apart(sharing, computing, work)
    crowd = hosts[0].sharing or len(hosts[0].ranks)
    several = min(crowd, hosts[0].cores) > 1  # the same on all
    single = apart(communicator, 1, _reference_alone if hosts[0].sharing else work) if several else None
    transfers, overheads, between = list[TransferPoint](), list[Overheads](), None
    if local.Get_size() > 1:
        _say(speaks, f"messages between {local.Get_size()} ranks of a host")
        transfers, overheads = _transfers(Bench(local))
    if local.Get_size() > 2:
        transfers = apart(local, 2, lambda bench: _transfers(bench)[0]) + transfers
    if len(hosts) > 1:
        _say(speaks, f"messages between {len(hosts)} hosts, minutes where links are slow")
        between = measure_between(communicator, hosts, TRANSFER_BYTES, delivery, agree)
    sizes = LIBRARY_BYTES[::2] if quick else LIBRARY_BYTES
    if communicator.Get_size() > 1:
        _say(speaks, f"the MPI library's collectives, {communicator.Get_size()} ranks")
    library = list(library_points(Bench(communicator), sizes))
    if hosts[0].sharing and between is not None:
        overheads = overheads or between.overheads
    return Measured(
        together.gemm + (single.gemm if single is not None else []),
        together.streams + (single.streams if single is not None else []),
        together.kernels + (single.kernels if single is not None else []),
        transfers,
        between,
        library,
        together.reference,
        single.reference if single is not None else together.reference,
        _typical(overheads or [measure_chain(local, "shift", 8)[1]]),
        together.disturbed + (single.disturbed if single is not None else 0),
    )


def _say(speaks: bool, text: str) -> None:
    """What comes next, by the rank that speaks: each takes a while."""
    if speaks:
        print(f"calibrate: {text}", file=sys.stderr, flush=True)


def _reference_alone(bench: Bench) -> Local:
    """On one rank of a laboratory nothing but the reference kernels: its ranks compute together."""
    return Local([], [], [], bench.reference(), 0)


def _products(bench: Bench, count: int, *, threads: int, say: bool) -> tuple[list[GemmPoint], list[Times]]:
    """Products of every dtype and layout, and the reference kernels beside each group of them."""
    found, reference = [], bench.reference()
    for dtype in DTYPES:
        _say(say, f"{dtype} products, {bench.ranks} ranks x {threads} threads")
        for layout in LAYOUTS:
            for m, k, n in _sizes(dtype, count, threads):
                found.append(bench.gemm(GemmPoint(m, k, n, dtype, layout, threads, bench.ranks)))
            reference += bench.reference(rounds=2)
    return _measured_again(bench, found), reference


def _sizes(dtype: DType, count: int, threads: int) -> Iterator[tuple[int, int, int]]:
    """m, k and n of products: spread evenly, and about half as many whose results have rows of whole pages."""
    for columns, products in ((1, count), (PAGE_BYTES // ITEM_BYTES[dtype], max(LEAST_ROWS_IN_PAGES, count // 2))):
        most = MOST_FLOPS[dtype] * threads
        yield from shapes(products, smallest=SMALLEST, largest=LARGEST, most_flops=most, columns=columns)


def _measured_again(bench: Bench, points: list[GemmPoint]) -> list[GemmPoint]:
    """The points, those that were disturbed at every try measured once more when all others are done."""
    for _ in range(LATER_TRIES):
        if not bench.is_patient():
            break
        again = {number: bench.gemm(point) for number, point in enumerate(points) if not point.calm}
        for number, point in again.items():
            if point.calm or point.seconds < points[number].seconds:
                points[number] = point
    return points


def _streams(bench: Bench) -> list[StreamPoint]:
    return [bench.stream(operation, size) for operation in ("copy", "add", "zero") for size in STREAM_BYTES]


def _kernels(bench: Bench) -> list[KernelPoint]:
    return [
        bench.kernel(function, dtype, elements)
        for dtype in DTYPES
        for function in MEASURED
        for elements in KERNEL_ELEMENTS
    ]


def _transfers(bench: Bench) -> tuple[list[TransferPoint], list[Overheads]]:
    """Steps of every pattern and size that so many ranks can take, and the overheads beside each."""
    both = patterns(bench, TRANSFER_BYTES)
    return [point for point, _ in both], [overheads for _, overheads in both]


def _typical(found: Sequence[Overheads]) -> Overheads:
    return Overheads(
        median(one.issue_seconds for one in found),
        median(one.compute_seconds for one in found),
        median(one.alone_seconds for one in found),
    )
