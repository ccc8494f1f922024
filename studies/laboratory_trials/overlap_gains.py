"""Trial of overlaps: the time that they save in whole training steps, and a comparison with the MPI library's calls.

    python -m quadrille.studies.laboratory_trials.overlap_gains [TOPOLOGY [GRID …]] > overlap_gains.csv     (as root)

The ranks run in a laboratory (a network of Linux network namespaces) with links of 200 Mbit/s; without a topology each
grid gets one switch.  For each grid the trial alternates between training steps of a two-layer MLP without overlap,
with each overlap (OAG, ORS, OAR), with all overlaps, with all overlaps and matmuls in bands of rows, and without
overlap with the collectives of the MPI library, by its regular calls (`library`) and its vector calls
(`library:vector`).  Each measured step follows a step that is not counted, because the first step touches new memory.
On several switches some variants also run in a second order of ranks, in which only the groups that send the fewest
bytes send between leaf switches.

    gain      time of the step without overlap in the same order of ranks minus time of this step [s], median
    possible  largest possible gain: for each overlap the smaller of the communication that it hides and of the
              computation that hides it, both in the step without overlap [s]
    share     gain / possible
    faster    time of the step with `library` in the same order of ranks / time of this step
    wire      bytes that a rank sends / rate of its link: a lower bound of the step [s] (shared links between leaves may
              raise it)
    cores     busy share of this machine's cores during the trial, over all processes
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
from quadrille.studies.laboratory_trials.trial_conditions import MODEL, conditions_line, core_load_meter

GRIDS = {"x=2,z=2": ("oag", "ors"), "y=2,x=2": ("oar",), "x=2,y=2,z=2": ("oag", "ors", "oar")}
"""The grids, and the overlaps that have communication to hide on each."""
RATE, ROUNDS, BANDS = "200mbit", 6, ("4", "8")
HIDDEN = {
    "oag": (("L2 gather W",), ("L1 multiply", "L1 add b", "L1 gelu")),
    "ors": (("L2 scatter dW",), ("L2 multiply dI", "L1 gelu gradient", "L1 sum db", "L1 multiply dW")),
    "oar": (("L2 sum dI",), ("L2 multiply dW",)),
}
"""Names of the ops of each overlap in a two-layer MLP: the hidden communication, and the computation that hides it."""
ALL = "oar,ors,oag"
DEFAULT_ORDER_TEXT, X_OUTSIDE = ",".join(DEFAULT_ORDER), "z,y,x,data"
"""Orders of the ranks.  In the second order only groups along x, which send the fewest bytes, send between leaves."""
COLUMNS = "topology grid order overlap bands collectives seconds lowest highest gain possible share faster wire cores"


@dataclass(frozen=True, slots=True)
class StepVariant:
    """One configuration of the training step.

    Parameters
    ----------
    overlap : overlaps with commas between them, or `none`
    bands : number of bands of rows that each matmul is cut into
    collectives : implementation of the collectives, as in `--collectives`
    order : order of the grid's axes, with commas between them
    """

    overlap: str = "none"
    bands: str = "1"
    collectives: str = "own"
    order: str = DEFAULT_ORDER_TEXT

    def case(self, grid: str, record: str) -> RunCase:
        """The run of the step on a grid such as `x=2,z=2`; it writes its record to the path `record`."""
        overlaps = parse_overlap(self.overlap)
        choices = parse_choices(self.collectives)
        execution = ExecutionOptions(overlaps=overlaps, choices=choices, bands=int(self.bands))
        ordered = parse_grid(grid, parse_order(self.order))
        return RunCase(TrainingExperiment(MODEL, ordered, execution=execution), record, RunOptions(repeats=1))


NO_OVERLAP, LIBRARY, VECTOR = (
    StepVariant(),
    StepVariant(collectives="library"),
    StepVariant(collectives="library:vector"),
)


def step_variants(grid: str, *, one_switch: bool = True) -> list[StepVariant]:
    """The variants of the step on a grid, the references first and last.

    Parameters
    ----------
    grid : grid, from `GRIDS`
    one_switch : whether all hosts are on one switch, where the order of ranks makes no difference
    """
    each = [StepVariant(overlap) for overlap in GRIDS[grid]]
    together = [StepVariant(ALL)] if len(each) > 1 else []
    in_bands = [StepVariant(ALL, count) for count in BANDS]
    ordered = [] if one_switch else [replace(variant, order=X_OUTSIDE) for variant in (NO_OVERLAP, *in_bands, LIBRARY)]
    return [NO_OVERLAP, *each, *together, *in_bands, *ordered, LIBRARY, VECTOR]


def main(topology: str = "", *grids: str) -> None:
    """Measure the grids and print the CSV table.

    Parameters
    ----------
    topology : topology of the laboratory, such as `star:hosts=4`; empty: one switch for each grid
    grids : grids, from `GRIDS`; none: all grids with one rank for each host of the topology

    Raises
    ------
    InputError : a grid that GRIDS lacks
    """
    if unknown := [grid for grid in grids if grid not in GRIDS]:
        raise InputError(f"grid {unknown[0]!r}: accepted are {' '.join(GRIDS)}")
    table = csv.writer(sys.stdout, lineterminator="\n")
    print(conditions_line())
    table.writerow(COLUMNS.split())
    for grid in grids or _grids_of(topology):
        hosts = parse_grid(grid).size
        network = topology or f"star:hosts={hosts}"
        busy_share = core_load_meter()
        records = _measure(network, grid, hosts)
        cores = busy_share()
        for variant in records:
            names = [network, grid, variant.order, variant.overlap, variant.bands, variant.collectives]
            table.writerow([*names, *_row(records, variant), f"{cores:.2f}"])
        sys.stdout.flush()


def _grids_of(topology: str) -> list[str]:
    """The grids with one rank for each host of the topology; all grids without a topology."""
    hosts = len(parse_laboratory(topology, RATE).plan.hosts) if topology else None
    return [grid for grid in GRIDS if hosts in (None, parse_grid(grid).size)]


def _row(records: dict[StepVariant, list[Record]], variant: StepVariant) -> list[str]:
    """The figures of a variant, compared with the runs without overlap and with the library's collectives."""
    without, by_library = (replace(configuration, order=variant.order) for configuration in (NO_OVERLAP, LIBRARY))
    plain, library, seconds = (_seconds(records[configuration]) for configuration in (without, by_library, variant))
    gain = median(before - after for before, after in zip(plain, seconds, strict=True))
    possible = possible_gain(records[without], variant.overlap) if variant.bands == "1" else 0.0
    share = f"{gain / possible:.2f}" if possible else ""
    wire = records[variant][0].bytes_sent_per_rank_max / parse_rate(RATE)
    spread = [f"{value:.3f}" for value in (median(seconds), min(seconds), max(seconds), gain)]
    faster = f"{median(library) / median(seconds):.2f}"
    return [*spread, f"{possible:.3f}" if possible else "", share, faster, f"{wire:.2f}"]


