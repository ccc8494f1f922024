"""`WorkSharing`: MPI ranks, or processes of one, that share independent calculations; all results are in order.

Calculations are tasks (`quadrille.experiments.tasks`): with a store, only what it lacks is calculated.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from quadrille.algorithms.errors import InputError, Interruption
from quadrille.experiments.output.progress import StepCount, progress_line
from quadrille.experiments.tasks.answer_tasks import StoredTasks, answer_tasks, workers_of
from quadrille.experiments.tasks.kept_words import kept_words
from quadrille.experiments.tasks.task_store import TaskStore
from quadrille.experiments.tasks.workers import ProcessWorkers, Workers
from quadrille.runtime.host.progress_reports import local_work
from quadrille.runtime.launching.supervise import signals_as_interrupts

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Question = TypeVar("Question")
Answer = TypeVar("Answer")
ANSWER_TAG = 36
"""The tag of messages with an answer, from other ranks to rank 0."""


@dataclass(frozen=True, slots=True)
class TaskKind:
    """The calculations of one kind, whose results a store keeps.

    Parameters
    ----------
    function : name of the calculation
    arguments : function that returns the values which decide the answer to a question
    form : type of an answer, which msgspec encodes
    label : function that returns a question as text, for people who read the store
    """

    function: str
    arguments: Callable[[Any], object]
    form: Any
    label: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class _Pool:
    """Processes that several functions share, one function at a time, so that these keep their caches.

    Parameters
    ----------
    workers : processes; a task is the index of a function and a question
    functions : functions, which existed before the processes
    """

    workers: ProcessWorkers[tuple[int, Any], Any]
    functions: tuple[Callable[[Any], Any], ...]

    def workers_of(self, function: Callable[[Question], Answer]) -> Workers[Question, Answer] | None:
        """The processes as workers of one of the functions; None for another function."""
        return _OfFunction(self.workers, self.functions.index(function)) if function in self.functions else None


class _OfFunction(Workers[Question, Answer]):
    """The workers of one of the functions of a pool, which stays open when they are closed."""

    def __init__(self, workers: Workers[tuple[int, Question], Answer], index: int) -> None:
        self._workers, self._index, self.capacity = workers, index, workers.capacity

    def start(self, number: int, point: Question) -> None:
        self._workers.start(number, (self._index, point))

    def finished(self, *, wait: bool) -> list[tuple[int, Answer]]:
        return self._workers.finished(wait=wait)

    def close(self) -> None:
        pass


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
    store : store of results, on rank 0; None without a store, and on the other ranks
    pool : processes that stay until a context of `kept_processes` ends; None outside
    """

    communicator: "Intracomm | None" = None
    quiet: bool = True
    jobs: int = 1
    store: TaskStore | None = None
    pool: _Pool | None = None

    @property
    def is_root(self) -> bool:
        """Whether this rank prints for all."""
        return self.communicator is None or self.communicator.rank == 0

    @contextmanager
    def progress(self, verb: str, noun: str, total: int) -> Iterator[StepCount]:
        """A context with a count of finished calculations, which rank 0 shows as a progress line."""
        step_count = StepCount(verb, noun, total)
        with progress_line(step_count.words, share=step_count.share, shown=self.is_root and not self.quiet):
            yield step_count

    @contextmanager
    def kept_processes(self, *functions: Callable[[Any], Any]) -> Iterator["WorkSharing"]:
        """A context with a work sharing whose processes stay for all questions to these functions, with their caches.

        >>> with WorkSharing(jobs=2).kept_processes(abs, str) as together:
        ...     together.share(abs, [-3, 2], "counted", "numbers"), together.share(str, [5], "written", "numbers")
        ([3, 2], ['5'])
        """
        if self.communicator is not None or self.jobs == 1:
            yield self
            return

        def answer(task: tuple[int, Any]) -> object:
            index, question = task
            return functions[index](question)

        workers = ProcessWorkers(answer, self.jobs)
        with closing(workers):
            yield replace(self, pool=_Pool(workers, functions))

    def share(
        self,
        answer: Callable[[Question], Answer],
        questions: Sequence[Question],
        verb: str,
        noun: str,
        *,
        kind: TaskKind | None = None,
    ) -> list[Answer]:
        """The answers to all questions, in their order; all ranks pass the same questions and get the same answers.

        Parameters
        ----------
        answer : function that returns the answer to a question
        questions : questions, divided over the ranks
        verb, noun : participle of the work and plural of its objects, for the progress line on rank 0
        kind : the calculations as tasks of a store; None for calculations that no store keeps

        Raises
        ------
        RunError : a process ended early, or the store cannot be written
        """
        with self.progress(verb, noun, len(questions)) as step_count:
            return self.answers(answer, questions, step_count, kind=kind)

    def answers(
        self,
        answer: Callable[[Question], Answer],
        questions: Sequence[Question],
        step_count: StepCount,
        *,
        kind: TaskKind | None = None,
    ) -> list[Answer]:
        """The answers to some of the questions that a progress line counts, as `share` returns them."""
        stored: StoredTasks[Question, Answer] | None = None
        if self.store is not None and kind is not None:
            stored = StoredTasks(
                store=self.store,
                function=kind.function,
                arguments=kind.arguments,
                form=kind.form,
                label=kind.label,
            )
        if self.communicator is not None:
            return _answers_of_ranks(answer, questions, step_count, self.communicator, stored)
        workers = self.pool.workers_of(answer) if self.pool is not None else None
        if workers is None:
            workers = workers_of(answer, min(self.jobs, max(1, len(questions))))
        answers: dict[int, Answer] = {}
        with closing(answer_tasks(questions, workers, stored)) as in_any_order:
            for number, result in in_any_order:
                answers[number] = result
                step_count.done += 1
        return [answers[number] for number in range(len(questions))]


