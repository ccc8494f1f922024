"""`quadrille study simulator-speed`, which is `make bench-simulator`: how fast is the network simulator, side by side?

The workloads are pinned in the README of this folder.  Every figure comes from
a `quadrille` process of its own, so that its peak memory is its own; its wall
seconds run from parsed arguments to the result, the topology included, imports
and compilation apart.  Each kind of folding is switched off in turn, for sizes
that then still end within `PATIENCE`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from math import log
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from algorithms.formats import files
from algorithms.formats.provenance import Provenance, provenance
from algorithms.units import format_bytes, format_seconds
from studies.simulator_speed.workloads import Sizes, hand_seconds, write_traffic
from studies.tables import UNKNOWN, Row, print_tables, table

RESULTS = Path(__file__).resolve().parent / "results"
SCHEMA = "quadrille/simulator-speed/1"
SIZES = (64, 256, 1024, 4096, 16_384, 65_536, 131_072)
ODD_SIZES = (100, 1000, 10_000)
FLOWS: tuple[tuple[int, Sizes], ...] = (
    (1000, "equal"),
    (1000, "random"),
    (10_000, "equal"),
    (10_000, "random"),
    (100_000, "equal"),
)
SLOW_NIC = ("--degrade", "gpu:7-leaf:0=0.5")
PATIENCE = 120.0
"""Seconds after which a process is stopped, and larger sizes with the same switches are left out."""
REPEATS = 3
SWITCHES = ("", "--no-fold", "--no-fold-time", "--no-fold --no-fold-time", "--no-memory", "--no-local")
FLOOR_SECONDS = {
    ("W1", 1024, ""): 0.1,
    ("W1", 1024, "--no-fold --no-fold-time"): 2.0,
    ("W1", 16_384, ""): 0.3,
    ("W2", 16_384, ""): 0.3,
    ("W1", 131_072, ""): 2.0,
    ("W2", 131_072, ""): 2.0,
    ("W1, a slow NIC", 10_000, ""): 10.0,
    ("W3 equal", 10_000, ""): 0.2,
    ("W3 random", 10_000, ""): 2.5,
    ("W3 equal", 100_000, ""): 5.0,
}
"""Wall seconds that the project must reach, by workload, size and switches."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question to `quadrille`.

    Parameters
    ----------
    size : GPUs, or flows of W3
    switches : what is switched off
    words : the command, without `--json`
    by_hand : the simulated seconds by formula, where there is one
    """

    workload: str
    size: int
    switches: str
    words: tuple[str, ...]
    by_hand: float | None = None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What a case took, and what came out; null where nothing did within `PATIENCE`."""

    workload: str
    size: int
    switches: str
    simulator: str = "quadrille"
    command: str
    wall_seconds: tuple[float, ...] = ()
    peak_memory_bytes: int | None = None
    simulated_seconds: float | None = None
    by_hand_seconds: float | None = None
    events: int | None = None
    classes: int | None = None
    floor_wall_seconds: float | None = None

    @property
    def wall(self) -> float | None:
        return median(self.wall_seconds) if self.wall_seconds else None


class Growth(msgspec.Struct, frozen=True):
    """How wall time grows with size, wall ~ size ** exponent, fitted to the sizes from `smallest` up."""

    workload: str
    switches: str
    smallest: int
    exponent: float


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """All lines, and what follows from them."""

    lines: tuple[Line, ...]
    growth: tuple[Growth, ...]
    simgrid: str
    provenance: Provenance


def main() -> None:
    """Measure every case and keep the figures of today."""
    RESULTS.mkdir(exist_ok=True)
    simulator_speed(json_file=str(RESULTS / f"{date.today()}.json"), command=["quadrille", "study", "simulator-speed"])


def simulator_speed(
    *, json_file: str = "", quick: bool = False, simgrid: bool = True, command: Sequence[str] = ()
) -> None:
    """Measure every case, and print them in one table.

    Parameters
    ----------
    json_file : where the figures go in full; `-` is stdout
    quick : one repeat, sizes to 16,384, no switches
    simgrid : run SimGrid beside, where it is installed
    """
    if json_file:
        files.check_writable(json_file)
    repeats = 1 if quick else REPEATS
    with tempfile.TemporaryDirectory() as folder:
        lines = list(_lines(cases(Path(folder), quick=quick), repeats))
        said, beside = _simgrid(quick=quick) if simgrid else ("left out", [])
    found = Speed(
        lines=(*lines, *beside), growth=tuple(growth(lines)), simgrid=said, provenance=provenance(list(command))
    )
    if json_file:
        files.write_json(json_file, found, SCHEMA)
    if json_file != files.STDOUT:
        _print(found)


