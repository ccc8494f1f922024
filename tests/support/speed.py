"""The speed of this machine now: time limits follow it, and tests that need a quiet machine retry."""

import os
import subprocess
import sys
import time
from functools import cache, wraps

REFERENCE = "import numpy; a = numpy.ones((400, 400)); [a @ a for _ in range(20)]"
REFERENCE_SECONDS = 0.3
"""Time of the reference program on a quiet machine [s]."""
ATTEMPTS, PAUSE_SECONDS = 3, 5.0


@cache
def measured_slowness():
    """How many times as long as on a quiet machine the reference program takes; at least 1. Measured once a session."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", REFERENCE], check=True)
    return max(1.0, (time.perf_counter() - begin) / REFERENCE_SECONDS)


def slowness():
    """By how much the machine is slower than a quiet one: measured, or by its load, whichever is more."""
    return max(measured_slowness(), os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def time_limit(seconds):
    """A time limit for work that has this limit on a quiet machine [s]."""
    return seconds * slowness()


def needs_quiet(test):
    """A test of times: it is repeated after a pause, since other processes may have disturbed it."""

    @wraps(test)
    def repeated(*arguments, **named):
        for _ in range(ATTEMPTS - 1):
            try:
                return test(*arguments, **named)
            except AssertionError:
                time.sleep(PAUSE_SECONDS)
        return test(*arguments, **named)

    return repeated
