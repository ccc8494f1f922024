"""A limit of the processor time of one simulation among many; other load on the computer does not count."""

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.units import format_seconds

RETRY_SECONDS = 0.01
"""Time until the next try if the garbage collector, which swallows exceptions, is running [s]."""


class TimeLimitExceeded(QuadrilleError):  # noqa: N818 - as a reason reads
    """A simulation that was stopped at its time limit."""


@contextmanager
def processor_time_limit(seconds: float) -> Iterator[None]:
    """A context that stops its body after an amount of this process's processor time [s]; `inf` for no limit.

    >>> with processor_time_limit(60):
    ...     print("done")
    done

    Raises
    ------
    TimeLimitExceeded : in the body, at the next instruction of the Python interpreter
    """
    if seconds == inf:
        yield
        return

    is_active = True

    def raise_time_limit(_signal: int, frame: FrameType | None) -> None:
        if not is_active:
            return
        if _in_collection(frame):
            signal.setitimer(signal.ITIMER_VIRTUAL, RETRY_SECONDS)
            return
        raise TimeLimitExceeded(f"given up after {format_seconds(seconds)} of processor time")

    previous_handler = signal.signal(signal.SIGVTALRM, raise_time_limit)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        is_active = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous_handler)


def _in_collection(frame: FrameType | None) -> bool:
    """Whether the frame runs inside the garbage collector, which reports exceptions and continues."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
