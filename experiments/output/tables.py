"""Printed tables: names to the left, numbers to the right, without styles.

On a terminal long names are wrapped between words; no word or number is cut. Elsewhere no line is wrapped.
"""

import sys
from collections.abc import Iterable, Sequence
from math import floor, log10

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from quadrille.algorithms.units import LEAST_SCIENTIFIC, NOISE_SECONDS, format_percent

Row = Sequence[str]
UNKNOWN = "-"
MILLISECONDS = (1e-3, "ms")
UNITS = ((1.0, "s"), MILLISECONDS, (1e-6, "us"))
"""Units of times in tables: length [s] and name."""
ROUNDS_UP = 5e-5
"""Share of a unit that four significant digits round up."""


def table(
    title: str, columns: Sequence[str], *sections: Iterable[Row], names: int = 1, is_narrow: bool = False
) -> Group:
    """A table of text; the first `names` columns hold names, the others numbers, and sections are set apart.

    All times of a table (`duration`) are in the unit of the longest. Columns of a narrow table are two blanks apart,
    and not three.

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


def in_one_unit(sections: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """The rows of each section of a table with all times in one unit.

    >>> in_one_unit([[("a", duration(5.94e-4))], [("b", duration(2.51))]])
    [[['a', '0.0005940 s']], [['b', '2.510 s']]]
    """
    times = [cell.seconds for rows in sections for row in rows for cell in row if isinstance(cell, Duration)]
    if not times:
        return [list(rows) for rows in sections]
    unit = unit_of(times)
    return [
        [[in_unit(cell.seconds, unit) if isinstance(cell, Duration) else cell for cell in row] for row in rows]
        for rows in sections
    ]


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


class Duration(str):
    """A time as text in a unit of its own; a table shows all its times in the unit of the longest.

    >>> f"{Duration(0.0123456)}", str(Duration(71.084))
    ('12.35 ms', '71.08 s')
    """

    __slots__ = ("seconds",)
    seconds: float

    def __new__(cls, seconds: float) -> "Duration":
        """The text of a time [s]."""
        text = super().__new__(cls, in_unit(seconds, unit_of([seconds])))
        text.seconds = seconds
        return text

    def __getnewargs__(self) -> tuple[float]:  # type: ignore[override]
        """What a copy is built from, also in the process that unpickles it."""
        return (self.seconds,)


def duration(seconds: float | None) -> str:
    """The text of a time, which gets the unit of the longest time in a table; `-` for an unknown time.

    >>> duration(None), duration(71.084)
    ('-', '71.08 s')
    """
    return UNKNOWN if seconds is None else Duration(seconds)


def unit_of(times: Iterable[float]) -> tuple[float, str]:
    """The unit of times that are compared, by the longest of them: its length [s] and its name.

    >>> unit_of([3e-9, 0.02]), unit_of([0.0, 75.0]), unit_of([6e-7]), unit_of([])
    ((0.001, 'ms'), (1.0, 's'), (1e-06, 'us'), (0.001, 'ms'))
    """
    longest = max(map(abs, times), default=0.0)
    if longest < NOISE_SECONDS:
        return MILLISECONDS
    return next(((length, name) for length, name in UNITS if longest >= length * (1 - ROUNDS_UP)), UNITS[-1])


def in_unit(seconds: float, unit: tuple[float, str]) -> str:
    """Seconds in a unit, with four significant digits; less than half a nanosecond is 0, as in `format_seconds`.

    >>> in_unit(0.0123456, (1e-3, "ms")), in_unit(2.8e-14, (1e-6, "us")), in_unit(86400, (1.0, "s"))
    ('12.35 ms', '0 us', '86400 s')
    """
    length, name = unit
    if abs(seconds) < NOISE_SECONDS:
        return f"0 {name}"
    value = seconds / length
    if not abs(value) < LEAST_SCIENTIFIC:
        return f"{value:.4g} {name}"
    digits = 3 - floor(log10(abs(float(f"{value:.4g}"))))
    return f"{value:.{max(0, digits)}f} {name}"
