"""`TaskOptions`: where tasks run, and where their results stay."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from quadrille.experiments.tasks.answer_tasks import workers_of
from quadrille.experiments.tasks.task_store import TaskStore
from quadrille.experiments.tasks.workers import Workers

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from quadrille.experiments.tasks.slurm_workers import SlurmOptions

Point = TypeVar("Point")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Where tasks run, and where their results stay.

    Parameters
    ----------
    jobs : number of processes that share the tasks
    store : path of the store of results; empty for none
    ranks : communicator of the ranks that share the tasks, on rank 0; None without a launcher
    slurm : jobs of Slurm that share the tasks; None for none
    """

    jobs: int = 1
    store: str = ""
    ranks: "Intracomm | None" = None
    slurm: "SlurmOptions | None" = None

    def in_groups_of(self, tasks: int) -> "TaskOptions":
        """The options for groups of so many tasks, each of which waits for the last: jobs of Slurm share a group."""
        if self.slurm is None:
            return self
        return replace(self, slurm=replace(self.slurm, points=min(self.slurm.points, -(-tasks // self.slurm.jobs))))

    def workers(self, question: Callable[[Point], Answer], tasks: int) -> Workers[Point, Answer]:
        """The workers that call `question` with the arguments of each task.

        Parameters
        ----------
        tasks : number of tasks; there are no more processes than tasks
        """
        if self.slurm is not None:
            from quadrille.experiments.tasks.slurm_workers import SlurmWorkers

            return SlurmWorkers(question, self.slurm)
        if self.ranks is not None:
            from quadrille.experiments.tasks.mpi_workers import MpiWorkers

            return MpiWorkers(self.ranks, question)
        return workers_of(question, min(self.jobs, max(1, tasks)))

    def open_store(self) -> AbstractContextManager[TaskStore | None]:
        """A context with the store; with None if there is none.

        Raises
        ------
        InputError : a file that is no store, or cannot be written
        """
        return TaskStore(self.store) if self.store else nullcontext()
