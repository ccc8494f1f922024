"""Traces of profilers by their content: gzip or JSON with `traceEvents` (Kineto), or SQLite (Nsight Systems)."""

from collections.abc import Sequence
from pathlib import Path

from quadrille.algorithms.formats.input_files import is_folder, open_regular
from quadrille.experiments.import_.event_lists import GZIP, LIST_KEY, SPACE
from quadrille.experiments.tasks.task_store import APPLICATION_ID
from quadrille.experiments.traces.device_trace import DeviceTrace

BEGIN_BYTES = 2**20
"""Bytes from the begin of a file that are searched for the key of a trace [B]."""

SQLITE = b"SQLite format 3\x00"
APPLICATION = slice(68, 72)
"""The bytes of an SQLite file that name the program that it belongs to.

Source: sqlite.org/fileformat.html, section 1.3."""
ENDINGS = (".json", ".gz", ".sqlite")
MOST_TRACES = 4096
"""Most traces of a folder."""


def is_trace(path: str | Path) -> bool:
    """Whether a file is the trace of a profiler, or is compressed as such traces are; false for an unreadable file."""
    try:
        with open_regular(path) as file:
            begin = file.read(BEGIN_BYTES)
    except OSError:
        return False
    is_list = begin.lstrip(SPACE)[:1] == b"[" and b'"ph"' in begin
    return (begin.startswith((GZIP, SQLITE)) and not is_store(begin)) or LIST_KEY in begin or is_list


def is_store(begin: bytes) -> bool:
    """Whether a file with these first bytes is a store of answers, which is an SQLite file, too.

    >>> is_store(SQLITE + bytes(52) + b"QDTS"), is_store(SQLITE + bytes(56))
    (True, False)
    """
    return begin.startswith(SQLITE) and begin[APPLICATION] == APPLICATION_ID.to_bytes(4, "big")


def trace_paths(paths: Sequence[str]) -> list[str]:
    """The traces among files and folders; empty if anything else is among them.

    A folder counts if all its files that end in `.json`, `.gz` or `.sqlite` are traces.
    """
    traces: list[str] = []
    for path in paths:
        if is_folder(path):
            files = sorted(str(file) for file in Path(path).iterdir() if file.suffix in ENDINGS)
        else:
            files = [path]
        if not files or len(files) > MOST_TRACES or not all(is_trace(file) for file in files):
            return []
        traces += files
    return traces


def read_trace(path: str | Path) -> DeviceTrace:
    """The GPU's work in a trace.

    Raises
    ------
    InputError : a file that cannot be read, or is no such trace
    """
    from quadrille.experiments.import_.kineto import read_kineto
    from quadrille.experiments.import_.nsight import read_nsight

    return read_nsight(path) if _is_report(path) else read_kineto(path)


def _is_report(path: str | Path) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError:
        return False
