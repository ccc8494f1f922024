"""`Workers`: warm processes that answer questions; a question that nobody waits for any more ends its process.

Processes are forked from one that has imported the simulator, so a new one answers after some milliseconds.
"""

import asyncio
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

from quadrille.algorithms.errors import InputError
from quadrille.app.questions import Answer, Question, Refusal, Reply, Words, file_times

Value = TypeVar("Value")
WARM = ("quadrille.app.answers",)
"""Modules that the process imports from which workers are forked."""
REPLIES_KEPT = 256
MOST = 3
"""The largest number of predictions at a time."""


def _serve(connection: Connection) -> None:
    """Answer questions; the simulator is imported in workers only."""
    from quadrille.app.answers import serve

    serve(connection)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A context in which processes start with Ctrl-C blocked: one that imports would print a traceback."""
    resource_tracker.ensure_running()  # it would end the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """A process and the pipe to it."""

    def __init__(self) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(list(WARM))
        self.connection, far_end = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(far_end,), daemon=True)
        with _without_interrupts():
            self.process.start()
        far_end.close()

    def ask(self, kind: str, question: Question) -> Reply:
        """The reply of the process; EOFError where it has been ended."""
        self.connection.send((kind, question))
        reply: Reply = self.connection.recv()
        return reply

    def end(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        with suppress(OSError):
            self.connection.close()


class Workers:
    """The processes that answer questions, and the replies that are kept.

    Parameters
    ----------
    most : largest number of questions at a time; further ones wait
    """

    def __init__(self, most: int = MOST) -> None:
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._places = asyncio.Semaphore(most)
        self._threads = ThreadPoolExecutor(most + 2)
        self._replies: OrderedDict[tuple[str, Words, tuple[int, ...]], Reply] = OrderedDict()

    def kept(self, kind: str, words: Words) -> Reply:
        """The reply to an earlier question about unchanged files; None without one."""
        question = kind, words, file_times(words)
        reply = self._replies.get(question)
        if reply is not None:
            self._replies.move_to_end(question)
        return reply

    async def start(self) -> None:
        """Start a worker before the first question."""
        self._idle.append(await self._in_thread(self._new))

    @property
    def is_full(self) -> bool:
        """Whether a question would wait for others to end."""
        return self._places.locked()

    async def ask(self, kind: str, words: Words, begun: Callable[[], object] = lambda: None) -> Reply:
        """The reply to a question. Where the caller is cancelled, the process that works on it is ended.

        Parameters
        ----------
        kind : a key of `QUESTIONS`
        begun : function that is called when a process takes the question
        """
        if (kept := self.kept(kind, words)) is not None:
            return kept
        question = kind, words, file_times(words)
        try:
            reply = await self._ask(kind, words, begun)
        except InputError as error:
            return Refusal(words, str(error))
        self._replies[question] = reply
        if len(self._replies) > REPLIES_KEPT:
            self._replies.popitem(last=False)
        return reply

    async def report(self, answer: Answer) -> Reply:
        """A prediction with all sections of a report, or the line of a fault."""
        try:
            return await self._ask("report", answer)
        except InputError as error:
            return Refusal(answer.words, str(error))

    async def _ask(self, kind: str, question: Question, begun: Callable[[], object] = lambda: None) -> Reply:
        """The reply of a process.

        Raises
        ------
        InputError : no process can be started, the process has ended, or its answer cannot be read
        """
        async with self._places:
            begun()
            try:
                worker = self._idle.pop() if self._idle else await self._started()
            except (EOFError, OSError):
                raise InputError("no process for this answer can be started: start quadrille app again") from None
            try:
                reply = await self._in_thread(worker.ask, kind, question)
            except (EOFError, OSError):
                self._end(worker)
                raise InputError("the process that computed this answer has ended; it may need less memory") from None
            except asyncio.CancelledError:
                self._end(worker)
                raise
            except Exception as error:
                self._end(worker)
                raise InputError(f"the answer of the process cannot be read: {error}") from error
            self._idle.append(worker)
        return reply

    def processes(self) -> set[int]:
        """The process ids of all workers."""
        return {worker.process.pid for worker in self._all if worker.process.pid is not None}

    def close(self) -> None:
        """End all processes."""
        for worker in list(self._all):
            self._end(worker)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _started(self) -> _Worker:
        """A new worker; where the caller is cancelled meanwhile, the next question takes it."""
        start = asyncio.ensure_future(self._in_thread(self._new))
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            start.add_done_callback(lambda done: self._idle.append(done.result()))
            raise

    def _new(self) -> _Worker:
        worker = _Worker()
        self._all.add(worker)
        return worker

    def _end(self, worker: _Worker) -> None:
        self._all.discard(worker)
        worker.end()

    async def _in_thread(self, function: Callable[..., Value], *arguments: object) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
