"""`answer_tasks`: the same answers from all workers, only what a store lacks, and nothing that is lost."""

import os
from functools import partial
from itertools import islice

import pytest

from quadrille.algorithms.errors import RunError
from quadrille.experiments.tasks import answer_tasks as answering
from quadrille.experiments.tasks.answer_tasks import StoredTasks, answer_points, answer_tasks, workers_of
from quadrille.experiments.tasks.task_options import TaskOptions
from quadrille.experiments.tasks.task_store import TaskStore


def square(number):
    return number * number


def stored_in(store):
    return StoredTasks(store=store, function="square", arguments=lambda number: number, form=int)


@pytest.mark.parametrize("jobs", [1, 2])
def test_tasks_that_a_store_has_are_not_computed(tmp_path, jobs):
    asked = tmp_path / "asked"

    def noted(number):
        with asked.open("a") as file:
            print(number, file=file)
        return square(number)

    with TaskStore(str(tmp_path / "s.sqlite")) as store:
        for points in (range(5), range(3, 9)):
            stored = stored_in(store)
            answers = dict(answer_tasks(points, workers_of(noted, jobs), stored))
            assert answers == {place: square(number) for place, number in enumerate(points)}
        assert stored.kept == 2 and sorted(map(int, asked.read_text().split())) == list(range(9))


@pytest.mark.parametrize("jobs", [1, 2])
def test_points_are_listed_as_fast_as_they_are_answered(jobs):
    """An endless list of points is answered in constant memory."""
    listed = 0

    def points():
        nonlocal listed
        while True:
            listed += 1
            yield listed

    answers = answer_points(points(), square, jobs)
    for answered, (place, answer) in enumerate(islice(answers, 200), 1):
        assert answer == (place + 1) ** 2 and listed <= answered + 2 * jobs + 1
    answers.close()


def dies_at(last, number):
    if number == last:
        os._exit(1)
    return square(number)


def test_a_process_that_dies_loses_no_result_of_others(tmp_path):
    with TaskStore(str(tmp_path / "s.sqlite")) as store:
        answers = []
        with pytest.raises(RunError, match="a process of --jobs ended before its point was done"):
            answers.extend(answer_tasks(range(20), workers_of(partial(dies_at, 12), 2), stored_in(store)))
        assert 12 - 5 <= len(answers) == len(store) < 20
        again = stored_in(store)
        assert dict(answer_tasks(range(20), workers_of(square, 1), again)) == {n: square(n) for n in range(20)}
        assert again.kept == len(answers)


def test_changed_code_computes_again_and_old_results_stay(tmp_path, monkeypatch):
    with TaskStore(str(tmp_path / "s.sqlite")) as store:
        for code, result in (("old", 1), ("new", 2), ("old", 1)):
            monkeypatch.setattr("quadrille.experiments.tasks.task_digest.code_digest", lambda code=code: code)
            monkeypatch.setattr(answering, "code_digest", lambda code=code: code)
            stored = stored_in(store)
            answers = dict(answer_tasks([7], workers_of(lambda _, result=result: result, 1), stored))
            assert answers == {0: result}
        assert stored.kept == 1 and len(store) == 2


def test_a_result_of_another_form_is_one_line(tmp_path):
    with TaskStore(str(tmp_path / "s.sqlite")) as store:
        stored = stored_in(store)
        store.keep(stored.digest(7), "square", "7", '"text"', "code")
        with pytest.raises(RunError, match=r"--store .*: the result of \w{12} is damaged"):
            dict(answer_tasks([7], workers_of(square, 1), stored))


def test_there_are_no_more_processes_than_tasks():
    options = TaskOptions(jobs=1000)
    assert options.workers(square, 3).capacity == workers_of(square, 3).capacity
    assert options.workers(square, 0).capacity == workers_of(square, 1).capacity
