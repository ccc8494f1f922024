"""Verified runs: one rank in this process, several by `launch`; of what they measure only that it is there holds."""

import json
from dataclasses import dataclass

from tests.golden.cases import ended, read, reduced, words_of
from tests.support.quadrille import quadrille

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


def run_answer(run, folder):
    """The record of a run that verified, without its times."""
    path = folder / "record.json"
    words = [*words_of(f"run {run.line} --threads 1 --progress none --repeats 2 --verify", folder), "--json", str(path)]
    done = ended(words) if run.ranks == 1 else quadrille("launch", "-n", run.ranks, *words)
    assert done.status == 0, done.err
    found = json.loads(path.read_text())
    assert found["verified"]["ok"], found["verified"]
    found["ops"].sort(key=lambda op: (op["name"], op["kind"], op["bytes_sent_total"]))  # they come as they began
    return reduced(found, folder, clock=True)
