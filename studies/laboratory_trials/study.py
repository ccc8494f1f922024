"""All trials on emulated networks, one after the other: about an hour, as root.

    python -m quadrille.studies.laboratory_trials.study

Each trial appends its rows to its CSV file in `results/`, after a comment line with the date, the machine and the
command.  A trial that fails appends nothing.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats import schema_files
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.runtime.laboratory.namespaces import check_allowed

RESULTS = Path(__file__).resolve().parent / "results"
TRIALS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("token_bucket_sizes", ()),
    ("collective_rates", ()),
    ("open_mpi_tcp_settings", ()),
    ("overlap_gains", ("star:hosts=4", "x=2,z=2", "y=2,x=2")),
    ("overlap_gains", ("star:hosts=8", "x=2,y=2,z=2")),
    ("overlap_gains", ("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2", "x=2,z=2", "y=2,x=2")),
)
"""The trials: modules of this package, and their command-line arguments."""


def main() -> None:
    """Run all trials; without the permission to create a laboratory, only print a remark."""
    try:
        check_allowed()
    except InputError as error:
        remark(f"left out, and results kept as they are: {error}")
        return
    measure_all()


def measure_all() -> None:
    """Run every trial, one after the other."""
    for name, arguments in TRIALS:
        add_rows(name, arguments, RESULTS)


def add_rows(name: str, arguments: Sequence[str], results: Path) -> None:
    """Run a trial as a process, and append its output to its CSV file.

    Parameters
    ----------
    name : name of the trial's module
    arguments : command-line arguments of the trial
    results : folder of the CSV files

    Raises
    ------
    RunError : a trial that failed; its messages are on stderr
    """
    module = f"quadrille.studies.laboratory_trials.{name}"
    remark(" ".join([module, *arguments]))
    command = [sys.executable, "-P", "-m", module, *arguments]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if completed.returncode:
        raise RunError(f"{module} ended with status {completed.returncode}; {results / name}.csv is as it was")
    path = results / f"{name}.csv"
    schema_files.write_text(path, (path.read_text() if path.exists() else "") + completed.stdout)


if __name__ == "__main__":
    run_as_program(main)
