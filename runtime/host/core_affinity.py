"""Core affinity of a rank, its BLAS threads, and short scheduler time slices for threads that must run when they wake.

The ranks of an emulated network share the cores of one machine. By default the kernel wakes three of four ranks on one
core of two and leaves them there for the duration of a matrix product: a product of 50 ms takes 54 ms on evenly
assigned cores and 55 to 75 ms otherwise (Linux 6.18).

A thread that wakes beside a product waits until the product's time slice ends, 3 ms or more. A thread with shorter
slices of its own runs first.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from quadrille.runtime.host import world

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


SLICE_NANOSECONDS = 100_000
"""The shortest slice that Linux accepts."""
SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
"""Number of the system call `sched_setattr`.  Source: Linux, arch/x86/entry/syscalls and include/uapi/asm-generic."""
ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, nice value, priority, slice [ns], deadline, period.  Source: `man 2 sched_setattr`."""


@contextmanager
def pinned_to_core(rank: int, ranks: int) -> Iterator[None]:
    """A context in which the rank uses short slices and, if the cores divide evenly among the ranks, only one core."""
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
    """Request short time slices for this thread; returns whether the kernel accepted. Linux honours them from 6.12 on.

    Parameters
    ----------
    nanoseconds : slice length; 0 for the default
    """
    call = SET_ATTRIBUTES.get(platform.machine())
    if call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    wanted = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, 0, os.nice(0), 0, nanoseconds, 0, 0)
    return ctypes.CDLL(None).syscall(call, 0, wanted, 0) == 0  # type: ignore[no-any-return]


def own_cores(communicator: "Intracomm") -> int:
    """The number of cores of this rank if only the ranks of the communicator compute; a collective call."""
    return world.host_of(communicator.Get_rank(), world.hosts(communicator)).cores_per_rank


def on_own_cores(communicator: "Intracomm") -> threadpool_limits:
    """A context in which BLAS products use one thread for each of the rank's own cores; a collective call."""
    return threadpool_limits(own_cores(communicator), user_api="blas")
