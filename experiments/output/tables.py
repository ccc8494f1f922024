"""Printed tables: names to the left, numbers to the right, without styles.

On a terminal long names are wrapped between words; no word or number is cut. Elsewhere no line is wrapped.
"""

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from quadrille.algorithms.tabular import UNKNOWN as UNKNOWN
from quadrille.algorithms.tabular import Row as Row
from quadrille.algorithms.tabular import duration as duration
from quadrille.algorithms.tabular import in_one_unit
from quadrille.algorithms.units import format_percent


def table(
    title: str, columns: Sequence[str], *sections: Iterable[Row], names: int = 1, is_narrow: bool = False
) -> Group:
    """A table of text; the first `names` columns hold names, the others numbers, and sections are set apart.

    All times of a table (`duration`, `TimedText`) are in the unit of the longest. Columns of a narrow table are two
    blanks apart, and not three.

    >>> print_tables(table("", ("op", "time"), [("multiply", "31 ms"), ("sum C", "5 ms")]))
      op          time
     ──────────────────
      multiply   31 ms
      sum C       5 ms
    """
    padding = (0, 1, 0, 0) if is_narrow else (0, 1)
    grid = Table(box=box.SIMPLE_HEAD, show_header=any(columns), padding=padding)
    rows_of_sections = in_one_unit([list(section) for section in sections])
    for place, column in enumerate(columns):
        if place < names:
            grid.add_column(Text(column), justify="left")
        else:
            cells = (cell_len(row[place]) for rows in rows_of_sections for row in rows if place < len(row))
            longest = max([cell_len(column), *cells])
            grid.add_column(Text(column), justify="right", no_wrap=True, min_width=longest)
    for rows in rows_of_sections:
        for row in rows:
            grid.add_row(*(Text(cell) for cell in row))
        grid.add_section()
    return Group(Text(title, style="bold"), grid) if title else Group(grid)


def print_tables(*tables: Group) -> None:
    """Prints tables to stdout, without blanks at line ends.

    The width is that of the widest table, or of the terminal; then it is at least the width of the longest words.
    """
    console = Console(file=sys.stdout, highlight=False)
    sizes = [Measurement.get(console, console.options.update_width(10_000), group) for group in tables]
    if console.is_terminal:
        width = max([console.width, *(size.minimum for size in sizes)])
    else:
        width = max([80, *(size.maximum for size in sizes)])
    plain = Console(file=sys.stdout, highlight=False, width=width, color_system=None)
    with plain.capture() as captured:
        plain.print(*tables, sep="\n")
    lines = [line.rstrip() for line in captured.get().splitlines()]
    kept = [line for before, line in zip(["", *lines], lines, strict=False) if line or before]
    sys.stdout.write("\n".join(kept).rstrip("\n") + "\n")


def percent(fraction: float | None, *, signed: bool = True) -> str:
    """A fraction as percent.

    >>> percent(0.0416), percent(-0.5), percent(0.03, signed=False), percent(None)
    ('+4.2 %', '-50.0 %', '3.0 %', '-')
    """
    return UNKNOWN if fraction is None else format_percent(fraction, signed=signed)
