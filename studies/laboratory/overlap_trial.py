"""What each overlap gains in whole training steps, with a progress thread, and what library collectives take.

    python -m studies.laboratory.overlap_trial > studies/laboratory/results/overlaps.csv
    python -m studies.laboratory.overlap_trial x=2,y=2,z=2 …

One step of a two-layer MLP on the hosts of a switch, for each grid without overlap, with
each overlap alone, with all, and by the MPI library without overlap, in turn; as root, with
nothing else running.  What is possible is the smaller of two times of the run without
overlap: of the communication that an overlap hides, and of the work that it hides it behind.
The gain is what the step became shorter by.
"""

import csv
import datetime
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

from algorithms.errors import InputError, QuadrilleError
from algorithms.formats.record import Record, load_record
from studies.experiments.plan import RunFlags
from studies.fidelity.sites import Site, standing
from studies.launching.batch import Case, measure
from studies.training.flags import TrainingFlags

GRIDS = {"x=2,z=2": 4, "y=2,x=2": 4, "x=2,y=2,z=2": 8}
"""Grids, and how many hosts they take."""
RATE, TURNS, REPEATS = "200mbit", 3, 2
HIDDEN = {
    "oag": (("L2 gather W",), ("L1 multiply", "L1 add b", "L1 gelu")),
    "ors": (("L2 scatter dW",), ("L2 multiply dI", "L1 gelu gradient", "L1 sum db", "L1 multiply dW")),
    "oar": (("L2 sum dI",), ("L2 multiply dW",)),
}
"""Of two layers, the communication that an overlap hides and the work behind which it does."""
ALL = "oar,ors,oag"
WAYS = (("none", "own"), *((word, "own") for word in (*HIDDEN, ALL)), ("none", "library"))


@dataclass(frozen=True, slots=True)
class Way:
    """An overlap, and who carries out the collectives."""

    overlap: str
    collectives: str

    def case(self, grid: str, record: str) -> Case:
        flags = TrainingFlags(
            mlp="2048,8192,2048",
            batch="2048",
            grid=grid,
            dtype="float32",
            overlap=self.overlap,
            collectives=self.collectives,
        )
        progress = "none" if self.overlap == "none" else "thread"
        return Case(flags, record, RunFlags(repeats=str(REPEATS), progress=progress))


def main(grids: Sequence[str]) -> None:
    """The table of these grids, or of all.

    Raises
    ------
    InputError : a grid that has no row in GRIDS
    """
    if unknown := [grid for grid in grids if grid not in GRIDS]:
        raise InputError(f"grid {unknown[0]!r}: accepted are {' '.join(GRIDS)}")
    table = csv.writer(sys.stdout, lineterminator="\n")
    machine = f"{platform.release()}, {len(os.sched_getaffinity(0))} cores"
    print(f"# {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, Linux {machine}, {' '.join(sys.orig_argv[1:])}")
    table.writerow(["grid", "hosts", "overlap", "collectives", "seconds", "gain", "possible", "share"])
    for grid in grids or GRIDS:
        hosts = GRIDS[grid]
        found = _measured(grid, hosts)
        plain = found[Way("none", "own")]
        for way, records in found.items():
            gain = _seconds(plain) - _seconds(records)
            possible = possible_gain(plain, way.overlap)
            share = f"{gain / possible:.2f}" if possible else ""
            row = [grid, hosts, way.overlap, way.collectives, f"{_seconds(records):.3f}", f"{gain:.3f}"]
            table.writerow([*row, f"{possible:.3f}", share])
            sys.stdout.flush()


def possible_gain(plain: Sequence[Record], overlap: str) -> float:
    """Seconds that overlaps could hide, by the times of a step without them; 0 where there is nothing to hide.

    One of several overlaps takes nothing of another's: they hide behind other work.
    """
    pairs = [pair for word, pair in HIDDEN.items() if word in overlap.split(",")]
    return sum(min(_together(plain, hidden), _together(plain, work)) for hidden, work in pairs)


def _together(records: Sequence[Record], names: Sequence[str]) -> float:
    """Median over runs of what these ops take together, on the wire or at work."""
    return median(
        sum(op.seconds for op in record.ops if op.name in names and (op.axis is None or op.bytes_sent_total))
        for record in records
    )


def _seconds(records: Sequence[Record]) -> float:
    return median(second for record in records for second in record.seconds_of_repeats)


def _measured(grid: str, hosts: int) -> dict[Way, list[Record]]:
    """Every way in turn, several times, in one launch."""
    ways = [Way(overlap, collectives) for overlap, collectives in WAYS]
    with tempfile.TemporaryDirectory() as folder, standing(Site(f"star:hosts={hosts}", RATE, hosts)) as launched:
        places = product(range(TURNS), ways)
        paths = {(turn, way): str(Path(folder, f"{turn}-{ways.index(way)}.json")) for turn, way in places}
        cases = [way.case(grid, path) for (_, way), path in paths.items()]
        measure(hosts, cases, launched=launched)
        return {way: [load_record(paths[turn, way]) for turn in range(TURNS)] for way in ways}


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except QuadrilleError as error:
        print(f"quadrille: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
