"""What the kernel is asked: to which cores a rank keeps, and that a thread is run as soon as it wakes.

Ranks of a laboratory take turns on the cores of one machine.  Left to itself the kernel
wakes three of four on one core of two and leaves them there for the length of a product
(a product of 50 ms takes 54 ms on cores dealt out evenly, 55 to 75 ms else, Linux 6.18).

A thread that wakes beside a product waits for the slice of that product to end, 3 ms and more,
unless it asks for shorter slices itself: then it comes first.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager

SLICE_NANOSECONDS = 100_000
"""The shortest that Linux takes."""
SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
"""Number of the system call `sched_setattr`.  Source: Linux, arch/x86/entry/syscalls and include/uapi/asm-generic."""
ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, nice value, priority, slice [ns], deadline, period.  Source: `man 2 sched_setattr`."""


@contextmanager
def pinned_to_core(rank: int, ranks: int) -> Iterator[None]:
    """Within it a rank runs as soon as it wakes, and keeps to one core, with its threads, if these can be dealt out."""
    allowed = os.sched_getaffinity(0)
    if ranks % len(allowed) == 0:
        os.sched_setaffinity(0, {sorted(allowed)[rank % len(allowed)]})
    request_short_slices()
    try:
        yield
    finally:
        request_short_slices(0)
        os.sched_setaffinity(0, allowed)


def request_short_slices(nanoseconds: int = SLICE_NANOSECONDS) -> bool:
    """Ask for so short slices for this thread; whether the kernel took it, which heeds it from Linux 6.12 on.

    Parameters
    ----------
    nanoseconds : 0 for those of every other thread
    """
    call = SET_ATTRIBUTES.get(platform.machine())
    if call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    wanted = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, 0, os.nice(0), 0, nanoseconds, 0, 0)
    return ctypes.CDLL(None).syscall(call, 0, wanted, 0) == 0  # type: ignore[no-any-return]