def possible_gain(plain: Sequence[Record], overlap: str) -> float:
    """The largest time that overlaps can hide in a step [s]; 0 if there is no communication to hide.

    The gains of several overlaps add up, because different computation hides each.

    Parameters
    ----------
    plain : records of the step without overlap
    overlap : overlaps with commas between them
    """
    pairs = [pair for name, pair in HIDDEN.items() if name in overlap.split(",")]
    return sum(min(_together(plain, hidden), _together(plain, work)) for hidden, work in pairs)


def _together(records: Sequence[Record], names: Sequence[str]) -> float:
    """The total time of the ops with these names, median over the runs [s]."""
    return median(
        sum(op.seconds for op in record.ops if op.name in names and (op.axis is None or op.bytes_sent_total))
        for record in records
    )


def _seconds(records: Sequence[Record]) -> list[float]:
    """The times of the steps [s]."""
    return [record.seconds for record in records]


def _measure(topology: str, grid: str, hosts: int) -> dict[StepVariant, list[Record]]:
    """The records of every variant; the variants alternate in `ROUNDS` rounds of one launch."""
    spec = parse_laboratory(topology, RATE, name=f"steps{os.getpid()}")
    variants = step_variants(grid, one_switch=len(spec.plan.switches) == 1)
    with tempfile.TemporaryDirectory() as folder, laboratory.standing(spec) as entry:
        runs = list(product(range(ROUNDS), variants))
        paths = {
            (number, variant): str(Path(folder, f"{number}-{variants.index(variant)}.json")) for number, variant in runs
        }
        cases = [variant.case(grid, path) for (_, variant), path in paths.items()]
        measure(hosts, cases, start_ranks=laboratory_launcher(entry))
        return {variant: [load_record(paths[number, variant]) for number in range(ROUNDS)] for variant in variants}


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
