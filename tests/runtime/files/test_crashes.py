"""Writers that are killed at every call that changes the file system: no file is torn, and the next run takes all away.

`make crashes` tries every point of every writer, also of several ranks, of which the suite tries some.
"""

import re
import subprocess
import sys

import pytest

from tests.support.crash_trials import WRITERS
from tests.support.quadrille import ROOT

OF_ONE_PROCESS = ["json", "timeline", "sweep", "toml", "topology", "operands"]
OF_A_RUN = ["product", "checkpoint"]
OF_RANKS = {"product of two ranks": "1", "checkpoint of two ranks": "0"}
"""Writers on two ranks, with the rank that dies; `make crashes` lets each die."""
KINDS = {"open", "write", "half-written", "fsync", "replace", "fchmod"}
"""What every writer does at least."""


def tried(*words):
    """The number of points at which a writer was killed, and their kinds; it fails with the faults."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.crash_trials", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    number, kinds = re.fullmatch(r"[\w ]+: (\d+) points, ([\w+-]+)\n", ran.stdout).groups()
    return int(number), {*kinds.split("+")}


@pytest.mark.parametrize("writer", OF_ONE_PROCESS)
def test_a_writer_that_is_killed_at_any_call_leaves_old_or_new_files_and_the_next_run_sweeps(writer):
    number, kinds = tried(writer)
    assert number >= 10 * len(WRITERS[writer].targets) and kinds >= KINDS


@pytest.mark.parametrize("writer", OF_A_RUN)
def test_a_run_that_is_killed_at_any_call_leaves_old_or_new_files_and_the_next_run_sweeps(writer):
    number, _ = tried(writer, "--most", "3")
    assert number >= 6


@pytest.mark.mpi
@pytest.mark.parametrize(("writer", "rank"), OF_RANKS.items())
def test_a_rank_that_is_killed_while_it_writes_leaves_the_old_file_and_the_launch_sweeps(writer, rank):
    number, _ = tried(writer, "--most", "2", "--rank", rank)
    assert number >= 2
