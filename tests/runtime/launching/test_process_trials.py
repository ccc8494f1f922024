"""Every process of a launch is stopped or killed at a random moment: the launch ends, in one line, and leaves nothing.

`make kills` draws 200 new moments.
"""

import subprocess
import sys

import pytest

from tests.support.process_trials import SIGNALS, VICTIMS, Draw, draws, trial
from tests.support.quadrille import ROOT

SEED, DRAWS = 32, 12


def test_every_process_gets_every_signal():
    drawn = {(draw.victim, draw.number) for draw in draws(SEED, DRAWS)}
    assert drawn == {(victim, number) for victim in VICTIMS for number in SIGNALS}


@pytest.mark.mpi
def test_a_launch_ends_after_any_process_is_stopped_or_killed_at_any_moment_and_leaves_nothing():
    words = ["--seed", str(SEED), "--draws", str(DRAWS)]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.process_trials", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == f"seed {SEED}" and len(lines) == 1 + DRAWS
    assert sum("status 0" not in line for line in lines[1:]) >= DRAWS // 2  # it was not too late


@pytest.mark.mpi
@pytest.mark.parametrize("victim", ["rank 0", "mpirun"])
def test_a_process_that_is_stopped_at_its_very_start_ends_the_launch(victim):
    faults, ending = trial(Draw(victim, SIGNALS[0], 0.0), 0.0)
    assert not faults and "has been stopped for 1 s (SIGSTOP)" in ending
