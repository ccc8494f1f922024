"""The answer to a scaling study: all grids ranked, and the best that fit simulated, on each number of GPUs.

Efficiency is the rate of one GPU, flop / (GPUs * seconds), over that of the
fastest simulated run on the fewest GPUs.

The simulated seconds are the answer; the closed form only says which grids are
worth a simulation.  Where the two disagree, and why, is said in `quadrille.experiments.predict`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

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
from quadrille.experiments.workloads.fullest_device import FullestDevice, fullest_device
from quadrille.experiments.workloads.matmul import matmul_sizes
from quadrille.simulator.machine.network import network_of, speeds_of
from quadrille.simulator.simulate import Prediction, simulate
from quadrille.studies.scaling.question import Question
from quadrille.studies.scaling.report import GridRun, Ranked, Scaling
from quadrille.topologies.machines.machine import Machine

MachineOf = Callable[[int], Machine]
"""Gives the machine with so many GPUs."""


def answer(question: Question, machine: MachineOf) -> Scaling:
    """Rank all grids and simulate the best grids, for each number of GPUs.

    Raises
    ------
    InputError : a machine that has too few GPUs; no grid that fits in memory on any number of them
    """
    largest = _machine(machine, question.gpus[-1])
    # too few GPUs are refused before any work
    ClosedFormModel(largest, question.problem.dtype, question.gpus[-1], question.choices)
    runs: list[GridRun] = []
    ranked: list[Ranked] = []
    missing: list[str] = []
    for gpus in question.gpus:
        try:
            part = _machine(machine, gpus)
        except InputError as error:
            missing.append(f"{gpus} GPUs: {error}")
            continue
        grids = _ranked(question, gpus, part)
        placed = fullest_device(part, gpus)
        fitting = [place for place, grid in enumerate(grids) if placed.fits(part, grid.peak_bytes)]
        ranked += [_ranked_row(gpus, grid, fits=place in fitting) for place, grid in enumerate(grids)]
        runs += [_run(question, gpus, place + 1, grids[place], part) for place in fitting[: question.top]]
        missing += _remarks_at(gpus, grids, len(fitting), part, placed)
    if not runs:
        raise InputError(f"scaling {_sizes(question.problem)}: nothing to simulate; {'; '.join(missing)}")
    return Scaling(
        kind=question.kind,
        machine=MachineName(largest.name, largest.sha256, largest.routing, largest.faults),
        matmul=matmul_sizes(question.problem),
        dtype=question.problem.dtype,
        passes=question.problem.passes,
        algorithms=tuple(algorithm.name for algorithm in question.algorithms),
        order=question.order,
        overlap=tuple(sorted(question.overlaps)),
        gathered=question.problem.gathered,
        collectives=str(question.choices),
        panel=question.problem.panel,
        threads=question.threads,
        runs=tuple(_with_efficiency(runs)),
        ranked=tuple(ranked),
        remarks=(*_remarks_on(largest, question), *missing),
    )


def _machine(machine: MachineOf, gpus: int) -> Machine:
    """The machine with so many GPUs.

    Raises
    ------
    InputError : a machine that cannot be, or has no such link or GPU as its faults name
    """
    chosen = machine(gpus)
    speeds_of(chosen, network_of(chosen))
    return chosen


def _ranked(question: Question, gpus: int, machine: Machine) -> list[RankedGrid]:
    return rank_grids(
        question.problem_on(gpus),
        question.algorithms,
        gpus,
        machine,
        choices=question.choices,
        overlaps=question.overlaps,
        order=question.order,
        threads=question.threads,
    )


def _ranked_row(gpus: int, grid: RankedGrid, *, fits: bool) -> Ranked:
    return Ranked(
        gpus=gpus,
        algorithm=grid.algorithm,
        grid=grid.grid.lengths,
        closed_form_seconds=grid.closed_form.seconds,
        peak_bytes_per_rank_max=grid.peak_bytes,
        fits=fits,
    )


def _run(question: Question, gpus: int, place: int, ranked: RankedGrid, machine: Machine) -> GridRun:
    """One grid simulated; its efficiency is not known yet."""
    problem = question.problem_on(gpus)
    schedule = overlap(matmul_schedule(problem, ranked.algorithm, ranked.grid), question.overlaps)
    predicted = simulate(schedule, machine, choices=question.choices, threads=question.threads)
    counted = volumes(schedule, question.choices)
    seconds = predicted.timeline.makespan
    rate = problem.flops / (gpus * seconds)
    peak = machine.device.peak_flops_per_second.get(problem.dtype)
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
        fraction_of_peak=rate / peak if peak else None,
        peak_bytes_per_rank_max=counted.peak_bytes_per_rank_max,
        bytes_sent_per_rank_max=counted.sent_per_rank_max,
        extrapolated=bool(predicted.extrapolated),
    )


def _exposed(predicted: Prediction, grid: Grid) -> float:
    """Seconds of communication that no computing hides, mean over ranks."""
    return sum(predicted.timeline.exposed().values()) / grid.size


def _with_efficiency(runs: Sequence[GridRun]) -> Iterator[GridRun]:
    """The runs in order, each with its rate over that of the fastest on the fewest GPUs; the fastest first."""
    fewest = min(run.gpus for run in runs)
    base = max(run.flops_per_second_per_gpu for run in runs if run.gpus == fewest)
    for run in sorted(runs, key=lambda run: (run.gpus, float(f"{run.seconds:.9e}"), run.closed_form_place)):
        yield msgspec.structs.replace(run, efficiency=run.flops_per_second_per_gpu / base)


def _remarks_on(machine: Machine, question: Question) -> Iterator[str]:
    """Remarks about the machine's limits."""
    peaks = machine.device.peak_flops_per_second
    if question.problem.dtype not in peaks:
        yield f"{machine.name} gives no speed for {question.problem.dtype}, only for {', '.join(peaks)}"
    if not machine.device.gemm:
        yield f"{machine.name} has no measured products: they are predicted from data sheets and public measurements"


def _remarks_at(
    gpus: int, grids: Sequence[RankedGrid], fitting: int, machine: Machine, placed: FullestDevice
) -> Iterable[str]:
    """Remarks on why there are fewer runs than the question asks for."""
    if not grids:
        return [f"{_gpus(gpus)}: no grid; the algorithms asked for do not run on {gpus} ranks"]
    if fitting:
        return []
    least, held = placed.ranks * min(grid.peak_bytes for grid in grids), machine.device.memory_bytes
    who = f"the {placed.ranks} ranks of a host need" if placed.ranks > 1 else "a rank needs"
    return [f"{_gpus(gpus)}: no grid fits; {who} at least {format_bytes(least)} of {format_bytes(held)}"]


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _sizes(problem: Matmul) -> str:
    return f"{problem.m},{problem.k},{problem.n}"
