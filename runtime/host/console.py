"""One-line remarks for the user on stderr, and how a module's main program ends."""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from quadrille.algorithms.errors import QuadrilleError

PATIENCE_SECONDS = 5.0
"""The time after which a long operation is announced [s]."""


ERASE = "\r\x1b[K"
"""Takes away the line on which the cursor of a terminal is."""


def overwrites(stream: TextIO) -> bool:
    """Whether a line that was written to the stream can be written over: the stream is a terminal that knows how."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def erase_line(stream: TextIO) -> None:
    """Take away the line on which the cursor of a terminal is.

    A stream that shows control characters as text has `write_control` for those that the program itself sends.
    """
    getattr(stream, "write_control", stream.write)(ERASE)


def remark(line: str) -> None:
    """Print one line on stderr, in the place of a line of progress."""
    if overwrites(sys.stderr):
        erase_line(sys.stderr)
    print(f"quadrille: {line}", file=sys.stderr)


def remark_all(lines: Iterable[str]) -> None:
    """Print several lines on stderr."""
    for line in lines:
        remark(line)


@contextmanager
def remark_if_long(words: str, *, is_root: bool = True) -> Iterator[None]:
    """A context that announces its operation if it takes long.

    Parameters
    ----------
    is_root : whether this rank prints
    """
    timer = threading.Timer(PATIENCE_SECONDS, remark, (words,))
    timer.daemon = True
    if is_root:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def run_as_program(main: Callable[[], object]) -> None:
    """Run a module's main function: a Quadrille error becomes one line and its exit status, without a traceback."""
    try:
        main()
    except QuadrilleError as error:
        remark(str(error))
        sys.exit(error.exit_status)


INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells give it; a launch gives it too."""
