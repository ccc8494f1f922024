"""Worker processes of `rank --jobs`: the same answers in the same order, from functions that cannot be pickled."""

import os

import pytest

from quadrille.algorithms.errors import InputError, RunError
from quadrille.experiments.rank.work_sharing import WorkSharing, open_work_sharing


def test_processes_give_the_answers_of_one_in_their_order():
    offset, asked = 3, list(range(20))
    alone, together = (
        WorkSharing(jobs=jobs).share(lambda number: (number + offset, os.getpid()), asked, "counted", "numbers")
        for jobs in (1, 2)
    )
    assert [value for value, _ in alone] == [value for value, _ in together] == [number + 3 for number in asked]
    assert {process for _, process in alone} == {os.getpid()}
    assert os.getpid() not in {process for _, process in together}


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
