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
    """Answers the question, prints the table, and writes what is asked for.

    Parameters
    ----------
    machine : gives the machine with so many GPUs
    read : files that were read, by flag, which results must not overwrite
    json, csv : files, or `-` for stdout, and then no table; empty for none
    plot : a file for the figure (png, svg, pdf)
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : a file that cannot be written, a machine that cannot be, a matmul that fits on none of the machines
    """
    Destinations(json=json, csv=csv, plot=plot).check(read)
    found = msgspec.structs.replace(answer(question, machine), provenance=provenance(command))
    remark_all(found.remarks)
    write_outputs(found, json, csv, plot)
    return found


if __name__ == "__main__":
    run_as_program(main)
