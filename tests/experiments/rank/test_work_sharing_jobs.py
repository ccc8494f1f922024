"""Worker processes of `rank --jobs`: the same answers in the same order, from functions that cannot be pickled."""

import os

import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.experiments.rank.configuration_search import search_configurations
from quadrille.experiments.rank.work_sharing import WorkSharing, open_work_sharing
from quadrille.experiments.tasks.workers import ProcessWorkers
from tests.support.rank_questions import question, space


def test_processes_give_the_answers_of_one_in_their_order():
    offset, asked = 3, list(range(20))
    alone, together = (
        WorkSharing(jobs=jobs).share(lambda number: (number + offset, os.getpid()), asked, "counted", "numbers")
        for jobs in (1, 2)
    )
    assert [value for value, _ in alone] == [value for value, _ in together] == [number + 3 for number in asked]
    assert {process for _, process in alone} == {os.getpid()}
    assert os.getpid() not in {process for _, process in together}


def test_kept_processes_answer_all_questions_to_their_functions():
    """Every process is there from the first question on, with what it has computed; further functions have others."""
    seen = []

    def count(number):
        seen.append(number)
        return os.getpid(), len(seen)

    def square(number):
        return os.getpid(), number**2

    with WorkSharing(jobs=2).kept_processes(count, square) as together:
        counted = [pair for _ in range(5) for pair in together.share(count, [1, 2, 3, 4], "counted", "numbers")]
        squared = together.share(square, [2, 3], "squared", "numbers")
        further = together.share(lambda number: (os.getpid(), number), [2, 3], "listed", "numbers")
    kept = {process for process, _ in counted}
    assert len(kept) <= 2 and os.getpid() not in kept
    for process in kept:
        lengths = [length for each, length in counted if each == process]
        assert sorted(lengths) == [*range(1, len(lengths) + 1)]
    assert {process for process, _ in squared} <= kept
    assert [value for _, value in squared] == [4, 9]
    assert not {process for process, _ in further} & (kept | {os.getpid()})
    assert [value for _, value in further] == [2, 3]


def test_the_rounds_of_a_search_have_their_processes_once(monkeypatch):
    """The answer is that of one process, and the rounds start one pool."""
    started = []
    start_pool = ProcessWorkers._start_pool
    monkeypatch.setattr(ProcessWorkers, "_start_pool", lambda self: (started.append(self), start_pool(self)))
    asked = question(gpus="4", batch="8", order="x,y,z,data")
    searched = space(search="gathered,zero", order="x,y,z,data")
    alone = search_configurations(asked, searched, WorkSharing())
    together = search_configurations(asked, searched, WorkSharing(jobs=2))
    assert together.best == alone.best
    assert len(started) == 1


def test_an_error_of_a_process_is_that_of_its_calculation():
    def refuse(number):
        raise InputError(f"number {number}: none is accepted")

    with pytest.raises(InputError, match="none is accepted"):
        WorkSharing(jobs=2).share(refuse, [1, 2, 3], "counted", "numbers")


def test_a_process_that_dies_is_told():
    with pytest.raises(RunError, match="a process of --jobs ended"):
        WorkSharing(jobs=2).share(lambda _: os._exit(1), [1, 2, 3], "counted", "numbers")


def test_jobs_are_refused_beside_the_ranks_of_a_launcher(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(InputError, match="--jobs 2: a launcher started ranks"), open_work_sharing(quiet=True, jobs=2):
        pass
