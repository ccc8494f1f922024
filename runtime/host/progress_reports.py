"""Progress reports: each rank writes its current op into a file, so that the launcher can tell where a rank stopped.

Every rank keeps a small memory-mapped file in the launch's folder. The file holds the process id, the current op or
other work, whether the rank needs the other ranks for it, and a count that grows with every step. The file keeps its
contents when the process is killed or stopped. The first report, with count 0, is written before the rank's program
starts (`report_start`). The rank closes the file after its first report; `watch_first_reports` waits for this close.
"""

import atexit
import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from quadrille.algorithms.formats.atomic_files import is_private_folder
from quadrille.algorithms.schedule.ops import Communication, Op, kind
from quadrille.runtime.host.world import LAUNCH, announced_rank, world

FORM = struct.Struct("=qqq?200s")
"""Rank, process id, step count, whether all open work needs other ranks, and a description of the current work."""
PREFIX = "rank-"
IN_CLOSE_WRITE = 0x8  # linux/inotify.h


@dataclass(frozen=True, slots=True)
class CollectiveWork:
    """Work that no rank can finish without the others, in words."""

    words: str


ENDING = CollectiveWork("ending MPI")
Activity = Op | CollectiveWork | str
"""The work of a rank: an op, collective work, or local work in words."""


@dataclass(frozen=True, slots=True)
class RankProgress:
    """The reported progress of a rank.

    Parameters
    ----------
    pid : process id
    count : step count; it grows with every step, and is 0 until the program's first own report
    waiting : whether the rank needs other ranks for all its open work
    words : description of the current work; empty if there is none
    """

    rank: int
    pid: int
    count: int
    waiting: bool
    words: str


class ProgressReporter(Protocol):
    """A listener that a rank tells about its work."""

    def began(self, activity: Activity) -> None:
        """An op or other work has begun."""

    def stepped(self) -> None:
        """A step of a communication op has completed."""

    def ended(self, activity: Activity) -> None:
        """An op or other work has ended."""


@contextmanager
def reporting(reporter: ProgressReporter | None, activity: CollectiveWork | str) -> Iterator[None]:
    """A context for work that is not an op: the reporter, if there is one, hears of its begin and end."""
    if reporter is None:
        yield
        return
    reporter.began(activity)
    try:
        yield
    finally:
        reporter.ended(activity)


class FileReporter:
    """A reporter that writes into a file of the launch's folder."""

    def __init__(self, folder: str | Path, rank: int) -> None:
        self._rank = rank
        self._count = 0
        self._open: list[Activity] = []
        path = Path(folder, f"{PREFIX}{rank}")
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(handle, 0, FORM.size)  # leaves what an earlier run told: others may be reading
            self._page = mmap.mmap(handle, FORM.size)
            self._tell()
        finally:
            os.close(handle)
        path.open(
            "r+b"
        ).close()  # the mapping holds the file open: this is the close that `watch_first_reports` hears of

    def began(self, activity: Activity) -> None:
        self._open.append(activity)
        self._tell()

    def stepped(self) -> None:
        self._tell()

    def ended(self, activity: Activity) -> None:
        self._open.remove(activity)
        self._tell()

    def _tell(self) -> None:
        """Write the report."""
        self._count += 1
        activity, waiting = self._now()
        words = describe_activity(activity) if activity is not None else ""
        FORM.pack_into(self._page, 0, self._rank, os.getpid(), self._count, waiting, words.encode()[:200])

    def _now(self) -> tuple[Activity | None, bool]:
        """The current work, and whether the rank waits for others.

        This is the last collective work that began, as nothing runs beside it; otherwise local work; otherwise the op
        that has been open longest.
        """
        if not self._open:
            return None, False
        if isinstance(self._open[-1], CollectiveWork):
            return self._open[-1], True
        working = [activity for activity in self._open if not isinstance(activity, Communication | CollectiveWork)]
        return (working or self._open)[0], not working


def _launch_folder() -> str | None:
    """The folder of this rank's launch; None outside a launch and on hosts other than the launcher's."""
    folder = os.environ.get(LAUNCH)
    return folder if folder and is_private_folder(folder) else None


def report_start() -> None:
    """Report, before a rank's program runs, that the process exists; no report on hosts other than the launcher's."""
    folder, rank = _launch_folder(), announced_rank(os.environ)
    if folder and rank is not None:
        Path(folder, f"{PREFIX}{rank}").write_bytes(FORM.pack(rank, os.getpid(), 0, False, b""))


@cache
def own_reporter() -> FileReporter | None:
    """The reporter of this rank; None outside a launch and on hosts other than the launcher's.

    The launcher's environment variables give the rank; MPI gives it only where they do not. At the end of the process
    the reporter reports `ENDING`, because MPI_Finalize waits for the other ranks.
    """
    folder = _launch_folder()
    if folder is None:
        return None
    rank = announced_rank(os.environ)
    reporter = FileReporter(folder, world().Get_rank() if rank is None else rank)
    atexit.register(reporter.began, ENDING)
    return reporter


def collective_work(words: str) -> AbstractContextManager[None]:
    """A context that reports collective work of this rank."""
    return reporting(own_reporter(), CollectiveWork(words))


def local_work(words: str) -> AbstractContextManager[None]:
    """A context that reports local work of this rank."""
    return reporting(own_reporter(), words)


def report_progress(_rank: int = 0) -> None:
    """Report a step of the current work, for example between two runs of a measurement."""
    if (reporter := own_reporter()) is not None:
        reporter.stepped()


def describe_activity(activity: Activity) -> str:
    """The description of an activity for a user.

    >>> from quadrille.algorithms.schedule.ops import AllGather
    >>> describe_activity(AllGather(name="gather B", axis="z", source="B", into="B whole"))
    "'gather B' (all_gather over z)"
    """
    if isinstance(activity, str):
        return activity
    if isinstance(activity, CollectiveWork):
        return activity.words
    over = f" over {activity.axis}" if isinstance(activity, Communication) else ""
    return f"'{activity.name}' ({kind(activity)}{over})"


def read_reports(folder: str | Path) -> Iterator[RankProgress]:
    """The progress of all ranks that have reported in a folder, by rank; incomplete files are skipped."""
    contents = (path.read_bytes() for path in Path(folder).glob(f"{PREFIX}*"))
    reports = (FORM.unpack(content) for content in contents if len(content) == FORM.size)
    for rank, pid, count, waiting, words in sorted(reports):
        if pid:
            yield RankProgress(rank, pid, count, waiting, words.rstrip(b"\0").decode(errors="replace"))


def watch_first_reports(folder: str | Path) -> int | None:
    """A file descriptor that becomes readable when a rank closes its file after its first report; None if unavailable.

    Source: inotify(7).
    """
    kernel = ctypes.CDLL(None, use_errno=True)
    handle: int = kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if handle < 0:
        return None
    if kernel.inotify_add_watch(handle, os.fsencode(folder), IN_CLOSE_WRITE) < 0:
        os.close(handle)
        return None
    return handle
