"""The elements of a report: charts with a table beside them, tables, sections, and a part for each record."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from quadrille.algorithms.tabular import TimedText, in_one_unit
from quadrille.algorithms.units import NOISE_SECONDS

Spec = dict[str, Any]
"""A Vega-Lite specification."""
Row = Sequence[str]
EMPTY = ("", "-", "0", "0 s", "0 B", "0.0 %", "+0.0 %")
"""Cells that say nothing."""
NAME = re.compile(r"[>=_/\d]|:\w")
"""Characters that a word of a link, a flag, a file or a machine has, and no word of a sentence."""


SHORT_NAME = 6
"""Most letters of names in a column that may be narrow."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text.

    Parameters
    ----------
    columns : headings
    rows : cells of each row, as many as there are headings
    names : number of leading columns that hold names; the others hold numbers, which are set to the right
    title : caption; empty for none
    is_folded : whether the table opens when its caption is clicked
    """

    columns: Row
    rows: Sequence[Row]
    names: int = 1
    title: str = ""
    is_folded: bool = False

    @property
    def has_short_names(self) -> bool:
        """Whether the first column needs no width, as one of places or of numbers of GPUs.

        >>> Table(("#", "grid"), [("1", "x=2"), ("12", "x=4")]).has_short_names
        True
        """
        return bool(self.rows) and all(len(row[0]) <= SHORT_NAME for row in self.rows)

    def shown(self) -> "Table":
        """The table without columns of numbers that are all zero or unknown; all its times are in one unit.

        >>> Table(("op", "time", "waiting"), [("a", "2.00 ms", "0 s"), ("b", "0 s", "-")]).shown().columns
        ('op', 'time')
        """
        kept = [
            place
            for place in range(len(self.columns))
            if place < max(1, self.names) or not self.rows or not all(_is_empty(row[place]) for row in self.rows)
        ]
        rows = in_one_unit([[tuple(row[place] for place in kept) for row in self.rows]])[0]
        return replace(self, columns=tuple(self.columns[place] for place in kept), rows=rows)


def _is_empty(cell: str) -> bool:
    """Whether a cell says nothing: it is unknown, or a time or a number of zero."""
    if isinstance(cell, TimedText):
        return all(abs(time) < NOISE_SECONDS for time in cell.times)
    return cell in EMPTY


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, with the text and the table that say the same to a screen reader.

    Parameters
    ----------
    spec : Vega-Lite specification without theme, whose width is that of the page
    label : what the chart shows, in a sentence; the label for screen readers
    table : the charted values
    zoom : name of the signal with the visible range of x, which the zoom buttons set; empty for a chart without zoom
    """

    spec: Spec
    label: str
    table: Table
    zoom: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a part.

    Parameters
    ----------
    title : heading
    lines : sentences above the charts
    charts : charts, in their order
    tables : tables that are always shown
    code : commands or files that the reader may copy, each with its heading
    """

    title: str
    lines: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    code: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a report about one record or answer.

    Parameters
    ----------
    title : heading of the part
    verdict : the answer in a sentence
    lines : further sentences of the verdict
    sections : sections, in their order
    source : name of the file that the part shows
    amount : time or error, for the list of contents; empty if there is none
    """

    title: str
    verdict: str
    lines: Sequence[str]
    sections: Sequence[Section]
    source: str = ""
    amount: str = ""


def sentence(line: str) -> str:
    """A line of the terminal as a sentence; a name at its beginning keeps its small letter.

    >>> sentence("the drift is not known"), sentence("It is."), sentence("leaf:0>spine:1 is full")
    ('The drift is not known.', 'It is.', 'leaf:0>spine:1 is full.')
    """
    words = line.removesuffix(".")
    begins_with_name = NAME.search(words.partition(" ")[0])
    return f"{words if begins_with_name else words[:1].upper() + words[1:]}."
