"""The four trials of laboratories in turn, each with the topologies and grids of its table; as root, about an hour.

Question: what share of a link do collectives reach, what do overlaps gain in whole steps, what lets two ranks exchange
at the full rate, and which token bucket keeps it?

Each adds its rows to its file in `results/`, under a line that says when, where and by which command; a trial that
fails adds nothing.
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
    ("buckets", ()),
    ("rings", ()),
    ("exchanges", ()),
    ("overlaps", ("star:hosts=4", "x=2,z=2", "y=2,x=2")),
    ("overlaps", ("star:hosts=8", "x=2,y=2,z=2")),
    ("overlaps", ("leaf-spine:leaves=2,spines=1,hosts_per_leaf=2", "x=2,z=2", "y=2,x=2")),
)
"""Modules beside this one, and the words that they are called with."""


def main() -> None:
    """Measure everything; say so where no laboratory may be made."""
    try:
        check_allowed()
    except InputError as error:
        remark(f"left out, and results kept as they are: {error}")
        return
    measure_all()


def measure_all() -> None:
    """Every trial, in turn."""
    for name, words in TRIALS:
        add_rows(name, words, RESULTS)


def add_rows(name: str, words: Sequence[str], results: Path) -> None:
    """Has a trial measured, and adds what it prints to its file.

    Raises
    ------
    RunError : a trial that failed, with what it said on stderr
    """
    module = f"quadrille.studies.laboratory_trials.{name}"
    remark(" ".join([module, *words]))
    command = [sys.executable, "-P", "-m", module, *words]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise RunError(f"{module} ended with status {ended.returncode}; {results / name}.csv is as it was")
    path = results / f"{name}.csv"
    schema_files.write_text(path, (path.read_text() if path.exists() else "") + ended.stdout)


if __name__ == "__main__":
    run_as_program(main)
