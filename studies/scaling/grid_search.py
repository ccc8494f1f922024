"""The search for the fastest grid on each number of GPUs: rank all grids by the closed form, simulate the best.

The closed form (`quadrille.experiments.predict.closed_form`) only selects the grids to simulate; the simulated times
are the result.  Efficiency is the rate of one GPU, flop / (GPUs * seconds), divided by that of the fastest simulated
run on the fewest GPUs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

import msgspec

from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import MachineName
from quadrille.algorithms.matmuls.catalogue import Algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.matmul_grids import RankedGrid, rank_grids
from quadrille.experiments.predict.schedule_prediction import simulate
from quadrille.experiments.workloads.fitting_grids import no_grid_of
from quadrille.experiments.workloads.fullest_device import fullest_device
from quadrille.experiments.workloads.matmul import MatmulExperiment, matmul_sizes
from quadrille.experiments.workloads.no_grid import matmul_shortage
from quadrille.experiments.workloads.peak_share import peak_share
from quadrille.simulator.machine.default_collectives import machine_choices
from quadrille.simulator.machine.network import network_of, speeds_of
from quadrille.simulator.simulate import Prediction
from quadrille.studies.scaling.problem import EQUAL, ScalingProblem
from quadrille.studies.scaling.report import GridRun, RankedGridRow, ScalingResult
from quadrille.topologies.machines.machine import Machine

MOST_REASONS = 3
"""The most reasons in the error of a study without a run."""
MachineOf = Callable[[int], Machine]
"""Function that returns the machine with a number of GPUs."""


def search_grids(scaling_problem: ScalingProblem, machine: MachineOf) -> ScalingResult:
    """Rank all grids and simulate the best `top` of each algorithm that fit in memory, for each number of GPUs.

    Parameters
    ----------
    scaling_problem : matmul, numbers of GPUs and options
    machine : function that returns the machine with a number of GPUs

    Raises
    ------
    InputError : a machine with too few GPUs; no grid that fits in memory on any number of GPUs
    """
    largest = _machine(machine, scaling_problem.gpus[-1])
    scaling_problem = replace(scaling_problem, choices=machine_choices(scaling_problem.choices, largest))
    # raises InputError before any work if the machine has too few GPUs
    ClosedFormModel(largest, scaling_problem.matmul.dtype, scaling_problem.gpus[-1], scaling_problem.choices)
    runs: list[GridRun] = []
    ranked: list[RankedGridRow] = []
    missing: list[str] = []
    limits: dict[int, float] = {}
    for gpus in scaling_problem.gpus:
        try:
            part = _machine(machine, gpus)
        except InputError as error:
            missing.append(f"{gpus} GPUs: {error}")
            continue
        grids, device = _ranked(scaling_problem, gpus, part), fullest_device(part, gpus)
        limits[gpus] = limit = memory_limit(scaling_problem, grids, part.device.memory_bytes / device.ranks)
        ranked += [_ranked_row(gpus, grid, fits=grid.peak_bytes <= limit) for grid in grids]
        for algorithm in scaling_problem.algorithms:
            its_grids = [(place, grid) for place, grid in enumerate(grids, start=1) if grid.algorithm == algorithm.name]
            fitting = [(place, grid) for place, grid in its_grids if grid.peak_bytes <= limit][: scaling_problem.top]
            runs += [_simulated(scaling_problem, gpus, place, grid, part) for place, grid in fitting]
            if not fitting:
                missing.append(_no_run(scaling_problem, gpus, algorithm, [grid for _, grid in its_grids], part, limit))
    if not runs:
        more = (
            f"; and {len(missing) - MOST_REASONS} more, which rank --gpus names" if len(missing) > MOST_REASONS else ""
        )
        reasons = "; ".join(missing[:MOST_REASONS]) + more
        raise InputError(f"scaling {_sizes(scaling_problem.matmul)}: nothing to simulate; {reasons}")
    return ScalingResult(
        kind=scaling_problem.kind,
        machine=MachineName(largest.name, largest.sha256, largest.routing, largest.faults),
        matmul=matmul_sizes(scaling_problem.matmul),
        dtype=scaling_problem.matmul.dtype,
        passes=scaling_problem.matmul.passes,
        algorithms=tuple(algorithm.name for algorithm in scaling_problem.algorithms),
        order=scaling_problem.order,
        overlap=tuple(sorted(scaling_problem.overlaps)),
        gathered=scaling_problem.matmul.gathered,
        collectives=str(scaling_problem.choices),
        panel=scaling_problem.matmul.panel,
        memory_per_gpu=scaling_problem.memory_per_gpu,
        memory_limits={str(gpus): limit for gpus, limit in limits.items()} if scaling_problem.memory_per_gpu else {},
        threads=scaling_problem.threads,
        runs=tuple(_with_efficiency(runs)),
        ranked=tuple(ranked),
        remarks=(*_remarks_on(largest, scaling_problem), *_equal_memory(scaling_problem, limits), *missing),
    )


def _machine(machine: MachineOf, gpus: int) -> Machine:
    """The machine with `gpus` GPUs, after a check of its network and of its faults.

    Raises
    ------
    InputError : an impossible machine; a fault that names a link or a GPU that the machine lacks
    """
    checked = machine(gpus)
    speeds_of(checked, network_of(checked))
    return checked


def _ranked(scaling_problem: ScalingProblem, gpus: int, machine: Machine) -> list[RankedGrid]:
    """All grids of a number of GPUs in the order of the closed form."""
    return rank_grids(
        scaling_problem.matmul_on(gpus),
        scaling_problem.algorithms,
        gpus,
        machine,
        choices=scaling_problem.choices,
        overlaps=scaling_problem.overlaps,
        order=scaling_problem.order,
        threads=scaling_problem.threads,
    )


def _ranked_row(gpus: int, grid: RankedGrid, *, fits: bool) -> RankedGridRow:
    """The row of a ranked grid in the result."""
    return RankedGridRow(
        gpus=gpus,
        algorithm=grid.algorithm,
        grid=grid.grid.lengths,
        closed_form_seconds=grid.closed_form.seconds,
        peak_bytes_per_rank_max=grid.peak_bytes,
        fits=fits,
    )


def _simulated(scaling_problem: ScalingProblem, gpus: int, place: int, ranked: RankedGrid, machine: Machine) -> GridRun:
    """The simulated run of one grid; its `efficiency` is 0 until `_with_efficiency` sets it."""
    problem = scaling_problem.matmul_on(gpus)
    schedule = overlap(matmul_schedule(problem, ranked.algorithm, ranked.grid), scaling_problem.overlaps)
    predicted = simulate(schedule, machine, choices=scaling_problem.choices, threads=scaling_problem.threads)
    counted = volumes(schedule, scaling_problem.choices)
    seconds = predicted.timeline.makespan
    rate = problem.flops / (gpus * seconds)
    threads = scaling_problem.threads or fullest_device(machine, gpus).threads
    return GridRun(
        gpus=gpus,
        algorithm=ranked.algorithm,
        grid=ranked.grid.lengths,
        m=problem.m,
        k=problem.k,
        n=problem.n,
        closed_form_place=place,
        closed_form_seconds=ranked.closed_form.seconds,
        closed_form_compute_seconds=ranked.closed_form.compute_seconds,
        seconds=seconds,
        flops_per_second_per_gpu=rate,
        efficiency=0.0,
        exposed_seconds=_exposed(predicted, ranked.grid),
        fraction_of_peak=peak_share(rate, machine.device.peak(problem.dtype, threads)),
        peak_bytes_per_rank_max=counted.peak_bytes_per_rank_max,
        bytes_sent_per_rank_max=counted.sent_per_rank_max,
        extrapolated=bool(predicted.extrapolated),
    )


def _exposed(predicted: Prediction, grid: Grid) -> float:
    """Communication time that no computation hides, mean over ranks [s]."""
    return sum(predicted.timeline.exposed().values()) / grid.size


def _with_efficiency(runs: Sequence[GridRun]) -> Iterator[GridRun]:
    """The runs with their efficiencies, sorted by number of GPUs and then by time."""
    fewest = min(run.gpus for run in runs)
    base = max(run.flops_per_second_per_gpu for run in runs if run.gpus == fewest)
    for run in sorted(runs, key=lambda run: (run.gpus, float(f"{run.seconds:.9e}"), run.closed_form_place)):
        yield msgspec.structs.replace(run, efficiency=run.flops_per_second_per_gpu / base)


def _remarks_on(machine: Machine, scaling_problem: ScalingProblem) -> Iterator[str]:
    """Remarks about the machine's limits."""
    peaks = machine.device.peak_flops_per_second
    if scaling_problem.matmul.dtype not in peaks:
        yield f"{machine.name} gives no speed for {scaling_problem.matmul.dtype}, only for {', '.join(peaks)}"
    if not machine.device.gemm:
        yield f"{machine.name} has no measured products: they are predicted from data sheets and public measurements"


