"""Results that show themselves: rows of plain values as CSV text and as the HTML of a notebook, and a line of facts."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import StringIO

ROWS_SHOWN = 60
"""Most rows of the table that a notebook shows."""
LINE_LENGTH = 200
"""Most characters of the line that `repr` of a result gives."""


class Tabular:
    """Base of results that are tables: `rows()` for `pandas.DataFrame(result.rows())`, HTML for a notebook, and a line.

    A subclass defines `rows`, and may define `heading`, the line above the table.
    """

    __slots__ = ()

    def rows(self) -> list[dict[str, object]]:
        """The rows of the table, each as value by column name."""
        raise NotImplementedError

    @property
    def heading(self) -> str:
        """The line above the table; empty by default."""
        return ""

    def _repr_html_(self) -> str | None:
        """HTML of the table, which IPython calls for; None if there is nothing to show."""
        return html_table(self.rows(), self.heading)

    def __repr__(self) -> str:
        """The name of the class and the heading, in one line."""
        return fact_line(self, self.heading)


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
    rows : value of each column by its name; a row may lack columns
    heading : text above the table

    >>> html_table([{"op": "sum C", "seconds": 0.25}], "total: 0.25 s")
    '<p>total: 0.25 s</p><table><tr><th>op</th><th>seconds</th></tr><tr><td>sum C</td><td>0.25</td></tr></table>'
    """
    above = f"<p>{escape(heading)}</p>" if heading else ""
    if not rows:
        return above
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(row.get(column))}</td>' for column in columns)}</tr>" for row in rows[:ROWS_SHOWN]
    )
    more = f"<p>and {len(rows) - ROWS_SHOWN} more; rows() has all</p>" if len(rows) > ROWS_SHOWN else ""
    return f"{above}<table><tr>{head}</tr>{body}</table>{more}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
