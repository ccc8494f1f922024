"""`quadrille study main-job` (`make run`): predicted and measured times of seven sharded matmuls on this machine.

The main job of the project, from end to end: calibrate this machine by microbenchmarks, write operands to files,
predict each matmul from the calibration, run it on MPI ranks, verify its result, and print the predicted and the
measured time, in total and by kind of op.  All files go to `out/main-job` or to the folder of `--folder`.  Each step
prints the command line that does the step alone.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from quadrille.algorithms.errors import RunError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.record import load_record, save_record
from quadrille.algorithms.formats.timeline_files import save_timeline
from quadrille.algorithms.matmuls.matmul import Matmul, Operand, Product
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.compare.comparison import Comparison
from quadrille.experiments.compare.drift import busy_sentence
from quadrille.experiments.compare.record_folders import CASES_SCHEMA, FolderComparison, summarise_errors
from quadrille.experiments.measure.batch import RunCase, measure
from quadrille.experiments.measure.operand_files import write_operands
from quadrille.experiments.output.destinations import make_folder
from quadrille.experiments.output.tables import duration, percent, print_tables, table
from quadrille.experiments.predict.predict import calibration_warnings, predict_record_and_timeline
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.launching.launch import launch_or_raise
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_file import load_machine

FOLDER = Path("out") / "main-job"
RESULTS = Path(__file__).resolve().parent / "results"
CALIBRATION_RANKS = 2


@dataclass(frozen=True, slots=True)
class NamedMatmul:
    """One matmul of the main job.

    Parameters
    ----------
    name : name of its files
    ranks : number of ranks
    experiment : matmul, algorithm and grid
    files : whether its operands and its result are files; otherwise the ranks make the operands
    """

    name: str
    ranks: int
    experiment: MatmulExperiment
    files: bool = False


MATMULS = (
    NamedMatmul("4d-files", 2, MatmulExperiment(Matmul(2048, 2048, 2048, "float64"), Grid(z=2)), files=True),
    NamedMatmul("4d-rows", 2, MatmulExperiment(Matmul(3000, 1500, 2000, passes="training"), Grid(y=2))),
    NamedMatmul("1d-column", 2, MatmulExperiment(Matmul(2048, 2048, 2048, passes="training"), Grid(x=2), "1d-column")),
    NamedMatmul("3d", 2, MatmulExperiment(Matmul(1999, 1777, 1555, "float64", "training"), Grid(y=2), "3d")),
    NamedMatmul("summa", 2, MatmulExperiment(Matmul(2048, 1024, 2048, "float64"), Grid(x=2), "summa")),
    NamedMatmul("4d-eight", 8, MatmulExperiment(Matmul(1536, 1536, 1536, "float64", "training"), Grid(z=2, y=2, x=2))),
    NamedMatmul("cannon", 4, MatmulExperiment(Matmul(1500, 1500, 1500, "float64"), Grid(z=2, x=2), "cannon")),
)


def sizes_text(matmul: NamedMatmul) -> str:
    """The sizes m, k and n of a matmul as text.

    >>> sizes_text(MATMULS[3])
    '1999x1777x1555'
    """
    problem = matmul.experiment.problem
    return f"{problem.m}x{problem.k}x{problem.n}"


def main(results: Path = RESULTS) -> None:
    """Run the main job and write its comparisons to `comparisons.json` in the folder `results`."""
    comparisons = main_job()
    origin = provenance(["quadrille", "study", "main-job"])
    cases = FolderComparison(tuple(comparisons), summarise_errors(comparisons), provenance=origin)
    results.mkdir(exist_ok=True)
    schema_files.write_json(results / "comparisons.json", cases, CASES_SCHEMA)


def main_job(folder: Path = FOLDER, matmuls: Sequence[NamedMatmul] = MATMULS) -> list[Comparison]:
    """Calibrate this machine, predict, run and verify each matmul, and print the table.

    Parameters
    ----------
    folder : folder of all files; it is created if it does not exist
    matmuls : matmuls to predict and run

    Returns
    -------
    The comparison of the predicted and the measured time of each matmul, in their order.

    Raises
    ------
    InputError : a folder that cannot be written
    RunError : a rank that failed; a wrong result
    """
    make_folder(folder)
    machine = _calibrate(folder / "host.toml")
    cases = [_case(folder, matmul) for matmul in matmuls]
    _write_operands(folder, matmuls)
    for matmul, case in zip(matmuls, cases, strict=True):
        _predict(folder, matmul, machine, case)
    for ranks in dict.fromkeys(matmul.ranks for matmul in matmuls):
        same_ranks = [case for matmul, case in zip(matmuls, cases, strict=True) if matmul.ranks == ranks]
        for case in same_ranks:
            _print_command("quadrille", "launch", "-n", str(ranks), "run", *case.words(), "--json", case.record)
        measure(ranks, same_ranks)
    comparisons = [_compare(folder, matmul, case) for matmul, case in zip(matmuls, cases, strict=True)]
    _print(folder, matmuls, comparisons, machine)
    return comparisons


def _print_command(*arguments: str) -> None:
    """Print a command line on stderr, quoted for a shell."""
    print(shlex.join(arguments), file=sys.stderr, flush=True)


def _calibrate(path: Path) -> Machine:
    """Calibrate this machine on two ranks, and return the machine file that the calibration wrote."""
    arguments = ["calibrate", "--out", str(path)]
    _print_command("quadrille", "launch", "-n", str(CALIBRATION_RANKS), *arguments)
    launch_or_raise("calibration", CALIBRATION_RANKS, arguments)
    return load_machine(path)


def _case(folder: Path, matmul: NamedMatmul) -> RunCase:
    """The verified run of a matmul; if its operands are files, its result is a file in the same folder."""
    inputs: dict[Operand, str] = {"A": str(folder / "A.npy"), "B": str(folder / "B.npy")} if matmul.files else {}
    outputs: dict[Product, str] = {"C": str(folder / "C.npy")} if matmul.files else {}
    options = RunOptions(inputs=inputs, outputs=outputs, verify=True)
    return RunCase(matmul.experiment, str(folder / f"{matmul.name}.measured.json"), options)


def _write_operands(folder: Path, matmuls: Sequence[NamedMatmul]) -> None:
    """Write the operand files of the matmuls that read files."""
    for matmul in matmuls:
        if matmul.files:
            paths: dict[Operand, str] = {"A": str(folder / "A.npy"), "B": str(folder / "B.npy")}
            problem = matmul.experiment.problem
            flags = ["--matmul", f"{problem.m},{problem.k},{problem.n}", "--dtype", problem.dtype]
            _print_command("quadrille", "operands", *flags, "--a", paths["A"], "--b", paths["B"], "--seed", "1")
            write_operands(problem, seed=1, paths=paths)


def _predict(folder: Path, matmul: NamedMatmul, machine: Machine, case: RunCase) -> None:
    """Predict a matmul, and write its record and its timeline."""
    arguments = RunCase(matmul.experiment, "").words()
    path = folder / f"{matmul.name}.predicted.json"
    command = ["quadrille", "simulate", *arguments, "--machine", str(folder / "host.toml"), "--json", str(path)]
    _print_command(*command)
    prediction, timeline = predict_record_and_timeline(case.experiment, machine, command)
    save_record(prediction, path)
    save_timeline(timeline, folder / f"{matmul.name}.predicted.timeline.json")


def _compare(folder: Path, matmul: NamedMatmul, case: RunCase) -> Comparison:
    """The comparison of a matmul's prediction with its run; RunError if the result of the run was wrong."""
    predicted, measured = load_record(folder / f"{matmul.name}.predicted.json"), load_record(case.record)
    if measured.verified is None or not measured.verified.ok:
        raise RunError(f"{case.record}: the result did not verify")
    return compare_records(predicted, measured)


