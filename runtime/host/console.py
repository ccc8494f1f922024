"""Remarks: what a user should know beside the result, a line each on stderr."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from quadrille.algorithms.errors import QuadrilleError

PATIENCE_SECONDS = 5.0
"""Of a user, after which a word is said."""


def remark(line: str) -> None:
    """One line of ours on stderr."""
    print(f"quadrille: {line}", file=sys.stderr)


def remark_all(lines: Iterable[str]) -> None:
    """Several lines, in order."""
    for line in lines:
        remark(line)


@contextmanager
def remark_if_long(words: str, *, is_root: bool = True) -> Iterator[None]:
    """Say what is done inside if that takes long.

    Parameters
    ----------
    is_root : whether this rank says anything
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
    """A module's own main: what cannot be is one line and its exit status, no traceback."""
    try:
        main()
    except QuadrilleError as error:
        remark(str(error))
        sys.exit(error.exit_status)
