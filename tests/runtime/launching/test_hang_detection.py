"""Ranks that stop are found from outside, and told by where they are."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import AllGather, Barrier, Gemm
from quadrille.runtime.host.progress_reports import (
    FORM,
    PREFIX,
    CollectiveWork,
    FileReporter,
    RankProgress,
    read_reports,
    report_start,
    reporting,
)
from quadrille.runtime.host.world import LAUNCH
from quadrille.runtime.launching.exit_status import exit_status
from quadrille.runtime.launching.hang_detection import HangDetector, TimeLimits, describe_position
from quadrille.runtime.launching.launch import launch
from quadrille.runtime.launching.launcher_output import Failure, LauncherOutput
from quadrille.runtime.launching.mpirun import Mpi
from quadrille.runtime.launching.start_progress import StartProgress
from quadrille.runtime.launching.supervise import wait_for

GATHER = AllGather(name="gather B", axis="z", source="B", into="B whole")
MULTIPLY = Gemm(name="multiply C", a="A", b="B whole", c="C")
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeping():
    """Processes that do nothing, ended afterwards."""
    started = []

    def start(words=SLEEP):
        started.append(subprocess.Popen(words, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def hasty(folder, ranks, diagnose_network=tuple, *, all_on_this_host=False):
    """A hang detector with short limits."""
    limits = TimeLimits(stopped=0.05, standstill=0.05, start=0.05)
    return HangDetector(str(folder), ranks, diagnose_network, all_on_this_host=all_on_this_host, limits=limits)


def rank_at(folder, rank, op):
    """A rank in an op."""
    told = FileReporter(folder, rank)
    told.began(op)
    return told


def other_at(folder, rank, pid, words="'gather B' (all_gather over z)"):
    """A rank of another process in an op."""
    (folder / f"{PREFIX}{rank}").write_bytes(FORM.pack(rank, pid, 2, False, words.encode()))


def seen_soon(watch):
    watch.seen()
    time.sleep(0.1)
    return watch.seen()


def test_a_rank_tells_the_op_that_it_is_in_and_counts_its_steps(tmp_path):
    told = FileReporter(tmp_path, 3)
    (before,) = read_reports(tmp_path)
    assert (before.rank, before.pid, before.waiting, before.words) == (3, os.getpid(), False, "")
    told.began(GATHER)
    told.stepped()
    (within,) = read_reports(tmp_path)
    assert (within.waiting, within.words) == (True, "'gather B' (all_gather over z)")
    assert within.count > before.count
    told.began(MULTIPLY)
    assert [(one.waiting, one.words) for one in read_reports(tmp_path)] == [(False, "'multiply C' (gemm)")]
    told.ended(MULTIPLY)
    assert [(one.waiting, one.words) for one in read_reports(tmp_path)] == [(True, within.words)]
    told.ended(GATHER)
    assert [(one.waiting, one.words) for one in read_reports(tmp_path)] == [(False, "")]


def test_a_rank_that_is_stopped_is_named_with_its_op(tmp_path, sleeping):
    process = sleeping()
    rank_at(tmp_path, 0, GATHER)
    other_at(tmp_path, 1, process.pid, "'multiply C' (gemm)")
    assert seen_soon(hasty(tmp_path, 2)) == ""
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.05)
    assert "rank 1 has been stopped for" in (line := seen_soon(hasty(tmp_path, 2)))
    assert line.endswith("in 'multiply C' (gemm)")


@pytest.mark.parametrize(("ranks", "here", "noticed"), [(2, True, True), (2, False, False), (1, True, False)])
def test_a_process_that_is_stopped_before_it_has_reported_is_noticed(tmp_path, ranks, here, noticed):
    """Unless all ranks have reported, or may be elsewhere."""
    rank_at(tmp_path, 0, GATHER)
    with subprocess.Popen(["sleep", "60"], env={"QUADRILLE_LAUNCH": str(tmp_path)}) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        line = seen_soon(hasty(tmp_path, ranks, all_on_this_host=here))
        process.kill()
    assert line.startswith("a process that starts a rank has been stopped for") == noticed


def test_ranks_that_all_wait_are_reported_with_what_may_be_wrong(tmp_path):
    for rank in range(3):
        rank_at(tmp_path, rank, GATHER)
    FileReporter(tmp_path, 3).stepped()
    watch = hasty(tmp_path, 4, lambda: ["eth0 of host:2 is down"])
    line = seen_soon(watch)
    assert line.startswith("no rank has come further for 0.05 s: eth0 of host:2 is down; ")
    assert line.endswith("ranks 0, 1, 2 in 'gather B' (all_gather over z); rank 3 at its end")


def test_ranks_of_which_one_computes_or_steps_are_left_alone(tmp_path):
    waiting = rank_at(tmp_path, 0, GATHER)
    computing = rank_at(tmp_path, 1, MULTIPLY)
    watch = hasty(tmp_path, 2)
    assert seen_soon(watch) == ""
    computing.ended(MULTIPLY)
    for _ in range(3):
        waiting.stepped()
        assert watch.seen() == ""
        time.sleep(0.06)


def test_a_rank_that_loads_while_the_others_wait_for_it_is_left_alone(tmp_path):
    rank_at(tmp_path, 0, Barrier(name="barrier between runs", axis="z"))
    told, watch = FileReporter(tmp_path, 1), hasty(tmp_path, 2)
    with reporting(told, "loading 'A'"):
        assert seen_soon(watch) == ""
        assert [describe_position(one) for one in read_reports(tmp_path)][1] == "in loading 'A'"
    assert seen_soon(watch).endswith(": rank 0 in 'barrier between runs' (barrier over z); rank 1 at its end")


def test_ranks_that_wait_for_others_that_nobody_sees_are_left_alone(tmp_path):
    """Ranks on other hosts leave no word here, and may be at work."""
    rank_at(tmp_path, 0, Barrier(name="barrier between runs", axis="z"))
    assert seen_soon(hasty(tmp_path, 2)) == ""
    assert "rank 0 in 'barrier between runs'" in seen_soon(hasty(tmp_path, 1))


def test_a_rank_that_has_not_started_is_named_where_all_ranks_are_on_this_host(tmp_path):
    for rank in (0, 2):
        FileReporter(tmp_path, rank)
    assert seen_soon(hasty(tmp_path, 3)) == ""
    watch = hasty(tmp_path, 3, lambda: ["eth0 of host:1 is down"], all_on_this_host=True)
    assert seen_soon(watch) == "rank 1 has not started for 0.05 s; eth0 of host:1 is down"
    FileReporter(tmp_path, 1)
    assert watch.seen() == ""
    many = hasty(tmp_path, 9, all_on_this_host=True)
    assert seen_soon(many) == "ranks 3, 4, 5, 6 and more have not started for 0.05 s"


def test_ranks_that_load_their_programs_while_others_start_mpi_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(LAUNCH, str(tmp_path))
    tmp_path.chmod(0o700)
    for rank in range(2):
        monkeypatch.setenv("PMIX_RANK", str(rank))
        report_start()
    assert [(one.rank, one.pid, one.count) for one in read_reports(tmp_path)] == [
        (0, os.getpid(), 0),
        (1, os.getpid(), 0),
    ]
    watch = hasty(tmp_path, 2, all_on_this_host=True)
    starting = CollectiveWork("starting MPI")
    rank_at(tmp_path, 0, starting)
    assert seen_soon(watch) == ""
    rank_at(tmp_path, 1, starting)
    assert seen_soon(watch).endswith(": ranks 0, 1 in starting MPI")


def test_ranks_that_wait_for_each_other_in_no_op_are_reported_too(tmp_path):
    for rank in range(2):
        rank_at(tmp_path, rank, CollectiveWork("microbenchmarks"))
    assert seen_soon(hasty(tmp_path, 2)).endswith(": ranks 0, 1 in microbenchmarks")


def test_nobody_is_accused_where_nobody_tells_anything(tmp_path):
    assert seen_soon(hasty(tmp_path, 2)) == ""


def test_ranks_are_remembered_in_the_order_in_which_they_are_gone(tmp_path, sleeping):
    launcher, *ranks = (sleeping() for _ in range(4))
    for number, process in enumerate(ranks):
        other_at(tmp_path, number, process.pid)
    watch = HangDetector(str(tmp_path), 2)
    watch.rest(0.01, launcher)
    assert watch.gone == []
    ranks[1].kill()
    watch.rest(5.0, launcher)
    ranks[0].kill()
    watch.rest(5.0, launcher)
    assert watch.gone == [[Failure(rank=1, signal=signal.SIGKILL)], [Failure(rank=0, signal=signal.SIGKILL)]]
    watch.close()


def test_a_rank_that_leaves_its_first_word_is_watched_at_once(tmp_path, sleeping):
    """The launcher ends after 60 s: a wait that ends while the launcher lives was ended by the report."""
    launcher, rank = sleeping(), sleeping()
    watch = HangDetector(str(tmp_path), 2)
    watch.rest(0.01, launcher)
    telling = threading.Timer(0.1, lambda: FileReporter(tmp_path, 0))
    telling.start()
    watch.rest(300.0, launcher)
    assert launcher.poll() is None
    telling.join()
    other_at(tmp_path, 1, rank.pid)
    watch.rest(0.01, launcher)
    rank.kill()
    watch.rest(30.0, launcher)
    assert watch.gone == [[Failure(rank=1, signal=signal.SIGKILL)]]
    watch.close()


def test_ranks_that_were_gone_before_anybody_looked_are_noted_if_they_were_amid_work(tmp_path, sleeping):
    launcher, within, at_its_end = sleeping(), sleeping(), sleeping()
    for rank in (within, at_its_end):
        rank.kill()
        rank.wait()
    other_at(tmp_path, 1, within.pid)
    other_at(tmp_path, 2, at_its_end.pid, "")
    watch = HangDetector(str(tmp_path), 2)
    watch.rest(30.0, launcher)
    assert watch.gone == [[Failure(rank=1)]]
    watch.rest(0.0, launcher)
    assert len(watch.gone) == 1
    watch.close()


def test_a_rank_that_is_gone_with_its_launcher_is_noted(tmp_path, sleeping):
    launcher, watch = sleeping([sys.executable, "-c", "import time; time.sleep(0.3)"]), HangDetector(str(tmp_path), 2)
    rank = sleeping()
    rank.kill()
    rank.wait()
    last_word = threading.Timer(0.1, lambda: other_at(tmp_path, 0, rank.pid))
    watch.rest(0.01, launcher)
    launcher.wait()
    last_word.run()
    assert wait_for(launcher, LauncherOutput(), watch, StartProgress(str(tmp_path), 2, 2)) == 0
    assert watch.gone == [[Failure(rank=0)]]
    watch.close()


@pytest.mark.parametrize("known", [signal.SIGKILL, None])
def test_who_was_ended_by_the_launcher_is_not_the_culprit(known):
    output = LauncherOutput()
    output.gone = [[Failure(rank=0, signal=signal.SIGTERM)], [Failure(rank=1, signal=known)]]
    assert output.culprit().rank == 1
    output.gone = output.gone[:1]
    assert output.culprit().rank == 0


def test_launcher_output_in_the_middle_of_a_rank_s_line_is_separated():
    """Rank 0 gave up, and rank 1 was ended before it: the launcher's remark came before the end of rank 0's line."""
    output, rule = LauncherOutput(), "-" * 74 + "\n"
    output.gone = [[Failure(rank=1, signal=signal.SIGTERM)]]
    assert output.feed(f"quadrille: ranks=2, start 3{rule}") == ["quadrille: ranks=2, start 3\n"]
    assert output.feed("MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\n") == []
    assert output.feed("  Proc: [[1,1],0]\n  Errorcode: 2\n") == output.feed(rule) == []
    assert output.culprit() == Failure(rank=0, status=2)
    assert LauncherOutput().feed("a -- b\n") == ["a -- b\n"]


def test_who_ended_because_another_was_gone_is_not_the_culprit():
    output = LauncherOutput()
    output.gone = [[Failure(rank=0)], [Failure(rank=2)], [Failure(rank=1)]]
    assert output.culprit().rank == 0
    output.feed("[lab-host0:00000] *** reported by process [11075585,0]\n")
    assert output.culprit().line("in 'gather B'") == "rank 2 is gone in 'gather B'; all ranks were ended"
    output.gone.append([Failure(rank=3, signal=9)])
    assert output.culprit().rank == 3


def test_of_ranks_that_were_found_gone_together_only_one_that_is_unlike_the_others_is_the_culprit():
    output = LauncherOutput()
    output.gone = [[Failure(rank=0), Failure(rank=1, signal=9), Failure(rank=2, signal=15)]]
    assert output.culprit() == Failure(rank=1, signal=9)
    output.gone = [[Failure(rank=0), Failure(rank=1)], [Failure(rank=2)]]
    assert output.culprit() == Failure()
    output.gone = [[Failure(rank=0, signal=9), Failure(rank=1, signal=9)]]
    assert output.culprit() == Failure(signal=9)
    output.feed("[lab-host0:00000] *** reported by process [11075585,0]\n")
    assert output.culprit() == Failure(rank=1, signal=9)
    output.gone = [[Failure(rank=2, signal=signal.SIGTERM)]]
    assert output.culprit() is None


RANKS = [RankProgress(rank, 1, 2, True, "'gather B' (all_gather over z)") for rank in range(2)]
PRTERUN = Mpi("Open MPI", "5.0.11")


@pytest.mark.parametrize(
    ("status", "remark", "said"),
    [
        (14, "reported by process [11075585,0]", "a rank is gone"),
        (255, "the launcher has ended", "a rank ended with exit status 255"),
        (139, "the launcher has ended", "a rank was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_ranks_that_left_word_did_start_whatever_the_launcher_says(capsys, status, remark, said):
    output = LauncherOutput()
    assert output.feed(f"[lab-host0:00000] *** {remark}\n") == []
    assert exit_status(status, output, PRTERUN, [], RANKS) == 1
    where_all_are = "(ranks 0, 1 in 'gather B' (all_gather over z))"
    assert capsys.readouterr().err == f"quadrille: {said} {where_all_are}; all ranks were ended\n"
    with pytest.raises(InputError, match="did not start the ranks"):
        exit_status(status, output, PRTERUN, [])
    assert exit_status(status, output, PRTERUN, [], diagnose_network=lambda: ["eth0 of host:1 is down"]) == 1
    assert capsys.readouterr().err == (
        "quadrille: Open MPI 5.0.11 did not start the ranks; eth0 of host:1 is down; all ranks were ended\n"
    )


def test_a_program_that_failed_did_start_although_the_launcher_only_warned(capsys):
    """mpirun says nothing of a rank's exit status when it ends amid a warning of its own."""
    output = LauncherOutput()
    output.feed(
        "[lab-host0:05945] plm:ssh: Warning: setpgid(5949,5949) failed in parent with errno=Permission denied(13)\n"
    )
    started = [RankProgress(rank, 1, 0, False, "") for rank in range(2)]
    assert exit_status(3, output, PRTERUN, [], started) == 1
    assert capsys.readouterr().err == "quadrille: a rank ended with exit status 3; all ranks were ended\n"


