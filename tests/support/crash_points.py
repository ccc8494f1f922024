"""Crash points: every call of this process that changes the file system, and its death at one of them.

`install` wraps the functions of `os` and the files of `os.fdopen`. A point lies before each call, and one more in the
middle of each write. At the point with the given number the process kills itself by SIGKILL. The state behind the last
call is that of a process that was not killed.
"""

import io
import os
import signal
from functools import wraps

CHANGING = (
    "rename", "replace", "unlink", "remove", "rmdir", "mkdir", "link", "symlink", "truncate", "ftruncate", "fsync",
    "chmod", "fchmod", "posix_fallocate",
)  # fmt: skip
"""Functions of `os` that change the file system at each call."""


class CrashPoints:
    """The points of this process.

    Parameters
    ----------
    log : file that gets the kind of each point, a line each
    kill_at : number of the point at which the process dies, from 1; 0 for none
    """

    def __init__(self, log, kill_at):
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._write, self._kill_at, self._count = os.write, kill_at, 0

    def point(self, kind):
        """Pass a point, or die there."""
        self._count += 1
        self._write(self._log, f"{kind}\n".encode())
        if self._count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, name, changes=lambda *_, **__: True):
        """Have a point before each call of a function of `os` that changes something."""
        function = getattr(os, name)

        @wraps(function)
        def counted(*arguments, **named):
            if changes(*arguments, **named):
                self.point(name)
            return function(*arguments, **named)

        setattr(os, name, counted)

    def halve_pwrite(self):
        """Have a point before and in the middle of each `os.pwrite`."""
        pwrite = os.pwrite

        def counted(handle, content, position):
            self.point("write")
            half = pwrite(handle, content[: len(content) // 2], position)
            self.point("half-written")
            return half + pwrite(handle, content[half:], position + half)

        os.pwrite = counted

    def halve_files(self):
        """Have a point before and in the middle of each write of a file of `os.fdopen`."""
        point, fdopen = self.point, os.fdopen

        class CountedFile(io.FileIO):
            def write(self, content):
                point("write")
                half = super().write(content[: len(content) // 2])
                point("half-written")
                return half + super().write(content[half:])

        def counted(handle, mode="r", *arguments, **named):
            if mode == "wb":
                return io.BufferedWriter(CountedFile(handle, "wb"))
            return fdopen(handle, mode, *arguments, **named)

        os.fdopen = counted


def creates(_path, flags, *_, **__):
    """Whether `os.open` with these flags creates a file, with a name or without."""
    return bool(flags & os.O_CREAT) or flags & os.O_TMPFILE == os.O_TMPFILE


def install(log, kill_at=0):
    """Count the points of this process from now on."""
    points = CrashPoints(log, kill_at)
    points.before("open", creates)
    for name in CHANGING:
        points.before(name)
    points.halve_pwrite()
    points.halve_files()
