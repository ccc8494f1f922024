"""Worker processes of `--jobs`, which share independent calculations."""

import signal
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from quadrille.algorithms.errors import RunError
from quadrille.runtime.host.processes import end_with_parent

Point = TypeVar("Point")
Answer = TypeVar("Answer")
_inherited: list[tuple[Callable[[Any], Any], Sequence[Any]]] = []
"""The question and the points of the pool that is being started; its processes are forked with it."""


def answer_points(
    points_to_answer: Sequence[Point], question: Callable[[Point], Answer], jobs: int = 1
) -> Generator[tuple[int, Answer], None, None]:
    """The index and the answer of every point, in the order in which answers are ready.

    Processes are forked, so the question may be any function; answers are pickled. Closing the generator ends the
    processes.

    Parameters
    ----------
    question : function that returns the answer at a point
    jobs : number of processes that share the points

    Raises
    ------
    RunError : a process ended before its point was answered
    """
    if jobs == 1 or len(points_to_answer) < 2:
        yield from enumerate(map(question, points_to_answer))
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    others = set(active_children())
    _inherited.append((question, points_to_answer))
    pool = ProcessPoolExecutor(
        min(jobs, len(points_to_answer)), mp_context=get_context("fork"), initializer=_end_with_main_process
    )
    try:
        numbers = {pool.submit(_answer_inherited, number): number for number in range(len(points_to_answer))}
        for future in as_completed(numbers):
            yield numbers[future], future.result()
    except BrokenProcessPool:
        raise RunError("a process of --jobs ended before its point was done; fewer need less memory") from None
    finally:
        _inherited.pop()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - others:
            process.terminate()


def _answer_inherited(number: int) -> Any:
    """The answer at a point of the latest pool that had been started when this process was forked."""
    question, points_to_answer = _inherited[-1]
    return question(points_to_answer[number])


def _end_with_main_process() -> None:
    """Has this process end with the main one, and leaves Ctrl-C to that, as it reaches every process of a terminal."""
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
