"""How long one simulation of many may take: processor time, so that what else runs on the computer does not matter."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType

from algorithms.errors import QuadrilleError
from algorithms.units import format_seconds


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

    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong(f"given up after {format_seconds(seconds)} of processor time")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
