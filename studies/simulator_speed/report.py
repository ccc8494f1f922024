"""What the cases took, and how it is shown: one line a case, SimGrid's beside it."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import log
from statistics import median

import msgspec
import numpy as np

from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.output.tables import UNKNOWN, Row, print_tables, table

PATIENCE = 120.0
"""Seconds after which a process is stopped, and larger sizes with the same switches are left out."""


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


def print_speed(speed: Speed) -> None:
    """Print every line beside SimGrid's, and the growth of the wall time."""
    beside = {(line.workload, line.size): line for line in speed.lines if line.simulator != "quadrille"}
    columns = (
        "workload", "off", "N", "wall", "low - high", "floor", "peak memory", "events", "classes",
        "simulated", "off by hand", "SimGrid wall", "times faster", "differs by",
    )  # fmt: skip
    own = [line for line in speed.lines if line.simulator == "quadrille"]
    sections = [
        [_row(line, beside.get((line.workload, line.size))) for line in group]
        for _, group in groupby(own, key=lambda line: (line.workload, line.switches))
    ]
    grown = [
        (growth.workload, growth.switches, f"{growth.smallest:,}", f"{growth.exponent:.2f}") for growth in speed.growth
    ]
    print_tables(
        table("wall seconds from parsed arguments to result, medians", columns, *sections, names=2),
        table("wall ~ N ** exponent", ("workload", "off", "from N", "exponent"), grown, names=2),
        table("", ("",), [(f"SimGrid: {speed.simgrid}",)]),
    )


def _row(line: Line, beside: Line | None) -> Row:
    wall, simulated = line.wall, line.simulated_seconds
    if wall is None or simulated is None:
        return (line.workload, line.switches, f"{line.size:,}", f"over {PATIENCE:.0f} s", *(UNKNOWN,) * 10)
    simgrid_wall = beside.wall if beside is not None else None
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
        format_seconds(simgrid_wall) if simgrid_wall else UNKNOWN,
        f"{simgrid_wall / wall:.1f}" if simgrid_wall else UNKNOWN,
        _difference(simulated, beside.simulated_seconds if beside is not None else None),
    )


def _difference(simulated: float, reference: float | None) -> str:
    """The relative difference from a reference."""
    return UNKNOWN if not reference else f"{abs(simulated / reference - 1):.1e}"
