"""Reader of Nsight Systems' reports, exported as SQLite (`nsys export --type sqlite report.nsys-rep`).

| read | of |
|---|---|
| `CUPTI_ACTIVITY_KIND_KERNEL`, `_MEMCPY`, `_MEMSET` | name, GPU, stream, start, end, correlation |
| `CUPTI_ACTIVITY_KIND_RUNTIME` | when the work was launched |
| `NVTX_EVENTS` | iterations: ranges such as `ProfilerStep#5`, `iteration 5`, `train step 5`, `iter5` |
| `StringIds`, `TARGET_INFO_GPU` | names |

The reports have no sizes and groups of collectives.  The file is opened for reading only.  Views and virtual tables are
refused, so nothing in the file is executed.

Source: NVIDIA, Nsight Systems user guide, "SQLite schema reference".
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import open_regular
from quadrille.experiments.traces.collective_calls import collective_call
from quadrille.experiments.traces.device_trace import DeviceTrace
from quadrille.experiments.traces.trace_columns import TraceColumns

NANOSECOND = 1e-9
KERNELS, RUNTIME, NVTX, STRINGS, GPUS = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU",
)  # fmt: skip
COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": "copy", "CUPTI_ACTIVITY_KIND_MEMSET": "memset"}
STEP = re.compile(r"(ProfilerStep#|(train(ing)?[ _-]*)?(step|iter(ation)?)[ _:#=-]*)\d{1,12}", re.I)
MOST_TEXT = 2**20
"""Most bytes of a text in the file [B]."""
Row = tuple[object, ...]


def read_nsight(path: str | Path) -> DeviceTrace:
    """The GPU's work in an exported report.

    Raises
    ------
    InputError : a file that cannot be read, is no such report, or has no kernels
    """
    try:
        open_regular(path).close()
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_TEXT)
            database.execute("PRAGMA trusted_schema = OFF")
            return _trace(_Report(database))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise InputError(f"{path}: truncated or damaged SQLite file ({error})") from None


class _Report:
    """The tables of a report."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        rows = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        self._tables = {
            name for name, text in rows if isinstance(text, str) and not re.match(r"\s*CREATE\s+VIRTUAL", text, re.I)
        }

    def rows(self, table: str, *columns: str) -> Iterator[Row]:
        """The columns of a table, None for a column that it lacks; no rows if there is no such table."""
        if table not in self._tables:
            return iter(())
        there = {row[1] for row in self._database.execute(f'PRAGMA table_info("{table}")')}
        chosen = ", ".join(f'"{column}"' if column in there else "NULL" for column in columns)
        return self._database.execute(f'SELECT {chosen} FROM "{table}"')  # noqa: S608 - names are those of this module


def _trace(report: _Report) -> DeviceTrace:
    """The trace of a report."""
    strings = {number: text for number, text in report.rows(STRINGS, "id", "value") if isinstance(text, str)}
    columns = TraceColumns(NANOSECOND)
    kernels = report.rows(
        KERNELS, "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "shortName"
    )
    for number, (*row, demangled, short) in enumerate(kernels):
        name = strings.get(demangled) or strings.get(short) or "kernel without a name"
        if _add_work(columns, f"{KERNELS} row {number}", name, row, copy=False):
            columns.set_call(collective_call(name, None, None, None, None, None, None, None))
    if not columns.starts:
        raise InputError(f"no kernels in {KERNELS}: profile with nsys profile --trace=cuda,nvtx, on a GPU")
    for table, name in COPIES.items():
        copies = report.rows(table, "start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        for number, values in enumerate(copies):
            _add_work(columns, f"{table} row {number}", name, values, copy=True)
    for start, correlation in report.rows(RUNTIME, "start", "correlationId"):
        if type(start) is int:
            columns.add_launch(correlation, start)
    for number, (start, end, text, identifier) in enumerate(report.rows(NVTX, "start", "end", "text", "textId")):
        name = text if isinstance(text, str) else strings.get(identifier, "")
        if end is not None and STEP.fullmatch(name.strip()):
            begin, duration = _times(columns, f"{NVTX} row {number}", start, end)
            columns.add_mark(name.strip(), begin, duration, on_device=False)
    device = next((name for (name,) in report.rows(GPUS, "name") if isinstance(name, str)), "")
    return columns.trace("Nsight Systems", device)


def _add_work(columns: TraceColumns, place: str, name: str, row: Sequence[object], *, copy: bool) -> bool:
    start, end, gpu, stream, correlation, process = row
    begin, duration = _times(columns, place, start, end)
    if type(process) is int:
        gpu = f"{gpu} of process {process >> 24 & 0xFFFFFF}"
    return columns.add_work(name, gpu, stream, begin, duration, correlation, copy=copy)


def _times(columns: TraceColumns, place: str, start: object, end: object) -> tuple[float, float]:
    """Start and duration of a row [ns]."""
    if type(start) is not int or type(end) is not int:
        raise InputError(f"{place}: start {start!r:.40}, end {end!r:.40}: whole numbers are needed")
    columns.check_time(start, end - start, place)
    return float(start), float(end - start)
