"""`quadrille study weak-scaling` and `strong-scaling`: how one matmul goes on more and more GPUs.

For each number of GPUs all grids are ranked by the closed form of
`quadrille.experiments.predict.matmul_grids`, and the best few that fit in memory are simulated.

    strong    the same matmul on more GPUs
    weak      m grows with the GPUs: each brings its own rows
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from quadrille.algorithms.provenance import provenance
from quadrille.experiments.output.destinations import Destinations
from quadrille.runtime.host.console import remark_all, run_as_program
from quadrille.studies.scaling.answer import MachineOf, answer
from quadrille.studies.scaling.question import DEFAULT_GPUS, Question, ScalingKind, asked
from quadrille.studies.scaling.report import Scaling, write_outputs
from quadrille.topologies.find_machine import find_machine

MACHINE = "perlmutter"
GPUS, TOP = DEFAULT_GPUS, 3
RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    """Ask both questions of a named machine and keep the answers."""
    RESULTS.mkdir(exist_ok=True)
    for kind in get_args(ScalingKind):
        command = ["quadrille", "study", f"{kind}-scaling", "--machine", MACHINE]
        tables = str(RESULTS / f"{kind}-{MACHINE}")
        question = asked(kind, gpus=GPUS, top=TOP)
        scaling(question, named(MACHINE), json=f"{tables}.json", csv=f"{tables}.csv", command=command)


def named(name: str) -> MachineOf:
    """Gives the named machine with so many GPUs."""
    return lambda gpus: find_machine(name, gpus=gpus)


def scaling(
    question: Question,
    machine: MachineOf,
    *,
    json: str = "",
    csv: str = "",
    plot: str = "",
    read: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> Scaling:
    """Answer the question, print the table, and write the named files.

    Parameters
    ----------
    machine : function that returns the machine with a number of GPUs
    read : input files by flag; results must not overwrite them
    json, csv : files of the answer, or `-` for stdout, and then no table is printed; empty for none
    plot : file of the figure (png, svg, pdf)
    command : words of the command line, for provenance

    Raises
    ------
    InputError : a file that cannot be written, a machine that cannot be, a matmul that fits on none of the machines
    """
    Destinations(json=json, csv=csv, plot=plot).check(read)
    outcome = msgspec.structs.replace(answer(question, machine), provenance=provenance(command))
    remark_all(outcome.remarks)
    write_outputs(outcome, json, csv, plot)
    return outcome


if __name__ == "__main__":
    run_as_program(main)
