"""`answer_tasks`: the results of many tasks, from a store where it has them, else from workers."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from quadrille.algorithms.errors import RunError
from quadrille.experiments.tasks.task_digest import code_digest, task_digest
from quadrille.experiments.tasks.task_store import TaskStore
from quadrille.experiments.tasks.workers import OwnProcess, ProcessWorkers, Workers

Point = TypeVar("Point")
Answer = TypeVar("Answer")


@dataclass(slots=True, kw_only=True)
class StoredTasks(Generic[Point, Answer]):
    """The tasks of one function, with the store of their results.

    Parameters
    ----------
    store : store of the results
    function : name of the function
    arguments : function that returns the values which decide the result at a point
    label : function that returns a point as text, for people who read the store
    form : type of a result, which msgspec encodes
    kept : number of results that the store had
    """

    store: TaskStore
    function: str
    arguments: Callable[[Point], object]
    form: type[Any]
    label: Callable[[Point], str] = field(default=str)
    kept: int = 0

    def digest(self, point: Point) -> bytes:
        """The hash of the task at a point."""
        return task_digest(self.function, self.arguments(point))

    def digests(self) -> frozenset[bytes]:
        """The hashes of all results of the function and of the present code that the store has."""
        return self.store.digests(self.function, code_digest())

    def result(self, digest: bytes) -> Answer | None:
        """The result that the store has; None without one.

        Raises
        ------
        RunError : a result of another form
        """
        text = self.store.result(digest)
        if text is None:
            return None
        try:
            answer: Answer = msgspec.json.decode(text, type=self.form)
        except msgspec.MsgspecError as error:
            raise RunError(
                f"--store {self.store.path}: the result of {digest.hex()[:12]} is damaged: {error}"
            ) from None
        self.kept += 1
        return answer

    def keep(self, digest: bytes, point: Point, answer: Answer) -> None:
        """Commit the result of a task."""
        text = msgspec.json.encode(answer).decode()
        self.store.keep(digest, self.function, self.label(point), text, code_digest())


def answer_tasks(
    points: Iterable[Point], workers: Workers[Point, Answer], stored: StoredTasks[Point, Answer] | None = None
) -> Generator[tuple[int, Answer], None, None]:
    """The index and the result of every task, as soon as it is there. Closing the generator ends the workers.

    Parameters
    ----------
    points, workers, stored : as for `answer_group`

    Raises
    ------
    RunError : a worker ended before its task was done, or a store that cannot be written
    """
    with closing(workers):
        yield from answer_group(points, workers, stored)


def answer_group(
    points: Iterable[Point], workers: Workers[Point, Answer], stored: StoredTasks[Point, Answer] | None = None
) -> Iterator[tuple[int, Answer]]:
    """The index and the result of every task of a group; the workers can take another group then.

    Points are taken only as fast as workers take them.

    Parameters
    ----------
    points : arguments of the tasks
    workers : workers that compute results, and have no other tasks
    stored : results of earlier tasks, which new results join; None without a store

    Raises
    ------
    RunError : a worker ended before its task was done, or a store that cannot be written
    """
    under_way: dict[int, tuple[bytes, Point]] = {}

    def collect(*, wait: bool) -> list[tuple[int, Answer]]:
        results = workers.finished(wait=wait)
        for number, answer in results:
            digest, point = under_way.pop(number)
            if stored is not None:
                stored.keep(digest, point, answer)
        return results

    for number, point in enumerate(points):
        digest = b"" if stored is None else stored.digest(point)
        if stored is not None and (answer := stored.result(digest)) is not None:
            yield number, answer
        else:
            under_way[number] = digest, point
            workers.start(number, point)
        yield from collect(wait=len(under_way) >= workers.capacity)
    while under_way:
        yield from collect(wait=True)


def answer_points(
    points: Iterable[Point], question: Callable[[Point], Answer], jobs: int = 1
) -> Generator[tuple[int, Answer], None, None]:
    """The index and the answer of every point, from this process or from several, without a store.

    Parameters
    ----------
    question : function that returns the answer at a point
    jobs : number of processes that share the points
    """
    return answer_tasks(points, workers_of(question, jobs))


def workers_of(question: Callable[[Point], Answer], jobs: int) -> Workers[Point, Answer]:
    """The process itself for one job, else as many processes."""
    return OwnProcess(question) if jobs == 1 else ProcessWorkers(question, jobs)
