"""`sweep --resume`: the answers of a killed sweep are kept, and those of another experiment are refused."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quadrille.algorithms.formats import schema_files
from quadrille.experiments.sweep.sweep_result import SCHEMA, Sweep
from quadrille.topologies.machines.machine_file import save_machine
from tests.support.quadrille import ROOT, called
from tests.support.speed import time_limit
from tests.support.toy_machines import star

RESUMED = """
import sys, time
from pathlib import Path
from quadrille.cli.parsing import sweep as parsing
from quadrille.experiments.sweep import sweep as sweeping

asked, predict = Path(sys.argv.pop(1)), parsing.predicted
stays = sys.argv.pop(1) == "stay"

def noted(flags):
    if stays and asked.exists() and len(asked.read_text().split()) >= 2:
        time.sleep(600)
    with asked.open("a") as file:
        print(flags.experiment.grid + ":" + flags.experiment.dtype, file=file)
    return predict(flags)

parsing.predicted = noted
sweeping.SAVE_SECONDS, sweeping.SAVE_SHARE = 0.0, 1e9
from quadrille.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def toy(tmp_path):
    """The file of a machine with 16 hosts."""
    path = tmp_path / "toy.toml"
    save_machine(star(16, memory=1e10), path)
    return str(path)


def read_sweep(path):
    """The rows of a file."""
    return schema_files.read(path, Sweep, SCHEMA).points


def test_a_resumed_sweep_computes_the_points_that_a_killed_one_did_not_reach(toy, tmp_path):
    asked_points, record = tmp_path / "asked", tmp_path / "rows.json"
    words = ["sweep", "--matmul", "96,64,48", "--machine", toy, "--vary", "grid=x=2;z=2;x=9", "--vary",
             "dtype=float32,float64", "--csv", str(tmp_path / "rows.csv"), "--resume", "--json"]  # fmt: skip

    def start(behaviour, path):
        program = [sys.executable, "-P", "-c", RESUMED, str(asked_points), behaviour, *words, str(path)]
        return subprocess.Popen(
            program,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    killed, until = start("stay", record), time.monotonic() + time_limit(60)
    while not (record.exists() and sum(row.answer.seconds is not None for row in read_sweep(record)) == 2):
        assert killed.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    first = asked_points.read_text().split()
    resumed = start("go on", record)
    _, err = resumed.communicate(timeout=time_limit(60))
    assert resumed.returncode == 0 and f"2 of 6 points are answered in {record}" in err
    every = asked_points.read_text().split()
    assert len(first) == 2 and len(every) == len(set(every)) == 6
    table = (tmp_path / "rows.csv").read_bytes()
    start("go on", tmp_path / "undisturbed.json").communicate(timeout=time_limit(60))
    assert read_sweep(record) == read_sweep(tmp_path / "undisturbed.json")
    assert table == (tmp_path / "rows.csv").read_bytes()


def test_a_sweep_takes_answers_of_its_own_experiment_and_version_only(toy, tmp_path, capsys, monkeypatch):
    """A longer list of values is the same experiment; a shorter list would lose answers."""
    record = tmp_path / "rows.json"
    words = ["sweep", "--matmul", "96,64,48", "--machine", toy, "--resume", "--json", record, "--grid", "x=2", "--vary"]
    assert called(capsys, *words, "dtype=float32").status == 0
    kept = record.read_bytes()
    refusals = [
        (["dtype=float32", "--overlap", "oar"], "is of another experiment: flag overlap is"),
        (["passes=training"], "is of another experiment: varied key "),
        (["dtype=float64"], "has an answer at dtype=float32, which is no point of this sweep"),
    ]
    for more, reason in refusals:
        ended = called(capsys, *words, *more)
        assert (ended.status, record.read_bytes()) == (2, kept)
        assert ended.line.startswith(f"quadrille: --resume: {record} {reason}")
    with monkeypatch.context() as changed:
        changed.setattr("quadrille.algorithms.provenance.own_version", lambda _: "0.0.1")
        assert "version quadrille is " in called(capsys, *words, "dtype=float32").line
    assert called(capsys, *words, "dtype=float32,float64").status == 0
    assert [row.answer.reason for row in read_sweep(record)] == [None, None]
    machine = Path(toy)
    machine.write_text(machine.read_text().replace("10000000000.0", "20000000000.0"))
    assert "SHA-256 of the file of --machine is " in called(capsys, *words, "dtype=float32,float64").line


@pytest.mark.parametrize("files", [[], ["--csv", "rows.csv"], ["--json", "-"], ["--json", "rows.txt"]])
def test_to_resume_a_sweep_needs_a_json(toy, capsys, monkeypatch, tmp_path, files):
    monkeypatch.chdir(tmp_path)
    ended = called(capsys, "sweep", "--matmul", "8,8,8", "--machine", toy, "--vary", "grid=x=2", "--resume", *files)
    assert ended.status == 2 and ended.line.startswith("quadrille: --resume needs --json FILE.json")
