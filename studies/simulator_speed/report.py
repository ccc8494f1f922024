"""The results of the simulator speed study, and their tables: a row for each case, with SimGrid's time."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import log
from statistics import median

import msgspec
import numpy as np

from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.tabular import TimedText
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.output.tables import UNKNOWN, Row, duration, print_tables, table

TIME_LIMIT_SECONDS = 120.0
"""Time limit of a process [s]; after it larger sizes with the same switches are left out."""


class TimedCase(msgspec.Struct, frozen=True, kw_only=True):
    """The times and the result of a case; null if the process exceeded `TIME_LIMIT_SECONDS`.

    Parameters
    ----------
    workload, size, switches : case, see `SpeedCase`
    simulator : `quadrille` or `SimGrid`
    command : command line
    wall_seconds : wall time of each repeat [s]
    peak_memory_bytes : peak memory of the process [bytes]
    simulated_seconds : simulated time [s]
    by_hand_seconds : simulated time by a formula [s]; null if there is none
    events : number of simulated events
    classes : number of classes of equivalent ranks
    floor_wall_seconds : largest accepted wall time [s]; null if there is none
    """

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
        """The median wall time [s]; None if the process exceeded the limit."""
        return median(self.wall_seconds) if self.wall_seconds else None


class GrowthFit(msgspec.Struct, frozen=True):
    """The growth of the wall time of a workload, wall ~ size ** exponent, fitted to the sizes from `smallest`."""

    workload: str
    switches: str
    smallest: int
    exponent: float


class SpeedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the study, as `--json` writes it.

    Parameters
    ----------
    lines : results of all cases
    growth : growth of the wall time by workload and switches
    simgrid : whether SimGrid was run, or the reason why not
    provenance : command, date and versions
    """

    lines: tuple[TimedCase, ...]
    growth: tuple[GrowthFit, ...]
    simgrid: str
    provenance: Provenance


def growth(lines: Sequence[TimedCase]) -> Iterator[GrowthFit]:
    """The growth of each workload with at least three results at sizes from 1,024.

    Parameters
    ----------
    lines : results of cases; those of one workload and switches are neighbours

    >>> line = lambda n: TimedCase(workload="W1", size=n, switches="", command="", wall_seconds=(n * 1e-5,))
    >>> [round(fit.exponent, 6) for fit in growth([line(64), line(1024), line(4096), line(16384)])]
    [1.0]
    """
    for (workload, switches), group in groupby(lines, key=lambda line: (line.workload, line.switches)):
        points = [(line.size, line.wall) for line in group if line.wall and line.size >= 1024]
        if len(points) >= 3 and not workload.startswith("W3"):
            x, y = np.array([(log(size), log(wall)) for size, wall in points if wall]).T
            yield GrowthFit(workload, switches, points[0][0], float(np.polyfit(x, y, 1)[0]))


def print_speed(speed: SpeedAnswer) -> None:
    """Print the tables of the cases and of the growth of the wall time."""
    simgrid_lines = {(line.workload, line.size): line for line in speed.lines if line.simulator != "quadrille"}
    columns = (
        "workload", "off", "N", "wall", "low - high", "floor", "peak memory", "events", "classes",
        "simulated", "off by hand", "SimGrid wall", "times faster", "differs by",
    )  # fmt: skip
    own = [line for line in speed.lines if line.simulator == "quadrille"]
    sections = [
        [_row(line, simgrid_lines.get((line.workload, line.size))) for line in group]
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


def _row(line: TimedCase, simgrid_line: TimedCase | None) -> Row:
    """The row of a case; `simgrid_line` is SimGrid's result of the same case."""
    wall, simulated = line.wall, line.simulated_seconds
    if wall is None or simulated is None:
        return (line.workload, line.switches, f"{line.size:,}", f"over {TIME_LIMIT_SECONDS:.0f} s", *(UNKNOWN,) * 10)
    simgrid_wall = simgrid_line.wall if simgrid_line is not None else None
    return (
        line.workload,
        line.switches,
        f"{line.size:,}",
        duration(wall),
        TimedText(min(line.wall_seconds), " - ", max(line.wall_seconds)),
        duration(line.floor_wall_seconds or None),
        format_bytes(line.peak_memory_bytes) if line.peak_memory_bytes else UNKNOWN,
        UNKNOWN if line.events is None else f"{line.events:,}",
        UNKNOWN if line.classes is None else f"{line.classes:,}",
        f"{1000 * simulated:.6f} ms",
        _difference(simulated, line.by_hand_seconds),
        duration(simgrid_wall or None),
        f"{simgrid_wall / wall:.1f}" if simgrid_wall else UNKNOWN,
        _difference(simulated, simgrid_line.simulated_seconds if simgrid_line is not None else None),
    )


def _difference(simulated: float, reference: float | None) -> str:
    """The relative difference from a reference."""
    return UNKNOWN if not reference else f"{abs(simulated / reference - 1):.1e}"