# The cases


def cases(folder: Path, *, quick: bool = False) -> Iterator[Case]:
    """All cases, those of one workload and switch together, from small to large."""
    sizes = [size for size in SIZES if not quick or size <= 16_384]
    for workload in ("W1", "W2"):
        for switches in SWITCHES[:1] if quick else SWITCHES:
            for size in sizes:
                words = (*_collective(workload, size), *switches.split())
                yield Case(workload, size, switches, words, hand_seconds(workload, size))
    for size in ODD_SIZES:
        yield Case("W1, odd sizes", size, "", _collective("W1", size), hand_seconds("W1", size))
    for size in ODD_SIZES:
        yield Case("W1, a slow NIC", size, "", (*_collective("W1", size), *SLOW_NIC))
    for flows, sizes_of_flows in FLOWS[:4] if quick else FLOWS:
        path = folder / f"{flows}_{sizes_of_flows}.csv"
        write_traffic(path, flows, sizes_of_flows)
        words = ("flows", str(path), "--machine", "bench-2to1", "--gpus", "1024")
        yield Case(f"W3 {sizes_of_flows}", flows, "", words)


def _collective(workload: str, size: int) -> tuple[str, ...]:
    """The words of W1 or W2 on `size` GPUs."""
    if workload == "W1":
        return ("collective", "all-reduce", "--bytes", "1GiB", "--gpus", str(size), "--machine", "bench-1to1")
    groups = ("--group", "16", "--stride", str(size // 16), "--concurrent", "all")
    return ("collective", "all-gather", "--bytes", "1GiB", "--gpus", str(size), *groups, "--machine", "bench-2to1")


# Measuring


def _lines(chosen: Iterator[Case], repeats: int) -> Iterator[Line]:
    for (workload, switches), group in groupby(chosen, key=lambda case: (case.workload, case.switches)):
        for case in group:
            print(f"quadrille: {workload} {switches} {case.size}".replace("  ", " "), file=sys.stderr)
            line = _line(case, repeats)
            yield line
            if line.wall is None:
                break


def _line(case: Case, repeats: int) -> Line:
    """The case, run once to have everything compiled and then `repeats` times; long ones once."""
    answers: list[dict[str, object]] = []
    for attempt in range(repeats + 1):
        answer = ask(case.words)
        if answer is None:
            break
        wall = float(str(answer["wall_seconds"]))
        if attempt or wall > PATIENCE / 10:
            answers.append(answer)
        if wall > PATIENCE / 10:
            break
    last = answers[-1] if answers else {}
    simulated = last.get("seconds", last.get("makespan_s"))
    return Line(
        workload=case.workload,
        size=case.size,
        switches=case.switches,
        command="quadrille " + " ".join(Path(word).name if word.endswith(".csv") else word for word in case.words),
        wall_seconds=tuple(float(str(answer["wall_seconds"])) for answer in answers),
        peak_memory_bytes=max((int(str(answer["peak_memory_bytes"])) for answer in answers), default=None),
        simulated_seconds=None if simulated is None else float(str(simulated)),
        by_hand_seconds=case.by_hand,
        events=None if "events" not in last else int(str(last["events"])),
        classes=None if "classes" not in last else int(str(last["classes"])),
        floor_wall_seconds=FLOOR_SECONDS.get((case.workload, case.size, case.switches)),
    )


def ask(words: Sequence[str]) -> dict[str, object] | None:
    """The JSON answer of `quadrille` in a process of its own, None where it took longer than `PATIENCE`.

    Raises
    ------
    RuntimeError : the command failed; with its last line
    """
    command = [sys.executable, "-P", "-m", "studies.command_line", *words, "--json", "-"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        answer, remarks = process.communicate(timeout=PATIENCE + 30)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise RuntimeError(f"quadrille {' '.join(words)}: {remarks.strip().splitlines()[-1:]}")
    found: dict[str, object] = json.loads(answer)
    return found if float(str(found["wall_seconds"])) <= PATIENCE else None


def _simgrid(*, quick: bool) -> tuple[str, list[Line]]:
    """SimGrid on the same traffic where it is installed, and what to say of it."""
    from studies.simulator_speed.simgrid.runner import NotInstalled, simgrid_rows

    try:
        rows = simgrid_rows(quick=quick)
    except NotInstalled as error:
        return str(error), []
    return "installed", [
        Line(
            workload=row.workload,
            size=row.size,
            switches="",
            simulator="SimGrid",
            command=row.command,
            wall_seconds=row.wall_seconds,
            peak_memory_bytes=row.peak_memory_bytes,
            simulated_seconds=row.simulated_seconds,
        )
        for row in rows
    ]


def growth(lines: Sequence[Line]) -> Iterator[Growth]:
    """Exponents of the workloads of which at least three sizes ended, from 1,024 up.

    >>> line = lambda n: Line(workload="W1", size=n, switches="", command="", wall_seconds=(n * 1e-5,))
    >>> [round(one.exponent, 6) for one in growth([line(64), line(1024), line(4096), line(16384)])]
    [1.0]
    """
    for (workload, switches), group in groupby(lines, key=lambda line: (line.workload, line.switches)):
        points = [(line.size, line.wall) for line in group if line.wall and line.size >= 1024]
        if len(points) >= 3 and not workload.startswith("W3"):
            x, y = np.array([(log(size), log(wall)) for size, wall in points if wall]).T
            yield Growth(workload, switches, points[0][0], float(np.polyfit(x, y, 1)[0]))


# Showing


def _print(found: Speed) -> None:
    beside = {(line.workload, line.size): line for line in found.lines if line.simulator != "quadrille"}
    columns = (
        "workload", "off", "N", "wall", "low - high", "floor", "peak memory", "events", "classes",
        "simulated", "off by hand", "SimGrid wall", "times faster", "differs by",
    )  # fmt: skip
    own = [line for line in found.lines if line.simulator == "quadrille"]
    sections = [
        [_row(line, beside.get((line.workload, line.size))) for line in group]
        for _, group in groupby(own, key=lambda line: (line.workload, line.switches))
    ]
    grown = [(one.workload, one.switches, f"{one.smallest:,}", f"{one.exponent:.2f}") for one in found.growth]
    print_tables(
        table("wall seconds from parsed arguments to result, medians", columns, *sections, names=2),
        table("wall ~ N ** exponent", ("workload", "off", "from N", "exponent"), grown, names=2),
        table("", ("",), [(f"SimGrid: {found.simgrid}",)]),
    )


def _row(line: Line, beside: Line | None) -> Row:
    wall, simulated = line.wall, line.simulated_seconds
    if wall is None or simulated is None:
        return (line.workload, line.switches, f"{line.size:,}", f"over {PATIENCE:.0f} s", *(UNKNOWN,) * 10)
    other = beside.wall if beside is not None else None
    return (
        line.workload,
        line.switches,
        f"{line.size:,}",
        format_seconds(wall),
        f"{format_seconds(min(line.wall_seconds))} - {format_seconds(max(line.wall_seconds))}",
        format_seconds(line.floor_wall_seconds) if line.floor_wall_seconds else UNKNOWN,
        format_bytes(line.peak_memory_bytes) if line.peak_memory_bytes else UNKNOWN,
        UNKNOWN if line.events is None else f"{line.events:,}",
        UNKNOWN if line.classes is None else f"{line.classes:,}",
        f"{1000 * simulated:.6f} ms",
        _difference(simulated, line.by_hand_seconds),
        format_seconds(other) if other else UNKNOWN,
        f"{other / wall:.1f}" if other else UNKNOWN,
        _difference(simulated, beside.simulated_seconds if beside is not None else None),
    )


def _difference(simulated: float, reference: float | None) -> str:
    """The relative difference from a reference."""
    return UNKNOWN if not reference else f"{abs(simulated / reference - 1):.1e}"


if __name__ == "__main__":
    main()
