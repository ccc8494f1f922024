"""Processes of this host: in which state they are, when they began, whether and how they have ended.

Source: proc(5), /proc/pid/stat, fields 3 (state), 22 (starttime) and 52 (exit_code); linux/pidfd.h, Linux 6.15.
"""

import fcntl
import os
import struct
from pathlib import Path

PIDFD_INFO = struct.Struct("QQ11Ii")
"""What is asked for or known, a control group, 11 numbers of the process and its users, exit_code."""
PIDFD_GET_INFO = 0xC000FF0B | PIDFD_INFO.size << 16
PIDFD_INFO_EXIT = 1 << 3


def state(pid: int) -> str:
    """The state of a process, a letter of proc(5); empty where it is gone."""
    return next(iter(_status(pid)), "")


def start_ticks(pid: int) -> int:
    """When a process began, in clock ticks since its host did; 0 where it is gone or nobody can say."""
    words = _status(pid)
    return int(words[19]) if words else 0


def has_ended(pid: int, began: int) -> bool:
    """Whether the process of this number that began then has ended, also if nobody has asked for its end.

    Its number may be another's by now, which began at another time.  Of a
    process that lives but shows nothing of itself it is not said.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    words = _status(pid)
    return bool(words) and (words[0] in "ZX" or int(words[19]) != began)


def ending_signal(pid: int, handle: int | None = None) -> int | None:
    """The signal by which a process ended; None if there was none, or it is not known.

    Parameters
    ----------
    handle : a pidfd of the process, by which newer kernels still tell it when its parent has asked for its end
    """
    words = _status(pid)
    code = int(words[-1]) if words[:1] == ["Z"] else _exit_code(handle)
    return code & 127 or None


def _exit_code(handle: int | None) -> int:
    """How the process of a pidfd ended, as wait(2) tells it; 0 where the kernel does not."""
    if handle is None:
        return 0
    asked = PIDFD_INFO.pack(PIDFD_INFO_EXIT, *[0] * 13)
    try:
        known, *_, code = PIDFD_INFO.unpack(fcntl.ioctl(handle, PIDFD_GET_INFO, asked))
    except OSError:
        return 0
    return int(code) if known & PIDFD_INFO_EXIT else 0


def _status(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
