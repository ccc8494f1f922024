"""`quadrille study gpu`, which is `make bench-gpu`: how fast one GPU is, and whether ranks that share it are predicted.

Question: how near do products come to a GPU's best by shape and dtype, what do copies, staging and launches cost, how
long do 1, 2, 4 and 8 ranks on one GPU take beside their prediction from these, and what does the executor cost?
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
from quadrille.studies.gpu.calibration import FULL, Calibration, Sizes, measure_device, only_first_gpu
from quadrille.studies.gpu.report import Executed, Shared, calibration_tables, executed_table, shared_table
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_file import save_machine

SCHEMA = "quadrille/gpu/1"
RESULTS = Path(__file__).resolve().parent / "results"
GRIDS = {1: Grid(), 2: Grid(z=2), 4: Grid(z=2, x=2), 8: Grid(z=2, y=2, x=2)}
SHARED_DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
EXECUTED: tuple[DType, ...] = ("float16", "bfloat16")


class GpuSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """The study's answer, as it is written."""

    calibration: Calibration
    executed: tuple[Executed, ...]
    shared: tuple[Shared, ...]
    provenance: Provenance


def main() -> None:
    """Ask as usual, and keep the answer and the machine file; say so where there is no GPU."""
    try:
        load_cupy()
    except InputError as error:
        remark(f"left out, and results kept as they are: {error}")
        return
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / f"{date.today()}"
    gpu(json=f"{kept}.json", out=f"{kept}.toml", command=["quadrille", "study", "gpu"])


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
    json, out : files of the answer and of the machine file
    ranks : numbers of ranks that share the GPU, from `GRIDS`

    Raises
    ------
    InputError : no CuPy, no GPU, a file that cannot be written
    """
    Destinations(json=json).check({"--out": out} if out else {})
    if out:
        schema_files.check_writable(out)
    library = open_cupy("bfloat16", 0)
    bench, origin = DeviceBench(library), provenance(list(command))
    bench.warm_up()
    with only_first_gpu():
        executed = tuple(run_executed(bench, dtype, sizes) for dtype in EXECUTED)
        calibration = measure_device(library, ranks, origin, sizes)
        machine = calibration.machine(max(ranks))
        shared = tuple(run for count in ranks for run in run_shared(machine, count, sizes))
    answer = GpuSpeed(calibration=calibration, executed=executed, shared=shared, provenance=origin)
    if out:
        save_machine(machine, out)
    write_or_show(answer, json, SCHEMA, lambda: show(answer))
    return answer


def run_executed(bench: DeviceBench, dtype: DType, sizes: Sizes) -> Executed:
    """A whole run of one rank beside CuPy's own product."""
    ratio = bench.executor_ratio(sizes.executed, dtype)
    return Executed(sizes.executed, dtype, ratio.bare, ratio.bare_seconds, ratio.seconds, ratio.share)


def run_shared(machine: Machine, count: int, sizes: Sizes) -> Iterator[Shared]:
    """The same product in every dtype on so many ranks: predicted from the machine alone, then run and verified."""
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
            yield Shared(sizes.shared, count, case.experiment.dtype, predicted.seconds, record.seconds, verified)


def show(answer: GpuSpeed) -> None:
    """Prints what was found, a table for each part."""
    tables = (*calibration_tables(answer.calibration), executed_table(answer.executed), shared_table(answer.shared))
    print_tables(*tables)


if __name__ == "__main__":
    run_as_program(main)
