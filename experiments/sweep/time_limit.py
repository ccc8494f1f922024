"""A limit of the processor time of one simulation among many; other load on the computer does not count.

The limit is an exception that a signal's handler raises. Python drops an exception that is raised in a finalizer, a
callback of a weak reference or of the garbage collector. Therefore the signal comes again and again until the body of
the context has ended.
"""

import gc
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from math import inf
from types import FrameType, TracebackType

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.units import format_seconds

REPEAT_SECONDS = 0.1
"""Processor time after which the limit is raised again, if the body has not ended [s]."""


class TimeLimitExceeded(QuadrilleError):  # noqa: N818 - as a reason reads
    """A simulation that was stopped at its time limit."""


def processor_time_limit(seconds: float) -> AbstractContextManager[None]:
    """A context that stops its body after an amount of this process's processor time [s]; `inf` for no limit.

    >>> with processor_time_limit(60):
    ...     print("done")
    done

    Raises
    ------
    TimeLimitExceeded : in the body, at the next instruction of the Python interpreter
    """
    return nullcontext() if seconds == inf else _TimeLimit(seconds)


class _TimeLimit(AbstractContextManager[None]):
    """The context of `processor_time_limit`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._is_active = seconds, False

    def __enter__(self) -> None:
        self._previous_handler = signal.signal(signal.SIGVTALRM, self._raise_limit)
        self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._report_unraisable
        self._is_active = True
        signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds, REPEAT_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_active = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        sys.unraisablehook = self._previous_hook
        signal.signal(signal.SIGVTALRM, self._previous_handler)

    def _raise_limit(self, _signal: int, frame: FrameType | None) -> None:
        """The handler of the signal; it does not interrupt this context's own functions."""
        own = frame is not None and frame.f_code in (type(self).__enter__.__code__, type(self).__exit__.__code__)
        if self._is_active and not own and not _in_finalizer(frame):
            raise TimeLimitExceeded(f"given up after {format_seconds(self._seconds)} of processor time")

    def _report_unraisable(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Report an exception that Python drops, unless it is the limit, which is raised again."""
        if not isinstance(unraisable.exc_value, TimeLimitExceeded):
            self._previous_hook(unraisable)


def _in_finalizer(frame: FrameType | None) -> bool:
    """Whether the frame runs inside a finalizer or a callback of the garbage collector, which would be cut off."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
