"""The present speed of this machine, from which time limits follow, and retries of tests that need a quiet machine."""

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
    """Time of the reference program / its time on a quiet machine, at least 1; measured once a session."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", REFERENCE], check=True)
    return max(1.0, (time.perf_counter() - begin) / REFERENCE_SECONDS)


def slowness():
    """Factor by which the machine is slower than a quiet one: the larger of the measured factor and the load's."""
    return max(measured_slowness(), os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def time_limit(seconds):
    """The time limit here for work with this limit on a quiet machine [s]."""
    return seconds * slowness()


def needs_quiet(test):
    """Repeats a test of times after a pause if it fails, because other processes may have disturbed it."""

    @wraps(test)
    def repeated(*arguments, **named):
        for _ in range(ATTEMPTS - 1):
            try:
                return test(*arguments, **named)
            except AssertionError:
                time.sleep(PAUSE_SECONDS)
        return test(*arguments, **named)

    return repeated
