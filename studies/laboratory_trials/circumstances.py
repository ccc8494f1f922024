"""Under which circumstances a trial ran: the line above its table, and how busy the cores were meanwhile."""

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.training.adam import Adam, default_rate
from quadrille.algorithms.training.mlp import Mlp
from quadrille.runtime.launching.environment import usable_cores

MODEL = Mlp((2048, 8192, 2048), 2048, adam=Adam(rate=default_rate(8192)))
"""The model of the trials of training steps."""
BUSY = ("user", "nice", "system", "irq", "softirq")
"""Kinds of work of a core, as proc(5) names them."""


def head_line() -> str:
    """The date, the machine, its load so far, the commit, and the command."""
    machine = f"{platform.release()}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f} before"
    origin, command = provenance([]), " ".join(sys.orig_argv[1:])
    return f"# {origin.date[:10]}, Linux {machine}, commit {origin.versions.get('commit', 'unknown')}, {command}"


def cores_busy_since_now() -> Callable[[], float]:
    """What says, when it is called, which part of this machine's cores was busy since, with this and anything else."""
    began, before = time.perf_counter(), busy_seconds(*BUSY)
    return lambda: (busy_seconds(*BUSY) - before) / (time.perf_counter() - began) / usable_cores()


def busy_seconds(*kinds: str) -> float:
    """Seconds that all cores of this machine together have been busy since boot.

    Parameters
    ----------
    kinds : kinds of work to count, from `BUSY`
    """
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    ticks = dict(zip((*BUSY[:3], "idle", "iowait", *BUSY[3:]), map(int, words), strict=True))
    return sum(ticks[kind] for kind in kinds) / os.sysconf("SC_CLK_TCK")
