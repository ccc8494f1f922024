"""`WorkSharing`: MPI ranks, or processes of one, that share independent calculations; all results are in order."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, TypeVar

from quadrille.algorithms.errors import InputError
from quadrille.experiments.output.progress import StepCount, progress_line

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Question = TypeVar("Question")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class WorkSharing:
    """The MPI ranks that share calculations; this process and its workers if there is no communicator.

    >>> WorkSharing().share(abs, [-3, 2, -1], "counted", "numbers")
    [3, 2, 1]

    Parameters
    ----------
    communicator : communicator of the ranks; None for this process alone
    quiet : whether progress is not shown
    jobs : number of processes that share the calculations of this process, if there is no communicator
    """

    communicator: "Intracomm | None" = None
    quiet: bool = True
    jobs: int = 1

    @property
    def is_root(self) -> bool:
        """Whether this rank prints for all."""
        return self.communicator is None or self.communicator.rank == 0

    @contextmanager
    def progress(self, verb: str, noun: str, total: int) -> Iterator[StepCount]:
        """A context with a count of finished calculations, which rank 0 shows as a progress line."""
        step_count = StepCount(verb, noun, total)
        with progress_line(step_count.words, shown=self.is_root and not self.quiet):
            yield step_count

    def share(
        self, answer: Callable[[Question], Answer], questions: Sequence[Question], verb: str, noun: str
    ) -> list[Answer]:
        """The answers to all questions, in their order; all ranks pass the same questions and get the same answers.

        Parameters
        ----------
        answer : function that returns the answer to a question
        questions : questions, divided over the ranks
        verb, noun : participle of the work and plural of its objects, for the progress line on rank 0
        """
        with self.progress(verb, noun, len(questions)) as step_count:
            return self.answers(answer, questions, step_count)

    def answers(
        self, answer: Callable[[Question], Answer], questions: Sequence[Question], step_count: StepCount
    ) -> list[Answer]:
        """The answers to some of the questions that a progress line counts, as `share` returns them."""
        ranks = self.communicator
        if ranks is None and self.jobs > 1 and len(questions) > 1:
            return _answers_of_processes(answer, questions, step_count, self.jobs)
        if ranks is None:
            return list(_count_answers(map(answer, questions), step_count, 1))
        own_answers = list(_count_answers(map(answer, questions[ranks.rank :: ranks.size]), step_count, ranks.size))
        rounds = zip_longest(*ranks.allgather(own_answers))
        return list(chain.from_iterable(rounds))[: len(questions)]


def open_work_sharing(*, quiet: bool, jobs: int = 1) -> WorkSharing:
    """The work sharing of the ranks that a launcher started together, or of this process alone.

    Parameters
    ----------
    quiet : whether progress is not shown
    jobs : number of processes that share the calculations, if no launcher started ranks

    Raises
    ------
    InputError : the world has one rank, but the launcher started more; jobs beside ranks of a launcher
    """
    from quadrille.runtime.host.world import announced_size

    if announced_size(os.environ) == 1:
        return WorkSharing(quiet=quiet, jobs=jobs)
    if jobs > 1:
        raise InputError(f"--jobs {jobs}: a launcher started ranks, which share the work; 1 is accepted")
    from quadrille.runtime.execution.rank_environment import start_world

    return WorkSharing(start_world(), quiet)


def _answers_of_processes(
    answer: Callable[[Question], Answer], questions: Sequence[Question], step_count: StepCount, jobs: int
) -> list[Answer]:
    """The answers to all questions, in their order, from worker processes."""
    from quadrille.experiments.tasks.answer_tasks import answer_points

    answers: dict[int, Answer] = {}
    for number, result in answer_points(questions, answer, min(jobs, len(questions))):
        answers[number] = result
        step_count.done += 1
    return [answers[number] for number in range(len(questions))]


def _count_answers(answers: Iterable[Answer], step_count: StepCount, ranks: int) -> Iterator[Answer]:
    """The answers, unchanged; each answer is counted once for every rank, because all ranks answer equally many."""
    for answer in answers:
        step_count.done += ranks
        yield answer
