"""A collective as steps: one function of (member, step), and the same for all members at once.

Nothing is expanded for more than one member, and nothing is stored: a group of
a hundred thousand costs no more than its members' runs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from quadrille.algorithms.collectives import runs
from quadrille.algorithms.collectives.runs import IDLE, Runs, Section, Step

Name = Literal[
    "ring",
    "doubling",
    "halving",
    "halving_doubling",
    "pipelined",
    "binomial",
    "double_binary_tree",
    "hierarchical",
    "pairwise",
    "dissemination",
]


def _no_sections() -> Iterable[Section]:
    raise AssertionError("these are the steps of one member alone")


@dataclass(frozen=True, slots=True)
class Lowered:
    """A collective of `members` as `steps` steps over `pieces` pieces.

    `step(member, s)` is what the member does in step s, 0 <= s < steps;
    `sections()` are the same steps for all members, as `runs` lays them out.
    """

    algorithm: Name
    members: int
    pieces: int
    steps: int
    step: Callable[[int, int], Step]
    sections: Callable[[], Iterable[Section]] = _no_sections

    def program(self, member: int) -> Iterator[Step]:
        """The member's steps that do something, in order."""
        for index in range(self.steps):
            step = self.step(member, index)
            if step != IDLE:
                yield step

    def runs(self) -> Runs:
        """All members' programs, run-length encoded: `program(i)` for every i, in time that hardly grows with steps."""
        return runs.encode(self.sections(), self.members, self.pieces)

    def backwards(self) -> "Lowered":
        """The steps in reversed time: what spreads a buffer becomes what sums it."""
        last = self.steps - 1
        return Lowered(
            self.algorithm,
            self.members,
            self.pieces,
            self.steps,
            lambda i, s: self.step(i, last - s).backwards(),
            lambda: runs.backwards(self.sections()),
        )

    def then(self, second: "Lowered") -> "Lowered":
        """These steps, and then those of the second, over the same pieces."""

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
