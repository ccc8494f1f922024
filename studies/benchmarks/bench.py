"""`quadrille bench` (`make bench`): all figures that the project must reach, measured on this host in one run.

figure                     measurement
error of products          every algorithm, pass and dtype on 2, 4 and 12 ranks, against a serial matmul
bytes                      bytes predicted from the schedule, against counted bytes of the same runs
order                      measured time of the predicted fastest grid, against the measured fastest grid
fidelity                   errors of the cases of `study host-fidelity`
executor overhead          pairs of the executor and of the same calls written by hand
sweeps                     pairs of a sweep by one process and by two; processor time of the engine
start-up                   shortest of several wall times of `quadrille --help` and of a small simulation
main job                   wall time of `study main-job` in a temporary folder
tests                      wall time of the test suite, unless it is left out
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import msgspec

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.record import Record, load_record
from quadrille.algorithms.matmuls.catalogue import algorithms
from quadrille.algorithms.matmuls.matmul import Matmul, Passes
from quadrille.algorithms.provenance import ROOT, Provenance, provenance
from quadrille.algorithms.schedule.tensors import DType
from quadrille.experiments.measure.batch import RunCase, measure
from quadrille.experiments.output.tables import Row, percent, print_tables, table
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.experiments.workloads.fitting_grids import fitting_grids
from quadrille.experiments.workloads.grids import grids
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.operands.generator import Kind
from quadrille.studies.benchmarks.executor_overhead import Overhead, executor_overhead
from quadrille.studies.benchmarks.sweep_speed import SweepSpeed, sweep_speed
from quadrille.studies.benchmarks.sweep_speed import rows as sweep_rows
from quadrille.studies.host_fidelity.study import HostFidelity, calibrate_host, host_fidelity
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_file import load_machine

SCHEMA = "quadrille/bench/1"
RANKS = 2
SMALL = Matmul(401, 307, 503, panel=64)
MORE_RANKS = (4, 12)
SMALLER = Matmul(101, 67, 83, panel=16)
ORDERED = Matmul(2048, 2048, 2048, "float64")
SEED, CASES = 1, 24
STARTS = 7
HELP = ("--help",)
SIMULATION = ("simulate", "--matmul", "64,64,64", "--grid", "z=2", "--machine", "perlmutter")
DTYPES: tuple[DType, ...] = ("float32", "float64")


class FastestChoice(msgspec.Struct, frozen=True):
    """The predicted and the measured fastest algorithm and grid.

    Parameters
    ----------
    predicted_fastest, measured_fastest : algorithm and grid as text
    loss : measured time of the predicted fastest / that of the measured fastest - 1
    """

    predicted_fastest: str
    measured_fastest: str
    loss: float


class WallTime(msgspec.Struct, frozen=True):
    """The wall time of a program [s], and whether its exit status was 0."""

    seconds: float
    ok: bool


class Figures(msgspec.Struct, frozen=True):
    """All figures, as `--json` writes them.

    Parameters
    ----------
    runs : number of verified runs
    largest_error_over_bound : largest error of a product divided by its bound
    runs_with_other_bytes : number of runs whose counted bytes differ from the predicted bytes
    integers_bit_for_bit : whether all products of whole numbers are exact
    order : predicted and measured fastest grid
    overhead : overhead of the executor
    sweeps : speed of a sweep's engine
    fidelity : result of `study host-fidelity`
    help_seconds, simulation_seconds : wall times of `quadrille --help` and of a small simulation [s]
    main_job, tests : wall times of the main job and of the test suite; null if the tests were left out
    provenance : command, date and versions
    """

    runs: int
    largest_error_over_bound: float
    runs_with_other_bytes: int
    integers_bit_for_bit: bool
    order: FastestChoice
    overhead: Overhead
    sweeps: SweepSpeed
    fidelity: HostFidelity
    help_seconds: float
    simulation_seconds: float
    main_job: WallTime
    tests: WallTime | None
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Pair:
    """The predicted and the measured record of one run."""

    predicted: Record
    measured: Record


def bench(*, json: str | None = None, tests: bool = True, command: Sequence[str] = ()) -> None:
    """Measure all figures and print them in one table.

    Parameters
    ----------
    json : file of all figures, `-` for stdout (then no table is printed); None: not written
    tests : whether to run and time the test suite too
    command : command line, for the provenance
    """
    if json is not None:
        schema_files.check_writable(json)
    with tempfile.TemporaryDirectory() as folder:
        path = calibrate_host(folder)
        figures = _figures(path, load_machine(path), Path(folder), provenance(list(command)), tests=tests)
    if json is not None:
        schema_files.write_json(json, figures, SCHEMA)
    if json != schema_files.STDOUT:
        print_table(figures)


def _figures(path: str, machine: Machine, folder: Path, provenance_of_run: Provenance, *, tests: bool) -> Figures:
    """Measure all figures; `path` is the file of `machine`."""
    _print_stage("executor overhead")
    overhead = executor_overhead(RANKS)
    _print_stage("sweeps")
    sweeps = sweep_speed()
    _print_stage("fidelity")
    fidelity = host_fidelity(seed=SEED, cases=CASES, machine=path)
    _print_stage("every algorithm, pass and dtype")
    verified = _products(machine, folder / "small", "uniform")
    exact = _products(machine, folder / "exact", "integers")
    _print_stage("order")
    ordered = _pairs(RANKS, _forward(ORDERED), machine, folder / "order", RunOptions(repeats=7))
    _print_stage("start-up")
    help_seconds, simulation_seconds = _start_up(HELP), _start_up(SIMULATION)
    _print_stage("main job")
    main_job = _timed(["-P", "-m", "quadrille", "study", "main-job", "--folder", str(folder / "main-job")])
    if tests:
        _print_stage("tests")
    return Figures(
        runs=len(verified) + len(exact),
        largest_error_over_bound=max(_error_over_bound(pair.measured) for pair in verified),
        runs_with_other_bytes=sum(_other_bytes(pair) for pair in verified + exact),
        integers_bit_for_bit=all(pair.measured.verified and pair.measured.verified.max_error == 0 for pair in exact),
        order=_order(ordered),
        overhead=overhead,
        sweeps=sweeps,
        fidelity=fidelity,
        help_seconds=help_seconds,
        simulation_seconds=simulation_seconds,
        main_job=main_job,
        tests=_timed(["-m", "pytest", "-q", "--numprocesses", "2", "--dist", "loadfile"]) if tests else None,
        provenance=provenance_of_run,
    )


def _start_up(arguments: Sequence[str]) -> float:
    """The shortest wall time of several calls of `quadrille` with these arguments [s]."""
    program = [sys.executable, "-P", "-m", "quadrille", *arguments]
    return min(_seconds_of(program) for _ in range(STARTS))


def _seconds_of(program: Sequence[str]) -> float:
    """The wall time of a program, whose output is discarded [s]."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    start = time.monotonic()
    subprocess.run(program, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - start


def _timed(arguments: Sequence[str]) -> WallTime:
    """The wall time of a Python program that runs in the project's root; its output goes to stderr."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    start = time.monotonic()
    completed = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
    return WallTime(time.monotonic() - start, completed.returncode == 0)


def _products(machine: Machine, folder: Path, operands: Kind) -> list[Pair]:
    """Verified runs of every variant: on two ranks on every grid, on more ranks on one grid each."""
    folder.mkdir()
    once = RunOptions(verify=True, warmups=0, repeats=1, operands=operands)
    pairs = _pairs(RANKS, _variants(_forward(SMALL)), machine, folder / "2", once)
    for ranks in MORE_RANKS:
        pairs += _pairs(ranks, _variants(_on_even_grids(SMALLER, ranks)), machine, folder / str(ranks), once)
    return pairs


def _variants(experiments: Sequence[MatmulExperiment]) -> list[MatmulExperiment]:
    """The experiments with all combinations of passes and dtypes."""
    return [
        replace(experiment, problem=replace(experiment.problem, passes=passes, dtype=dtype))
        for experiment in experiments
        for passes in get_args(Passes)
        for dtype in DTYPES
    ]


def _on_even_grids(problem: Matmul, ranks: int) -> list[MatmulExperiment]:
    """The experiments of all algorithms that run on `ranks` ranks, each on its most even grid."""
    return [
        MatmulExperiment(problem, fitting[0], algorithm.name)
        for algorithm in algorithms()
        if (fitting := fitting_grids(algorithm, ranks))
    ]


def _forward(problem: Matmul) -> list[MatmulExperiment]:
    """The experiments of all algorithms on all grids of two ranks."""
    return [
        MatmulExperiment(problem, grid, algorithm.name)
        for algorithm in algorithms()
        for grid in grids(RANKS, algorithm)
    ]


def _pairs(
    ranks: int, experiments: Sequence[MatmulExperiment], machine: Machine, folder: Path, options: RunOptions
) -> list[Pair]:
    """Measure and predict the experiments; their records go to `folder`."""
    folder.mkdir()
    cases = [
        RunCase(experiment, str(folder / f"{number}.json"), options) for number, experiment in enumerate(experiments)
    ]
    measure(ranks, cases)
    return [Pair(predict_record_and_timeline(case.experiment, machine)[0], load_record(case.record)) for case in cases]


def _error_over_bound(record: Record) -> float:
    """The error of a run's result divided by its bound; infinite if the result was not verified."""
    verdict = record.verified
    if verdict is None or verdict.max_error is None:
        return float("inf")
    return verdict.max_error / verdict.bound


def _other_bytes(pair: Pair) -> bool:
    """Whether the counted bytes differ from the predicted bytes."""
    predicted, measured = pair.predicted, pair.measured
    return (predicted.bytes_sent_per_rank_max, predicted.bytes_sent_total) != (
        measured.bytes_sent_per_rank_max,
        measured.bytes_sent_total,
    )


def _order(pairs: Sequence[Pair]) -> FastestChoice:
    """The fastest pair by prediction and by measurement."""
    chosen = min(pairs, key=lambda pair: pair.predicted.seconds)
    fastest = min(pairs, key=lambda pair: pair.measured.seconds)
    loss = chosen.measured.seconds / fastest.measured.seconds - 1
    return FastestChoice(_name(chosen.measured), _name(fastest.measured), loss)


def _name(record: Record) -> str:
    """The algorithm and the grid of a run as text."""
    lengths = ",".join(f"{axis}={length}" for axis, length in record.grid.items() if length > 1)
    return f"{record.algorithm} on {lengths}"


def print_table(figures: Figures) -> None:
    """Print the table of the figures with their thresholds."""
    rows = [*_rows(figures), *sweep_rows(figures.sweeps), *_fidelity_rows(figures.fidelity)]
    for name, seconds, floor in (
        ("quadrille --help", figures.help_seconds, "0.15 s"),
        ("a small simulation", figures.simulation_seconds, "0.45 s"),
    ):
        rows.append((name, f"{seconds:.2f} s", floor, f"shortest of {STARTS}"))
    rows.append(_time_row("main job", figures.main_job, "180 s", "without installing"))
    if figures.tests is not None:
        rows.append(_time_row("tests", figures.tests, "720 s", "all of them"))
    print_tables(table("Figures of this run", ("what", "found", "floor", "how"), rows, names=4))


def _time_row(name: str, time: WallTime, floor: str, how: str) -> Row:
    """The row of a wall time."""
    failed = "" if time.ok else ", FAILED"
    return (name, f"{time.seconds:.0f} s{failed}", floor, how)


def _rows(figures: Figures) -> list[Row]:
    """The rows of products, bytes, executor overhead and order."""
    low, high = figures.overhead.ratio_low, figures.overhead.ratio_high
    return [
        ("error of products / bound", f"{figures.largest_error_over_bound:.3f}", "at most 1", f"{figures.runs} runs"),
        ("whole numbers bit for bit", "yes" if figures.integers_bit_for_bit else "no", "yes", ""),
        ("runs whose counted bytes differ", str(figures.runs_with_other_bytes), "0", f"of {figures.runs}"),
        (
            "executor over calls by hand",
            f"{figures.overhead.ratio:.3f}",
            "interval ends at 1.05",
            f"95 % interval {low:.3f} to {high:.3f}, {len(figures.overhead.executor_seconds)} pairs",
        ),
        (
            "predicted fastest over fastest",
            percent(figures.order.loss),
            "+10 %",
            f"{figures.order.predicted_fastest}; fastest {figures.order.measured_fastest}",
        ),
    ]


def _fidelity_rows(fidelity: HostFidelity) -> list[Row]:
    """The rows of the errors of predictions on this host."""
    rows: list[Row] = []
    floors = {"1": ("4 %", "10 %"), "2": ("6 %", "15 %")}
    for ranks, group in fidelity.judged.items():
        half, most = floors[ranks]
        for label, errors in (("raw", group.raw), ("drift removed", group.drift_removed)):
            if errors is not None:
                text = f"median {percent(errors.median, signed=False)}, 90th {percent(errors.p90, signed=False)}"
                floor = f"{half}, 90th {most}"
                rows.append((f"fidelity, P={ranks}, {label}", text, floor, f"{errors.cases} cases, seed {SEED}"))
    return rows


def _print_stage(stage: str) -> None:
    """Print the name of the next measurement on stderr."""
    print(f"bench: {stage}", file=sys.stderr, flush=True)
