"""Remarks: what a user should know beside the result, a line each on stderr."""

import sys
from collections.abc import Callable, Iterable

from algorithms.errors import QuadrilleError


def remark(line: str) -> None:
    """One line of ours on stderr."""
    print(f"quadrille: {line}", file=sys.stderr)


def remark_all(lines: Iterable[str]) -> None:
    """Several lines, in order."""
    for line in lines:
        remark(line)


def run_as_program(main: Callable[[], object]) -> None:
    """A module's own main: what cannot be is one line and its exit status, no traceback."""
    try:
        main()
    except QuadrilleError as error:
        remark(str(error))
        sys.exit(error.exit_status)
