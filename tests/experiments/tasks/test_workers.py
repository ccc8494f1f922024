"""Workers of every kind give the answers of one process, and one that ends early is one line."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import psutil
import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.cli.parsing.slurm import parse_slurm
from quadrille.experiments.tasks.answer_tasks import StoredTasks, answer_tasks
from quadrille.experiments.tasks.mpi_workers import ANSWERING, launched_ranks
from quadrille.experiments.tasks.slurm_workers import SlurmOptions, SlurmWorkers
from quadrille.experiments.tasks.task_options import TaskOptions
from quadrille.experiments.tasks.task_store import TaskStore
from quadrille.topologies.machines.machine_file import save_machine
from tests.support.quadrille import ROOT, called, quadrille
from tests.support.speed import time_limit
from tests.support.toy_machines import star


def test_sweeps_that_are_killed_at_random_moments_lose_only_points_under_way():
    program = [sys.executable, "-m", "tests.support.store_trials", "--draws", "6", "--seed", "1"]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=time_limit(120), check=False)
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "6 kills, 0 with faults"), ended.stdout


@pytest.mark.mpi
def test_ranks_give_the_answers_of_one_process_and_a_dead_rank_loses_none(tmp_path):
    machine, store = tmp_path / "toy.toml", tmp_path / "s.sqlite"
    save_machine(star(16, memory=1e10), machine)
    words = ["sweep", "--machine", machine, "--grid", "x=2,z=2,y=2"]
    many, few = (f"matmul={';'.join(f'{n},{n},{n}' for n in range(8, 8 + count))}" for count in (400, 4))
    program = [sys.executable, "-P", "-m", "quadrille", "launch", "-n", "3", *words, "--vary", many, "--store", store]
    with subprocess.Popen(
        list(map(str, program)), env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    ) as launch:
        until = time.monotonic() + time_limit(120)
        while stored_points(store) < 12:
            assert launch.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        ranks = {
            process.environ().get("OMPI_COMM_WORLD_RANK", ""): process
            for process in psutil.Process(launch.pid).children(recursive=True)
            if "quadrille" in " ".join(process.cmdline()[:4])
        }
        ranks["2"].send_signal(signal.SIGKILL)
        _, err = launch.communicate(timeout=time_limit(60))
    last = err.splitlines()[-1]
    assert launch.returncode == 1 and "rank 2 " in last and f" in {ANSWERING}; " in last, err
    resumed = quadrille(*words, "--vary", few, "--store", store, "--csv", tmp_path / "resumed.csv")
    assert resumed.status == 0 and f"4 of 4 points were in {store}" in resumed.err
    alone = quadrille(*words, "--vary", few, "--csv", tmp_path / "alone.csv")
    assert alone.status == 0
    assert (tmp_path / "resumed.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()


def stored_points(store):
    """The number of results in a store; 0 without a table."""
    if not store.exists():
        return 0
    with closing(sqlite3.connect(store)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return 0
        return connection.execute("SELECT count(*) FROM results").fetchone()[0]


def test_jobs_beside_ranks_are_refused(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(InputError, match="--jobs 2: a launcher started ranks"):
        launched_ranks(2)


def local_jobs(folder, question):
    return SlurmWorkers(question, SlurmOptions(cluster="local", jobs=2, points=3, folder=str(folder)))


def test_jobs_give_the_answers_of_one_process_and_leave_no_files(tmp_path):
    pytest.importorskip("submitit")
    answers = dict(answer_tasks(range(-8, 0), local_jobs(tmp_path / "jobs", abs)))
    assert answers == {place: 8 - place for place in range(8)}
    assert not list((tmp_path / "jobs").iterdir())


def test_a_job_that_fails_is_one_line_and_the_results_of_others_stay(tmp_path):
    pytest.importorskip("submitit")
    from math import isqrt

    with TaskStore(str(tmp_path / "s.sqlite")) as store:
        stored = StoredTasks(store=store, function="isqrt", arguments=int, form=int)
        with pytest.raises(RunError, match=r"--slurm: job \d+ failed: .+; its log is "):
            dict(answer_tasks([1, 4, 9, -1], local_jobs(tmp_path / "jobs", isqrt), stored))
        assert len(store) in (0, 3)  # as the jobs end
        dict(answer_tasks([1, 4, 9, 16], local_jobs(tmp_path / "jobs", isqrt), stored))
        assert len(store) == 4


def test_jobs_share_a_search_and_give_the_answers_of_one_process(tmp_path, capsys):
    pytest.importorskip("submitit")
    pytest.importorskip("optuna")
    machine = tmp_path / "toy.toml"
    save_machine(star(16, memory=1e10), machine)
    words = ["sweep", "--machine", machine, "--grid", "x=2", "--search", "time", "--budget", "12",
             "--vary", f"matmul={';'.join(f'{n},64,48' for n in range(8, 32))}"]  # fmt: skip
    alone = called(capsys, *words)
    shared = called(capsys, *words, "--slurm", f"cluster=local,jobs=2,folder={tmp_path / 'jobs'}")
    assert alone.status == 0 and (shared.status, shared.out, shared.err) == (0, alone.out, alone.err)


@pytest.mark.parametrize(("jobs", "points", "of_a_job"), [(2, 32, 4), (3, 32, 3), (16, 32, 1), (2, 3, 3)])
def test_jobs_share_a_group_of_tasks_evenly(jobs, points, of_a_job):
    options = TaskOptions(slurm=SlurmOptions(jobs=jobs, points=points)).in_groups_of(8)
    assert options.slurm.points == of_a_job


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cpu", "write KEY=VALUE,…; keys are partition, account"),
        ("queue=cpu", "write KEY=VALUE,…"),
        ("jobs=none", "a whole number from 1"),
        ("jobs=2,jobs=3", "jobs is given twice"),
        ("cluster=cloud", "accepted are slurm, local"),
        ("partition=cpu", "there is no sbatch on this computer"),
    ],
)
def test_words_of_slurm_that_are_not_accepted(text, reason, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=reason):
        parse_slurm(text)
