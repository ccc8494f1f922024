"""`TaskStore`: the results of tasks in one SQLite file, by the hash of the task.

Each result is committed when it is there. A process that is killed at any moment loses no committed result. Several
processes may use a store at the same time. The journal is a write-ahead log beside the file, which does not work on
network file systems of several hosts; one process writes for all workers.

Source: sqlite.org/wal.html (write-ahead log, synchronous=NORMAL), sqlite.org/pragma.html (application_id,
user_version).
"""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.formats import schema_files

APPLICATION_ID = 0x51445453
"""The number in the header of the file that names Quadrille's stores: the letters QDTS."""
VERSION = 1
"""The version of the table."""
WAIT_SECONDS = 30.0
"""Longest wait for another process that writes into the store [s]."""
TABLE = """
CREATE TABLE results (
    digest BLOB PRIMARY KEY, task TEXT NOT NULL, label TEXT NOT NULL, result TEXT NOT NULL, quadrille TEXT NOT NULL
) WITHOUT ROWID
"""
"""`digest`: hash of the task; `task`: name of its function; `label`: its arguments for people; `result`: JSON;
`quadrille`: hash of the code."""
COLUMNS = ("digest", "task", "label", "result", "quadrille")
ACCEPTED = "accepted is a new file or a store"
HEADER_BYTES = 100
PAGE_BYTES = 4096
"""Size of a page of a new database."""


