"""The machine that a calibration measured: its rows of measurements, derived rates, and residuals of the GEMM fit."""

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from quadrille.algorithms.formats.measured_rows import GemmRow, MemoryRow
from quadrille.algorithms.formats.percentiles import spread
from quadrille.experiments.calibrate.calibration_benchmarks import DTYPES, LAYOUTS, CalibrationMeasurements
from quadrille.experiments.calibrate.library_collectives import library_row
from quadrille.experiments.calibrate.network_sections import (
    Arguments,
    emulation_section,
    link_warnings,
    network_section,
    saturation_of_links,
    topology_section,
    transfer_row,
    unsaturated_sources,
)
from quadrille.experiments.calibrate.topology_option import TopologyOption, default_star
from quadrille.runtime.host import memory_available, world
from quadrille.runtime.measuring.measured_points import GemmPoint
from quadrille.runtime.measuring.reference_kernels import Times
from quadrille.simulator.machine.compute_model import LEAST_ROWS, fit_gemm, touched
from quadrille.topologies.machines.machine import Device, Fit, Host, Machine, ReferenceKernels
from quadrille.topologies.routes.routing import Routing

LARGE_RESIDUAL = 0.05


def make_machine(
    name: str,
    measured: CalibrationMeasurements,
    hosts: Sequence[world.ComputeHost],
    topology: TopologyOption | None,
    routing: Routing,
) -> Machine:
    """The machine that a calibration measured, without provenance.

    Parameters
    ----------
    name : name of the machine
    measured : measurements of the device, of the hosts and of transfers between them
    topology : topology option, checked to fit the hosts; None for a star of the hosts
    routing : routing rule between hosts
    """
    host, shared = hosts[0], hosts[0].sharing > 0
    device = _device(measured)
    network, library = _topology(measured, hosts, topology, routing), tuple(map(library_row, measured.library))
    between = measured.between
    saturated = saturation_of_links(between, network, routing)
    fit = _fit(device, measured.local.disturbed)
    return Machine(
        name=name,
        topology=network,
        routing=str(routing),
        device=device,
        host=Host(
            cores=host.cores,
            ranks=max(len(host_of_ranks.ranks) for host_of_ranks in hosts) if len(hosts) > 1 and not shared else None,
            memory_bytes_per_second=_shared_bandwidth(device.memory),
            issue_seconds=measured.overheads.issue_seconds,
            single_rank_op_seconds=measured.overheads.alone_seconds,
            transfer=tuple(transfer_row(point) for point in measured.host_transfers),
            library=library if between is None else (),
        ),
        network=None
        if between is None
        else network_section(between, library, network, routing, saturated, shared=shared),
        emulation=emulation_section(between, network, routing) if shared else None,
        reference=_reference(measured.together.reference),
        reference_alone=_reference(measured.reference_alone),
        fit=msgspec.structs.replace(fit, warnings=(*fit.warnings, *link_warnings(saturated, network))),
        sources=unsaturated_sources(saturated, network),
    )


def _device(measured: CalibrationMeasurements) -> Device:
    """The device with its measured rows; its peak rates are the best measured values."""
    local = measured.local
    rows, memory = tuple(map(_gemm_row, local.gemm)), tuple(local.streams)
    largest = max(row.bytes for row in memory)
    stream = max(row.bytes_per_second for row in memory if row.operation == "copy" and row.bytes == largest)
    return Device(
        peak_flops_per_second={
            dtype: max(row.flops_per_second / row.threads for row in rows if row.dtype == dtype) for dtype in DTYPES
        },
        memory_bytes_per_second=2 * stream,
        memory_bytes=float(memory_available.bytes_available()),
        overhead_seconds=measured.overheads.compute_seconds,
        following_overhead_seconds=measured.following_seconds,
        gemm=rows,
        memory=memory,
        kernel=tuple(local.kernels),
        passes=tuple(local.passes),
    )


def _shared_bandwidth(rows: Sequence[MemoryRow]) -> float:
    """The highest memory bandwidth of all ranks together, beyond the caches [B/s]."""
    largest = max(row.bytes for row in rows)
    largest_rows = [row for row in rows if row.bytes == largest]
    return max(row.busy_ranks * touched(row.operation, 1) * row.bytes_per_second for row in largest_rows)


def _topology(
    measured: CalibrationMeasurements,
    hosts: Sequence[world.ComputeHost],
    option: TopologyOption | None,
    routing: Routing,
) -> Arguments:
    """The topology: one host, or the topology option (by default a star) with measured rates unless it gives rates."""
    if len(hosts) == 1 and option is None:
        return {"family": "host", "cores": hosts[0].cores}
    option = option if option is not None else default_star(len(hosts))
    return topology_section(measured.between, option, routing)


def _fit(device: Device, disturbed: int) -> Fit:
    """The residuals of the GEMM fits, with warnings.

    Parameters
    ----------
    disturbed : number of measurements that were repeated because of other load
    """
    residuals: dict[str, float] = {}
    rows, points = (
        device.gemm,
        len(device.gemm) + len(device.memory) + len(device.kernel) + len({row.operation for row in device.passes}),
    )
    for dtype in DTYPES:
        for layout in LAYOUTS:
            for setting in sorted({(row.threads, row.busy_ranks) for row in rows}):
                setting_rows = [
                    row
                    for row in rows
                    if (row.dtype, row.layout, row.threads, row.busy_ranks) == (dtype, layout, *setting)
                ]
                if len(setting_rows) >= LEAST_ROWS:
                    name = f"gemm {dtype} {layout} {setting[0]} threads {setting[1]} ranks"
                    residuals[name] = fit_gemm(setting_rows, dtype).residual
    warnings = [
        f"{name}: half of the products are off the fit by {residual:.1%} or more"
        for name, residual in residuals.items()
        if residual > LARGE_RESIDUAL
    ]
    if disturbed > points / 10:
        warnings.append(f"other load disturbed the calibration: {disturbed} tries for {points} points were discarded")
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


def _reference(rounds: Iterable[Times]) -> ReferenceKernels:
    """The reference kernels: the medians of the faster halves, which other load did not disturb."""
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
