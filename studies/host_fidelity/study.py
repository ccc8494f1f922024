"""`quadrille study host-fidelity`: the error of predicted sharded matmuls on this host, from calibration alone.

Cases are drawn by a seed.  Each is predicted from the machine file, which is made from microbenchmarks only, and then
measured.  Cases on 1 rank, and on 2 ranks from 20 ms, are judged.  Shorter cases, and cases on 4 and 8 ranks, which
may share cores, are only reported.  The error is given raw, and corrected for the drift of the machine since its
calibration by means of reference kernels.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import msgspec
import numpy as np

from quadrille.algorithms.formats.record import Record, load_record
from quadrille.algorithms.matmuls.catalogue import AlgorithmName, find_algorithm
from quadrille.algorithms.matmuls.matmul import Matmul, Passes
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.tensors import DType
from quadrille.algorithms.units import time_unit
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.compare.comparison import Comparison
from quadrille.experiments.compare.error_sizes import ErrorSizes, error_sizes_raw_and_drift_removed
from quadrille.experiments.measure.batch import RunCase, measure
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.experiments.workloads.grids import grids
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.launching.launch import launch_or_raise
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_file import load_machine

SCHEMA = "quadrille/host-fidelity/1"
SEED, CASES = 1, 24
RESULTS = Path(__file__).resolve().parent / "results"
SMALLEST_SIZE, LARGEST_SIZE = 256, 4096
JUDGED_RANKS = (1, 2)
REPORTED_RANKS = (4, 8)
LEAST_JUDGED_SECONDS = {1: 0.0, 2: 0.020}
LONG_SECONDS = 1.0
"""Predicted time above which a run is repeated less often [s]."""


class CaseSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted and the measured time of one case, and the error.

    Parameters
    ----------
    predicted, measured : predicted time, and median measured time [s]
    relative_error : predicted / measured - 1
    relative_error_drift_removed : the same after correction for the drift of the machine
    """

    predicted: float
    measured: float
    relative_error: float | None
    relative_error_drift_removed: float | None


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one case.

    Parameters
    ----------
    command : command line that repeats the measurement
    ranks : number of ranks
    algorithm, passes, dtype, m, k, n, grid : configuration of the matmul
    seconds : predicted and measured time
    spread : relative spread of the measurement over its repeats
    interval_holds_measurement : whether the prediction interval contains the measurement
    judged : whether the error counts; otherwise it is only reported
    """

    command: str
    ranks: int
    algorithm: str
    passes: str
    dtype: str
    m: int
    k: int
    n: int
    grid: dict[str, int]
    seconds: CaseSeconds
    spread: float | None
    interval_holds_measurement: bool
    judged: bool


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The absolute relative errors of the cases of one number of ranks.

    Parameters
    ----------
    raw, drift_removed : errors, and errors after correction for the drift of the machine
    intervals_hold : share of the prediction intervals that contain the measurement
    """

    raw: ErrorSizes
    drift_removed: ErrorSizes | None
    intervals_hold: float


