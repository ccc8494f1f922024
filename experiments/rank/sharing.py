"""Work shared between ranks: each does its part, and all get every answer, in the order of the questions."""

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
"""Between two lines of progress, where stderr is no terminal."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The ranks that share the work; alone without a communicator.

    >>> Crew().share(abs, [-3, 2, -1], "numbers")
    [3, 2, 1]
    """

    communicator: "Intracomm | None" = None

    @property
    def is_root(self) -> bool:
        """Whether this rank speaks for all."""
        return self.communicator is None or self.communicator.rank == 0

    def share(self, answer: Callable[[Asked], Answer], asked: Sequence[Asked], what: str) -> list[Answer]:
        """The answers to all questions, in their order; all ranks call it with the same ones, and get the same.

        Parameters
        ----------
        what : the questions are of, for the progress that the first rank shows of its part
        """
        ranks = self.communicator
        if ranks is None:
            return list(_followed(map(answer, asked), len(asked), what))
        mine = asked[ranks.rank :: ranks.size]
        found = map(answer, mine)
        done = list(_followed(found, len(mine), what) if self.is_root else found)
        rounds = zip_longest(*ranks.allgather(done))
        return list(chain.from_iterable(rounds))[: len(asked)]


def assemble() -> Crew:
    """The ranks that a launcher started together, or this process alone.

    Raises
    ------
    InputError : a world of one where the launcher started more
    """
    from quadrille.runtime.host.world import announced_size

    if announced_size(os.environ) == 1:
        return Crew()
    from quadrille.runtime.execution.rank_environment import start_world

    return Crew(start_world())


def _followed(found: Iterable[Answer], count: int, what: str) -> Iterator[Answer]:
    """The same, with a bar on stderr, or, where that is no terminal, a line from time to time."""
    with _bar(what, count) if sys.stderr.isatty() else _lines(what, count) as advance:
        for answer in found:
            advance()
            yield answer


@contextmanager
def _bar(what: str, count: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=count)
        yield lambda: progress.advance(task)


@contextmanager
def _lines(what: str, count: int) -> Iterator[Callable[[], None]]:
    said, done = time.monotonic(), 0

    def advance() -> None:
        nonlocal said, done
        done += 1
        if done < count and time.monotonic() - said >= QUIET_SECONDS:
            said = time.monotonic()
            remark(f"{what}: {done} of {count}")

    yield advance
