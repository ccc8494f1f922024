"""`sweep --store`: the answers of a killed sweep are kept, and only the others are computed."""

import os
import resource
import shlex
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from quadrille.algorithms.formats import schema_files
from quadrille.experiments.sweep.sweep_result import SCHEMA, Sweep
from quadrille.topologies.machines.machine_file import save_machine
from tests.support.quadrille import ROOT, called
from tests.support.speed import time_limit
from tests.support.toy_machines import star

INTERRUPTED = """
import sys
from quadrille.experiments.tasks import answer_tasks as tasks

most = int(sys.argv.pop(1))
own = tasks.OwnProcess.finished
count = 0

def finished(workers, *, wait):
    global count
    if wait and count == most:
        raise KeyboardInterrupt
    results = own(workers, wait=wait)
    count += len(results)
    return results

tasks.OwnProcess.finished = finished
from quadrille.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
RESUMED = """
import sys, time
from pathlib import Path
from quadrille.cli.parsing import sweep as parsing

asked, predict = Path(sys.argv.pop(1)), parsing.predicted
stays = sys.argv.pop(1) == "stay"

def noted(flags):
    if stays and asked.exists() and len(asked.read_text().split()) >= 2:
        time.sleep(600)
    with asked.open("a") as file:
        print(flags.experiment.grid + ":" + flags.experiment.dtype, file=file)
    return predict(flags)

parsing.predicted = noted
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


def stored_points(store):
    """The number of answers in a store; 0 without one."""
    if not store.exists():
        return 0
    with closing(sqlite3.connect(store)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return 0
        return connection.execute("SELECT count(*) FROM results").fetchone()[0]


def test_a_sweep_computes_the_points_that_a_killed_one_did_not_reach(toy, tmp_path):
    asked_points, record, store = tmp_path / "asked", tmp_path / "rows.json", tmp_path / "s.sqlite"
    words = ["sweep", "--matmul", "96,64,48", "--machine", toy, "--vary", "grid=x=2;z=2;x=9", "--vary",
             "dtype=float32,float64", "--csv", str(tmp_path / "rows.csv"), "--json"]  # fmt: skip

    def start(behaviour, path, *more):
        program = [sys.executable, "-P", "-c", RESUMED, str(asked_points), behaviour, *words, str(path), *more]
        return subprocess.Popen(
            program,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    killed, until = start("stay", record, "--store", store), time.monotonic() + time_limit(60)
    while stored_points(store) < 2:
        assert killed.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    first = asked_points.read_text().split()
    resumed = start("go on", record, "--store", store)
    _, err = resumed.communicate(timeout=time_limit(60))
    assert resumed.returncode == 0 and f"2 of 6 points were in {store}" in err
    every = asked_points.read_text().split()
    assert len(first) == 2 and len(every) == len(set(every)) == 6
    table = (tmp_path / "rows.csv").read_bytes()
    start("go on", tmp_path / "undisturbed.json").communicate(timeout=time_limit(60))
    assert read_sweep(record) == read_sweep(tmp_path / "undisturbed.json")
    assert table == (tmp_path / "rows.csv").read_bytes()


def test_a_disk_that_fills_in_mid_sweep_is_one_line_and_loses_no_answer(toy, tmp_path, capsys):
    """A limit of the size of files refuses writes as a full disk does; the log of the store reaches it first."""
    store = tmp_path / "s.sqlite"
    sizes = ";".join(f"{8 + number},64,48" for number in range(24))
    words = ["sweep", "--grid", "x=2", "--machine", toy, "--vary", f"matmul={sizes}", "--store", str(store)]
    limited = subprocess.run(
        [sys.executable, "-P", "-m", "quadrille", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=time_limit(60),
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, resource.RLIM_INFINITY)),
    )
    assert limited.returncode == 1, limited.stderr
    line = limited.stderr.splitlines()[-1]
    assert f"--store {store}: cannot be written: " in line and "it keeps the results that it has" in line
    kept_points = stored_points(store)
    assert 0 < kept_points < 24
    ended = called(capsys, *words)
    assert ended.status == 0 and f"{kept_points} of 24 points were in {store}" in ended.err


def test_sweeps_of_different_values_and_machines_share_a_store(toy, tmp_path, capsys):
    store, record = tmp_path / "s.sqlite", tmp_path / "rows.json"
    words = ["sweep", "--matmul", "96,64,48", "--grid", "x=2", "--store", store, "--json", record, "--vary"]

    def kept_of(machine, *more):
        ended = called(capsys, *words, *more, "--machine", machine)
        assert ended.status == 0
        return next(line for line in ended.err.splitlines() if str(store) in line).split(" points")[0]

    assert kept_of(toy, "dtype=float32") == "quadrille: 0 of 1"
    assert kept_of(toy, "dtype=float64,float32") == "quadrille: 1 of 2"
    assert kept_of(toy, "overlap=none;oar", "--dtype", "float32") == "quadrille: 1 of 2"
    copy = Path(toy).with_name("copy.toml")
    copy.write_text(Path(toy).read_text())
    assert kept_of(copy, "dtype=float64,float32") == "quadrille: 2 of 2"
    rows = read_sweep(record)
    larger = Path(toy).with_name("larger.toml")
    larger.write_text(Path(toy).read_text().replace("10000000000.0", "20000000000.0"))
    assert kept_of(larger, "dtype=float64,float32") == "quadrille: 0 of 2"
    assert kept_of(toy, "dtype=float64,float32") == "quadrille: 2 of 2" and read_sweep(record) == rows


def test_a_store_that_is_another_file_of_the_sweep_is_refused(toy, tmp_path, capsys):
    words = ["sweep", "--matmul", "8,8,8", "--vary", "grid=x=2", "--machine", toy, "--store"]
    ended = called(capsys, *words, toy)
    assert (ended.status, ended.line) == (
        2,
        f"quadrille: --store {toy}: is no SQLite file; accepted is a new file or a store",
    )
    same = tmp_path / "rows.csv"
    ended = called(capsys, *words, same, "--csv", same)
    assert ended.status == 2 and "--csv and --store both name" in ended.line


def interrupted(most, *words):
    """The exit status and the last line of a command that is interrupted after so many answers."""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", INTERRUPTED, str(most), *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=time_limit(60), check=False,
    )  # fmt: skip
    return ended.returncode, ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("more", [(), ("--search", "time")])
