"""Python programs on real MPI ranks: started by `launch` in a process of its own, and what they said."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = """
import sys
from quadrille.runtime.launching.launch import launch
sys.exit(launch(int(sys.argv[1]), [], program=sys.argv[2:]))
"""


@dataclass(frozen=True, slots=True)
class Launched:
    """How a launch ended and what its ranks wrote."""

    status: int
    out: str
    err: str


def launched(ranks, *program, seconds=300):
    """What became of `python *program` on that many ranks."""
    words = [sys.executable, "-c", START, str(ranks), *program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    return Launched(done.returncode, done.stdout, done.stderr)
