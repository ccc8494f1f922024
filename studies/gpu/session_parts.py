"""The parts of a session on a GPU: each part is one benchmark that runs as a process and writes its results to files.

python -m quadrille.studies.gpu.session_parts PART FOLDER [--commit TEXT] [--tiny]

A part reads the results of earlier parts from the folder and adds its own: `gpu.json` (GPU, driver and libraries),
`calibration.json`, `machine.toml` (rewritten after each measurement, as soon as products, streams and the launch cost
are measured), `executor.json` and `ranks.json`.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quadrille.algorithms.errors import RunError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.experiments.output.tables import print_tables
from quadrille.runtime.arrays.cupy_library import open_cupy
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.measuring.device_benchmarks import DeviceBench
from quadrille.studies.gpu import calibration
from quadrille.studies.gpu.calibration import (
    DTYPES,
    FULL,
    TINY,
    Calibration,
    Sizes,
    StagedTransfers,
    empty_calibration,
    first_gpu_visible,
)
from quadrille.studies.gpu.report import (
    LEAST_EXECUTOR_SHARE,
    ExecutedRun,
    SharedRun,
    calibration_tables,
    executed_table,
    shared_table,
)
from quadrille.studies.gpu.study import EXECUTED_DTYPES, measure_executed_run, measure_shared_runs
from quadrille.topologies.machines.machine_file import load_machine, save_machine

if TYPE_CHECKING:
    from quadrille.runtime.arrays.cupy_library import CupyLibrary

GPU, CALIBRATION, MACHINE, EXECUTOR, RANKS = (
    "gpu.json",
    "calibration.json",
    "machine.toml",
    "executor.json",
    "ranks.json",
)
RANK_COUNTS = (1, 2, 4)
"""Numbers of ranks that share the GPU."""
DRIVER_QUERY = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"
SCHEMA = "quadrille/gpu-session/1"


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU and the software that uses it, as `nvidia-smi` and CUDA report them.

    Parameters
    ----------
    device : name and memory of the GPU
    compute_capability : compute capability, such as `9.0`
    memory_bytes : memory of the GPU [bytes]
    driver : values of `nvidia-smi` by the name of the query
    versions : versions of the CUDA driver, the CUDA runtime and cuBLAS, as their calls return them
    provenance : command, date and versions
    """

    device: str
    compute_capability: str
    memory_bytes: int
    driver: dict[str, str]
    versions: dict[str, int]
    provenance: Provenance = msgspec.field(name="made")


class ExecutedRunsFile(msgspec.Struct, frozen=True):
    """The content of `executor.json`: whole runs of one rank, each with a bare product of the same size."""

    runs: tuple[ExecutedRun, ...]
    provenance: Provenance = msgspec.field(name="made")


class SharedRunsFile(msgspec.Struct, frozen=True):
    """The content of `ranks.json`: runs of ranks that share the GPU, with their predictions."""

    runs: tuple[SharedRun, ...]
    provenance: Provenance = msgspec.field(name="made")


@dataclass(frozen=True, slots=True)
class SessionPart:
    """The arguments of every part.

    Parameters
    ----------
    folder : folder of the results
    provenance : command, date and versions
    sizes : sizes of the measurements
    """

    folder: Path
    provenance: Provenance
    sizes: Sizes

    def saved_calibration(self, library: "CupyLibrary") -> Calibration:
        """The calibration that earlier parts have written, or an empty calibration of the library's GPU."""
        path = self.folder / CALIBRATION
        if not path.exists():
            return empty_calibration(library.device, self.provenance)
        return msgspec.structs.replace(
            schema_files.read(path, Calibration, calibration.SCHEMA), provenance=self.provenance
        )

    def save(self, measurements: Calibration) -> None:
        """Write the calibration, and the machine file if the measurements suffice for it."""
        schema_files.write_json(self.folder / CALIBRATION, measurements, calibration.SCHEMA)
        if measurements.suffices_for_machine:
            save_machine(measurements.machine(max(RANK_COUNTS)), self.folder / MACHINE)


def device(part: SessionPart) -> None:
    """Record the GPU, driver and libraries, and check one product and one sum."""
    library = open_cupy("bfloat16", 0)
    cuda = library.cupy.cuda
    handle = cuda.device.get_cublas_handle()
    facts = GpuFacts(
        device=str(library.device),
        compute_capability=".".join(map(str, library.device.compute_capability)),
        memory_bytes=library.device.memory_bytes,
        driver=driver_facts(),
        versions={
            "CUDA driver": cuda.runtime.driverGetVersion(),
            "CUDA runtime": cuda.runtime.runtimeGetVersion(),
            "cuBLAS": cuda.cublas.getVersion(handle),
        },
        provenance=part.provenance,
    )
    schema_files.write_json(part.folder / GPU, facts, SCHEMA)
    print(facts.device, facts.driver, facts.versions, sep="\n")


