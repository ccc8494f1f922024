"""Processes of this host: their states, their start times, and how they ended.

`psutil` does not tell how a process ended, and its start times move with the clock's adjustments; so this module reads
/proc itself.

Source: proc(5), /proc/pid/stat, fields 3 (state), 22 (starttime) and 52 (exit_code); linux/pidfd.h, Linux 6.15.
"""

import fcntl
import os
import struct
from pathlib import Path

PIDFD_INFO = struct.Struct("QQ11Ii")
"""The mask, a control group, 11 numbers of the process and its users, and exit_code."""
PIDFD_GET_INFO = 0xC000FF0B | PIDFD_INFO.size << 16
PIDFD_INFO_EXIT = 1 << 3


def state(pid: int) -> str:
    """The state of a process as a letter of proc(5); empty if it is gone."""
    return next(iter(_status(pid)), "")


def start_ticks(pid: int) -> int:
    """The start time of a process in clock ticks since boot; 0 if it is gone or unknown."""
    words = _status(pid)
    return int(words[19]) if words else 0


def has_ended(pid: int, began: int) -> bool:
    """Whether the process with this number and start time has ended. A zombie has ended.

    Another process may have the number by now; it then has another start time. A live process that hides its start time
    has not ended.
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
    """The signal that ended a process; None if there was none, or it is unknown.

    Parameters
    ----------
    handle : pidfd of the process; newer kernels report the exit code by it even after the parent has waited
    """
    words = _status(pid)
    code = int(words[-1]) if words[:1] == ["Z"] else _exit_code(handle)
    return code & 127 or None


def _exit_code(handle: int | None) -> int:
    """The exit code of the process of a pidfd, as by wait(2); 0 if the kernel does not tell."""
    if handle is None:
        return 0
    asked = PIDFD_INFO.pack(PIDFD_INFO_EXIT, *[0] * 13)
    try:
        mask, *_, code = PIDFD_INFO.unpack(fcntl.ioctl(handle, PIDFD_GET_INFO, asked))
    except OSError:
        return 0
    return int(code) if mask & PIDFD_INFO_EXIT else 0


def _status(pid: int) -> list[str]:
    """The fields of /proc/pid/stat from the state on; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
