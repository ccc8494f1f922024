"""A thread that advances communication while its rank computes.

A product in BLAS holds no interpreter lock, so a second thread can look after
messages beside it.  The two threads take turns: who holds the lock may touch
lanes and MPI, and the rank gives it away only while it does local work.  MPI is
never called by two threads at once, and a lane never sees two hands.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quadrille.runtime.carriers.message_options import MAX_POLL_SLEEP_SECONDS
from quadrille.runtime.host.core_affinity import request_short_slices


class ProgressThread:
    """Calls `advance` again and again while the rank is inside `beside`.

    Parameters
    ----------
    advance : moves what can be moved, without waiting
    """

    def __init__(self, advance: Callable[[], object], poll_sleep_seconds: float = MAX_POLL_SLEEP_SECONDS) -> None:
        self._advance = advance
        self._nap_seconds = poll_sleep_seconds
        self._turn = threading.Lock()
        self._turn.acquire()
        self._over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._look_after, name="progress", daemon=True)
        self._thread.start()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Local work goes on inside, and communication beside it.

        Raises
        ------
        BaseException : what `advance` raised meanwhile
        """
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()
        if self._failure is not None:
            raise self._failure

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread."""
        self._over = True
        self._turn.release()
        self._thread.join()

    def _look_after(self) -> None:
        request_short_slices()
        while True:
            with self._turn:
                if self._over:
                    return
                try:
                    self._advance()
                except BaseException as error:  # noqa: BLE001 - the rank raises it
                    self._failure = error
                    return
            time.sleep(self._nap_seconds)
