"""Python programs on real MPI ranks, started by `launch` in a separate process."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.speed import slowness

ROOT = Path(__file__).resolve().parents[2]
START = """
import sys
from quadrille.runtime.launching.launch import launch
sys.exit(launch(int(sys.argv[1]), [], program=sys.argv[2:]))
"""
TIMED_OUT = 124


@dataclass(frozen=True, slots=True)
class Launched:
    """How a launch ended and what its ranks wrote."""

    status: int
    out: str
    err: str


def launched(ranks, *program, seconds=300):
    """The end of `python *program` on `ranks` ranks; the time limit follows the machine's speed.

    Parameters
    ----------
    seconds : time limit on a quiet machine [s]
    """
    words = [sys.executable, "-c", START, str(ranks), *program]
    slower = slowness()
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=seconds * slower, check=False)
    except subprocess.TimeoutExpired as error:
        out, err = (text.decode(errors="replace") if text else "" for text in (error.stdout, error.stderr))
        reason = f"no end after {seconds * slower:.0f} s ({seconds} s, times {slower:.1f} for this machine)"
        return Launched(TIMED_OUT, out, f"{err}\n{reason}")
    return Launched(done.returncode, done.stdout, done.stderr)