class HostFidelity(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the study, as `--json` writes it.

    Parameters
    ----------
    seed : seed of the drawn cases
    machine, machine_sha256 : name and hash of the machine file
    cases : results of all cases
    judged, reported : errors of the judged and of the reported cases, by number of ranks
    provenance : command, date and versions
    """

    seed: int
    machine: str
    machine_sha256: str
    cases: tuple[CaseResult, ...]
    judged: dict[str, GroupSummary]
    reported: dict[str, GroupSummary]
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class DrawnCase:
    """A drawn case: a number of ranks and a matmul on a grid."""

    ranks: int
    experiment: MatmulExperiment


def main(results: Path = RESULTS) -> None:
    """Run the study with the default seed, and write the result to the folder `results`."""
    results.mkdir(exist_ok=True)
    command = ["quadrille", "study", "host-fidelity", "--seed", str(SEED), "--cases", str(CASES)]
    host_fidelity(seed=SEED, cases=CASES, json=str(results / "host-fidelity.json"), command=command)


def host_fidelity(
    *,
    seed: int,
    cases: int,
    json: str = "",
    machine: str = "",
    oversubscribed: bool = True,
    command: Sequence[str] = (),
) -> HostFidelity:
    """Calibrate (unless a machine file is given), predict and measure the cases, and print the table.

    Parameters
    ----------
    seed, cases : seed and number of the drawn cases; a quarter of the number is drawn in addition for 4 and 8 ranks
    json : file of the result, `-` for stdout (then no table is printed); empty: not written
    machine : machine file that `calibrate` wrote on this host; empty: the study calibrates
    oversubscribed : whether to run 4 and 8 ranks too
    command : command line, for the provenance
    """
    Destinations(json=json).check({"--machine": machine} if machine else {})
    drawn = draw(seed, cases, JUDGED_RANKS)
    if oversubscribed:
        drawn += draw(seed + 1, max(2, cases // 4), REPORTED_RANKS)
    with tempfile.TemporaryDirectory() as folder:
        path = machine or calibrate_host(folder)
        results = run_cases(drawn, load_machine(path), Path(folder))
        fidelity = _summarise(seed, load_machine(path), results, provenance(list(command)))
    write_or_show(fidelity, json, SCHEMA, lambda: print(table(fidelity)))
    return fidelity


def calibrate_host(folder: str, ranks: int = 2) -> str:
    """Calibrate this host, and return the path of the machine file in `folder`."""
    path = str(Path(folder) / "host.toml")
    launch_or_raise("calibration", ranks, ["calibrate", "--out", path])
    return path


def draw(seed: int, cases: int, ranks: Sequence[int]) -> list[DrawnCase]:
    """Random cases over algorithms, grids, passes, dtypes and sizes, the same for the same seed.

    Parameters
    ----------
    seed : seed of the random numbers
    cases : number of cases
    ranks : numbers of ranks, taken in turn

    >>> draw(1, 3, (1, 2)) == draw(1, 3, (1, 2))
    True
    """
    random = np.random.default_rng(seed)
    return [_draw_case(random, ranks[number % len(ranks)]) for number in range(cases)]


def _draw_case(random: np.random.Generator, ranks: int) -> DrawnCase:
    """One random case on a number of ranks."""
    names = [name for name in get_args(AlgorithmName) if grids(ranks, find_algorithm(name))]
    algorithm = cast(AlgorithmName, str(random.choice(names)))
    fitting = grids(ranks, find_algorithm(algorithm))
    m, k, n = (round(SMALLEST_SIZE * (LARGEST_SIZE / SMALLEST_SIZE) ** random.random()) for _ in "mkn")
    grid = fitting[int(random.integers(len(fitting)))]
    dtype = cast(DType, str(random.choice(["float32", "float64"])))
    passes = cast(Passes, str(random.choice(["forward", "training"])))
    return DrawnCase(ranks, MatmulExperiment(Matmul(m, k, n, dtype, passes), grid, algorithm))


def run_cases(drawn: Sequence[DrawnCase], machine: Machine, folder: Path) -> list[CaseResult]:
    """Predict all cases, then measure them, one launch for each number of ranks.

    Parameters
    ----------
    drawn : cases
    machine : machine file, from which alone the cases are predicted
    folder : folder of the records

    Returns
    -------
    The result of each case, in their order.
    """
    predictions = [predict_record_and_timeline(case.experiment, machine)[0] for case in drawn]
    paths = [str(folder / f"measured-{number}.json") for number in range(len(drawn))]
    for ranks in dict.fromkeys(case.ranks for case in drawn):
        print(f"host-fidelity: measuring the cases of {ranks} ranks", file=sys.stderr, flush=True)
        here = [number for number, case in enumerate(drawn) if case.ranks == ranks]
        measure(ranks, [RunCase(drawn[i].experiment, paths[i], _run_options(predictions[i])) for i in here])
    return [
        _result(case, prediction, compare_records(prediction, load_record(path)))
        for case, prediction, path in zip(drawn, predictions, paths, strict=True)
    ]


def _run_options(prediction: Record) -> RunOptions:
    """The options of a run; long runs are repeated less often."""
    repeats = 3 if prediction.seconds > LONG_SECONDS else 7 if prediction.seconds > LONG_SECONDS / 10 else 15
    return RunOptions(warmups=1, repeats=repeats)


def _result(case: DrawnCase, prediction: Record, comparison: Comparison) -> CaseResult:
    """The result of a case."""
    times, sizes = comparison.seconds, prediction.workload.matmul
    assert sizes is not None
    least = LEAST_JUDGED_SECONDS.get(case.ranks)
    run = RunCase(case.experiment, "", _run_options(prediction)).words()
    return CaseResult(
        command=" ".join(["quadrille", "launch", "-n", str(case.ranks), "run", *run]),
        ranks=case.ranks,
        algorithm=prediction.algorithm,
        passes=prediction.passes,
        dtype=prediction.dtype,
        m=sizes.m,
        k=sizes.k,
        n=sizes.n,
        grid=dict(comparison.problem.grid),
        seconds=CaseSeconds(
            predicted=times.predicted,
            measured=times.measured,
            relative_error=times.relative_error,
            relative_error_drift_removed=times.relative_error_drift_removed,
        ),
        spread=comparison.noise.spread,
        interval_holds_measurement=comparison.noise.interval_holds_measurement,
        judged=least is not None and times.measured >= least,
    )


def _summarise(seed: int, machine: Machine, results: Sequence[CaseResult], origin: Provenance) -> HostFidelity:
    """The result of the study, from the results of its cases."""

    def groups(judged: bool) -> dict[str, GroupSummary]:
        """The errors of the judged, or of the other cases, by number of ranks."""
        members = [result for result in results if result.judged == judged]
        return {
            str(ranks): _group([result for result in members if result.ranks == ranks])
            for ranks in dict.fromkeys(result.ranks for result in members)
        }

    return HostFidelity(
        seed=seed,
        machine=machine.name,
        machine_sha256=machine.sha256,
        cases=tuple(results),
        judged=groups(True),
        reported=groups(False),
        provenance=origin,
    )


def _group(results: Sequence[CaseResult]) -> GroupSummary:
    """The errors of some cases."""
    raw, removed = error_sizes_raw_and_drift_removed([result.seconds for result in results])
    holding = sum(result.interval_holds_measurement for result in results) / len(results)
    return GroupSummary(raw=raw, drift_removed=removed, intervals_hold=holding)


def table(fidelity: HostFidelity) -> str:
    """The table of the cases, and the summary, as text."""
    lines = [f"{'predicted':>10} {'measured':>10} {'error':>7} {'no drift':>8} {'spread':>7}  case"]
    unit = time_unit(time for case in fidelity.cases for time in (case.seconds.predicted, case.seconds.measured))
    for case in sorted(fidelity.cases, key=lambda case: (case.ranks, not case.judged)):
        suffix, times = "" if case.judged else "  (reported)", case.seconds
        lines.append(
            f"{unit.text(times.predicted):>10} {unit.text(times.measured):>10} "
            f"{_percent(times.relative_error):>7} {_percent(times.relative_error_drift_removed):>8} "
            f"{_percent(case.spread, sign=False):>7}  {case.command.partition(' -n ')[2]}{suffix}"
        )
    for name, groups in (("judged", fidelity.judged), ("reported", fidelity.reported)):
        for ranks, group in groups.items():
            lines.append(f"P={ranks} {name}: raw {_errors_text(group.raw)}")
            if group.drift_removed is not None:
                lines.append(f"P={ranks} {name}: drift removed {_errors_text(group.drift_removed)}")
    return "\n".join(lines)


def _errors_text(errors: ErrorSizes) -> str:
    """The median, 90th percentile and largest error as text."""
    median, p90, worst = (f"{error:.1%}" for error in (errors.median, errors.p90, errors.worst))
    return f"median {median}, 90th percentile {p90}, worst {worst} of {errors.cases} cases"


def _percent(value: float | None, *, sign: bool = True) -> str:
    """A share in percent; empty if it is unknown."""
    return "" if value is None else f"{value:+.1%}" if sign else f"{value:.1%}"


if __name__ == "__main__":
    run_as_program(main)
