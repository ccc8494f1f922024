"""`Workers`: who computes tasks: this process, several processes, or the ranks of a launcher.

Workers take tasks with `start` and return results with `finished`, in any order. They hold at most `capacity` tasks, so
tasks are listed only as fast as they are computed.
"""

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quadrille.algorithms.errors import RunError
from quadrille.runtime.host.processes import end_with_parent

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Point = TypeVar("Point")
Answer = TypeVar("Answer")
_inherited: list[Callable[[Any], Any]] = []
"""The question of the pool that is being started; its processes are forked with it."""


class Workers(ABC, Generic[Point, Answer]):
    """The interface of all workers.

    Parameters
    ----------
    capacity : number of tasks that the workers hold at most
    """

    capacity: int

    @abstractmethod
    def start(self, number: int, point: Point) -> None:
        """Take a task, which has a number."""

    @abstractmethod
    def finished(self, *, wait: bool) -> list[tuple[int, Answer]]:
        """The numbers and results of tasks that have finished since the last call.

        Parameters
        ----------
        wait : whether to wait for one result at least
        """

    @abstractmethod
    def close(self) -> None:
        """End all workers at once; tasks under way are lost."""


class OwnProcess(Workers[Point, Answer]):
    """The process itself, which computes a task when its result is asked for."""

    capacity = 1

    def __init__(self, question: Callable[[Point], Answer]) -> None:
        self._question = question
        self._taken: list[tuple[int, Point]] = []

    def start(self, number: int, point: Point) -> None:
        self._taken.append((number, point))

    def finished(self, *, wait: bool) -> list[tuple[int, Answer]]:
        if not wait or not self._taken:
            return []
        number, point = self._taken.pop()
        return [(number, self._question(point))]

    def close(self) -> None:
        self._taken.clear()


class FutureWorkers(Workers[Point, Answer]):
    """The workers of an executor of the standard library's kind; points and results are pickled.

    Parameters
    ----------
    executor : executor
    question : function that the executor calls with a point
    capacity : number of tasks that the workers hold at most
    """

    def __init__(self, executor: Executor, question: Callable[[Point], Answer], capacity: int) -> None:
        self._executor, self._question, self.capacity = executor, question, capacity
        self._done: SimpleQueue[tuple[int, Future[Answer]]] = SimpleQueue()

    def start(self, number: int, point: Point) -> None:
        future = self._executor.submit(self._question, point)
        future.add_done_callback(lambda done: self._done.put((number, done)))

    def finished(self, *, wait: bool) -> list[tuple[int, Answer]]:
        results: list[tuple[int, Answer]] = []
        try:
            while True:
                number, future = self._done.get(block=wait and not results)
                if results and future.exception() is not None:
                    self._done.put((number, future))  # the results before it are kept first
                    return results
                results.append((number, future.result()))
        except Empty:
            return results

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class ProcessWorkers(Workers[Point, Answer]):
    """Processes that are forked from this one with the first task, so that the question may be any function.

    Parameters
    ----------
    question : function that returns the result of a task
    jobs : number of processes
    """

    def __init__(self, question: Callable[[Point], Answer], jobs: int) -> None:
        self._question, self._jobs, self.capacity = question, jobs, 2 * jobs + 1
        self._pool: ProcessPoolExecutor | None = None
        self._futures: FutureWorkers[Point, Answer] | None = None

    def start(self, number: int, point: Point) -> None:
        if self._futures is None:
            self._start_pool()
            assert self._futures is not None
        with _broken_pools_as_lines():
            self._futures.start(number, point)

    def finished(self, *, wait: bool) -> list[tuple[int, Answer]]:
        if self._futures is None:
            return []
        with _broken_pools_as_lines():
            return self._futures.finished(wait=wait)

    def _start_pool(self) -> None:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import active_children, get_context

        self._others = set(active_children())
        _inherited.append(self._question)
        self._pool = ProcessPoolExecutor(self._jobs, mp_context=get_context("fork"), initializer=_end_with_main_process)
        self._futures = FutureWorkers(self._pool, _answer_inherited, self.capacity)

    def close(self) -> None:
        if self._pool is None:
            return
        from multiprocessing import active_children

        _inherited.remove(self._question)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - self._others:
            process.terminate()


class _broken_pools_as_lines:  # noqa: N801 - reads as a statement
    """A context in which a process that ends too early is one line."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        from concurrent.futures.process import BrokenProcessPool

        if isinstance(error, BrokenProcessPool):
            raise RunError("a process of --jobs ended before its point was done; fewer need less memory") from None


def _answer_inherited(point: Any) -> Any:
    """The result of a task of the latest pool that had been started when this process was forked."""
    return _inherited[-1](point)


def _end_with_main_process() -> None:
    """Has this process end with the main one, and leaves Ctrl-C to that, as it reaches every process of a terminal."""
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
