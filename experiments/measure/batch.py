"""A batch of runs: the ranks are launched once and measure one case after another.

python -m quadrille.experiments.measure.batch CASES.pickle      (on every rank, started by `launch`)
"""

import contextlib
import io
import pickle
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from quadrille.experiments.measure.run import run
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.workloads.command_flags import experiment_flags, run_flags
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.launching.launch import PROGRAM, launch_or_raise

BATCH = ("-m", "quadrille.experiments.measure.batch")


@dataclass(frozen=True, slots=True)
class RunCase:
    """A run of a batch: the experiment, the path of its record, and the options of the run."""

    experiment: Experiment
    record: str
    options: RunOptions = field(default_factory=RunOptions)

    def words(self) -> list[str]:
        """The flags that are not the defaults, as words of a command line.

        >>> from quadrille.algorithms.matmuls.matmul import Matmul
        >>> from quadrille.experiments.workloads.matmul import MatmulExperiment
        >>> RunCase(MatmulExperiment(Matmul(4, 4, 4)), "", RunOptions(verify=True)).words()
        ['--matmul', '4,4,4', '--verify']
        """
        return [*experiment_flags(self.experiment), *run_flags(self.options)]


class StartRanks(Protocol):
    """A function that starts ranks on some hosts; it raises InputError or RunError if the launch fails."""

    def __call__(self, name: str, ranks: int, command: Sequence[str], *, program: Sequence[str] = PROGRAM) -> None: ...


def measure(ranks: int, cases: Sequence[RunCase], *, start_ranks: StartRanks = launch_or_raise) -> None:
    """Runs the cases in order, in one launch; each case writes its record.

    Parameters
    ----------
    ranks : number of ranks of every case
    cases : runs
    start_ranks : function that starts the ranks; by default on this host

    Raises
    ------
    InputError : a case is not possible; its message is on stderr
    RunError : a case failed; its message is on stderr
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.pickle"
        path.write_bytes(pickle.dumps(list(cases)))
        start_ranks(f"{len(cases)} runs on {ranks} ranks", ranks, [str(path)], program=BATCH)


def main(path: str) -> None:
    """Runs every case of a pickled batch on this rank."""
    cases: list[RunCase] = pickle.loads(Path(path).read_bytes())  # noqa: S301 - written by `measure` for its own ranks
    for number, case in enumerate(cases):
        with contextlib.redirect_stdout(io.StringIO()):
            run(
                case.experiment,
                options=case.options,
                destinations=Destinations(json=case.record),
                command=["quadrille", "run", *case.words(), "--json", case.record],
            )
        _progress(number + 1)


def _progress(done: int) -> None:
    from quadrille.runtime.host import world

    if world.world().Get_rank() == 0 and done % 10 == 0:
        print(f"{done} runs measured", file=sys.stderr, flush=True)


if __name__ == "__main__":
    from quadrille.runtime.host.world import run_rank

    run_rank(main)
