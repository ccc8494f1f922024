"""`quadrille study weak-scaling` and `strong-scaling`: the predicted efficiency of one matmul by number of GPUs.

For each number of GPUs the study ranks all grids by a closed form, and simulates the best that fit in memory.

    strong    the matmul stays the same
    weak      m grows in proportion to the number of GPUs
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from quadrille.algorithms.provenance import provenance
from quadrille.experiments.output.destinations import Destinations
from quadrille.runtime.host.console import remark_all, run_as_program
from quadrille.studies.scaling.grid_search import MachineOf, search_grids
from quadrille.studies.scaling.problem import DEFAULT_GPUS, ScalingKind, ScalingProblem, parse_problem
from quadrille.studies.scaling.report import ScalingResult, write_outputs
from quadrille.topologies.find_machine import find_machine

MACHINE = "perlmutter"
RESULTS = Path(__file__).resolve().parent / "results"


def main(results: Path = RESULTS, *, gpus: Sequence[int] = DEFAULT_GPUS, top: int = 3) -> None:
    """Run both studies on `MACHINE`, and write the results to the folder `results`.

    Parameters
    ----------
    results : folder of the results, created if it is missing
    gpus : numbers of GPUs of each study
    top : number of grids that are simulated for each number of GPUs
    """
    results.mkdir(exist_ok=True)
    for kind in get_args(ScalingKind):
        command = ["quadrille", "study", f"{kind}-scaling", "--machine", MACHINE]
        stem = str(results / f"{kind}-{MACHINE}")
        scaling_problem = parse_problem(kind, gpus=gpus, top=top)
        scaling(scaling_problem, machine_by_gpus(MACHINE), json=f"{stem}.json", csv=f"{stem}.csv", command=command)


def machine_by_gpus(name: str) -> MachineOf:
    """The function that returns the named machine with a number of GPUs."""
    return lambda gpus: find_machine(name, gpus=gpus)


def scaling(
    scaling_problem: ScalingProblem,
    machine: MachineOf,
    *,
    json: str = "",
    csv: str = "",
    plot: str = "",
    read: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> ScalingResult:
    """Run the study, print the table, and write the named files.

    Parameters
    ----------
    scaling_problem : matmul, numbers of GPUs and options
    machine : function that returns the machine with a number of GPUs
    json, csv : files of the result, `-` for stdout (then no table is printed); empty: not written
    plot : file of the figure (png, svg, pdf); empty: not written
    read : input files by flag; results must not overwrite them
    command : command line, for the provenance

    Raises
    ------
    InputError : a file that cannot be written; an impossible machine; a matmul that fits on none of the machines
    """
    Destinations(json=json, csv=csv, plot=plot).check(read)
    result = msgspec.structs.replace(search_grids(scaling_problem, machine), provenance=provenance(command))
    remark_all(result.remarks)
    write_outputs(result, json, csv, plot)
    return result


if __name__ == "__main__":
    run_as_program(main)
