"""Where a rank is in its schedule, for whoever must say where it stopped.

Each rank keeps a small mapped file in the folder of its launch: its process, the op or
other work that it is in, whether it needs the others for that, and a count that grows with every
step.  A process that is killed or stopped leaves it as it was.  The file is closed once a
word is in it, which `watch_first_reports` waits for.
"""

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

from quadrille.algorithms.schedule.ops import Communication, Op, kind
from quadrille.runtime.host.world import LAUNCH, world

FORM = struct.Struct("=qqq?200s")
"""Rank, process, count, whether it needs others for all that it is in, and what it is in, in words."""
PREFIX = "rank-"
IN_CLOSE_WRITE = 0x8  # linux/inotify.h


@dataclass(frozen=True, slots=True)
class CollectiveWork:
    """What no rank gets through without the others, in words."""

    words: str


Activity = Op | CollectiveWork | str
"""What a rank does: an op, what it does with the others, or other work of its own, in words."""


@dataclass(frozen=True, slots=True)
class RankProgress:
    """Where a rank is.

    Parameters
    ----------
    pid : its process
    count : grows with every step that it takes
    waiting : whether it is in nothing that it could end alone
    words : what it is in, as it is told; empty where that is nothing
    """

    rank: int
    pid: int
    count: int
    waiting: bool
    words: str


class ProgressReporter(Protocol):
    """Told by a rank what it does."""

    def began(self, doing: Activity) -> None:
        """An op or other work has begun."""

    def stepped(self) -> None:
        """A step of a communication op is done."""

    def ended(self, doing: Activity) -> None:
        """An op or other work has ended."""


@contextmanager
def reporting(watcher: ProgressReporter | None, doing: CollectiveWork | str) -> Iterator[None]:
    """A watcher, if there is one, is told of work that is no op for as long as this lasts."""
    if watcher is None:
        yield
        return
    watcher.began(doing)
    try:
        yield
    finally:
        watcher.ended(doing)


class FileReporter:
    """A watcher that leaves word in a folder."""

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

    def began(self, doing: Activity) -> None:
        self._open.append(doing)
        self._tell()

    def stepped(self) -> None:
        self._tell()

    def ended(self, doing: Activity) -> None:
        self._open.remove(doing)
        self._tell()

    def _tell(self) -> None:
        """Write where the rank is."""
        self._count += 1
        doing, waiting = self._now()
        words = in_words(doing) if doing is not None else ""
        FORM.pack_into(self._page, 0, self._rank, os.getpid(), self._count, waiting, words.encode()[:200])

    def _now(self) -> tuple[Activity | None, bool]:
        """What the rank is in, and whether it waits: in what it began last with the others, since nothing goes on
        beside that; else in work of its own; else in the op that it has waited for longest.
        """
        if not self._open:
            return None, False
        if isinstance(self._open[-1], CollectiveWork):
            return self._open[-1], True
        working = [doing for doing in self._open if not isinstance(doing, Communication | CollectiveWork)]
        return (working or self._open)[0], not working


@cache
def own_reporter() -> FileReporter | None:
    """By what this process, a rank, tells where it is; None outside a launch, or on another host than its."""
    folder = os.environ.get(LAUNCH)
    return FileReporter(folder, world().Get_rank()) if folder and Path(folder).is_dir() else None


def collective_work(words: str) -> AbstractContextManager[None]:
    """Tells that this process, a rank, is in what it does with the others for as long as this lasts."""
    return reporting(own_reporter(), CollectiveWork(words))


def local_work(words: str) -> AbstractContextManager[None]:
    """Tells that this process, a rank, is at work of its own for as long as this lasts."""
    return reporting(own_reporter(), words)


def report_progress(_rank: int = 0) -> None:
    """Tell that this process has come further in what it is in, as between two runs of a measurement."""
    if (watcher := own_reporter()) is not None:
        watcher.stepped()


def in_words(doing: Activity) -> str:
    """What a rank does, as it is told to a user.

    >>> from quadrille.algorithms.schedule.ops import AllGather
    >>> in_words(AllGather(name="gather B", axis="z", source="B", into="B whole"))
    "'gather B' (all_gather over z)"
    """
    if isinstance(doing, str):
        return doing
    if isinstance(doing, CollectiveWork):
        return doing.words
    over = f" over {doing.axis}" if isinstance(doing, Communication) else ""
    return f"'{doing.name}' ({kind(doing)}{over})"


def every(folder: str | Path) -> Iterator[RankProgress]:
    """Where the ranks are that have left word in a folder, by rank; a file that is not yet whole is passed over."""
    contents = (path.read_bytes() for path in Path(folder).glob(f"{PREFIX}*"))
    found = (FORM.unpack(content) for content in contents if len(content) == FORM.size)
    for rank, pid, count, waiting, words in sorted(found):
        if pid:
            yield RankProgress(rank, pid, count, waiting, words.rstrip(b"\0").decode(errors="replace"))


def watch_first_reports(folder: str | Path) -> int | None:
    """A file descriptor to be read once a rank has left a word in a folder and closed its file; None if there is none.

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
