"""Printed lines, cut to the width of the terminal; in a file and in a pipe the lines are whole."""

import shutil
import sys


def shortened(text: str, columns: int, hint: str) -> str:
    """The text with each line cut to a number of columns; the hint follows if any line was cut.

    >>> print(shortened(chr(10).join(["alps  GH200, Slingshot", "selene  A100"]), 12, "--verbose shows whole lines"))
    alps  GH200…
    selene  A100
    --verbose shows whole lines
    """
    lines = text.splitlines()
    fitted = [line if len(line) <= columns else f"{line[: columns - 1].rstrip()}…" for line in lines]
    return "\n".join([*fitted, *([hint] if fitted != lines else [])])


def print_lines(text: str, hint: str, *, whole: bool = False) -> None:
    """Prints the text; on a terminal its long lines are cut.

    Parameters
    ----------
    hint : line that says how to see whole lines, printed if any line was cut
    whole : whether no line is cut
    """
    fits = whole or not sys.stdout.isatty()
    print(text if fits else shortened(text, shutil.get_terminal_size().columns, hint))
