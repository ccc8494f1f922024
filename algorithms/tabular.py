"""Values that show themselves: rows of plain values as CSV text and as the HTML of a notebook, and short `repr`s."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from html import escape
from io import StringIO
from typing import Any

from quadrille.algorithms.units import TimeUnit, format_bytes, format_bytes_per_second, time_unit, unit_by_name

ROWS_SHOWN = 60
"""Most rows of the table that a notebook shows."""
LINE_LENGTH = 200
"""Most characters of the line that `repr` of a result gives."""
UNKNOWN = "-"
"""The cell of an unknown value."""
Row = Sequence[str]


class TimedText(str):
    """The text of a cell with times, in a unit of its own; a table shows all its times in the unit of the longest.

    >>> f"{TimedText(0.0123456)}", str(TimedText(71.084, "*")), str(TimedText("x ", 0.25, ", y ", 2e-4))
    ('12.35 ms', '71.08 s*', 'x 250.0 ms, y 0.2000 ms')

    Parameters
    ----------
    parts : texts, and times [s]
    """

    __slots__ = ("parts",)
    parts: tuple[str | float, ...]

    def __new__(cls, *parts: str | float) -> "TimedText":
        """The text of parts."""
        times = (part for part in parts if not isinstance(part, str))
        text = super().__new__(cls, _joined(parts, time_unit(times)))
        text.parts = parts
        return text

    def __getnewargs__(self) -> tuple[str | float, ...]:  # type: ignore[override]
        """The parts, of which a copy, such as that of an answer in another process, is built."""
        return self.parts

    @property
    def times(self) -> list[float]:
        """The times of the text [s]."""
        return [part for part in self.parts if not isinstance(part, str)]

    def in_unit(self, unit: TimeUnit) -> str:
        """The text with its times in a unit.

        >>> TimedText(2e-4, "*").in_unit(TimeUnit("s", 1))
        '0.0002000 s*'
        """
        return _joined(self.parts, unit)


def _joined(parts: Iterable[str | float], unit: TimeUnit) -> str:
    return "".join(part if isinstance(part, str) else unit.text(part) for part in parts)


def duration(seconds: float | None) -> str:
    """The text of a time, which gets the unit of the longest time in a table; `-` for an unknown time.

    >>> duration(None), duration(71.084)
    ('-', '71.08 s')
    """
    return UNKNOWN if seconds is None else TimedText(seconds)


FORMATS: dict[str, Callable[[float], str]] = {"s": duration, "B/s": format_bytes_per_second, "B": format_bytes}
"""The function that writes a number, by its base unit."""


def in_one_unit(sections: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """The rows of each section of a table with all times in one unit.

    >>> in_one_unit([[("a", duration(5.94e-4))], [("b", duration(2.51))]])
    [[['a', '0.0005940 s']], [['b', '2.510 s']]]
    """
    times = [
        time for rows in sections for row in rows for cell in row if isinstance(cell, TimedText) for time in cell.times
    ]
    if not times:
        return [list(rows) for rows in sections]
    unit = time_unit(times)
    return [
        [[cell.in_unit(unit) if isinstance(cell, TimedText) else cell for cell in row] for row in rows]
        for rows in sections
    ]


class Tabular:
    """Base of results that are tables: `rows()` for `pandas.DataFrame(result.rows())`, HTML for a notebook, and a line.

    A subclass defines `rows`, and may define `heading`, the line above the table, `shown`, the columns that a
    notebook shows, and `units`, the units of columns.
    """

    __slots__ = ()

    def rows(self) -> list[dict[str, object]]:
        """The rows of the table, each as value by column name."""
        raise NotImplementedError

    @property
    def heading(self) -> str:
        """The line above the table; empty by default."""
        return ""

    @property
    def shown(self) -> Sequence[str]:
        """The columns that a notebook shows; empty for all of them."""
        return ()

    @property
    def units(self) -> Mapping[str, str]:
        """The base units that the types of columns declare, by column; the names of other columns say theirs."""
        return {}

    def _repr_html_(self) -> str | None:
        """HTML of the table, which IPython calls for; None if there is nothing to show."""
        rows = self.rows()
        columns = self.shown
        if columns:
            rows = [{column: row[column] for column in columns if column in row} for row in rows]
        return html_table(rows, self.heading, self.units)

    def __repr__(self) -> str:
        """The name of the class and the heading, in one line."""
        return fact_line(self, self.heading)


class ShortRepr:
    """Base of dataclasses with many fields: `repr` has only the fields that differ from their defaults.

    A subclass is declared with `repr=False`, and a `repr` is cut at `LINE_LENGTH` characters.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        """The class and the fields that differ from their defaults."""
        text = f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in _changed_fields(self))})"
        return text if len(text) <= LINE_LENGTH else f"{text[: LINE_LENGTH - 2]}…)"


def _changed_fields(value: Any) -> Iterator[tuple[str, object]]:
    """The fields of a dataclass that differ from their defaults, by name."""
    for each in fields(value):
        content = getattr(value, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if default is MISSING or content != default:
            yield each.name, content


def fact_line(value: object, facts: str) -> str:
    """The class of a value and facts about it, in one line of at most `LINE_LENGTH` characters.

    >>> fact_line(1.5, "three  halves")
    '<float: three halves>'
    """
    line = f"<{type(value).__name__}: {' '.join(facts.split())}" if facts else f"<{type(value).__name__}"
    return f"{line}>" if len(line) < LINE_LENGTH else f"{line[: LINE_LENGTH - 2]}…>"


def comma_separated(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A CSV text: a header and a line for each row; None is empty, a truth value is `true` or `false`.

    >>> print(comma_separated(["grid", "exact"], [["z=2,x=3", True], [None, False]]), end="")
    grid,exact
    "z=2,x=3",true
    ,false
    """
    import csv  # a rank of `run` writes none

    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows([str(cell).lower() if isinstance(cell, bool) else cell for cell in row] for row in rows)
    return text.getvalue()


def html_table(rows: Sequence[Mapping[str, object]], heading: str = "", units: Mapping[str, str] | None = None) -> str:
    """The rows as an HTML table; it shows the first `ROWS_SHOWN` rows and the number of the others.

    Parameters
    ----------
    rows : value of each column by its name; a row may lack columns.  Times, sizes and rates have the units that the
        command line gives them, and all times are in the unit of the longest
    heading : text above the table
    units : base unit of each column whose type declares one; the names of other columns say theirs

    >>> html_table([{"op": "sum C", "time": 0.25}], "1 op", {"time": "s"})
    '<p>1 op</p><table><tr><th>op</th><th>time</th></tr><tr><td>sum C</td><td>250.0 ms</td></tr></table>'
    """
    above = f"<p>{escape(heading)}</p>" if heading else ""
    if not rows:
        return above
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    units = {column: (units or {}).get(column) or unit_by_name(column) for column in columns}
    cells = [[_cell(row.get(column), units[column]) for column in columns] for row in rows[:ROWS_SHOWN]]
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in in_one_unit([cells])[0])
    more = f"<p>and {len(rows) - ROWS_SHOWN} more; rows() has all</p>" if len(rows) > ROWS_SHOWN else ""
    return f"{above}<table><tr>{head}</tr>{body}</table>{more}"


def _cell(value: object, unit: str) -> str:
    """The text of a cell; `unit` is the base unit of numbers."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if written := FORMATS.get(unit):
        return written(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
