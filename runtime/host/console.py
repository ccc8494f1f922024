"""One-line remarks on stderr for the user, and a wrapper of main functions that turns errors into an exit status."""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from quadrille.algorithms.errors import QuadrilleError

PATIENCE_SECONDS = 5.0
"""The time after which a long operation is announced [s]."""
ERASE = "\r\x1b[K"
"""The control characters that erase the current line of a terminal."""


def overwrites(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can overwrite a line."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def erase_line(stream: TextIO) -> None:
    """Erase the current line of a terminal.

    A stream that shows control characters as text has the method `write_control` for the program's own ones.
    """
    getattr(stream, "write_control", stream.write)(ERASE)


def draw_line(stream: TextIO, line: str) -> None:
    """Draw a line in place of the current one of a terminal, cut at the terminal's width."""
    erase_line(stream)
    stream.write(line[: _columns(stream) - 1])
    stream.flush()


def _columns(stream: TextIO) -> int:
    """The width of a terminal, in columns."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def remark(line: str) -> None:
    """Print one line on stderr; it replaces a progress line."""
    if overwrites(sys.stderr):
        erase_line(sys.stderr)
    print(f"quadrille: {line}", file=sys.stderr)


def remark_all(lines: Iterable[str]) -> None:
    """Print several lines on stderr."""
    for line in lines:
        remark(line)


@contextmanager
def remark_if_long(words: str, *, is_root: bool = True) -> Iterator[None]:
    """A context that prints a remark if its operation takes longer than `PATIENCE_SECONDS`.

    Parameters
    ----------
    words : text of the remark
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
"""The exit status after Ctrl-C, as in shells."""
