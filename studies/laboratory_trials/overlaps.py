"""What overlaps gain in whole training steps, and how our step compares with the MPI library's without overlap.

    python -m quadrille.studies.laboratory_trials.overlaps [TOPOLOGY [GRID …]] > overlaps.csv

One step of a two-layer MLP on the hosts of a topology (by default one switch), for each grid: without overlap, with
each overlap that its groups allow, with all, with all and products in bands, and by the MPI library, by its regular
calls (`library`) and by its vector calls (`library:vector`), in turn, each behind a step that is not counted (the first
one touches fresh memory); as root.  Where there is more than one switch, steps without overlap, in bands and by the
library are run in a second order of ranks, too, in which the groups that send least go between leaves.

    possible    the smaller of two times of the run without overlap: of the communication that an overlap
                hides, and of the work that it hides it behind
    gain        what the step became shorter by than that without overlap in the same order of ranks, the median of
                differences in each turn
    share       gain / possible
    faster      the seconds of `library`, by regular calls, in the same order of ranks, over these; over those of
                `library:vector` a way is as fast as its number over that of the row of `library:vector`
    wire        what a rank sends, over the rate of its own link [s]: no step can be shorter (links between leaves that
                several ranks share may hold it up for longer)
    cores       the part of this machine's cores that was busy meanwhile, with this and anything else
"""

import csv
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import Record, load_record
from quadrille.algorithms.passes.overlap import parse_overlap
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, parse_grid, parse_order
from quadrille.algorithms.units import parse_rate
from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.experiments.laboratory.laboratory_ranks import laboratory_launcher
from quadrille.experiments.measure.batch import RunCase, measure
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.laboratory import laboratory
from quadrille.studies.laboratory_trials.circumstances import MODEL, cores_busy_since_now, head_line

GRIDS = {"x=2,z=2": ("oag", "ors"), "y=2,x=2": ("oar",), "x=2,y=2,z=2": ("oag", "ors", "oar")}
"""Grids, and the overlaps for which they have communication."""
RATE, TURNS, BANDS = "200mbit", 6, ("4", "8")
HIDDEN = {
    "oag": (("L2 gather W",), ("L1 multiply", "L1 add b", "L1 gelu")),
    "ors": (("L2 scatter dW",), ("L2 multiply dI", "L1 gelu gradient", "L1 sum db", "L1 multiply dW")),
    "oar": (("L2 sum dI",), ("L2 multiply dW",)),
}
"""Of two layers, the communication that an overlap hides and the work behind which it does."""
ALL = "oar,ors,oag"
USUAL, X_OUTSIDE = ",".join(DEFAULT_ORDER), "z,y,x,data"
"""Orders of ranks: groups along x send the least of this step, and in the second order they alone go between leaves."""
COLUMNS = "topology grid order overlap bands collectives seconds lowest highest gain possible share faster wire cores"


@dataclass(frozen=True, slots=True)
class Way:
    """An overlap, into how many bands products are cut, who carries out the collectives, and the order of the ranks."""

    overlap: str = "none"
    bands: str = "1"
    collectives: str = "own"
    order: str = USUAL

    def case(self, grid: str, record: str) -> RunCase:
        overlaps = parse_overlap(self.overlap)
        choices = parse_choices(self.collectives)
        execution = ExecutionOptions(overlaps=overlaps, choices=choices, bands=int(self.bands))
        ordered = parse_grid(grid, parse_order(self.order))
        return RunCase(TrainingExperiment(MODEL, ordered, execution=execution), record, RunOptions(repeats=1))


PLAIN, LIBRARY, VECTOR = Way(), Way(collectives="library"), Way(collectives="library:vector")


def ways_of(grid: str, *, one_switch: bool = True) -> list[Way]:
    """Those that differ on a grid; on one switch the order of ranks makes no difference."""
    each = [Way(word) for word in GRIDS[grid]]
    together = [Way(ALL)] if len(each) > 1 else []
    in_bands = [Way(ALL, count) for count in BANDS]
    ordered = [] if one_switch else [replace(way, order=X_OUTSIDE) for way in (PLAIN, *in_bands, LIBRARY)]
    return [PLAIN, *each, *together, *in_bands, *ordered, LIBRARY, VECTOR]


def main(topology: str = "", *grids: str) -> None:
    """Print the table of these grids, or of all grids with as many ranks as the topology has hosts.

    Raises
    ------
    InputError : a grid that GRIDS lacks
    """
    if unknown := [grid for grid in grids if grid not in GRIDS]:
        raise InputError(f"grid {unknown[0]!r}: accepted are {' '.join(GRIDS)}")
    table = csv.writer(sys.stdout, lineterminator="\n")
    print(head_line())
    table.writerow(COLUMNS.split())
    for grid in grids or _grids_of(topology):
        hosts = parse_grid(grid).size
        where = topology or f"star:hosts={hosts}"
        busy = cores_busy_since_now()
        records = _measured(where, grid, hosts)
        cores = busy()
        for way in records:
            names = [where, grid, way.order, way.overlap, way.bands, way.collectives]
            table.writerow([*names, *_row(records, way), f"{cores:.2f}"])
        sys.stdout.flush()


def _grids_of(topology: str) -> list[str]:
    """Those with as many ranks as there are hosts; all, each with a switch of its own, where no topology is given."""
    hosts = len(parse_laboratory(topology, RATE).plan.hosts) if topology else None
    return [grid for grid in GRIDS if hosts in (None, parse_grid(grid).size)]


def _row(records: dict[Way, list[Record]], way: Way) -> list[str]:
    """The figures of a configuration beside the runs without overlap and with the library's collectives."""
    without, by_library = (replace(configuration, order=way.order) for configuration in (PLAIN, LIBRARY))
    plain, library, seconds = (_seconds(records[configuration]) for configuration in (without, by_library, way))
    gain = median(before - after for before, after in zip(plain, seconds, strict=True))
    possible = possible_gain(records[without], way.overlap) if way.bands == "1" else 0.0
    share = f"{gain / possible:.2f}" if possible else ""
    wire = records[way][0].bytes_sent_per_rank_max / parse_rate(RATE)
    spread = [f"{value:.3f}" for value in (median(seconds), min(seconds), max(seconds), gain)]
    faster = f"{median(library) / median(seconds):.2f}"
    return [*spread, f"{possible:.3f}" if possible else "", share, faster, f"{wire:.2f}"]


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


def _seconds(records: Sequence[Record]) -> list[float]:
    return [record.seconds for record in records]


def _measured(topology: str, grid: str, hosts: int) -> dict[Way, list[Record]]:
    """Every way in turn, several times, in one launch."""
    wanted = parse_laboratory(topology, RATE, name=f"steps{os.getpid()}")
    ways = ways_of(grid, one_switch=len(wanted.plan.switches) == 1)
    with tempfile.TemporaryDirectory() as folder, laboratory.standing(wanted) as entry:
        places = list(product(range(TURNS), ways))
        paths = {(turn, way): str(Path(folder, f"{turn}-{ways.index(way)}.json")) for turn, way in places}
        cases = [way.case(grid, path) for (_, way), path in paths.items()]
        measure(hosts, cases, start_ranks=laboratory_launcher(entry))
        return {way: [load_record(paths[turn, way]) for turn in range(TURNS)] for way in ways}


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
