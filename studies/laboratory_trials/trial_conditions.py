"""The conditions of a trial: the comment line above its CSV table, and the CPU load during a measurement."""

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
"""The multi-layer perceptron (MLP) that the trials of training steps train."""
BUSY = ("user", "nice", "system", "irq", "softirq")
"""Kinds of CPU time that count as busy, by their names in proc(5)."""


def conditions_line() -> str:
    """The comment line above a table: date, kernel, cores, load average before the trial, commit and command."""
    machine = f"{platform.release()}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f} before"
    origin, command = provenance([]), " ".join(sys.orig_argv[1:])
    return f"# {origin.date[:10]}, Linux {machine}, commit {origin.versions.get('commit', 'unknown')}, {command}"


def core_load_meter() -> Callable[[], float]:
    """A function that returns the busy share of this machine's cores since now, over all processes.

    The share is 0 to 1: busy core seconds / (elapsed seconds * usable cores).
    """
    start, before = time.perf_counter(), busy_seconds(*BUSY)
    return lambda: (busy_seconds(*BUSY) - before) / (time.perf_counter() - start) / usable_cores()


def busy_seconds(*kinds: str) -> float:
    """CPU time of all cores of this machine together since boot [s].

    Parameters
    ----------
    kinds : kinds of CPU time to count, from `BUSY`
    """
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    ticks = dict(zip((*BUSY[:3], "idle", "iowait", *BUSY[3:]), map(int, fields), strict=True))
    return sum(ticks[kind] for kind in kinds) / os.sysconf("SC_CLK_TCK")
