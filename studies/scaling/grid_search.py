"""The search for the fastest grid on each number of GPUs: rank all grids by the closed form, simulate the best.

The closed form (`quadrille.experiments.predict.closed_form`) only selects the grids to simulate; the simulated times
are the result.  Efficiency is the rate of one GPU, flop / (GPUs * seconds), divided by that of the fastest simulated
run on the fewest GPUs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import MachineName
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.matmul_grids import RankedGrid, rank_grids
from quadrille.experiments.predict.schedule_prediction import simulate
from quadrille.experiments.workloads.fullest_device import FullestDevice, fullest_device
from quadrille.experiments.workloads.matmul import matmul_sizes
from quadrille.experiments.workloads.peak_share import peak_share
from quadrille.simulator.machine.default_collectives import machine_choices
from quadrille.simulator.machine.network import network_of, speeds_of
from quadrille.simulator.simulate import Prediction
from quadrille.studies.scaling.problem import ScalingProblem
from quadrille.studies.scaling.report import GridRun, RankedGridRow, ScalingResult
from quadrille.topologies.machines.machine import Machine

MachineOf = Callable[[int], Machine]
"""Function that returns the machine with a number of GPUs."""


def search_grids(scaling_problem: ScalingProblem, machine: MachineOf) -> ScalingResult:
    """Rank all grids and simulate the best `top` that fit in memory, for each number of GPUs.

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
    for gpus in scaling_problem.gpus:
        try:
            part = _machine(machine, gpus)
        except InputError as error:
            missing.append(f"{gpus} GPUs: {error}")
            continue
        grids = _ranked(scaling_problem, gpus, part)
        device = fullest_device(part, gpus)
        fitting = [index for index, grid in enumerate(grids) if device.fits(part, grid.peak_bytes)]
        ranked += [_ranked_row(gpus, grid, fits=index in fitting) for index, grid in enumerate(grids)]
        runs += [
            _simulated(scaling_problem, gpus, index + 1, grids[index], part) for index in fitting[: scaling_problem.top]
        ]
        missing += _remarks_at(gpus, grids, len(fitting), part, device)
    if not runs:
        raise InputError(f"scaling {_sizes(scaling_problem.matmul)}: nothing to simulate; {'; '.join(missing)}")
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
        threads=scaling_problem.threads,
        runs=tuple(_with_efficiency(runs)),
        ranked=tuple(ranked),
        remarks=(*_remarks_on(largest, scaling_problem), *missing),
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


def _remarks_at(
    gpus: int, grids: Sequence[RankedGrid], fitting: int, machine: Machine, device: FullestDevice
) -> Iterable[str]:
    """The remark on a number of GPUs without a run: no grid exists, or no grid fits in memory."""
    if not grids:
        return [f"{_gpus(gpus)}: no grid; the algorithms parse_problem for do not run on {gpus} ranks"]
    if fitting:
        return []
    least, memory = device.ranks * min(grid.peak_bytes for grid in grids), machine.device.memory_bytes
    subject = f"the {device.ranks} ranks of a host need" if device.ranks > 1 else "a rank needs"
    return [f"{_gpus(gpus)}: no grid fits; {subject} at least {format_bytes(least)} of {format_bytes(memory)}"]


def _gpus(count: int) -> str:
    """A number of GPUs as text."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _sizes(problem: Matmul) -> str:
    """The sizes m, k and n as text."""
    return f"{problem.m},{problem.k},{problem.n}"
