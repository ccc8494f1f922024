"""Remarks: what a user should know beside the result, a line each on stderr."""

import sys
from collections.abc import Iterable


def remark(line: str) -> None:
    """One line of ours on stderr."""
    print(f"quadrille: {line}", file=sys.stderr)


def remark_all(lines: Iterable[str]) -> None:
    """Several lines, in order."""
    for line in lines:
        remark(line)
