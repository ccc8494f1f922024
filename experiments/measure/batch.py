"""Many runs in one launch: the ranks are started once and measure case after case.

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
    """One run: the experiment, the file of its record, and how it is run."""

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


class Launched(Protocol):
    """Starts ranks somewhere; a launch that fails raises InputError or RunError, as `launch_or_raise` does."""

    def __call__(self, name: str, ranks: int, command: Sequence[str], *, program: Sequence[str] = PROGRAM) -> None: ...


def measure(ranks: int, cases: Sequence[RunCase], *, launched: Launched = launch_or_raise) -> None:
    """Run the cases on so many ranks, in order, each leaving its record.

    Parameters
    ----------
    launched : starts the ranks, on this host unless it says otherwise

    Raises
    ------
    InputError, RunError : a case that cannot be, or failed; its line is on stderr
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.pickle"
        path.write_bytes(pickle.dumps(list(cases)))
        launched(f"{len(cases)} runs on {ranks} ranks", ranks, [str(path)], program=BATCH)


def main(path: str) -> None:
    """Run every case of the file on this rank."""
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
