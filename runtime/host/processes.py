"""Processes of this host: their state, the signal that ended them (from /proc), and their end with their parent.

`psutil` does not tell how a process ended, and its start times move with the clock's adjustments; so this module reads
/proc itself.

Source: proc(5), /proc/pid/stat, fields 3 (state), 22 (starttime) and 52 (exit_code); linux/pidfd.h, Linux 6.15;
prctl(2), PR_SET_PDEATHSIG.
"""

import ctypes
import fcntl
import signal
import struct

from quadrille.algorithms.formats.atomic_files import process_status

PIDFD_INFO = struct.Struct("QQ11Ii")
"""The mask, a control group, 11 numbers of the process and its users, and exit_code."""
PIDFD_GET_INFO = 0xC000FF0B | PIDFD_INFO.size << 16
PIDFD_INFO_EXIT = 1 << 3
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send a signal to this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def state(pid: int) -> str:
    """The state of a process as a letter of proc(5), such as R, S, T or Z; empty if the process is gone."""
    return next(iter(process_status(pid)), "")


def ending_signal(pid: int, handle: int | None = None) -> int | None:
    """The number of the signal that ended a process; None if there was none, or it is unknown.

    Parameters
    ----------
    pid : process id
    handle : pidfd of the process; newer kernels report the exit code by it even after the parent has waited
    """
    words = process_status(pid)
    code = int(words[-1]) if words[:1] == ["Z"] else _exit_code(handle)
    return code & 127 or None


def _exit_code(handle: int | None) -> int:
    """The exit code (as of wait(2)) of a process by its pidfd; 0 if the kernel does not report it."""
    if handle is None:
        return 0
    asked = PIDFD_INFO.pack(PIDFD_INFO_EXIT, *[0] * 13)
    try:
        mask, *_, code = PIDFD_INFO.unpack(fcntl.ioctl(handle, PIDFD_GET_INFO, asked))
    except OSError:
        return 0
    return int(code) if mask & PIDFD_INFO_EXIT else 0
