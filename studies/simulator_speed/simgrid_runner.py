"""The pinned workloads in SimGrid, where it is installed, through a small driver of our own (`simgrid_driver.cpp`).

SimGrid is no dependency: on Debian, `apt install libsimgrid-dev g++` brings it.
The driver is compiled for the question and thrown away.  The network model is
CM02 without cross-traffic and without TCP's window, so that latency and
bandwidth are those of the links; CM02 weighs a flow's share by 1 / latency.

Rates are solved in full: with its default, `network/optim:Lazy`, SimGrid 3.32
ends 80 of the 1,000 equal flows of W3 up to 30 % too early or too late (two flows
together at 67 GB/s over one link of 50 GB/s), though the makespan is right; in
full all ends agree with ours to 1e-12, in about the time.
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
from quadrille.studies.simulator_speed.report import PATIENCE, Line
from quadrille.studies.simulator_speed.workloads import GPUS, Sizes, random_pairs
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
TRAFFIC: tuple[tuple[int, Sizes], ...] = ((1000, "equal"), (1000, "random"), (10_000, "equal"), (10_000, "random"))
QUICK = 1000
"""Ranks or flows up to which a workload is quick."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class NotInstalled(RunError):  # noqa: N818 - what it says
    """There is no SimGrid here, or nothing to compile the driver with."""


@dataclass(frozen=True, slots=True)
class SimgridRun:
    """What SimGrid says of one workload.

    Parameters
    ----------
    finish : end of each transfer, or of each rank [s]
    run_seconds : wall time of the simulation, without reading and building the platform
    """

    finish: Floats
    run_seconds: float
    peak_memory_bytes: int


def compile_driver(folder: Path) -> Path:
    """The path of the driver, compiled into `folder`.

    Raises
    ------
    NotInstalled : no g++, no SimGrid, or a SimGrid with which the driver does not compile
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise NotInstalled("not installed: g++ is missing (apt install g++ libsimgrid-dev)")
    program = folder / "driver"
    command = [compiler, "-O2", "-std=c++17", "-o", str(program), str(DRIVER), "-lsimgrid"]
    compilation = subprocess.run(command, capture_output=True, text=True, check=False)
    if compilation.returncode:
        if "simgrid/s4u.hpp" in compilation.stderr and "No such file" in compilation.stderr:
            raise NotInstalled("not installed (apt install libsimgrid-dev)")
        first = next((line for line in compilation.stderr.splitlines() if "error" in line), "the compiler failed")
        raise NotInstalled(f"installed, but the driver does not compile with it: {first}")
    return program


def simgrid_rows(*, quick: bool = False) -> list[Line]:
    """SimGrid's figures for W1, W2 and W3, as far as they end within `PATIENCE`.

    Raises
    ------
    NotInstalled : no SimGrid here
    """
    with tempfile.TemporaryDirectory() as name:
        program = compile_driver(Path(name))
        return [
            _row(program, workload, size, described)
            for workload, size, described in _workloads(Path(name), quick=quick)
        ]


def _workloads(folder: Path, *, quick: bool) -> Iterator[tuple[str, int, Path]]:
    """Name, size and description of each workload."""
    path = folder / "workload.txt"
    for workload, sizes in RINGS:
        for size in sizes:
            if not quick or size <= QUICK:
                describe_rings(path, workload, size)
                yield workload, size, path
    for count, drawn in TRAFFIC:
        if not quick or count <= QUICK:
            describe_traffic(path, count, drawn)
            yield f"W3 {drawn}", count, path


def _row(program: Path, workload: str, size: int, described: Path) -> Line:
    """A line of SimGrid; its wall time is that of the simulation alone, without building the platform."""
    run = run_driver(program, described)
    command = " ".join(["driver", described.name, *OPTIONS])
    return Line(
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
    """What the driver says of a described workload; None where it takes longer than `PATIENCE` seconds.

    Raises
    ------
    RunError : the driver failed
    """
    command = [str(program), str(described), *OPTIONS]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return None
    if ended.returncode:
        raise RunError(f"SimGrid failed: {(ended.stderr.strip() or str(ended.returncode)).splitlines()[-1]}")
    said = json.loads(ended.stdout)
    return SimgridRun(np.array(said["finish_s"]), said["run_seconds"], said["peak_memory_bytes"])


# Workloads as the driver reads them


def describe_traffic(path: Path, count: int, drawn: Sizes) -> None:
    """Writes W3: `count` flows at once on `bench-2to1`."""
    net = machine("bench-2to1").topology(GPUS)
    sources, targets, sizes = random_pairs(count, drawn)
    _write(path, net, sources, targets, sizes, Routes(net).between(sources, targets), steps=0)


def describe_rings(path: Path, workload: str, size: int) -> None:
    """Writes W1, one ring of all GPUs, or W2, rings of 16 with stride size / 16."""
    ranks = np.arange(size)
    if workload == "W1":
        net, right = machine("bench-1to1").topology(size), (ranks + 1) % size
        steps, piece = 2 * (size - 1), 2**30 / size
    else:
        net, right = machine("bench-2to1").topology(size), (ranks + size // 16) % size
        steps, piece = 15, 2**26
    _write(path, net, ranks, right, np.full(size, float(piece)), Routes(net).between(ranks, right), steps=steps)


def _write(
    path: Path, net: Network, sources: Integers, targets: Integers, sizes: Floats, paths: Paths, *, steps: int
) -> None:
    """One line for the counts, one for each link, one for each transfer."""
    lines = [f"{net.endpoint_count} {net.link_count} {len(sources)} {steps}"]
    lines += [
        f"{bandwidth!r} {latency!r}"
        for bandwidth, latency in zip(net.bandwidths.tolist(), net.latencies.tolist(), strict=True)
    ]
    offsets, links = paths.offsets.tolist(), paths.links.tolist()
    for flow, (source, target, size) in enumerate(zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True)):
        route = links[offsets[flow] : offsets[flow + 1]]
        lines.append(f"{source} {target} {size!r} 0 {len(route)} {' '.join(map(str, route))}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
