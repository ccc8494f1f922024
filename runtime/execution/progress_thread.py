"""A progress thread: it advances communication (polls MPI) while its rank computes.

A BLAS product releases the interpreter lock, so a second thread can poll messages during the product. One lock decides
which thread may touch the lanes and MPI. The rank holds it and releases it only during local work. So two threads never
call MPI at the same time, and a lane is never advanced by two threads.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quadrille.runtime.carriers.message_options import MAX_POLL_SLEEP_SECONDS
from quadrille.runtime.host.core_affinity import request_short_slices


class ProgressThread:
    """A thread that calls `advance` repeatedly while the rank is inside `running`.

    Parameters
    ----------
    advance : advances all communication that can advance, without waiting
    poll_sleep_seconds : sleep between two calls [s]
    """

    def __init__(self, advance: Callable[[], object], poll_sleep_seconds: float = MAX_POLL_SLEEP_SECONDS) -> None:
        self._advance = advance
        self._sleep_seconds = poll_sleep_seconds
        self._lock = threading.Lock()
        self._lock.acquire()
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._poll, name="progress", daemon=True)
        self._thread.start()

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context for local work, during which the thread advances communication.

        Raises
        ------
        BaseException : the exception that `advance` raised in the meantime
        """
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
        if self._failure is not None:
            raise self._failure

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop the thread."""
        self._closed = True
        self._lock.release()
        self._thread.join()

    def _poll(self) -> None:
        """Call `advance` until the thread is closed or `advance` raises an exception."""
        request_short_slices()
        while True:
            with self._lock:
                if self._closed:
                    return
                try:
                    self._advance()
                except BaseException as error:  # noqa: BLE001 - the rank raises it
                    self._failure = error
                    return
            time.sleep(self._sleep_seconds)
