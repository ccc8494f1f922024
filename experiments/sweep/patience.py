"""How long one simulation of many may take: processor time, so that what else runs on the computer does not matter."""

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.units import format_seconds

AGAIN_SECONDS = 0.01
"""Until the next try, where an exception would be lost."""


class TooLong(QuadrilleError):  # noqa: N818 - as a reason reads
    """A simulation that was given up."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Gives up what is under way in its body after so much of this process's time.

    >>> with patience(60):
    ...     print("done")
    done

    Raises
    ------
    TooLong : from the body, at the next instruction of Python's
    """
    if seconds == inf:
        yield
        return

    waits = True

    def give_up(_signal: int, frame: FrameType | None) -> None:
        if not waits:
            return
        if _in_collection(frame):
            signal.setitimer(signal.ITIMER_VIRTUAL, AGAIN_SECONDS)
            return
        raise TooLong(f"given up after {format_seconds(seconds)} of processor time")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        waits = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _in_collection(frame: FrameType | None) -> bool:
    """Whether this is called by the garbage collector, which reports exceptions and goes on."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
