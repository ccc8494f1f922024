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
from quadrille.algorithms.formats import files
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
from quadrille.topologies.machines.machine import load_machine, save_machine

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
    made: Provenance


class ExecutedRuns(msgspec.Struct, frozen=True):
    """Whole runs of one rank beside bare products."""

    runs: tuple[Executed, ...]
    made: Provenance


class SharedRuns(msgspec.Struct, frozen=True):
    """Runs of ranks that share the GPU, predicted from the machine file alone."""

    runs: tuple[Shared, ...]
    made: Provenance


@dataclass(frozen=True, slots=True)
class SessionPart:
    """What every part is given: where results go, where they come from, and the sizes."""

    folder: Path
    made: Provenance
    sizes: Sizes

    def begun(self, library: "CupyLibrary") -> Calibration:
        """The calibration as earlier parts have left it, or an empty one."""
        path = self.folder / CALIBRATION
        if not path.exists():
            return empty_calibration(library.device, self.made)
        return msgspec.structs.replace(files.read(path, Calibration, calibration.SCHEMA), made=self.made)

    def keep(self, found: Calibration) -> None:
        """Write the calibration, and the machine file if it is enough."""
        files.write_json(self.folder / CALIBRATION, found, calibration.SCHEMA)
        if found.is_enough:
            save_machine(found.machine(max(COUNTS)), self.folder / MACHINE)


def device(part: SessionPart) -> None:
    """Which GPU, driver and libraries there are, and that one product and one sum are right."""
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
        made=part.made,
    )
    files.write_json(part.folder / GPU, facts, SCHEMA)
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
    """Products by shape, layout and dtype."""
    library, bench = warm_bench(part)
    found = part.begun(library)
    for dtype in DTYPES:
        rows = calibration.measure_products(bench, dtype, part.sizes)
        others = (one for one in found.products if one.dtype != dtype)
        found = msgspec.structs.replace(found, products=(*others, *rows))
        part.keep(found)
    print_tables(*calibration_tables(found))


def streams(part: SessionPart) -> None:
    """Copies, sums, staging, and what handing work over costs."""
    library, bench = warm_bench(part)
    found = msgspec.structs.replace(
        part.begun(library), launch=bench.launch(), streams=calibration.measure_streams(bench, part.sizes)
    )
    part.keep(found)
    print_tables(*calibration_tables(found))


def kernels(part: SessionPart) -> None:
    """Functions of layers, softmax and attention."""
    library, bench = warm_bench(part)
    found = part.begun(library)
    found = msgspec.structs.replace(found, attention=calibration.measure_attention(bench, part.sizes))
    part.keep(found)
    found = msgspec.structs.replace(found, kernels=calibration.measure_kernels(bench, part.sizes))
    part.keep(found)
    print_tables(*calibration_tables(found))


def staged(part: SessionPart) -> None:
    """Messages between ranks that share the GPU, by pattern and size."""
    found, steps = part.begun(open_cupy("bfloat16", 0)), StagedSteps()
    for count in COUNTS[1:]:
        with only_first_gpu():
            steps = calibration.measure_staged([count], steps)
        found = msgspec.structs.replace(found, staged=steps)
        part.keep(found)
    print_tables(*calibration_tables(found)[-1:])


def executor(part: SessionPart) -> None:
    """A whole run of one rank beside CuPy's own product."""
    _, bench = warm_bench(part)
    runs: tuple[Executed, ...] = ()
    for dtype in EXECUTED:
        runs = (*runs, run_executed(bench, dtype, part.sizes))
        files.write_json(part.folder / EXECUTOR, ExecutedRuns(runs, part.made), SCHEMA)
    print_tables(executed_table(runs))
    slow = [f"{one.dtype} {one.share:.1%}" for one in runs if one.share < LEAST_SHARE]
    if slow and part.sizes is FULL:
        raise RunError(f"a whole run reaches less than {LEAST_SHARE:.0%} of a bare product: {', '.join(slow)}")


def ranks(part: SessionPart) -> None:
    """Numbers of ranks on the one GPU, staged and verified, beside their predictions from the machine file."""
    machine, runs = load_machine(str(part.folder / MACHINE)), list[Shared]()
    for count in COUNTS:
        with only_first_gpu():
            runs += run_shared(machine, count, part.sizes)
        files.write_json(part.folder / RANKS, SharedRuns(tuple(runs), part.made), SCHEMA)
    print_tables(shared_table(runs))
    if wrong := [f"{one.ranks} ranks {one.dtype}" for one in runs if not one.verified]:
        raise RunError(f"results did not verify: {', '.join(wrong)}")


PARTS: dict[str, Callable[[SessionPart], None]] = {
    one.__name__: one for one in (device, products, streams, kernels, staged, executor, ranks)
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
    given = parser.parse_args(words)
    more = {"commit": given.commit} if given.commit else {}
    made = provenance(["python", "-m", "quadrille.studies.gpu.parts", *words], **more)
    PARTS[given.part](SessionPart(given.folder, made, TINY if given.tiny else FULL))


if __name__ == "__main__":
    run_as_program(lambda: main(sys.argv[1:]))
