"""`quadrille calibrate`: microbenchmarks on the ranks of a launch, fitted into a machine file.

Question: how fast are products, memory-bound work and messages here, alone and
all at once?  It sees microbenchmarks only, never a whole algorithm.

Ranks are grouped by host.  On each host all ranks measure together, then one
alone; between hosts, one rank of each takes part, in pairs and all at once.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, cast, get_args

from algorithms.errors import InputError
from algorithms.formats import files
from algorithms.formats.machine import (
    Device,
    Fit,
    GemmRow,
    Host,
    Machine,
    MemoryRow,
    Network,
    ReferenceKernels,
    TransferRow,
    save_machine,
)
from algorithms.formats.percentiles import spread
from algorithms.formats.provenance import provenance
from algorithms.ops import GemmLayout
from algorithms.tensors import DType
from runtime import memory_available, world
from runtime.chains import Overheads, Pattern, measure_chain
from runtime.microbenchmarks import (
    Bench,
    GemmPoint,
    StreamPoint,
    TransferPoint,
    apart,
    shapes,
)
from runtime.reference_kernels import Times
from simulator.compute import fit_gemm, touched
from topologies.build import build, parse_topology, with_stand_ins

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

DTYPES: tuple[DType, ...] = ("float64", "float32")
LAYOUTS: tuple[GemmLayout, ...] = get_args(GemmLayout)
PRODUCTS = 24
"""Products measured for each dtype, layout and setting."""
MOST_FLOPS = {"float64": 3.2e9, "float32": 6.4e9}
SMALLEST, LARGEST = 128, 4096
STREAM_BYTES = (1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
TRANSFER_BYTES = (8, 1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 3 << 24)
LATER_TRIES = 2
"""Rounds at the end in which points that were disturbed at every try are measured again."""
LARGE_RESIDUAL = 0.05
GivenTopology = tuple[str, dict[str, int | float | str]]
"""Family and arguments of the topology of several hosts."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All rows of one calibration."""

    gemm: list[GemmPoint]
    streams: list[StreamPoint]
    host_transfers: list[TransferPoint]
    network_transfers: list[TransferPoint]
    reference: list[Times]
    reference_alone: list[Times]
    overheads: Overheads
    disturbed: int


