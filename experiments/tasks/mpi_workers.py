"""`MpiWorkers`: the ranks of a launcher, of which rank 0 hands out tasks and the others compute them.

Source: mpi4py documentation, mpi4py.futures, MPICommExecutor.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar, cast

from quadrille.algorithms.errors import InputError
from quadrille.experiments.tasks.workers import FutureWorkers
from quadrille.runtime.host.progress_reports import local_work
from quadrille.runtime.host.world import announced_size, loaded_library, mpi_allows_threads

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from mpi4py.MPI import Intracomm

HANDING_OUT, ANSWERING = "handing out tasks", "answering tasks"
"""The work of rank 0 and of the other ranks, for messages about where a rank ended."""
Point = TypeVar("Point")
Answer = TypeVar("Answer")


class MpiWorkers(FutureWorkers[Point, Answer]):
    """All ranks but rank 0, which calls this; the other ranks call `serve_tasks`.

    Parameters
    ----------
    communicator : communicator of all ranks
    question : function of a module, which every rank can import
    """

    def __init__(self, communicator: "Intracomm", question: Callable[[Point], Answer]) -> None:
        from mpi4py.futures import MPICommExecutor

        executor = MPICommExecutor(communicator, root=0).__enter__()
        assert executor is not None, "rank 0 hands out tasks"
        super().__init__(cast("Executor", executor), question, 2 * communicator.size - 1)
        self._reports = ExitStack()
        self._reports.enter_context(local_work(HANDING_OUT))

    def close(self) -> None:
        super().close()
        self._reports.close()


def serve_tasks(communicator: "Intracomm") -> None:
    """Compute tasks for rank 0 until it has no more; every other rank calls this."""
    from mpi4py.futures import MPICommExecutor

    with local_work(ANSWERING), MPICommExecutor(communicator, root=0):
        pass


def launched_ranks(jobs: int) -> "Intracomm | None":
    """The communicator of the ranks that a launcher started; None for a process alone.

    Parameters
    ----------
    jobs : number of processes that are asked for beside the ranks

    Raises
    ------
    InputError : a world of one rank where the launcher started more, jobs beside ranks, or an MPI without threads
    """
    if announced_size(os.environ) == 1:
        return None
    if jobs > 1:
        raise InputError(f"--jobs {jobs}: a launcher started ranks, which share the work; 1 is accepted")
    from quadrille.runtime.execution.rank_environment import start_world

    communicator = start_world()
    if not mpi_allows_threads():
        raise InputError(f"ranks cannot share tasks: {loaded_library()} allows one thread only; use --jobs N")
    return communicator
