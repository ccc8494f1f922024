"""Files of published measurements, as both studies that judge predictions read them.

The columns are those of the project's own file; a study names the ones it needs and the kinds of rows it is about.
"""

import csv
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import isfinite, nan
from pathlib import Path

from quadrille.algorithms.errors import InputError


def published_rows(
    path: str | Path, needed: Iterable[str], kinds: Collection[str]
) -> Iterator[tuple[dict[str, str], str]]:
    """The rows of these kinds, by column, each with the words that say where it stands.

    Raises
    ------
    InputError : a file that cannot be read, or has a fault: with its line and column
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            yield from _parsed(file, str(path), needed, kinds)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except csv.Error as error:
        raise InputError(f"{path} is no CSV: {error}") from None


def _parsed(
    file: Iterable[str], path: str, needed: Iterable[str], kinds: Collection[str]
) -> Iterator[tuple[dict[str, str], str]]:
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
        words = dict(zip(header, fields, strict=True))
        if words["id"] in seen:
            raise InputError(f"{path}: line {line}: column id: {words['id']!r} is that of line {seen[words['id']]} too")
        seen[words["id"]] = line
        if words["kind"] in kinds:
            yield words, f"{path}: line {line}"


def printed_value(words: Mapping[str, str], where: str, *, zero: bool) -> float:
    """The number in the column `value`; `zero` allows 0.

    >>> printed_value({"value": " 12.5 "}, "rows.csv: line 2", zero=False)
    12.5

    Raises
    ------
    InputError : the text is not a number in the accepted range
    """
    text = words["value"].strip()
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not (isfinite(value) and (value > 0 or (zero and value == 0))):
        raise InputError(f"{where}: column value: {text!r} is not a number {'from' if zero else 'above'} 0")
    return value