def calibrate(out: str, *, topology: str | None = None, quick: bool = False, command: Sequence[str] = ()) -> None:
    """Measure on every rank of the world and write the machine file at rank 0.

    Parameters
    ----------
    out : path of the machine file, or `-`
    topology : the wiring of several hosts, as `family:key=value,…`; its link speeds may be left out
    quick : a third of the products, for a first look

    Raises
    ------
    InputError : a path that cannot be written, or a wiring that is not of these hosts, before anything is measured
    """
    communicator = world.world()
    speaks = communicator.Get_rank() == 0
    if speaks and out != "-":
        files.check_writable(out)
    hosts = world.hosts(communicator)
    wiring = parse_wiring(topology, len(hosts)) if topology is not None else None
    measured = measure(communicator, hosts, PRODUCTS // 3 if quick else PRODUCTS)
    if not speaks:
        return
    machine = make_machine(_name(out), measured, hosts, wiring, list(command))
    save_machine(machine, out)
    _report(machine, out)


def parse_wiring(text: str, hosts: int) -> GivenTopology:
    """Family and arguments of the wiring of so many hosts, known to be one.

    Link speeds that are left out are measured, where there are several hosts.

    >>> parse_wiring("leaf-spine:leaves=2,spines=1,hosts_per_leaf=3", 6)
    ('leaf-spine', {'leaves': 2, 'spines': 1, 'hosts_per_leaf': 3})

    Raises
    ------
    InputError : a wiring that cannot be built, or of another number of hosts
    """
    family, arguments = parse_topology(text)
    net = build(family, with_stand_ins(family, arguments, {"bandwidth": 1.0, "latency": 0.0}))
    kind, count = net.places
    if (kind, count) != ("host", hosts):
        found = f"{hosts} host{'s' if hosts > 1 else ''}"
        raise InputError(
            f"topology {text!r} has {count} {kind}s and the ranks are on {found}: a wiring of {found} is needed"
        )
    if hosts == 1:
        build(family, arguments)  # between whose ranks no link is measured
    return family, arguments


def _named(speed: str, arguments: Iterable[str]) -> bool:
    """Whether the arguments give this speed, with or without its unit."""
    return speed.partition("_")[0] in {name.partition("_")[0] for name in arguments}


@dataclass(frozen=True, slots=True)
class Local:
    """What some ranks of one host measured together."""

    gemm: list[GemmPoint]
    streams: list[StreamPoint]
    reference: list[Times]
    disturbed: int


def measure(communicator: "Intracomm", hosts: Sequence[world.Host], products: int) -> Measured:
    """All microbenchmarks, in the same order on every rank.

    Local work is measured on as many ranks as a host has cores and on one
    alone, steps between all ranks of a host and between two, then between hosts.
    """
    rank = communicator.Get_rank()
    number = next(i for i, host in enumerate(hosts) if rank in host.ranks)
    local = cast("Intracomm", communicator.Split(color=number, key=rank))
    cores, computing = hosts[number].cores, min(local.Get_size(), hosts[number].cores)

    def work(bench: Bench) -> Local:
        points, reference = _products(bench, products, threads=max(1, cores // bench.ranks), say=rank == 0)
        streams = _streams(bench)
        return Local(points, streams, reference + bench.reference(), bench.disturbed)

    together = apart(local, computing, work)
    single = apart(communicator, 1, work) if min(len(hosts[0].ranks), hosts[0].cores) > 1 else None  # the same on all
    transfers, overheads = _transfers(Bench(local)) if local.Get_size() > 1 else ([], [])
    if local.Get_size() > 2:
        transfers = apart(local, 2, lambda bench: _transfers(bench)[0]) + transfers
    return Measured(
        together.gemm + (single.gemm if single is not None else []),
        together.streams + (single.streams if single is not None else []),
        transfers,
        _between_hosts(communicator, hosts) if len(hosts) > 1 else [],
        together.reference,
        single.reference if single is not None else together.reference,
        _typical(overheads or [measure_chain(local, "shift", 8)[1]]),
        together.disturbed + (single.disturbed if single is not None else 0),
    )


def _products(bench: Bench, count: int, *, threads: int, say: bool) -> tuple[list[GemmPoint], list[Times]]:
    """Products of every dtype and layout, and the reference kernels beside each group of them."""
    found, reference = [], bench.reference()
    for dtype in DTYPES:
        if say:
            print(f"calibrate: {dtype} products, {bench.ranks} ranks x {threads} threads", file=sys.stderr, flush=True)
        for layout in LAYOUTS:
            most = MOST_FLOPS[dtype] * threads
            for m, k, n in shapes(count, smallest=SMALLEST, largest=LARGEST, most_flops=most):
                found.append(bench.gemm(GemmPoint(m, k, n, dtype, layout, threads, bench.ranks)))
            reference += bench.reference(rounds=2)
    return _measured_again(bench, found), reference


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


def _transfers(bench: Bench) -> tuple[list[TransferPoint], list[Overheads]]:
    """Steps of every pattern and size that so many ranks can take, and the overheads beside each.

    Where two ranks exchange, each sends and receives at once as in a shift.
    """
    exchanging = bench.ranks > 2 and bench.ranks % 2 == 0
    patterns = [pattern for pattern in get_args(Pattern) if pattern != "exchange" or exchanging]
    both = [bench.transfer(pattern, size) for pattern in patterns for size in TRANSFER_BYTES]
    return [point for point, _ in both], [overheads for _, overheads in both]


def _typical(found: Sequence[Overheads]) -> Overheads:
    return Overheads(
        median(one.issue_seconds for one in found),
        median(one.compute_seconds for one in found),
        median(one.alone_seconds for one in found),
    )


def _between_hosts(communicator: "Intracomm", hosts: Sequence[world.Host]) -> list[TransferPoint]:
    """Steps between hosts: the first two, then all at once, one rank of each."""
    firsts = [host.ranks[0] for host in hosts]
    rank = communicator.Get_rank()
    key = firsts.index(rank) if rank in firsts else len(firsts) + rank
    by_host = cast("Intracomm", communicator.Split(color=0, key=key))
    counts = dict.fromkeys([2, len(hosts)])
    return [point for count in counts for point in apart(by_host, count, lambda bench: _transfers(bench)[0])]


def make_machine(
    name: str,
    measured: Measured,
    hosts: Sequence[world.Host],
    topology: GivenTopology | None,
    command: list[str],
) -> Machine:
    """The machine file's content: rows, what follows from them, and how well the fit explains them."""
    rows = tuple(_gemm_row(point) for point in measured.gemm)
    memory = tuple(_memory_row(point) for point in measured.streams)
    available = memory_available.bytes_available()
    fit = _fit(rows, measured.disturbed, len(measured.gemm) + len(measured.streams))
    peak = {dtype: max(row.flops_per_second / row.threads for row in rows if row.dtype == dtype) for dtype in DTYPES}
    stream = max(row.bytes_per_second for row in memory if row.operation == "copy" and row.bytes == STREAM_BYTES[-1])
    host = hosts[0]
    return Machine(
        name=name,
        topology=_topology(measured, hosts, topology),
        device=Device(
            peak_flops_per_second={dtype: peak[dtype] for dtype in DTYPES},
            memory_bytes_per_second=2 * stream,
            memory_bytes=float(available or 1 << 30),
            overhead_seconds=measured.overheads.compute_seconds,
            gemm=rows,
            memory=memory,
        ),
        host=Host(
            cores=host.cores,
            ranks=max(len(one.ranks) for one in hosts) if len(hosts) > 1 else None,
            memory_bytes_per_second=_shared_bandwidth(memory),
            issue_seconds=measured.overheads.issue_seconds,
            alone_seconds=measured.overheads.alone_seconds,
            transfer=tuple(_transfer_row(point) for point in measured.host_transfers),
        ),
        network=Network(transfer=tuple(_transfer_row(point) for point in measured.network_transfers))
        if measured.network_transfers
        else None,
        reference=_reference(measured.reference),
        reference_alone=_reference(measured.reference_alone),
        fit=fit,
        provenance=provenance(command),
    )


def _shared_bandwidth(rows: Sequence[MemoryRow]) -> float:
    """The most bytes a second that all ranks together were seen to touch in memory beyond the caches."""
    largest = [row for row in rows if row.bytes == STREAM_BYTES[-1]]
    return max(row.busy_ranks * touched(row.operation, 1) * row.bytes_per_second for row in largest)


def _topology(
    measured: Measured, hosts: Sequence[world.Host], given: GivenTopology | None
) -> dict[str, str | bool | int | float | list[str | int | float]]:
    """One host, or the wiring given (a star if none is) with the link speed that one step between hosts showed."""
    if len(hosts) == 1 and given is None:
        return {"family": "host", "cores": hosts[0].cores}
    family, arguments = given if given is not None else ("star", {"hosts": len(hosts)})
    one_way = [point for point in measured.network_transfers if point.pattern == "one_way"]
    speeds: dict[str, str | bool | int | float | list[str | int | float]] = {}
    if one_way:
        largest = max(one_way, key=lambda point: point.bytes)
        speeds["bandwidth_bytes_per_second"] = largest.bytes / largest.seconds
        speeds["latency_seconds"] = min(point.seconds for point in one_way) / 2
    missing = {name: speed for name, speed in speeds.items() if not _named(name, arguments)}
    return {"family": family, **arguments, **missing}


def _fit(rows: Sequence[GemmRow], disturbed: int, points: int) -> Fit:
    residuals: dict[str, float] = {}
    for dtype in DTYPES:
        for layout in LAYOUTS:
            for setting in sorted({(row.threads, row.busy_ranks) for row in rows}):
                chosen = [
                    row
                    for row in rows
                    if (row.dtype, row.layout, row.threads, row.busy_ranks) == (dtype, layout, *setting)
                ]
                if len(chosen) >= 6:
                    name = f"gemm {dtype} {layout} {setting[0]} threads {setting[1]} ranks"
                    residuals[name] = fit_gemm(chosen).residual
    warnings = [
        f"{name}: half of the products are off the fit by {residual:.1%} or more"
        for name, residual in residuals.items()
        if residual > LARGE_RESIDUAL
    ]
    if disturbed > points / 10:
        warnings.append(f"something else ran: {disturbed} tries beside {points} points were thrown away")
    return Fit(residuals=residuals, warnings=tuple(warnings))


def _gemm_row(point: GemmPoint) -> GemmRow:
    return GemmRow(
        m=point.m,
        k=point.k,
        n=point.n,
        dtype=point.dtype,
        layout=point.layout,
        busy_ranks=point.busy_ranks,
        threads=point.threads,
        flops_per_second=2.0 * point.m * point.k * point.n / point.seconds,
        spread=point.spread,
    )


def _memory_row(point: StreamPoint) -> MemoryRow:
    return MemoryRow(
        operation=point.operation,  # type: ignore[arg-type]
        bytes=point.bytes,
        busy_ranks=point.busy_ranks,
        bytes_per_second=point.bytes / point.seconds,
        spread=point.spread,
    )


def _transfer_row(point: TransferPoint) -> TransferRow:
    return TransferRow(
        pattern=point.pattern,
        ranks=point.ranks,
        bytes=point.bytes,
        seconds=point.seconds,
        spread=point.spread,
    )


def _reference(rounds: Iterable[Times]) -> ReferenceKernels:
    """The reference kernels through the calibration: the median of their calm half, as calm points are kept too."""
    gemm, copy, add = (sorted(times) for times in zip(*rounds, strict=True))
    calm = (len(gemm) + 1) // 2
    return ReferenceKernels(
        gemm_seconds=median(gemm[:calm]),
        copy_seconds=median(copy[:calm]),
        add_seconds=median(add[:calm]),
        gemm_spread=spread(gemm),
        copy_spread=spread(copy),
        add_spread=spread(add),
    )


def _name(out: str) -> str:
    return "host" if out == "-" else out.rpartition("/")[2].removesuffix(".toml")


def _report(machine: Machine, out: str) -> None:
    assert machine.fit is not None
    for warning in machine.fit.warnings:
        print(f"calibrate: {warning}", file=sys.stderr)
    worst = max(machine.fit.residuals.values(), default=0.0)
    rates = ", ".join(
        f"{dtype} {rate / 1e9:.1f} Gflop/s" for dtype, rate in machine.device.peak_flops_per_second.items()
    )
    where = "stdout" if out == "-" else out
    print(
        f"calibrate: best product a core {rates}; median residual of the fit up to {worst:.1%}; wrote {where}",
        file=sys.stderr,
    )
