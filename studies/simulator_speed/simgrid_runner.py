"""The runner of the same workloads in SimGrid, if SimGrid is installed, through a C++ driver (`simgrid_driver.cpp`).

SimGrid is not a dependency; on Debian `apt install libsimgrid-dev g++` installs it.  The driver is compiled for each
study.  The network model is CM02 without cross-traffic and without TCP's window, so that latency and bandwidth are
those of the links.  CM02 weights a flow's share of a link by 1 / latency.

All rates are recomputed at every event (`network/optim:Full`).  With the default, `network/optim:Lazy`, SimGrid 3.32
ends 80 of the 1,000 equal flows of W3 up to 30 % too early or too late (two flows together have 67 GB/s on a link of
50 GB/s), though the makespan is right.  With `Full` all ends agree with Quadrille's to 1e-12, at about the same speed.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import RunError
from quadrille.algorithms.formats import schema_files
from quadrille.studies.simulator_speed.report import TIME_LIMIT_SECONDS, TimedCase
from quadrille.studies.simulator_speed.workloads import GPUS, FlowSizes, random_pairs
from quadrille.topologies.machines.machine_catalogue import machine
from quadrille.topologies.network import Network
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes

DRIVER = Path(__file__).parent / "simgrid_driver.cpp"
OPTIONS = (
    "--cfg=network/model:CM02",
    "--cfg=network/optim:Full",
    "--cfg=network/crosstraffic:0",
    "--cfg=network/TCP-gamma:0",
    "--log=root.thres:error",
)
RINGS = (("W1", (64, 256, 1024)), ("W2", (64, 256, 1024, 4096)))
TRAFFIC: tuple[tuple[int, FlowSizes], ...] = ((1000, "equal"), (1000, "random"), (10_000, "equal"), (10_000, "random"))
QUICK_SIZE = 1000
"""Largest number of ranks or flows of a workload that runs with `--quick`."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class SimgridMissing(RunError):  # noqa: N818 - what it says
    """SimGrid is not installed, or the driver cannot be compiled."""


@dataclass(frozen=True, slots=True)
class SimgridRun:
    """The result of SimGrid for one workload.

    Parameters
    ----------
    finish : simulated end of each transfer, or of each rank [s]
    run_seconds : wall time of the simulation, without building the platform [s]
    peak_memory_bytes : peak memory of the process [bytes]
    """

    finish: Floats
    run_seconds: float
    peak_memory_bytes: int


