"""Work shared between ranks: each rank does a part, and all ranks get every answer, in the order of the questions."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, TypeVar

from quadrille.runtime.host.console import remark

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
QUIET_SECONDS = 5.0
"""Time between two lines of progress, if stderr is no terminal [s]."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The ranks that share the work; alone without a communicator.

    >>> Crew().share(abs, [-3, 2, -1], "numbers")
    [3, 2, 1]
    """

    communicator: "Intracomm | None" = None

    @property
    def is_root(self) -> bool:
        """Whether this rank prints for all."""
        return self.communicator is None or self.communicator.rank == 0

    def share(self, answer: Callable[[Asked], Answer], asked: Sequence[Asked], label: str) -> list[Answer]:
        """The answers to all questions, in their order; all ranks pass the same questions and get the same answers.

        Parameters
        ----------
        label : noun for the questions, in the progress that the first rank shows
        """
        ranks = self.communicator
        if ranks is None:
            return list(_followed(map(answer, asked), len(asked), label))
        mine = asked[ranks.rank :: ranks.size]
        answers = map(answer, mine)
        done = list(_followed(answers, len(mine), label) if self.is_root else answers)
        rounds = zip_longest(*ranks.allgather(done))
        return list(chain.from_iterable(rounds))[: len(asked)]


def assemble() -> Crew:
    """The ranks that a launcher started together, or this process alone.

    Raises
    ------
    InputError : the world has one rank, but the launcher started more
    """
    from quadrille.runtime.host.world import announced_size

    if announced_size(os.environ) == 1:
        return Crew()
    from quadrille.runtime.execution.rank_environment import start_world

    return Crew(start_world())


def _followed(answers: Iterable[Answer], count: int, label: str) -> Iterator[Answer]:
    """The same answers, with a progress bar on stderr, or lines of progress if stderr is no terminal."""
    with _bar(label, count) if sys.stderr.isatty() else _lines(label, count) as advance:
        for answer in answers:
            advance()
            yield answer


@contextmanager
def _bar(label: str, count: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=count)
        yield lambda: progress.advance(task)


@contextmanager
def _lines(label: str, count: int) -> Iterator[Callable[[], None]]:
    said, done = time.monotonic(), 0

    def advance() -> None:
        nonlocal said, done
        done += 1
        if done < count and time.monotonic() - said >= QUIET_SECONDS:
            said = time.monotonic()
            remark(f"{label}: {done} of {count}")

    yield advance
