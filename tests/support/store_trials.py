"""Trials of sweeps that are killed at a random moment: what their store has afterwards, and what is lost.

`python -m tests.support.store_trials [--seed N] [--draws N]` prints a line for each trial, with its faults. A sweep of
`POINTS` points is killed by SIGKILL and started again with the same store until all points are there; then a new store
begins. After each kill the file must be a sound database, each result must be right, each result that the sweep
returned must be there, and no more points may be lost than were under way.
"""

import argparse
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from quadrille.experiments.tasks.answer_tasks import StoredTasks, answer_tasks, workers_of
from quadrille.experiments.tasks.task_digest import code_digest
from quadrille.experiments.tasks.task_store import TaskStore

POINTS = 150
POINT_SECONDS = 0.004
UNDISTURBED_SECONDS = 2.5
"""About the time of a whole sweep [s]; kills come within it."""


def sweep(folder, jobs):
    """Answer all points that the store lacks; each computed and each returned point is noted in a file."""
    computed, returned = (os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in NOTES)

    def answer(number):
        time.sleep(POINT_SECONDS)
        os.write(computed, f"{number}\n".encode())
        return number * number

    with TaskStore(str(folder / "s.sqlite")) as store:
        stored = StoredTasks(store=store, function="square", arguments=int, form=int)
        for place, _ in answer_tasks(range(POINTS), workers_of(answer, jobs), stored):
            os.write(returned, f"{place}\n".encode())


NOTES = ("computed", "returned")


def killed(folder, jobs, seconds):
    """Run the sweep in a process that is killed after so many seconds; whether it had ended before."""
    process = os.fork()
    if process == 0:
        try:
            sweep(folder, jobs)
        finally:
            os._exit(0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitpid(process, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return True


def results(path):
    """The results of a store, by point; none if it has no table."""
    if not path.exists():
        return {}, "ok"
    with closing(sqlite3.connect(path)) as connection:
        (state,) = connection.execute("PRAGMA integrity_check").fetchone()
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return {}, state
        return dict(connection.execute("SELECT CAST(label AS INTEGER), CAST(result AS INTEGER) FROM results")), state


def noted(folder, name):
    """The points of a file of notes, each as often as it stands there."""
    path = folder / name
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def faults(folder, jobs, kills):
    """What is wrong after so many kills of sweeps with one store."""
    stored, state = results(folder / "s.sqlite")
    if state != "ok":
        yield f"the database is damaged: {state}"
    if wrong := [point for point, result in stored.items() if result != point * point]:
        yield f"results of {wrong} are wrong"
    if lost := set(noted(folder, "returned")) - set(stored):
        yield f"returned points {sorted(lost)} are lost"
    repeated = len(noted(folder, "computed")) - len(stored)
    if repeated > kills * workers_of(abs, jobs).capacity:
        yield f"{repeated} points were lost by {kills} kills"


def trials(draws, seed):
    """The faults of each of so many kills, with the points that the store had."""
    draw, kills = random.Random(seed), 0
    code_digest()  # once, and not in every process
    while kills < draws:
        jobs = draw.choice((1, 2))
        with tempfile.TemporaryDirectory() as name:
            folder, of_store = Path(name), 0
            while len(results(folder / "s.sqlite")[0]) < POINTS:
                is_killed = kills < draws and killed(folder, jobs, draw.uniform(0, UNDISTURBED_SECONDS))
                if kills >= draws:
                    killed(folder, jobs, 600)
                kills, of_store = kills + is_killed, of_store + is_killed
                time.sleep(0.01 * jobs)  # workers end with their parent
                yield kills, jobs, len(results(folder / "s.sqlite")[0]), list(faults(folder, jobs, of_store))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=100)
    asked = parser.parse_args()
    faulty = 0
    for kills, jobs, stored, wrong in trials(asked.draws, asked.seed):
        faulty += bool(wrong)
        print(f"kill {kills}, {jobs} jobs: {stored} of {POINTS} points stored; {'; '.join(wrong) or 'sound'}")
    print(f"{asked.draws} kills, {faulty} with faults")
    return faulty > 0


if __name__ == "__main__":
    sys.exit(main())
