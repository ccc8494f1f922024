"""Work shared between ranks: each rank does a part, and all ranks get every answer, in the order of the questions."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, TypeVar

from quadrille.experiments.output.progress import StepCount, progress_line

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Crew:
    """The ranks that share the work; alone without a communicator.

    >>> Crew().share(abs, [-3, 2, -1], "counted", "numbers")
    [3, 2, 1]

    Parameters
    ----------
    quiet : whether progress is not shown
    """

    communicator: "Intracomm | None" = None
    quiet: bool = True

    @property
    def is_root(self) -> bool:
        """Whether this rank prints for all."""
        return self.communicator is None or self.communicator.rank == 0

    @contextmanager
    def progress(self, verb: str, noun: str, total: int) -> Iterator[StepCount]:
        """A context whose tally is shown by the first rank."""
        tally = StepCount(verb, noun, total)
        with progress_line(tally.words, shown=self.is_root and not self.quiet):
            yield tally

    def share(self, answer: Callable[[Asked], Answer], asked: Sequence[Asked], verb: str, noun: str) -> list[Answer]:
        """The answers to all questions, in their order; all ranks pass the same questions and get the same answers.

        Parameters
        ----------
        verb, noun : words for the answers and for the questions, in the progress that the first rank shows
        """
        with self.progress(verb, noun, len(asked)) as tally:
            return self.answers(answer, asked, tally)

    def answers(self, answer: Callable[[Asked], Answer], asked: Sequence[Asked], tally: StepCount) -> list[Answer]:
        """The answers to questions that are a part of those that the tally counts; as `share` gives them."""
        ranks = self.communicator
        if ranks is None:
            return list(_counted(map(answer, asked), tally, 1))
        done = list(_counted(map(answer, asked[ranks.rank :: ranks.size]), tally, ranks.size))
        rounds = zip_longest(*ranks.allgather(done))
        return list(chain.from_iterable(rounds))[: len(asked)]


def assemble(*, quiet: bool) -> Crew:
    """The ranks that a launcher started together, or this process alone.

    Parameters
    ----------
    quiet : whether progress is not shown

    Raises
    ------
    InputError : the world has one rank, but the launcher started more
    """
    from quadrille.runtime.host.world import announced_size

    if announced_size(os.environ) == 1:
        return Crew(quiet=quiet)
    from quadrille.runtime.execution.rank_environment import start_world

    return Crew(start_world(), quiet)


def _counted(answers: Iterable[Answer], tally: StepCount, ranks: int) -> Iterator[Answer]:
    """The same answers; each is counted for all ranks, which answer as many."""
    for answer in answers:
        tally.done += ranks
        yield answer
