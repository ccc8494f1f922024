"""`rank --store`: the ranking of a rank without a store, from what a store has."""

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from quadrille.experiments.rank import work_sharing
from quadrille.topologies.machines.machine_file import save_machine
from tests.support import launched
from tests.support.quadrille import called
from tests.support.speed import time_limit
from tests.support.toy_machines import star

MODEL = ["--gpt", "layers=2,hidden=64,heads=4,sequence=64,vocabulary=256", "--batch", "8"]


@pytest.fixture
def ranked(tmp_path, capsys):
    """A function that ranks with a store, and returns the answer and the remark about the store."""
    store = tmp_path / "s.sqlite"

    def rank(*more, stored=True):
        words = ["rank", *MODEL, "--gpus", "2", "--machine", "perlmutter", "--json", "-", *more]
        ended = called(capsys, *words, *(["--store", store] if stored else []))
        assert ended.status == 0, ended.err
        answer = json.loads(ended.out)
        answer.pop("provenance")
        remarks = [line.removeprefix("quadrille: ") for line in ended.err.splitlines() if str(store) in line]
        return answer, remarks[0].replace(str(store), "s") if remarks else ""

    return rank


def test_a_ranking_from_a_store_is_that_without_one(ranked, monkeypatch):
    """The store also serves another question, which finds only what both questions ask."""
    options = ("--scheme", "megatron", "--top", "2")
    alone, _ = ranked(*options, stored=False)
    first, said = ranked(*options)
    count = int(said.split()[2])
    assert first == alone and said.endswith(f"of {count} answers were in s")
    _, said = ranked(*options, "--set", "device.memory_bytes=x2")
    assert said.startswith("0 of ") and said.endswith(" answers are of other values, machines or code")
    monkeypatch.setattr(work_sharing, "workers_of", lambda _question, _jobs: NoWorkers())
    again, said = ranked(*options)
    assert again == alone and said == f"{count} of {count} answers were in s"


class NoWorkers:
    """Workers that take no task."""

    capacity = 1

    def start(self, number, point):
        raise AssertionError(f"task {number} is computed again")

    def finished(self, *, wait):
        return []

    def close(self):
        pass


def test_a_store_that_is_another_file_is_one_line(tmp_path, capsys):
    machine = tmp_path / "toy.toml"
    save_machine(star(4, memory=1e10), machine)
    ended = called(capsys, "rank", *MODEL, "--gpus", "4", "--machine", "perlmutter", "--store", machine)
    assert (ended.status, ended.line) == (
        2,
        f"quadrille: --store {machine}: is no SQLite file; accepted is a new file or a store",
    )


def test_a_new_store_is_closed_and_leaves_no_log_beside_it(tmp_path):
    """A store without results is false; it is opened and closed all the same, with results and without."""
    store = tmp_path / "s.sqlite"
    for questions in ([], [2, 3]):
        with work_sharing.open_work_sharing(quiet=True, store=str(store)) as sharing:
            kind = work_sharing.TaskKind("square", int, int)
            assert sharing.share(lambda number: number**2, questions, "squared", "numbers", kind=kind) == [
                number**2 for number in questions
            ]
        assert sharing.store is not None and len(questions) == sharing.store.added
        assert [path.name for path in tmp_path.iterdir()] == ["s.sqlite"]


SHARED = """
import os, sys, time
from quadrille.experiments.rank.work_sharing import TaskKind, open_work_sharing

def answer(number):
    time.sleep(0.05)
    with open(sys.argv[2], "a") as notes:
        print(number, file=notes)
    return number * number

with open_work_sharing(quiet=True, store=sys.argv[1]) as work_sharing:
    kind = TaskKind("square", int, int)
    answers = work_sharing.share(answer, range(int(sys.argv[3])), "squared", "numbers", kind=kind)
    assert answers == [number * number for number in range(int(sys.argv[3]))]
"""


@pytest.mark.mpi
def test_a_killed_launch_loses_only_the_answers_under_way(tmp_path):
    """Rank 0 stores the answers of all ranks as they come, not when a group of answers is done."""
    script, store, notes = tmp_path / "shared.py", tmp_path / "s.sqlite", tmp_path / "notes"
    script.write_text(SHARED)
    program = [sys.executable, "-c", launched.START, "2", str(script), str(store), str(notes)]
    with subprocess.Popen([*program, "1000"], cwd=launched.ROOT, stderr=subprocess.PIPE) as launch:
        until = time.monotonic() + time_limit(60)
        while len(stored_squares(store)) < 10:
            assert launch.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        launch.kill()
    wait_for_ranks_to_end(notes)
    computed, stored = [int(line) for line in notes.read_text().split()], stored_squares(store)
    assert len(stored) < 1000 and set(stored) <= set(computed) and len(computed) - len(stored) <= 6
    assert {0, 1} == {number % 2 for number in stored}, "both ranks have stored answers"
    count = str(len(stored) + 4)
    subprocess.run([*program, count], cwd=launched.ROOT, check=True, timeout=time_limit(60))
    again = [int(line) for line in notes.read_text().split()]
    assert not set(again[len(computed) :]) & set(stored) and set(range(int(count))) <= set(stored_squares(store))


def wait_for_ranks_to_end(notes):
    """Wait until nobody appends to the notes any more."""
    size = -1
    while size != notes.stat().st_size:
        size = notes.stat().st_size
        time.sleep(0.5)


def stored_squares(store):
    """The numbers whose square a store has."""
    if not store.exists():
        return []
    with closing(sqlite3.connect(store)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return []
        rows = connection.execute("SELECT CAST(label AS INTEGER), CAST(result AS INTEGER) FROM results").fetchall()
    assert all(result == number * number for number, result in rows)
    return [number for number, _ in rows]
