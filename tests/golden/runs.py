"""Verified runs: one rank in this process, several by `launch`; of what they measure only that it is there holds.

`python -m tests.golden.runs FILE`, on every rank of a launch, runs the command lines of a JSON file one after another.
"""

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.golden.cases import ended, read, reduced, words_of
from tests.support.launched import launched
from tests.support.quadrille import main as quadrille

LOSSES = {"float64": 1e-9, "float32": 1e-4}
"""Relative: another BLAS, or another processor, adds products in another order."""


@dataclass(frozen=True, slots=True)
class Run:
    """A command line on so many ranks."""

    ranks: int
    line: str

    @property
    def tolerance(self):
        return LOSSES["float64" if "--dtype float64" in self.line else "float32"]

    def relative(self, path):
        """Relative tolerance of a path: losses are computed, everything else is counted."""
        return self.tolerance if path.startswith("losses") else 0.0


def runs():
    """Each named run; the section says on how many ranks."""
    return {
        name: Run(int(section.removeprefix("ranks-")), line)
        for section, lines in read("runs.toml").items()
        for name, line in lines.items()
    }


def words_of_run(run, folder):
    """The words of a run that verifies itself and writes its record into the folder."""
    line = f"run {run.line} --threads 1 --progress none --repeats 2 --verify"
    return [*words_of(line, folder), "--json", str(folder / "record.json")]


def run_answer(run, folder):
    """The record of a run that verified, without its times."""
    if run.ranks > 1:
        return run_answers({"run": run}, folder)["run"]
    done = ended(words_of_run(run, folder))
    assert done.status == 0, done.err
    return answer_in(folder)


def run_answers(named, folder):
    """The answer of each named run; all take the same number of ranks, which one launch starts."""
    folders = {name: folder / name for name in named}
    for path in folders.values():
        path.mkdir()
    lines, (ranks,) = folder / "lines.json", {run.ranks for run in named.values()}
    lines.write_text(json.dumps([words_of_run(run, folders[name]) for name, run in named.items()]))
    done = launched(ranks, "-m", "tests.golden.runs", str(lines))
    assert done.status == 0, done.err
    return {name: answer_in(path) for name, path in folders.items()}


def answer_in(folder):
    """The record in a folder, reduced to what must hold."""
    record = json.loads((folder / "record.json").read_text())
    assert record["verified"]["ok"], record["verified"]
    if "losses" in record:  # the bound is that of the check nearest to it, and the processor decides which that is
        assert 0 < record["verified"].pop("bound") < 1e-5
    record["ops"].sort(key=lambda op: (op["name"], op["kind"], op["bytes_sent_total"]))  # they come as they began
    return reduced(record, folder, clock=True)


def main(path):
    """The exit status of the first command line that fails on this rank; 0 if none does."""
    for words in json.loads(Path(path).read_text()):
        with contextlib.redirect_stdout(io.StringIO()):
            status = quadrille(words)
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
