"""Traffic files: CSV with one flow in each row, and the columns source, destination, bytes and start_s.

Columns may have any order.  A file is read as one array; only if a value is wrong, rows
are checked one by one to find the first fault.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import StringIO

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError, nearest_hint
from quadrille.algorithms.formats.input_files import read_text
from quadrille.algorithms.units import LONGEST_SECONDS

COLUMNS = ("source", "destination", "bytes", "start_s")
EXAMPLE = ",".join(COLUMNS)
MOST_BYTES = 1 << 30
MOST = {"bytes": 1e21, "start_s": LONGEST_SECONDS}
"""Largest accepted numbers of bytes and seconds."""


@dataclass(frozen=True, slots=True)
class TrafficRows:
    """The flows of a file: source GPU, destination GPU, size [B] and start [s] of each row [rows]."""

    sources: NDArray[np.int64]
    destinations: NDArray[np.int64]
    sizes: NDArray[np.float64]
    starts: NDArray[np.float64]

    @property
    def largest(self) -> int:
        """The largest GPU number of all rows."""
        return int(max(self.sources.max(), self.destinations.max()))


def names_hosts(path: str) -> bool:
    """Whether a traffic file names a source or a destination by a word, not by its number."""
    lines = _lines(path)
    columns = [name.strip() for name in lines[0].split(",")] if lines else []
    ends = [place for place, name in enumerate(columns) if name in COLUMNS[:2]]
    cells = (cell.strip() for line in lines[1:] for place, cell in enumerate(line.split(",")) if place in ends)
    return any(cell[:1].isalpha() and cell.lower() not in ("nan", "inf", "infinity") for cell in cells)


def _with_numbers(lines: list[str], path: str, hosts: Sequence[str]) -> list[str]:
    """The lines of a traffic file with the numbers of hosts instead of their names.

    Raises
    ------
    InputError : a name that no host has
    """
    columns = _columns(lines[0], path)
    numbers = {host: str(number) for number, host in enumerate(hosts)}
    ends = [columns.index(name) for name in COLUMNS[:2]]
    for row, line in enumerate(lines[1:], 1):
        cells = [cell.strip() for cell in line.split(",")]
        for place in (place for place in ends if place < len(cells) and cells[place][:1].isalpha()):
            if cells[place] not in numbers:
                near = nearest_hint(cells[place], hosts)
                raise InputError(f"{path}, line {row + 1}: {columns[place]} {cells[place][:60]!r} is no host{near}")
            cells[place] = numbers[cells[place]]
        lines[row] = ",".join(cells)
    return lines


def read_traffic(path: str, hosts: Sequence[str] = ()) -> TrafficRows:
    """The rows of a traffic file.

    Parameters
    ----------
    path : path of the file
    hosts : names of the hosts by number, which the file may name; empty for numbers alone

    Raises
    ------
    InputError : a file that cannot be read, or an invalid value; the message has the line and column of the first
    """
    lines = _lines(path)
    lines = _with_numbers(lines, path, hosts) if hosts else lines
    columns = _columns(lines[0] if lines else "", path)
    body, table = "\n".join(lines[1:]), None
    if body.strip():
        with suppress(ValueError):
            table = np.loadtxt(StringIO(body), delimiter=",", ndmin=2, comments=None)
    if table is None or not _is_valid(table, columns):
        raise _first_fault_error(lines, columns, path)
    by_name = dict(zip(columns, table.T, strict=True))
    return TrafficRows(
        by_name["source"].astype(np.int64),
        by_name["destination"].astype(np.int64),
        np.ascontiguousarray(by_name["bytes"]),
        np.ascontiguousarray(by_name["start_s"]),
    )


def check_destinations(rows: TrafficRows, endpoint_count: int, kind: str, path: str) -> None:
    """Checks that the GPUs of all rows exist.

    Parameters
    ----------
    rows : rows of the traffic file
    places : number of GPUs or hosts of the network
    kind : kind of these endpoints, `gpu` or `host`
    path : path of the traffic file

    Raises
    ------
    InputError : a row with an unknown GPU; the message names the first
    """
    wrong = np.flatnonzero((rows.sources >= endpoint_count) | (rows.destinations >= endpoint_count))
    if not len(wrong):
        return
    first = int(wrong[0])
    name, value = next(
        (name, value)
        for name, value in (("source", rows.sources[first]), ("destination", rows.destinations[first]))
        if value >= endpoint_count
    )
    line = [place for place, text in enumerate(_lines(path), 1) if text.strip()][first + 1]
    raise InputError(
        f"{path}, line {line}: {name} {value} is not there; accepted are {kind}:0 to {kind}:{endpoint_count - 1}"
    )


def _lines(path: str) -> list[str]:
    try:
        return read_text(path, MOST_BYTES).splitlines()
    except OSError as error:
        raise InputError(
            f"traffic file {path} cannot be read: {error.strerror}; a CSV file with the columns {EXAMPLE} is needed"
        ) from None


def _columns(header: str, path: str) -> tuple[str, ...]:
    """The names in the header, in which each of the four columns must be once."""
    names = tuple(name.strip() for name in header.split(","))
    if not header.strip():
        raise InputError(f"{path}, line 1: is empty; a header with the columns {EXAMPLE} is needed")
    if not set(names) & set(COLUMNS):
        raise InputError(f"{path}, line 1: {header[:60]!r} is no header; the columns {EXAMPLE} are needed")
    for name in names:
        if name not in COLUMNS:
            raise InputError(f"{path}, line 1: column {name[:60]!r} is unknown; accepted are {EXAMPLE}")
        if names.count(name) > 1:
            raise InputError(f"{path}, line 1: column {name!r} stands twice")
    if missing := [name for name in COLUMNS if name not in names]:
        raise InputError(f"{path}, line 1: column {missing[0]!r} is missing; needed are {EXAMPLE}")
    return names


def _is_valid(table: NDArray[np.float64], columns: tuple[str, ...]) -> bool:
    """Whether all numbers are valid."""
    if table.shape[1] != len(columns) or not len(table):
        return False
    ends = table[:, [columns.index("source"), columns.index("destination")]]
    whole = (ends == np.floor(ends)) & (ends < 2**53)
    if any((table[:, columns.index(name)] > most).any() for name, most in MOST.items()):
        return False
    return bool(np.isfinite(table).all() and (table >= 0).all() and whole.all() and (ends[:, 0] != ends[:, 1]).all())


def _first_fault_error(lines: list[str], columns: tuple[str, ...], path: str) -> InputError:
    """The error message of the first invalid row."""
    rows = [(number, line) for number, line in enumerate(lines[1:], 2) if line.strip()]
    if not rows:
        return InputError(f"{path}: has a header and no rows; at least one flow is needed")
    for number, line in rows:
        cells = [cell.strip() for cell in line.split(",")]
        where = f"{path}, line {number}"
        if len(cells) != len(columns):
            end = "; is the file truncated?" if number == rows[-1][0] and len(cells) < len(columns) else ""
            return InputError(f"{where}: has {len(cells)} columns; {len(columns)} are needed, {','.join(columns)}{end}")
        values = dict(zip(columns, cells, strict=True))
        for name, cell in values.items():
            if reason := _reason(name, cell):
                return InputError(f"{where}: {name} {cell[:60]!r}: {reason}")
        if float(values["source"]) == float(values["destination"]):
            return InputError(f"{where}: source {values['source']} is the destination too; two GPUs are needed")
    return InputError(f"{path}: is not a table of numbers; rows such as 0,1,67108864,0 are needed")


def _reason(name: str, cell: str) -> str:
    """The reason why a cell is invalid; empty if it is valid."""
    quantity = {"bytes": "bytes", "start_s": "seconds"}.get(name)
    most = MOST.get(name, 2.0**53 - 1)
    accepted = (
        f"a number of {quantity} from 0 to {most:g} is accepted" if quantity else "a whole number from 0 is accepted"
    )
    try:
        value = float(cell)
    except ValueError:
        return accepted
    if not 0 <= value <= most or "_" in cell:
        return accepted
    return "" if quantity or value == int(value) else accepted
