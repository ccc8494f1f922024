"""Many runs in one launch: the ranks are started once and measure case after case.

    python -m quadrille.experiments.measure.batch CASES.json      (on every rank, started by `launch`)

CASES.json lists, for each case, the shared flags, the flags of `run`, and the
file that its record goes to.
"""

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from quadrille.experiments.measure.run import run
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.words.experiment import experiment_of
from quadrille.experiments.words.matmul import MatmulWords
from quadrille.experiments.words.runs import RunWords, parse_run
from quadrille.experiments.words.training import TrainingWords
from quadrille.runtime.launching.launch import PROGRAM, launch_or_raise

BATCH = ("-m", "quadrille.experiments.measure.batch")


@dataclass(frozen=True, slots=True)
class Case:
    """One run: its flags, and where its record goes."""

    flags: MatmulWords
    record: str
    run_flags: RunWords = field(default_factory=RunWords)

    def words(self) -> list[str]:
        """The flags that are not the defaults, as words of a command line.

        >>> Case(MatmulWords(matmul="4,4,4", algorithm="3d", grid="z=2"), "", RunWords(verify=True)).words()
        ['--matmul', '4,4,4', '--algorithm', '3d', '--grid', 'z=2', '--verify']
        """
        given = {**asdict(self.flags), **asdict(self.run_flags)}
        usual = {**asdict(type(self.flags)()), **asdict(RunWords())}
        files = {**given.pop("inputs"), **given.pop("outputs")}
        words = [
            word
            for name, value in given.items()
            if value != usual[name]
            for word in ([_flag(name)] if value is True else [_flag(name), value])
        ]
        return words + [word for matrix, path in files.items() if path for word in (f"--{matrix.lower()}", path)]


class Launched(Protocol):
    """Starts ranks somewhere; a launch that fails raises InputError or RunError, as `launch_or_raise` does."""

    def __call__(self, name: str, ranks: int, command: Sequence[str], *, program: Sequence[str] = PROGRAM) -> None: ...


def measure(ranks: int, cases: Sequence[Case], *, launched: Launched = launch_or_raise) -> None:
    """Run the cases on so many ranks, in order, each leaving its record.

    Parameters
    ----------
    launched : starts the ranks, on this host unless it says otherwise

    Raises
    ------
    InputError, RunError : a case that cannot be, or failed; its line is on stderr
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        path.write_text(json.dumps([asdict(case) for case in cases]))
        launched(f"{len(cases)} runs on {ranks} ranks", ranks, [str(path)], program=BATCH)


def main(path: str) -> None:
    """Run every case of the file on this rank."""
    for number, fields in enumerate(json.loads(Path(path).read_text())):
        form = TrainingWords if "gpt" in fields["flags"] else MatmulWords
        case = Case(form(**fields["flags"]), fields["record"], RunWords(**fields["run_flags"]))
        with contextlib.redirect_stdout(io.StringIO()):
            run(
                experiment_of(case.flags),
                options=parse_run(case.run_flags),
                destinations=Destinations(json=case.record),
                command=["quadrille", "run", *case.words(), "--json", case.record],
            )
        _progress(number + 1)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _progress(done: int) -> None:
    from quadrille.runtime.host import world

    if world.world().Get_rank() == 0 and done % 10 == 0:
        print(f"{done} runs measured", file=sys.stderr, flush=True)


if __name__ == "__main__":
    from quadrille.runtime.host.world import fail_all

    try:
        main(sys.argv[1])
    except Exception as error:  # noqa: BLE001 - the last place of a rank that can end all ranks
        fail_all(error)
