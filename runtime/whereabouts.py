"""Where a rank is in its schedule, for whoever must say where it stopped.

Each rank keeps a small mapped file in the folder of its launch: its process, the op
that it is in, whether that is communication, and a count that grows with every step.  A
process that is killed or stopped leaves it as it was.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from algorithms.ops import Communication, Op, kind

FORM = struct.Struct("=qqq?200s")
"""Rank, process, count, whether it is in communication only, and the op in words."""
PREFIX = "rank-"


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a rank is.

    Parameters
    ----------
    pid : its process
    count : grows with every step that it takes
    waiting : whether communication is all that it is in
    words : the op, as it is told
    """

    rank: int
    pid: int
    count: int
    waiting: bool
    words: str


class Watcher(Protocol):
    """Told by a rank what it does."""

    def began(self, op: Op) -> None:
        """An op has begun."""

    def stepped(self) -> None:
        """A step of a communication op is done."""

    def ended(self, op: Op) -> None:
        """An op has ended."""


class Told:
    """A watcher that leaves word in a folder."""

    def __init__(self, folder: str | Path, rank: int) -> None:
        self._rank = rank
        self._count = 0
        self._open: list[Op] = []
        path = Path(folder, f"{PREFIX}{rank}")
        path.write_bytes(bytes(FORM.size))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), FORM.size)
        self._tell()

    def began(self, op: Op) -> None:
        self._open.append(op)
        self._tell()

    def stepped(self) -> None:
        self._tell()

    def ended(self, op: Op) -> None:
        self._open.remove(op)
        self._tell()

    def _tell(self) -> None:
        """Write where the rank is: in what it computes, else in what it has waited for longest."""
        self._count += 1
        computing = [op for op in self._open if not isinstance(op, Communication)]
        words = in_words((computing or self._open)[0]) if self._open else ""
        waiting = bool(self._open) and not computing
        FORM.pack_into(self._page, 0, self._rank, os.getpid(), self._count, waiting, words.encode()[:200])


def in_words(op: Op) -> str:
    """An op as it is told to a user.

    >>> from algorithms.ops import AllGather
    >>> in_words(AllGather(name="gather B", axis="z", source="B", into="B whole"))
    "'gather B' (all_gather over z)"
    """
    over = f" over {op.axis}" if isinstance(op, Communication) else ""
    return f"'{op.name}' ({kind(op)}{over})"


def every(folder: str | Path) -> Iterator[Whereabouts]:
    """Where the ranks are that have left word in a folder, by rank."""
    found = (FORM.unpack(path.read_bytes()) for path in Path(folder).glob(f"{PREFIX}*"))
    for rank, pid, count, waiting, words in sorted(found):
        if pid:
            yield Whereabouts(rank, pid, count, waiting, words.rstrip(b"\0").decode(errors="replace"))
