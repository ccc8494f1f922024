"""The progress line of a launch, until its ranks work."""

import io
import os
import pty
import subprocess
import sys
import time

import pytest

from quadrille.runtime.host.progress_reports import FORM, PREFIX
from quadrille.runtime.launching import start_progress
from quadrille.runtime.launching.launch import launch
from quadrille.runtime.launching.start_progress import StartProgress
from tests.support.quadrille import ROOT

ERASED = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def report(folder, rank, count):
    (folder / f"{PREFIX}{rank}").write_bytes(FORM.pack(rank, 1, count, False, b""))


@pytest.fixture
def clock(monkeypatch):
    """The time, which a test sets."""
    now = [0.0]
    monkeypatch.setattr(start_progress.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_shows_how_many_ranks_have_begun_until_one_works(monkeypatch, tmp_path, clock):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    progress = StartProgress(str(tmp_path), 64, 2)
    report(tmp_path, 0, 0)
    clock[0] = 1.9
    progress.look()
    assert terminal.getvalue() == ""
    clock[0] = 2.1
    progress.look()
    line = "starting 64 ranks (32 a core): 1 have begun, 0 are in the start of MPI"
    assert terminal.getvalue() == ERASED + line
    for rank in range(3):
        report(tmp_path, rank, min(rank, 1))
    progress.look()
    assert terminal.getvalue().endswith(ERASED + line.replace("1 have", "3 have").replace("0 are", "2 are"))
    report(tmp_path, 1, 3)
    progress.look()
    assert terminal.getvalue().endswith("MPI" + ERASED)
    shown = terminal.getvalue()
    report(tmp_path, 1, 1)
    progress.look()
    assert terminal.getvalue() == shown


def test_other_streams_get_a_line_each_half_minute_and_quiet_ones_none(capsys, tmp_path, clock):
    progress, quiet = StartProgress(str(tmp_path), 2, 2), StartProgress(str(tmp_path), 2, 2, shown=False)
    for seconds in range(95):
        clock[0] = float(seconds)
        progress.look()
        quiet.look()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["quadrille: starting 2 ranks: 0 have begun, 0 are in the start of MPI"] * 3


@pytest.mark.mpi
def test_a_launch_shows_its_start_and_no_longer_after_the_first_line_of_a_rank(capfd, monkeypatch):
    monkeypatch.setattr(start_progress, "LOG_SECONDS", 0.05)
    source = "import time; time.sleep(1.5); print('works', flush=True); time.sleep(1)"
    begin = time.monotonic()
    assert launch(2, [], program=("-c", source)) == 0
    lines = capfd.readouterr().err.splitlines()
    assert 2 <= len(lines) <= (time.monotonic() - begin) / 0.25
    assert all(line.startswith("quadrille: starting 2 ranks: ") for line in lines), lines
    assert launch(2, ["--quiet"], program=("-c", source)) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.mpi
def test_the_line_of_a_launch_is_erased_on_a_terminal():
    source = (
        "from quadrille.runtime.launching import launch, start_progress; start_progress.PATIENCE_SECONDS = 0;"
        "launch.launch(2, [], program=('-c', 'import time; time.sleep(1.5)'))"
    )
    ours, theirs = pty.openpty()
    variables = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    ended = subprocess.run([sys.executable, "-P", "-c", source], env=variables, stderr=theirs, check=False, timeout=60)
    os.close(theirs)
    written = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert ended.returncode == 0
    assert written.startswith(ERASED + "starting 2 ranks: ") and written.endswith(ERASED)
