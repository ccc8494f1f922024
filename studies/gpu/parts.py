"""The parts of a session on a GPU, each a process of its own that writes what it finds as it goes.

python -m quadrille.studies.gpu.parts PART FOLDER [--commit TEXT] [--tiny]

A part reads what earlier parts have left in the folder and adds to it: `gpu.json` (what GPU, driver and libraries),
`calibration.json`, `machine.toml` (made anew whenever enough is known), `executor.json` and `ranks.json`.
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
    StagedSteps,
    empty_calibration,
    only_first_gpu,
)
from quadrille.studies.gpu.report import (
    LEAST_SHARE,
    Executed,
    Shared,
    calibration_tables,
    executed_table,
    shared_table,
)
from quadrille.studies.gpu.study import EXECUTED, run_executed, run_shared
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
COUNTS = (1, 2, 4)
"""Of ranks that share the GPU."""
ASKED_OF_DRIVER = "name,driver_version,memory.total,clocks.sm,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"
SCHEMA = "quadrille/gpu-session/1"


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU and the software that uses it, as `nvidia-smi` and CUDA tell."""

    device: str
    compute_capability: str
    memory_bytes: int
    driver: dict[str, str]
    versions: dict[str, int]
    provenance: Provenance = msgspec.field(name="made")


class ExecutedRuns(msgspec.Struct, frozen=True):
    """Whole runs of one rank beside bare products."""

    runs: tuple[Executed, ...]
    provenance: Provenance = msgspec.field(name="made")


class SharedRuns(msgspec.Struct, frozen=True):
    """Runs of ranks that share the GPU, predicted from the machine file alone."""

    runs: tuple[Shared, ...]
    provenance: Provenance = msgspec.field(name="made")


@dataclass(frozen=True, slots=True)
class SessionPart:
    """Arguments of every part: the folder of the results, their provenance, and the sizes."""

    folder: Path
    provenance: Provenance
    sizes: Sizes

    def begun(self, library: "CupyLibrary") -> Calibration:
        """The calibration that earlier parts have written, or an empty calibration."""
        path = self.folder / CALIBRATION
        if not path.exists():
            return empty_calibration(library.device, self.provenance)
        return msgspec.structs.replace(
            schema_files.read(path, Calibration, calibration.SCHEMA), provenance=self.provenance
        )

    def keep(self, measurements: Calibration) -> None:
        """Write the calibration, and the machine file if it is enough."""
        schema_files.write_json(self.folder / CALIBRATION, measurements, calibration.SCHEMA)
        if measurements.is_enough:
            save_machine(measurements.machine(max(COUNTS)), self.folder / MACHINE)


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
    """What `nvidia-smi` says of the first GPU, by the name of its query; empty where it says nothing."""
    try:
        told = subprocess.run(
            ["nvidia-smi", f"--query-gpu={ASKED_OF_DRIVER}", "--format=csv,noheader", "--id=0"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(ASKED_OF_DRIVER.split(","), told.stdout.strip().split(", "), strict=False))


def products(part: SessionPart) -> None:
    """Measure products by shape, layout and dtype."""
    library, bench = warm_bench(part)
    measurements = part.begun(library)
    for dtype in DTYPES:
        rows = calibration.measure_products(bench, dtype, part.sizes)
        others = (product for product in measurements.products if product.dtype != dtype)
        measurements = msgspec.structs.replace(measurements, products=(*others, *rows))
        part.keep(measurements)
    print_tables(*calibration_tables(measurements))


def streams(part: SessionPart) -> None:
    """Measure copies, sums, staging and the cost of a launch."""
    library, bench = warm_bench(part)
    measurements = msgspec.structs.replace(
        part.begun(library), launch=bench.launch(), streams=calibration.measure_streams(bench, part.sizes)
    )
    part.keep(measurements)
    print_tables(*calibration_tables(measurements))


def kernels(part: SessionPart) -> None:
    """Measure functions of layers, softmax and attention."""
    library, bench = warm_bench(part)
    measurements = part.begun(library)
    measurements = msgspec.structs.replace(measurements, attention=calibration.measure_attention(bench, part.sizes))
    part.keep(measurements)
    measurements = msgspec.structs.replace(measurements, kernels=calibration.measure_kernels(bench, part.sizes))
    part.keep(measurements)
    print_tables(*calibration_tables(measurements))


def staged(part: SessionPart) -> None:
    """Measure messages between ranks that share the GPU, by pattern and size."""
    measurements, steps = part.begun(open_cupy("bfloat16", 0)), StagedSteps()
    for count in COUNTS[1:]:
        with only_first_gpu():
            steps = calibration.measure_staged([count], steps)
        measurements = msgspec.structs.replace(measurements, staged=steps)
        part.keep(measurements)
    print_tables(*calibration_tables(measurements)[-1:])


def executor(part: SessionPart) -> None:
    """Compare a whole run of one rank with CuPy's own product."""
    _, bench = warm_bench(part)
    runs: tuple[Executed, ...] = ()
    for dtype in EXECUTED:
        runs = (*runs, run_executed(bench, dtype, part.sizes))
        schema_files.write_json(part.folder / EXECUTOR, ExecutedRuns(runs, part.provenance), SCHEMA)
    print_tables(executed_table(runs))
    slow = [f"{run.dtype} {run.share:.1%}" for run in runs if run.share < LEAST_SHARE]
    if slow and part.sizes is FULL:
        raise RunError(f"a whole run reaches less than {LEAST_SHARE:.0%} of a bare product: {', '.join(slow)}")


def ranks(part: SessionPart) -> None:
    """Run several numbers of ranks on the same GPU, staged and verified, and predict each run from the machine file."""
    machine, runs = load_machine(str(part.folder / MACHINE)), list[Shared]()
    for count in COUNTS:
        with only_first_gpu():
            runs += run_shared(machine, count, part.sizes)
        schema_files.write_json(part.folder / RANKS, SharedRuns(tuple(runs), part.provenance), SCHEMA)
    print_tables(shared_table(runs))
    if wrong := [f"{run.ranks} ranks {run.dtype}" for run in runs if not run.verified]:
        raise RunError(f"results did not verify: {', '.join(wrong)}")


PARTS: dict[str, Callable[[SessionPart], None]] = {
    part.__name__: part for part in (device, products, streams, kernels, staged, executor, ranks)
}


def warm_bench(part: SessionPart) -> tuple["CupyLibrary", DeviceBench]:
    """A GPU at work, and its benchmarks."""
    library = open_cupy("bfloat16", 0)
    bench = DeviceBench(library)
    if part.sizes is FULL:
        bench.warm_up()
    return library, bench


def main(words: Sequence[str]) -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit", default="")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args(words)
    more = {"commit": arguments.commit} if arguments.commit else {}
    origin = provenance(["python", "-m", "quadrille.studies.gpu.parts", *words], **more)
    PARTS[arguments.part](SessionPart(arguments.folder, origin, TINY if arguments.tiny else FULL))


if __name__ == "__main__":
    run_as_program(lambda: main(sys.argv[1:]))
