"""The elements of a report: charts with a table beside them, tables, sections, and a part for each record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
"""A Vega-Lite specification."""
Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text.

    Parameters
    ----------
    columns : headings
    rows : cells of each row, as many as there are headings
    names : number of leading columns that hold names; the others hold numbers, which are set to the right
    title : caption; empty for none
    """

    columns: Row
    rows: Sequence[Row]
    names: int = 1
    title: str = ""


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
    """

    title: str
    verdict: str
    lines: Sequence[str]
    sections: Sequence[Section]
    source: str = ""