class TaskStore(AbstractContextManager["TaskStore"]):
    """The store in the file at `path`, which is created if it does not exist.

    Parameters
    ----------
    path : path of the file
    flag : flag that names the file, for messages

    Attributes
    ----------
    found, added : number of results that were read, and that were written

    Raises
    ------
    InputError : a file that is no store, a store of a newer version, or a path that cannot be written
    """

    def __init__(self, path: str, flag: str = "--store") -> None:
        self.path, self._name = path, f"{flag} {path}"
        self.found, self.added = 0, 0
        _check_path(path, self._name)
        is_new = not Path(path).exists()
        try:
            self._connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
        except sqlite3.Error as error:
            raise InputError(f"{self._name}: {error}") from None
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._discard(is_new=is_new)
            raise InputError(f"{self._name}: {_reason(error)}") from None
        except InputError:
            self._connection.close()
            raise

    def _discard(self, *, is_new: bool) -> None:
        """Close the file, and remove it if this process has created it and nobody has put a table into it.

        A table is a second page of the file, or in its write-ahead log.
        """
        file, log = (Path(f"{self.path}{ending}") for ending in ("", "-wal"))
        try:
            self._connection.rollback()
            is_empty = self._connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
        except sqlite3.Error:  # no space for the memory that processes share, which reading needs too
            is_empty = file.stat().st_size <= PAGE_BYTES and not (log.exists() and log.stat().st_size)
        self._connection.close()
        if is_new and is_empty:
            for ending in ("", "-journal", "-wal", "-shm"):
                Path(f"{self.path}{ending}").unlink(missing_ok=True)

    def _prepare(self) -> None:
        """Check the header of the file, and create the table of a new file.

        A process that is killed here leaves an empty database, which the next one takes.
        """
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        is_empty = not self._connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        if application != APPLICATION_ID and not (is_empty and application == version == 0):
            raise InputError(f"{self._name}: is the database of another program; {ACCEPTED}")
        if version > VERSION:
            raise InputError(
                f"{self._name}: a store of version {version}, written by a newer Quadrille; this one reads "
                f"version {VERSION}"
            )
        if application == APPLICATION_ID and self._columns() != COLUMNS:
            raise InputError(f"{self._name}: is a store without its table of {', '.join(COLUMNS)}; {ACCEPTED}")
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        if application != APPLICATION_ID:
            self._create_table()

    def _columns(self) -> tuple[str, ...]:
        """The columns of the table; none without a table."""
        return tuple(row[1] for row in self._connection.execute("PRAGMA table_info(results)"))

    def _create_table(self) -> None:
        """Create the table, unless another process has just done so."""
        self._connection.execute("BEGIN IMMEDIATE")
        if not self._connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            self._connection.execute(TABLE)
            self._connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            self._connection.execute(f"PRAGMA user_version={VERSION}")
        self._connection.execute("COMMIT")

    def result(self, digest: bytes) -> str | None:
        """The result of a task as JSON; None if the store does not have it."""
        with self._errors_as_lines("cannot be read"):
            row = self._connection.execute("SELECT result FROM results WHERE digest=?", (digest,)).fetchone()
        if row is None:
            return None
        self.found += 1
        return str(row[0])

    def digests(self, task: str, code: str) -> frozenset[bytes]:
        """The hashes of the tasks of a function that have a result of this code."""
        with self._errors_as_lines("cannot be read"):
            rows = self._connection.execute("SELECT digest FROM results WHERE task=? AND quadrille=?", (task, code))
            return frozenset(digest for (digest,) in rows)

    def keep(self, digest: bytes, task: str, label: str, result: str, code: str) -> None:
        """Commit the result of a task.

        Parameters
        ----------
        digest : hash of the task
        task : name of its function
        label : arguments, for people
        result : result as JSON
        code : hash of the code

        Raises
        ------
        RunError : no space on the disk, or another process that does not end its write
        """
        with self._errors_as_lines("cannot be written"):
            self._connection.execute(
                "INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?)", (digest, task, label, result, code)
            )
        self.added += 1

    @property
    def use(self) -> str:
        """The number of results that the store had, of all that were asked for, as text."""
        count = self.found + self.added
        text = f"{self.found} of {count} answers were in {self.path}"
        others = len(self) - self.added
        if self.found or not others:
            return text
        return f"{text}, whose {others} answers are of other values, machines or code"

    def __len__(self) -> int:
        """The number of results."""
        with self._errors_as_lines("cannot be read"):
            return int(self._connection.execute("SELECT count(*) FROM results").fetchone()[0])

    def close(self) -> None:
        """Close the file; the last process moves the log into it."""
        with suppress(sqlite3.Error):  # the log stays, and the next process reads it
            self._connection.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _errors_as_lines(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise RunError(f"{self._name}: {consequence}: {_reason(error)}; it keeps the results that it has") from None
        except sqlite3.Error as error:
            raise InputError(f"{self._name}: {_reason(error)}") from None


def count_results(path: str) -> int | None:
    """The number of results in the store at `path`, which is only read; 0 without a file, None for no readable store.

    >>> count_results("no-such-folder/results.sqlite")
    0
    """
    if not Path(path).exists():
        return 0
    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM results").fetchone()[0])
    except sqlite3.Error:
        return None


def _check_path(path: str, name: str) -> None:
    """Raises InputError for a path that can be no database."""
    if path == schema_files.STDOUT or schema_files.is_stream(path) or Path(path).is_dir():
        raise InputError(f"{name}: a store is a file, as results.sqlite")
    if not Path(path).absolute().parent.is_dir():
        raise InputError(f"{name}: there is no folder {Path(path).parent}")
    try:
        schema_files.check_writable(path)
    except InputError as error:
        raise InputError(f"{name}: {str(error).removeprefix(f'{path} ')}; name a file that can be written") from None
    _check_length(Path(path), name)


def _check_length(path: Path, name: str) -> None:
    """Raises InputError for a database that is shorter than its header says, which SQLite would take as empty.

    The write-ahead log has the last pages of a process that was killed. Source: sqlite.org/fileformat.html, 1.3.
    """
    log = path.with_name(f"{path.name}-wal")
    if not path.is_file() or (log.exists() and log.stat().st_size):
        return
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if not header.startswith(b"SQLite format 3\0"):
        return
    page_bytes, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    expected, there = (1 << 16 if page_bytes == 1 else page_bytes) * pages, path.stat().st_size
    if there < max(expected, HEADER_BYTES):
        raise InputError(f"{name}: is cut off: it has {there} of {expected} bytes; {ACCEPTED}")


def _reason(error: sqlite3.Error) -> str:
    """The reason of a failure; some of SQLite's own words need the file's name."""
    text = str(error)
    if "not a database" in text:
        return f"is no SQLite file; {ACCEPTED}"
    if "malformed" in text:
        return f"is damaged ({text}); {ACCEPTED}"
    if "disk is full" in text or "disk I/O error" in text:
        return f"{text}; free some space, or name a file on another disk"
    return text