@contextmanager
def open_work_sharing(
    *, quiet: bool, jobs: int = 1, store: str = "", command: Sequence[str] = ()
) -> Iterator[WorkSharing]:
    """A context with the work sharing of the ranks that a launcher started together, or of this process alone.

    With a command, TERM and HUP interrupt the work as Ctrl-C does.

    Parameters
    ----------
    quiet : whether progress is not shown
    jobs : number of processes that share the calculations, if no launcher started ranks
    store : path of the store of results, which rank 0 opens; empty for none
    command : words of the command line that goes on after an interruption; empty for a caller of the library

    Raises
    ------
    InputError : the world has one rank, but the launcher started more; jobs beside ranks of a launcher; a file that is
        no store
    Interruption : the work of a command was interrupted; the message says how many results are kept
    """
    communicator = _launched_ranks(jobs)
    opened = TaskStore(store) if store and (communicator is None or communicator.rank == 0) else None
    reported = nullcontext() if communicator is None else local_work("sharing the work of the ranking")
    with nullcontext() if opened is None else opened, reported:  # a store without results is false
        work_sharing = WorkSharing(communicator, quiet, jobs, opened)
        if not command:
            yield work_sharing
            return
        try:
            with signals_as_interrupts():
                yield work_sharing
        except KeyboardInterrupt:
            count = opened.found + opened.added if opened is not None else 0
            raise Interruption(kept_words(f"{count} answers", store, command)) from None


def _launched_ranks(jobs: int) -> "Intracomm | None":
    """The communicator of the ranks that a launcher started; None for a process alone."""
    from quadrille.runtime.host.world import announced_size

    if announced_size(os.environ) == 1:
        return None
    if jobs > 1:
        raise InputError(f"--jobs {jobs}: a launcher started ranks, which share the work; 1 is accepted")
    from quadrille.runtime.execution.rank_environment import start_world

    return start_world()


def _answers_of_ranks(
    answer: Callable[[Question], Answer],
    questions: Sequence[Question],
    step_count: StepCount,
    ranks: "Intracomm",
    stored: StoredTasks[Question, Answer] | None,
) -> list[Answer]:
    """The answers to all questions, in their order, which the ranks share; rank 0 reads and writes the store."""
    digests = {} if stored is None else {number: stored.digest(asked) for number, asked in enumerate(questions)}
    read = {number: stored.result(digest) for number, digest in digests.items()} if stored is not None else {}
    answers: dict[int, Answer] = ranks.bcast({number: kept for number, kept in read.items() if kept is not None})
    lacking = [number for number in range(len(questions)) if number not in answers]
    step_count.done += len(answers)
    computed = ((number, answer(questions[number])) for number in lacking[ranks.rank :: ranks.size])
    if ranks.rank > 0:
        sent = [ranks.isend(pair, dest=0, tag=ANSWER_TAG) for pair in computed]
        answers |= ranks.bcast(None)
        for request in sent:
            request.wait()
        return [answers[number] for number in range(len(questions))]
    new: dict[int, Answer] = {}
    for number, result in _as_they_come(computed, len(lacking), ranks):
        new[number] = result
        step_count.done += 1
        if stored is not None:
            stored.keep(digests[number], questions[number], result)
    answers |= ranks.bcast(new)
    return [answers[number] for number in range(len(questions))]


def _as_they_come(own: Iterable[tuple[int, Answer]], count: int, ranks: "Intracomm") -> Iterator[tuple[int, Answer]]:
    """The numbers and answers of rank 0, and after each those that arrived from the other ranks.

    Parameters
    ----------
    own : numbers and answers of rank 0, computed when they are taken
    count : number of answers of all ranks
    """
    for pair in own:
        yield pair
        count -= 1
        while ranks.iprobe(tag=ANSWER_TAG):
            yield ranks.recv(tag=ANSWER_TAG)
            count -= 1
    for _ in range(count):
        yield ranks.recv(tag=ANSWER_TAG)
