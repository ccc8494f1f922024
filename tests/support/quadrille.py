"""Calls of the command line, with exit status, stdout and stderr."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from quadrille.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
HOST = """schema = "quadrille/machine/1"
name = "toy"
[topology]
family = "host"
cores = 2
[device]
peak_flops_per_second = { float64 = 8e10, float32 = 1.6e11 }
memory_bytes_per_second = 1e10
memory_bytes = 8e9
overhead_seconds = 5e-6
[host]
cores = 2
[reference]
gemm_seconds = 1e-3
copy_seconds = 2e-4
add_seconds = 3e-4
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str

    @property
    def line(self):
        """The only line on stderr."""
        assert self.err.startswith("quadrille: ") and self.err.count("\n") == 1, self.err
        return self.err.strip()


def quadrille(*words, environment=None, seconds=120):
    """The end of `quadrille *words` in a separate process."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {})
    program = [sys.executable, "-P", "-m", "quadrille", *map(str, words)]
    done = subprocess.run(program, env=variables, capture_output=True, text=True, timeout=seconds, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


def called(capsys, *words):
    """The end of `quadrille *words` in this process."""
    capsys.readouterr()
    status = main([str(word) for word in words])
    written = capsys.readouterr()
    return Ended(status, written.out, written.err)