def compile_driver(folder: Path) -> Path:
    """Compile the driver into `folder`, and return its path.

    Raises
    ------
    SimgridMissing : no g++, no SimGrid, or a SimGrid with which the driver does not compile
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise SimgridMissing("not installed: g++ is missing (apt install g++ libsimgrid-dev)")
    program = folder / "driver"
    command = [compiler, "-O2", "-std=c++17", "-o", str(program), str(DRIVER), "-lsimgrid"]
    compilation = subprocess.run(command, capture_output=True, text=True, check=False)
    if compilation.returncode:
        if "simgrid/s4u.hpp" in compilation.stderr and "No such file" in compilation.stderr:
            raise SimgridMissing("not installed (apt install libsimgrid-dev)")
        first = next((line for line in compilation.stderr.splitlines() if "error" in line), "the compiler failed")
        raise SimgridMissing(f"installed, but the driver does not compile with it: {first}")
    return program


def simgrid_rows(*, quick: bool = False) -> list[TimedCase]:
    """The results of SimGrid for W1, W2 and W3; those that exceed `TIME_LIMIT_SECONDS` are empty.

    Parameters
    ----------
    quick : whether to leave out sizes above `QUICK_SIZE`

    Raises
    ------
    SimgridMissing : SimGrid is not installed
    """
    with tempfile.TemporaryDirectory() as name:
        program = compile_driver(Path(name))
        return [
            _row(program, workload, size, described)
            for workload, size, described in _workloads(Path(name), quick=quick)
        ]


def _workloads(folder: Path, *, quick: bool) -> Iterator[tuple[str, int, Path]]:
    """The name, the size and the description file of each workload."""
    path = folder / "workload.txt"
    for workload, sizes in RINGS:
        for size in sizes:
            if not quick or size <= QUICK_SIZE:
                describe_rings(path, workload, size)
                yield workload, size, path
    for count, flow_sizes in TRAFFIC:
        if not quick or count <= QUICK_SIZE:
            describe_traffic(path, count, flow_sizes)
            yield f"W3 {flow_sizes}", count, path


def _row(program: Path, workload: str, size: int, described: Path) -> TimedCase:
    """The result of SimGrid for a described workload; the wall time does not include building the platform."""
    run = run_driver(program, described)
    command = " ".join(["driver", described.name, *OPTIONS])
    return TimedCase(
        workload=workload,
        size=size,
        switches="",
        simulator="SimGrid",
        command=command,
        wall_seconds=() if run is None else (run.run_seconds,),
        peak_memory_bytes=None if run is None else run.peak_memory_bytes,
        simulated_seconds=None if run is None else float(run.finish.max()),
    )


def run_driver(program: Path, described: Path) -> SimgridRun | None:
    """Run the driver on a described workload; the result is None if it exceeds `TIME_LIMIT_SECONDS`.

    Parameters
    ----------
    program : compiled driver
    described : file that describes the workload, see `describe_traffic` and `describe_rings`

    Raises
    ------
    RunError : the driver failed
    """
    command = [str(program), str(described), *OPTIONS]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    if completed.returncode:
        raise RunError(f"SimGrid failed: {(completed.stderr.strip() or str(completed.returncode)).splitlines()[-1]}")
    result = json.loads(completed.stdout)
    return SimgridRun(np.array(result["finish_s"]), result["run_seconds"], result["peak_memory_bytes"])


# Descriptions of workloads for the driver


def describe_traffic(path: Path, count: int, flow_sizes: FlowSizes) -> None:
    """Write the description of W3: `count` flows at the same time on the machine `bench-2to1`."""
    net = machine("bench-2to1").topology(GPUS)
    sources, targets, sizes = random_pairs(count, flow_sizes)
    _write(path, net, sources, targets, sizes, Routes(net).between(sources, targets), steps=0)


def describe_rings(path: Path, workload: str, size: int) -> None:
    """Write the description of W1, one ring of all GPUs, or of W2, rings of 16 GPUs with stride size / 16."""
    ranks = np.arange(size)
    if workload == "W1":
        net, right = machine("bench-1to1").topology(size), (ranks + 1) % size
        steps, shard = 2 * (size - 1), 2**30 / size
    else:
        net, right = machine("bench-2to1").topology(size), (ranks + size // 16) % size
        steps, shard = 15, 2**26
    _write(path, net, ranks, right, np.full(size, float(shard)), Routes(net).between(ranks, right), steps=steps)


def _write(
    path: Path, net: Network, sources: Integers, targets: Integers, sizes: Floats, paths: Paths, *, steps: int
) -> None:
    """Write a description: a line of counts, a line for each link, a line for each transfer."""
    lines = [f"{net.endpoint_count} {net.link_count} {len(sources)} {steps}"]
    lines += [
        f"{bandwidth!r} {latency!r}"
        for bandwidth, latency in zip(net.bandwidths.tolist(), net.latencies.tolist(), strict=True)
    ]
    offsets, links = paths.offsets.tolist(), paths.links.tolist()
    for flow, (source, target, size) in enumerate(zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True)):
        route = links[offsets[flow] : offsets[flow + 1]]
        lines.append(f"{source} {target} {size!r} 0 {len(route)} {' '.join(map(str, route))}")
    schema_files.write_text(path, "\n".join(lines) + "\n")