def driver_facts() -> dict[str, str]:
    """The values that `nvidia-smi` reports of the first GPU, by the name of the query; empty if it fails."""
    try:
        completed = subprocess.run(
            ["nvidia-smi", f"--query-gpu={DRIVER_QUERY}", "--format=csv,noheader", "--id=0"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(DRIVER_QUERY.split(","), completed.stdout.strip().split(", "), strict=False))


def products(part: SessionPart) -> None:
    """Measure products by shape, layout and dtype."""
    library, bench = warm_bench(part)
    measurements = part.saved_calibration(library)
    for dtype in DTYPES:
        rows = calibration.measure_products(bench, dtype, part.sizes)
        other_dtypes = (product for product in measurements.products if product.dtype != dtype)
        measurements = msgspec.structs.replace(measurements, products=(*other_dtypes, *rows))
        part.save(measurements)
    print_tables(*calibration_tables(measurements))


def streams(part: SessionPart) -> None:
    """Measure copies, sums, staging and the cost of a launch."""
    library, bench = warm_bench(part)
    measurements = msgspec.structs.replace(
        part.saved_calibration(library), launch=bench.launch(), streams=calibration.measure_streams(bench, part.sizes)
    )
    part.save(measurements)
    print_tables(*calibration_tables(measurements))


def kernels(part: SessionPart) -> None:
    """Measure functions of layers, softmax and attention."""
    library, bench = warm_bench(part)
    measurements = part.saved_calibration(library)
    measurements = msgspec.structs.replace(measurements, attention=calibration.measure_attention(bench, part.sizes))
    part.save(measurements)
    measurements = msgspec.structs.replace(measurements, kernels=calibration.measure_kernels(bench, part.sizes))
    part.save(measurements)
    print_tables(*calibration_tables(measurements))


def staged(part: SessionPart) -> None:
    """Measure messages between ranks that share the GPU, by pattern and size."""
    measurements, steps = part.saved_calibration(open_cupy("bfloat16", 0)), StagedTransfers()
    for count in RANK_COUNTS[1:]:
        with first_gpu_visible():
            steps = calibration.measure_staged_transfers([count], steps)
        measurements = msgspec.structs.replace(measurements, staged=steps)
        part.save(measurements)
    print_tables(*calibration_tables(measurements)[-1:])


def executor(part: SessionPart) -> None:
    """Compare the time of a whole run of one rank with that of CuPy's own product.

    Raises
    ------
    RunError : a run that reaches less than `LEAST_EXECUTOR_SHARE` of the product's speed, at full sizes
    """
    _, bench = warm_bench(part)
    runs: tuple[ExecutedRun, ...] = ()
    for dtype in EXECUTED_DTYPES:
        runs = (*runs, measure_executed_run(bench, dtype, part.sizes))
        schema_files.write_json(part.folder / EXECUTOR, ExecutedRunsFile(runs, part.provenance), SCHEMA)
    print_tables(executed_table(runs))
    slow = [f"{run.dtype} {run.share:.1%}" for run in runs if run.share < LEAST_EXECUTOR_SHARE]
    if slow and part.sizes is FULL:
        raise RunError(f"a whole run reaches less than {LEAST_EXECUTOR_SHARE:.0%} of a bare product: {', '.join(slow)}")


def ranks(part: SessionPart) -> None:
    """Run a matmul on 1, 2 and 4 ranks of the same GPU, staged and verified, and predict each run from `machine.toml`.

    Raises
    ------
    RunError : a run whose result is wrong
    """
    machine, runs = load_machine(str(part.folder / MACHINE)), list[SharedRun]()
    for count in RANK_COUNTS:
        with first_gpu_visible():
            runs += measure_shared_runs(machine, count, part.sizes)
        schema_files.write_json(part.folder / RANKS, SharedRunsFile(tuple(runs), part.provenance), SCHEMA)
    print_tables(shared_table(runs))
    if wrong := [f"{run.ranks} ranks {run.dtype}" for run in runs if not run.verified]:
        raise RunError(f"results did not verify: {', '.join(wrong)}")


PARTS: dict[str, Callable[[SessionPart], None]] = {
    part.__name__: part for part in (device, products, streams, kernels, staged, executor, ranks)
}


def warm_bench(part: SessionPart) -> tuple["CupyLibrary", DeviceBench]:
    """The array library of the GPU, and its benchmarks after a warm-up of the clock."""
    library = open_cupy("bfloat16", 0)
    bench = DeviceBench(library)
    if part.sizes is FULL:
        bench.warm_up()
    return library, bench


def main(command_line: Sequence[str]) -> None:
    """Run the part that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args(command_line)
    commit = {"commit": arguments.commit} if arguments.commit else {}
    origin = provenance(["python", "-m", "quadrille.studies.gpu.session_parts", *command_line], **commit)
    PARTS[arguments.part](SessionPart(arguments.folder, origin, TINY if arguments.tiny else FULL))


if __name__ == "__main__":
    run_as_program(lambda: main(sys.argv[1:]))
