"""Printed tables: names to the left, numbers to the right; outside a terminal no line is wrapped."""

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

Row = Sequence[str]
UNKNOWN = "-"


def table(title: str, columns: Sequence[str], *sections: Iterable[Row], names: int = 1) -> Group:
    """A table of text; the first `names` columns hold names, the others numbers, and sections are set apart.

    >>> print_tables(table("", ("op", "time"), [("multiply", "31 ms"), ("sum C", "5 ms")]))
      op          time
     ──────────────────
      multiply   31 ms
      sum C       5 ms
    """
    grid = Table(box=box.SIMPLE_HEAD, show_header=any(columns))
    for place, column in enumerate(columns):
        grid.add_column(Text(column), justify="left" if place < names else "right", no_wrap=place >= names)
    for section in sections:
        for row in section:
            grid.add_row(*(Text(cell) for cell in row))
        grid.add_section()
    return Group(Text(title, style="bold"), grid) if title else Group(grid)


def print_tables(*tables: Group) -> None:
    """Prints tables to stdout; outside a terminal, as wide as the widest table and without blanks at line ends."""
    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal:
        console.print(*tables, sep="\n")
        return
    width = max((_width(console, group) for group in tables), default=80)
    plain = Console(file=sys.stdout, highlight=False, width=max(80, width))
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
    if fraction is None:
        return UNKNOWN
    return f"{100 * fraction:{'+' if signed else ''}.1f} %"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds with four digits, so that the times of a column have one unit.

    >>> milliseconds(0.0123456), milliseconds(2.5), milliseconds(1.5e-6), milliseconds(2.8e-14), milliseconds(None)
    ('12.35 ms', '2500 ms', '0.0015 ms', '0 ms', '-')
    """
    if seconds is None:
        return UNKNOWN
    value = 1000 * seconds
    if abs(value) >= 1000:
        return f"{value:.0f} ms"
    if round(value, 4) == 0:
        return "0 ms"
    digits = 4 if abs(value) < 1 else 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f} ms"


def _width(console: Console, group: Group) -> int:
    return Measurement.get(console, console.options.update_width(10_000), group).maximum