def test_a_warning_within_the_launchers_frame_hides_no_exit_status():
    output, rule = LauncherOutput(), "-" * 76 + "\n"
    warning = "[lab-host0:05945] plm:ssh: Warning: setpgid(5949,5949) failed in parent\n"
    frame = [
        "mpirun detected that a process exited:\n",
        "  Process name: [prterun-1@1,1]\n",
        warning,
        "  Exit code:    3\n",
    ]
    assert [output.feed(line) for line in (rule, *frame, rule)] == [[]] * 6
    assert output.culprit() == Failure(rank=1, status=3)


KILLED_AT_ONCE = """
import os, sys
import numpy as np
from mpi4py import MPI
from quadrille.algorithms.schedule.ops import Barrier
from quadrille.runtime.host.progress_reports import own_reporter
world = MPI.COMM_WORLD
mine, all_of_it = np.zeros(100000), np.zeros((world.size, 100000))
world.Allgather(mine, all_of_it)
own_reporter().began(Barrier(name="meet", axis="z"))
world.Barrier()
if world.rank == 1:
    os.kill(os.getpid(), 9)
while True:
    world.Allgather(mine, all_of_it)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("_", range(6))
def test_a_rank_that_is_killed_at_its_first_word_ends_a_run_in_one_line_that_blames_no_other(capfd, monkeypatch, _):
    """Over TCP another rank often ends all before the launcher hears of it."""
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")
    assert launch(3, [], program=("-c", KILLED_AT_ONCE)) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert re.match(r"quadrille: (rank 1|a rank) (is gone|was killed by signal 9 \(SIGKILL\)) \W*(in|rank)", line), line
    assert "in 'meet' (barrier over z)" in line and line.endswith("; all ranks were ended")


SLOW_AFTER_THE_RUN = """
import sys, time
from quadrille.cli.main import main
from quadrille.experiments.measure.matmul_job import MatmulJob

def late(verb, rank):
    def slowly(job, execution, site):
        time.sleep(2.6 if site.communicator.rank == rank else 0)
        return verb(job, execution, site)
    return slowly

MatmulJob.verified, MatmulJob.write = late(MatmulJob.verified, 1), late(MatmulJob.write, 0)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.mpi
def test_a_rank_that_verifies_or_writes_for_long_is_waited_for(capfd, tmp_path):
    """The others have left their schedules by then, so that none of them waits in an op."""
    words = ["run", "--matmul", "30,30,30", "--grid", "z=2", "--verify", "--c", str(tmp_path / "c.npy")]
    assert launch(2, words, program=("-c", SLOW_AFTER_THE_RUN), limits=TimeLimits(standstill=2.0)) == 0
    assert "verified: " in capfd.readouterr().out and (tmp_path / "c.npy").exists()


def test_a_launcher_that_ends_gives_its_exit_status(tmp_path, sleeping):
    launcher = sleeping([sys.executable, "-c", "import sys, time; time.sleep(0.2); sys.exit(7)"])
    assert wait_for(launcher, LauncherOutput(), HangDetector(str(tmp_path), 2), StartProgress(str(tmp_path), 2, 2)) == 7
