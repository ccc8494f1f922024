"""`quadrille study host-fidelity`: how well calibration alone predicts whole multiplications on this host.

Question: cases are drawn by a seed; each is predicted from the machine file,
which saw microbenchmarks only, and measured.  How far off are the predictions?

Cases with 1 and 2 ranks are judged (with 2 ranks those of 20 ms and more);
shorter ones, and 4 and 8 ranks on fewer cores, are reported.  The error is
shown raw and with the drift of the machine taken out by the reference kernels.
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
from quadrille.algorithms.units import format_seconds
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
LEAST, MOST = 256, 4096
JUDGED_RANKS = (1, 2)
REPORTED_RANKS = (4, 8)
LEAST_JUDGED_SECONDS = {1: 0.0, 2: 0.020}
LONG_SECONDS = 1.0
"""A run predicted to take longer is repeated less often."""


class CaseSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Makespans and errors of one case, in the words of a comparison."""

    predicted: float
    measured: float
    relative_error: float | None
    relative_error_drift_removed: float | None


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case: what it was, and how far off its prediction."""

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
    """The judged cases of one number of ranks."""

    raw: ErrorSizes
    drift_removed: ErrorSizes | None
    intervals_hold: float


class HostFidelity(msgspec.Struct, frozen=True, kw_only=True):
    """The study's result, as it is written."""

    seed: int
    machine: str
    machine_sha256: str
    cases: tuple[CaseResult, ...]
    judged: dict[str, GroupSummary]
    reported: dict[str, GroupSummary]
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Drawn:
    """A case drawn by the seed."""

    ranks: int
    experiment: MatmulExperiment


def main() -> None:
    """Measure the usual cases and keep the result."""
    RESULTS.mkdir(exist_ok=True)
    command = ["quadrille", "study", "host-fidelity", "--seed", str(SEED), "--cases", str(CASES)]
    host_fidelity(seed=SEED, cases=CASES, json=str(RESULTS / "host-fidelity.json"), command=command)


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
    seed, cases : seed and number of the drawn cases; a quarter of the number is drawn on top for 4 and 8 ranks
    json : file of the result; `-` is stdout, and then no table is printed
    machine : machine file that `calibrate` wrote on this host
    oversubscribed : whether to run 4 and 8 ranks too
    """
    Destinations(json=json).check({"--machine": machine} if machine else {})
    drawn = draw(seed, cases, JUDGED_RANKS)
    if oversubscribed:
        drawn += draw(seed + 1, max(2, cases // 4), REPORTED_RANKS)
    with tempfile.TemporaryDirectory() as folder:
        path = machine or calibrated(folder)
        results = run_cases(drawn, load_machine(path), Path(folder))
        fidelity = _summed_up(seed, load_machine(path), results, provenance(list(command)))
    write_or_show(fidelity, json, SCHEMA, lambda: print(table(fidelity)))
    return fidelity


def calibrated(folder: str, ranks: int = 2) -> str:
    """A fresh machine file of this host, in `folder`."""
    path = str(Path(folder) / "host.toml")
    launch_or_raise("calibration", ranks, ["calibrate", "--out", path])
    return path


def draw(seed: int, cases: int, ranks: Sequence[int]) -> list[Drawn]:
    """Cases spread over algorithms, passes, dtypes, sizes and numbers of ranks, the same for the same seed.

    >>> draw(1, 3, (1, 2)) == draw(1, 3, (1, 2))
    True
    """
    random = np.random.default_rng(seed)
    return [_drawn(random, ranks[number % len(ranks)]) for number in range(cases)]


def _drawn(random: np.random.Generator, ranks: int) -> Drawn:
    names = [name for name in get_args(AlgorithmName) if grids(ranks, find_algorithm(name))]
    algorithm = cast(AlgorithmName, str(random.choice(names)))
    fitting = grids(ranks, find_algorithm(algorithm))
    m, k, n = (round(LEAST * (MOST / LEAST) ** random.random()) for _ in "mkn")
    grid = fitting[int(random.integers(len(fitting)))]
    dtype = cast(DType, str(random.choice(["float32", "float64"])))
    passes = cast(Passes, str(random.choice(["forward", "training"])))
    return Drawn(ranks, MatmulExperiment(Matmul(m, k, n, dtype, passes), grid, algorithm))


def run_cases(drawn: Sequence[Drawn], machine: Machine, folder: Path) -> list[CaseResult]:
    """Predict all cases, then measure them, one launch for each number of ranks."""
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
    repeats = 3 if prediction.seconds > LONG_SECONDS else 7 if prediction.seconds > LONG_SECONDS / 10 else 15
    return RunOptions(warmups=1, repeats=repeats)


def _result(case: Drawn, prediction: Record, comparison: Comparison) -> CaseResult:
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


def _summed_up(seed: int, machine: Machine, results: Sequence[CaseResult], origin: Provenance) -> HostFidelity:
    def groups(judged: bool) -> dict[str, GroupSummary]:
        chosen = [result for result in results if result.judged == judged]
        return {
            str(ranks): _group([result for result in chosen if result.ranks == ranks])
            for ranks in dict.fromkeys(result.ranks for result in chosen)
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
    raw, removed = error_sizes_raw_and_drift_removed([result.seconds for result in results])
    holding = sum(result.interval_holds_measurement for result in results) / len(results)
    return GroupSummary(raw=raw, drift_removed=removed, intervals_hold=holding)


def table(fidelity: HostFidelity) -> str:
    """The cases, then the summary, as text."""
    lines = [f"{'predicted':>10} {'measured':>10} {'error':>7} {'no drift':>8} {'spread':>7}  case"]
    for case in sorted(fidelity.cases, key=lambda case: (case.ranks, not case.judged)):
        mark, times = "" if case.judged else "  (reported)", case.seconds
        lines.append(
            f"{format_seconds(times.predicted):>10} {format_seconds(times.measured):>10} "
            f"{_percent(times.relative_error):>7} {_percent(times.relative_error_drift_removed):>8} "
            f"{_percent(case.spread, sign=False):>7}  {case.command.partition(' -n ')[2]}{mark}"
        )
    for name, groups in (("judged", fidelity.judged), ("reported", fidelity.reported)):
        for ranks, group in groups.items():
            lines.append(f"P={ranks} {name}: raw {_words(group.raw)}")
            if group.drift_removed is not None:
                lines.append(f"P={ranks} {name}: drift removed {_words(group.drift_removed)}")
    return "\n".join(lines)


def _words(errors: ErrorSizes) -> str:
    median, p90, worst = (f"{error:.1%}" for error in (errors.median, errors.p90, errors.worst))
    return f"median {median}, 90th percentile {p90}, worst {worst} of {errors.cases} cases"


def _percent(value: float | None, *, sign: bool = True) -> str:
    return "" if value is None else f"{value:+.1%}" if sign else f"{value:.1%}"


if __name__ == "__main__":
    run_as_program(main)