def test_an_interrupted_sweep_says_how_many_answers_are_kept_and_how_to_go_on(toy, tmp_path, more):
    store, table = tmp_path / "s.sqlite", tmp_path / "rows.csv"
    words = ["sweep", "--matmul", "96,64,48", "--machine", toy, "--vary", "grid=x=2;z=2;y=2", *more]
    assert interrupted(2, *words) == (
        130, "quadrille: interrupted: nothing is kept; --store FILE.sqlite keeps each answer"
    )  # fmt: skip
    assert interrupted(2, *words, "--csv", table)[1].startswith(
        f"quadrille: interrupted: 2 of 3 points are in {table}, and the same command computes them again; --store"
    )
    command = f"quadrille {shlex.join([*words, '--store', str(store)])}"
    assert interrupted(2, *words, "--store", store) == (
        130, f"quadrille: interrupted: 2 of 3 points are kept in {store}; go on with: {command}"
    )  # fmt: skip
    assert stored_points(store) == 2


def test_an_interrupted_sweep_names_the_files_that_stay(toy, tmp_path):
    """The CSV of an experiment file stays, the JSON of a report does not, and no file is without an answer."""
    table, store, file = tmp_path / "rows.csv", tmp_path / "s.sqlite", tmp_path / "e.toml"
    file.write_text(f'matmul = "96,64,48"\nmachine = "{toy}"\ncsv = "{table}"\n')
    words = ["sweep", file, "--vary", "grid=x=2;z=2;y=2"]
    in_table = f"2 of 3 points are in {table}, and the same command computes them again; "
    assert in_table in interrupted(2, *words)[1] and len(table.read_text().splitlines()) == 4
    assert in_table in interrupted(2, *words, "--report", tmp_path / "r.html")[1]
    file.write_text(f'matmul = "96,64,48"\nmachine = "{toy}"\nstore = "{store}"\n')
    assert f"2 of 3 points are kept in {store}; " in interrupted(2, *words, "--report", tmp_path / "r.html")[1]
    file.write_text(f'matmul = "96,64,48"\nmachine = "{toy}"\n')
    assert "interrupted: nothing is kept; " in interrupted(2, *words, "--report", tmp_path / "r.html")[1]
    table.unlink()
    impossible = ["--vary", "algorithm=cannon,2.5d,summa", "--grid", "z=2", "--csv", table]
    assert "interrupted: nothing is kept; " in interrupted(1, "sweep", file, *impossible)[1]
    assert not table.exists()


def test_an_interrupted_ranking_says_how_many_answers_are_kept(tmp_path):
    store = tmp_path / "r.sqlite"
    words = ["rank", "--gpt", "tiny", "--batch", "8", "--gpus", "4", "--machine", "perlmutter"]
    assert interrupted(1, *words)[1].endswith("interrupted: nothing is kept; --store FILE.sqlite keeps each answer")
    status, line = interrupted(1, *words, "--store", store)
    kept = stored_points(store)
    assert status == 130 and kept >= 1
    assert f"interrupted: {kept} answers are kept in {store}; go on with: quadrille rank --gpt tiny" in line