def memory_limit(scaling_problem: ScalingProblem, grids: Sequence[RankedGrid], device_bytes: float) -> float:
    """The memory of a rank that all algorithms may use on a number of GPUs [B]; never more than the device has.

    Parameters
    ----------
    grids : all grids of all algorithms on this number of GPUs
    device_bytes : memory of the device for one rank [B]
    """
    asked = scaling_problem.memory_per_gpu
    if asked is None:
        return device_bytes
    if asked != EQUAL:
        return min(device_bytes, asked)
    least: dict[str, float] = {algorithm.name: inf for algorithm in scaling_problem.algorithms}
    for grid in grids:
        least[grid.algorithm] = min(least[grid.algorithm], grid.peak_bytes)
    possible = [size for size in least.values() if size <= device_bytes]
    return max(possible, default=device_bytes)


def _equal_memory(scaling_problem: ScalingProblem, limits: Mapping[int, float]) -> Iterator[str]:
    """The remark about the memory that all algorithms may use, if it is to be equal."""
    if scaling_problem.memory_per_gpu == EQUAL:
        words = ", ".join(f"{format_bytes(limit)} on {_gpus(gpus)}" for gpus, limit in limits.items())
        yield f"equal memory: each algorithm may use {words}"


def _no_run(
    scaling_problem: ScalingProblem,
    gpus: int,
    algorithm: Algorithm,
    grids: Sequence[RankedGrid],
    machine: Machine,
    limit: float,
) -> str:
    """The remark about an algorithm without a run on a number of GPUs: it has no grid, or no grid fits in memory."""
    if not grids:
        return f"{_gpus(gpus)}: {no_grid_of(algorithm.name, gpus)}"
    least, execution = min(grids, key=lambda grid: grid.peak_bytes), scaling_problem.execution
    experiment = MatmulExperiment(scaling_problem.matmul_on(gpus), least.grid, algorithm.name, execution)
    shortage = matmul_shortage(experiment, least.peak_bytes, fullest_device(machine, gpus).ranks)
    return f"{_gpus(gpus)}: {shortage.message(machine, limit if scaling_problem.memory_per_gpu else None)}"


def _gpus(count: int) -> str:
    """A number of GPUs as text."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _sizes(problem: Matmul) -> str:
    """The sizes m, k and n as text."""
    return f"{problem.m},{problem.k},{problem.n}"
