"""Values that show themselves: rows of plain values as CSV text and as the HTML of a notebook, and short `repr`s."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from html import escape
from io import StringIO
from typing import Any

from quadrille.algorithms.units import format_bytes, format_bytes_per_second, format_seconds, unit_by_name

ROWS_SHOWN = 60
"""Most rows of the table that a notebook shows."""
FORMATS = {"s": format_seconds, "B/s": format_bytes_per_second, "B": format_bytes}
"""The function that writes a number, by its base unit."""
LINE_LENGTH = 200
"""Most characters of the line that `repr` of a result gives."""


class Tabular:
    """Base of results that are tables: `rows()` for `pandas.DataFrame(result.rows())`, HTML for a notebook, and a line.

    A subclass defines `rows`, and may define `heading`, the line above the table, and `shown`, the columns that a
    notebook shows.
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

    def _repr_html_(self) -> str | None:
        """HTML of the table, which IPython calls for; None if there is nothing to show."""
        rows = self.rows()
        columns = self.shown
        if columns:
            rows = [{column: row[column] for column in columns if column in row} for row in rows]
        return html_table(rows, self.heading)

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


def html_table(rows: Sequence[Mapping[str, object]], heading: str = "") -> str:
    """The rows as an HTML table; it shows the first `ROWS_SHOWN` rows and the number of the others.

    Parameters
    ----------
    rows : value of each column by its name; a row may lack columns.  Times, sizes and rates have the units that the
        command line gives them
    heading : text above the table

    >>> html_table([{"op": "sum C", "seconds": 0.25}], "1 op")
    '<p>1 op</p><table><tr><th>op</th><th>seconds</th></tr><tr><td>sum C</td><td>250 ms</td></tr></table>'
    """
    above = f"<p>{escape(heading)}</p>" if heading else ""
    if not rows:
        return above
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    cells = ([_cell(column, row.get(column)) for column in columns] for row in rows[:ROWS_SHOWN])
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in of_row)}</tr>" for of_row in cells)
    more = f"<p>and {len(rows) - ROWS_SHOWN} more; rows() has all</p>" if len(rows) > ROWS_SHOWN else ""
    return f"{above}<table><tr>{head}</tr>{body}</table>{more}"


def _cell(column: str, value: object) -> str:
    """The text of a cell, with the unit that the name of its column says."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    if formatted := FORMATS.get(unit_by_name(column)):
        return formatted(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
