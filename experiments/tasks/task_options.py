"""`TaskOptions`: where tasks run, and where their results stay."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from quadrille.experiments.tasks.answer_tasks import workers_of
from quadrille.experiments.tasks.task_store import TaskStore
from quadrille.experiments.tasks.workers import Workers

Point = TypeVar("Point")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Where tasks run, and where their results stay.

    Parameters
    ----------
    jobs : number of processes that share the tasks
    store : path of the store of results; empty for none
    """

    jobs: int = 1
    store: str = ""

    def workers(self, question: Callable[[Point], Answer]) -> Workers[Point, Answer]:
        """The workers that call `question` with the arguments of each task."""
        return workers_of(question, self.jobs)

    def open_store(self) -> AbstractContextManager[TaskStore | None]:
        """A context with the store; with None if there is none.

        Raises
        ------
        InputError : a file that is no store, or cannot be written
        """
        return TaskStore(self.store) if self.store else nullcontext()
