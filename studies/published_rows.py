"""The reader of CSV files of published measurements, for the studies `published_collectives` and `published_training`.

A file has the columns of the project's own `published_collectives/published_results.csv`.
"""

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import isfinite, nan
from pathlib import Path

from quadrille.algorithms.errors import InputError


def checked_rows(
    path: str | Path, needed: Iterable[str], kinds: Collection[str]
) -> Iterator[tuple[dict[str, str], str]]:
    """The rows of some kinds, after a check of the whole file.

    Parameters
    ----------
    path : CSV file
    needed : names of the columns that the header must have
    kinds : values of the column `kind` whose rows are returned

    Returns
    -------
    Each row as text by column, and its position (`FILE: line N`) for messages about faults.

    Raises
    ------
    InputError : a file that cannot be read or is faulty; the message names the line and the column
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            yield from _parse(file, str(path), needed, kinds)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except csv.Error as error:
        raise InputError(f"{path} is no CSV: {error}") from None


def _parse(
    file: Iterable[str], path: str, needed: Iterable[str], kinds: Collection[str]
) -> Iterator[tuple[dict[str, str], str]]:
    """The rows of some kinds and their positions, from an open file."""
    lines = csv.reader(file, strict=True)
    header = next(lines, None)
    if not header:
        raise InputError(f"{path}: the file is empty; its first line must name the columns")
    if missing := [name for name in needed if name not in header]:
        raise InputError(f"{path}: line 1: the column {missing[0]} is missing")
    seen: dict[str, int] = {}
    for fields in lines:
        if not fields:
            continue
        line = lines.line_num
        if len(fields) != len(header):
            raise InputError(f"{path}: line {line}: {len(fields)} columns, where the first line names {len(header)}")
        columns = dict(zip(header, fields, strict=True))
        name = columns["id"]
        if name in seen:
            raise InputError(f"{path}: line {line}: column id: {name!r} is that of line {seen[name]} too")
        seen[name] = line
        if columns["kind"] in kinds:
            yield columns, f"{path}: line {line}"


def printed_value(columns: Mapping[str, str], where: str, *, zero: bool) -> float:
    """The number in the column `value` of a row.

    Parameters
    ----------
    columns : row as text by column
    where : position of the row, for the message
    zero : whether 0 is accepted

    >>> printed_value({"value": " 12.5 "}, "rows.csv: line 2", zero=False)
    12.5

    Raises
    ------
    InputError : the text is not a number in the accepted range
    """
    text = columns["value"].strip()
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not (isfinite(value) and (value > 0 or (zero and value == 0))):
        raise InputError(f"{where}: column value: {text!r} is not a number {'from' if zero else 'above'} 0")
    return value
