"""Lowered collective: a collective as steps of point-to-point messages between the members of its group.

An algorithm gives its steps in two forms: a function of (member, step), and sections of all members at once
(`run_length_programs.py`).  No list of the steps of all members is stored.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from quadrille.algorithms.collectives import run_length_programs
from quadrille.algorithms.collectives.run_length_programs import IDLE, Runs, Section, Step

CollectiveAlgorithm = Literal[
    "ring",
    "doubling",
    "halving",
    "halving_doubling",
    "pipelined",
    "binomial",
    "double_binary_tree",
    "hierarchical",
    "pairwise",
    "direct",
    "shift",
    "dissemination",
]


def _no_sections() -> Iterable[Section]:
    raise AssertionError("these are the steps of one member alone")


@dataclass(frozen=True, slots=True)
class Lowered:
    """A collective of `members` ranks as `steps` steps over `pieces` pieces.

    Parameters
    ----------
    algorithm : name of the algorithm
    members, pieces, steps : numbers of members, pieces and steps
    step : what a member does in step s, from (member, s)
    sections : the same steps as runs of all members at once, which `runs` encodes
    at_once : whether a member posts the messages of all its steps together, so that no step waits for another
    """

    algorithm: CollectiveAlgorithm
    members: int
    pieces: int
    steps: int
    step: Callable[[int, int], Step]
    sections: Callable[[], Iterable[Section]] = _no_sections
    at_once: bool = False

    def program(self, member: int) -> Iterator[Step]:
        """Yields the member's non-idle steps in order."""
        for index in range(self.steps):
            step = self.step(member, index)
            if step != IDLE:
                yield step

    def runs(self) -> Runs:
        """Run-length encoded programs of all members, in time that hardly grows with the number of steps."""
        return run_length_programs.encode(self.sections(), self.members, self.pieces)

    def backwards(self) -> "Lowered":
        """The steps in reverse: a gather becomes a reduction."""
        last = self.steps - 1
        return Lowered(
            self.algorithm,
            self.members,
            self.pieces,
            self.steps,
            lambda i, s: self.step(i, last - s).backwards(),
            lambda: run_length_programs.backwards(self.sections()),
        )

    def then(self, second: "Lowered") -> "Lowered":
        """The steps of this collective, followed by the steps of `second` over the same pieces."""

        def step(i: int, s: int) -> Step:
            return self.step(i, s) if s < self.steps else second.step(i, s - self.steps)

        return Lowered(
            self.algorithm,
            self.members,
            self.pieces,
            self.steps + second.steps,
            step,
            lambda: [*self.sections(), *second.sections()],
        )
