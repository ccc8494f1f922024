"""Files of published measurements, as both studies that judge predictions read them, and the spread of errors.

The columns are those of the project's own file; a study names the ones it needs and the kinds of rows it is about.
"""

import csv
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from statistics import mean, median
from typing import Protocol, TypeVar

import msgspec

from algorithms.errors import InputError


class Spread(msgspec.Struct, frozen=True):
    """Of absolute relative errors; null where nothing was judged."""

    rows: int
    median: float | None
    mean: float | None
    worst: float | None

    @classmethod
    def of(cls, errors: Iterable[float | None]) -> "Spread":
        """Of relative errors; None is no error.

        >>> Spread.of([0.1, -0.3, None])
        Spread(rows=2, median=0.2, mean=0.2, worst=0.3)
        """
        known = [abs(error) for error in errors if error is not None]
        return cls(len(known), median(known), mean(known), max(known)) if known else cls(0, None, None, None)


class HasError(Protocol):
    """A row that was judged."""

    @property
    def relative_error(self) -> float | None: ...


R = TypeVar("R", bound=HasError)


def spreads(rows: Iterable[R], by: Callable[[R], str]) -> dict[str, Spread]:
    """The spread of the errors of each part of the rows, by its name."""
    parts: dict[str, list[float | None]] = defaultdict(list)
    for row in rows:
        parts[by(row)].append(row.relative_error)
    return {name: Spread.of(part) for name, part in sorted(parts.items())}


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
        given = dict(zip(header, fields, strict=True))
        if given["id"] in seen:
            raise InputError(f"{path}: line {line}: column id: {given['id']!r} is that of line {seen[given['id']]} too")
        seen[given["id"]] = line
        if given["kind"] in kinds:
            yield given, f"{path}: line {line}"
