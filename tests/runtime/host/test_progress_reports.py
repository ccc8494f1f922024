"""Where a rank says that it is, read while it is being told and from within a run."""

import os
import select
import subprocess
import sys

import numpy as np
import pytest

from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Gemm
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.host import progress_reports as whereabouts
from quadrille.runtime.host.progress_reports import (
    FORM,
    PREFIX,
    CollectiveWork,
    FileReporter,
    read_reports,
    reporting,
    watch_first_reports,
)
from quadrille.runtime.host.world import LAUNCH
from quadrille.runtime.operands.input_sources import WholeMatrices

MULTIPLY = Gemm(name="multiply C", a="A", b="B", c="C")


def test_a_first_word_can_be_waited_for_and_those_that_follow_wake_nobody(tmp_path):
    handle = watch_first_reports(tmp_path)
    assert select.select([handle], [], [], 0) == ([], [], [])
    told = FileReporter(tmp_path, 3)
    assert select.select([handle], [], [], 5)[0] == [handle]
    os.read(handle, 1 << 16)
    told.began(MULTIPLY)
    assert select.select([handle], [], [], 0) == ([], [], [])
    os.close(handle)


def test_a_rank_reports_at_its_end_that_it_waits_for_the_others_in_mpi(tmp_path):
    source = "from quadrille.runtime.host.progress_reports import own_reporter; own_reporter()"
    tmp_path.chmod(0o700)
    variables = os.environ | {LAUNCH: str(tmp_path), "PMIX_RANK": "3"}
    subprocess.run([sys.executable, "-P", "-c", source], env=variables, check=True)
    assert [(one.rank, one.waiting, one.words) for one in read_reports(tmp_path)] == [(3, True, "ending MPI")]


def test_no_word_can_be_waited_for_in_a_folder_that_is_not_there(tmp_path):
    assert watch_first_reports(tmp_path / "nowhere") is None


@pytest.mark.parametrize("size", [0, 7, FORM.size - 1, FORM.size + 1])
def test_a_file_of_another_length_is_passed_over(tmp_path, size):
    FileReporter(tmp_path, 3)
    (tmp_path / f"{PREFIX}1").write_bytes(bytes(size))
    assert [one.rank for one in read_reports(tmp_path)] == [3]


def test_a_rank_that_tells_anew_never_leaves_its_file_without_a_word(tmp_path, monkeypatch):
    FileReporter(tmp_path, 3).began(MULTIPLY)
    seen, mapped = [], whereabouts.mmap.mmap

    def mapped_while_others_read(*arguments):
        seen.extend(read_reports(tmp_path))
        return mapped(*arguments)

    monkeypatch.setattr(whereabouts.mmap, "mmap", mapped_while_others_read)
    FileReporter(tmp_path, 3)
    assert [(one.rank, one.pid, one.words) for one in seen] == [(3, os.getpid(), "'multiply C' (gemm)")]
    assert [one.words for one in read_reports(tmp_path)] == [""]


def test_a_rank_that_loads_or_works_before_a_run_says_so_and_does_not_wait(tmp_path):
    """Others may wait for it that long in the barrier between runs."""
    problem = Matmul(2, 3, 5, "float64")
    matrices = {"A": np.ones((2, 3)), "B": np.ones((3, 5))}
    seen = []

    def look(*_):
        seen.extend((one.waiting, one.words) for one in read_reports(tmp_path))

    class Watched(WholeMatrices):
        def stored(self, matrix, block):
            look()
            return super().stored(matrix, block)

    schedule = matmul_schedule(problem, "1d-column", Grid(x=1))
    execute(schedule, Watched(matrices), InProcess(1), between=look, reporter=FileReporter(tmp_path, 0))
    assert seen == [(False, "loading 'A'"), (False, "loading 'B'"), (False, "work before the run")]
    assert [one.words for one in read_reports(tmp_path)] == [""]


def test_what_a_rank_does_with_the_others_within_work_of_its_own_is_what_it_waits_in(tmp_path):
    """Checks and files are work of each rank, in which it meets the others: a link may be dead there, too."""
    told, seen = FileReporter(tmp_path, 0), []

    def look():
        seen.extend((one.waiting, one.words) for one in read_reports(tmp_path))

    with reporting(told, "checking the result"):
        look()
        with reporting(told, CollectiveWork("comparing verdicts")):
            look()
            with reporting(told, "reading of a file"):
                look()
        look()
    checks = (False, "checking the result")
    assert seen == [checks, (True, "comparing verdicts"), (False, "checking the result"), checks]


def test_work_that_fails_is_no_longer_under_way(tmp_path):
    told = FileReporter(tmp_path, 0)
    with pytest.raises(ValueError, match="no such file"), reporting(told, "loading 'A'"):
        raise ValueError("no such file")
    assert [one.words for one in read_reports(tmp_path)] == [""]


def test_work_that_nobody_watches_is_done_all_the_same():
    done = []
    with reporting(None, "loading 'A'"):
        done.append("A")
    assert done == ["A"]