def _print(folder: Path, matmuls: Sequence[NamedMatmul], comparisons: Sequence[Comparison], machine: Machine) -> None:
    """Print the table of all matmuls, the median error on 2 ranks, and warnings about the machine."""
    columns = ("multiplication", "P", "op", "predicted", "measured", "error", "drift removed", "spread")
    sections = [list(_rows(matmul, comparison)) for matmul, comparison in zip(matmuls, comparisons, strict=True)]
    print_tables(table("Predicted from microbenchmarks, measured on MPI ranks, verified", columns, *sections, names=3))
    errors = [
        abs(comparison.seconds.relative_error)
        for matmul, comparison in zip(matmuls, comparisons, strict=True)
        if matmul.ranks <= 2 and comparison.seconds.relative_error is not None
    ]
    print(f"median error of the {len(errors)} multiplications on 2 ranks: {percent(median(errors), signed=False)}")
    print(f"files: {folder}; machine file: {folder / 'host.toml'}")
    if busy := busy_sentence([comparison.drift for comparison in comparisons]):
        print(busy)
    if warnings := calibration_warnings(machine, f"printed above, and in {folder / 'host.toml'} under fit.warnings"):
        print(*warnings, sep="\n")


def _rows(matmul: NamedMatmul, comparison: Comparison) -> list[tuple[str, ...]]:
    times = comparison.seconds
    """The table rows of a matmul: its total, and each kind of op that takes at least 0.1 % of it."""
    title = f"{matmul.experiment.algorithm} {sizes_text(matmul)} {matmul.experiment.dtype} {matmul.experiment.passes}"
    rows: list[tuple[str, ...]] = [
        (
            title,
            str(matmul.ranks),
            "total",
            duration(times.predicted),
            duration(times.measured),
            percent(times.relative_error),
            percent(times.relative_error_drift_removed),
            percent(comparison.noise.spread, signed=False),
        )
    ]
    for kind in comparison.kinds:
        if max(kind.seconds.predicted, kind.seconds.measured) < times.measured / 1000:
            continue
        rows.append(
            (
                "",
                "",
                kind.kind,
                duration(kind.seconds.predicted),
                duration(kind.seconds.measured),
                percent(kind.seconds.relative_error),
                percent(kind.seconds.relative_error_drift_removed),
                percent(kind.seconds.spread, signed=False),
            )
        )
    return rows


if __name__ == "__main__":
    run_as_program(main)
