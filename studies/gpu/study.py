"""`quadrille study gpu` (`make bench-gpu`): the speed of one GPU, and predictions of ranks that share it.

The study measures matrix products by shape and dtype, memory operations, staging and launches on one GPU, and the cost
of the executor.  It makes a machine file from the measurements, predicts a matmul on 1, 2, 4 and 8 ranks of this GPU
from the file, and measures the same runs.
"""

import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.matmuls.matmul import Matmul, parse_sizes
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.tensors import DType
from quadrille.experiments.measure.batch import RunCase, measure
from quadrille.experiments.output.destinations import Destinations, write_or_show
from quadrille.experiments.output.tables import print_tables
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.arrays.cupy_library import open_cupy
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.runtime.host.devices import load_cupy
from quadrille.runtime.measuring.device_benchmarks import DeviceBench
from quadrille.studies.gpu.calibration import FULL, Calibration, Sizes, first_gpu_visible, measure_device
from quadrille.studies.gpu.report import ExecutedRun, SharedRun, calibration_tables, executed_table, shared_table
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_file import save_machine

SCHEMA = "quadrille/gpu/1"
RESULTS = Path(__file__).resolve().parent / "results"
GRIDS = {1: Grid(), 2: Grid(z=2), 4: Grid(z=2, x=2), 8: Grid(z=2, y=2, x=2)}
SHARED_DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
EXECUTED_DTYPES: tuple[DType, ...] = ("float16", "bfloat16")


class GpuSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the study, as `--json` writes it.

    Parameters
    ----------
    calibration : measurements of the GPU
    executed : whole runs of one rank and bare products
    shared : runs on ranks that share the GPU, predicted and measured
    provenance : command, date and versions
    """

    calibration: Calibration
    executed: tuple[ExecutedRun, ...]
    shared: tuple[SharedRun, ...]
    provenance: Provenance


def main() -> None:
    """Run the study and write the answer and the machine file to `results/`; without a GPU, only print a remark."""
    try:
        load_cupy()
    except InputError as error:
        remark(f"left out, and results kept as they are: {error}")
        return
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"{date.today()}"
    gpu(json=f"{stem}.json", out=f"{stem}.toml", command=["quadrille", "study", "gpu"])


def gpu(
    *,
    json: str = "",
    out: str = "",
    ranks: Sequence[int] = tuple(GRIDS),
    command: Sequence[str] = (),
    sizes: Sizes = FULL,
) -> GpuSpeed:
    """Measure the GPU, predict and run ranks that share it, and print the tables.

    Parameters
    ----------
    json, out : files to write the answer and the machine file to; empty: not written
    ranks : numbers of ranks that share the GPU, from `GRIDS`
    command : command line, for the provenance
    sizes : sizes of the measurements

    Raises
    ------
    InputError : no CuPy, no GPU, a file that cannot be written
    """
    Destinations(json=json).check({"--out": out} if out else {})
    if out:
        schema_files.check_writable(out)
    library = open_cupy("bfloat16", 0)
    bench, origin = DeviceBench(library, values=sizes.values), provenance(list(command))
    bench.warm_up()
    with first_gpu_visible():
        executed = tuple(measure_executed_run(bench, dtype, sizes) for dtype in EXECUTED_DTYPES)
        calibration = measure_device(library, ranks, origin, sizes)
        machine = calibration.machine(max(ranks))
        shared = tuple(run for count in ranks for run in measure_shared_runs(machine, count, sizes))
    answer = GpuSpeed(calibration=calibration, executed=executed, shared=shared, provenance=origin)
    if out:
        save_machine(machine, out)
    write_or_show(answer, json, SCHEMA, lambda: show(answer))
    return answer


def measure_executed_run(bench: DeviceBench, dtype: DType, sizes: Sizes) -> ExecutedRun:
    """Measure a whole run of one rank and CuPy's own product of the same size, alternately."""
    ratio = bench.executor_ratio(sizes.executed, dtype)
    return ExecutedRun(sizes.executed, dtype, ratio.bare, ratio.bare_seconds, ratio.seconds, ratio.share)


def measure_shared_runs(machine: Machine, count: int, sizes: Sizes) -> Iterator[SharedRun]:
    """Predict one matmul on ranks that share the GPU, for each dtype, then run and verify it.

    Parameters
    ----------
    machine : machine file of the GPU, from which alone the runs are predicted
    count : number of ranks, from `GRIDS`
    sizes : sizes of the measurements; `shared` is used

    Returns
    -------
    One run for each dtype of `SHARED_DTYPES`.
    """
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            RunCase(
                MatmulExperiment(Matmul(*parse_sizes(sizes.shared), dtype=dtype), GRIDS[count]),
                str(Path(folder) / f"{count} {dtype}.json"),
                RunOptions(backend="cupy", carrier="mpi", verify=True),
            )
            for dtype in SHARED_DTYPES
        ]
        predictions = [predict_record_and_timeline(case.experiment, machine, backend="cupy")[0] for case in cases]
        measure(count, cases)
        for case, predicted in zip(cases, predictions, strict=True):
            record = load_record(case.record)
            verified = record.verified is not None and record.verified.ok
            yield SharedRun(sizes.shared, count, case.experiment.dtype, predicted.seconds, record.seconds, verified)


def show(answer: GpuSpeed) -> None:
    """Print the tables of the answer."""
    tables = (*calibration_tables(answer.calibration), executed_table(answer.executed), shared_table(answer.shared))
    print_tables(*tables)


if __name__ == "__main__":
    run_as_program(main)
