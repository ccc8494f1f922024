"""What breaks in mid-run: a link dies, a rank is killed or stopped; the run ends and one line says what it was."""

import os
import signal
import subprocess
import sys
import time

import pytest

from quadrille.algorithms.formats.atomic_files import process_status
from quadrille.runtime.host.processes import state
from quadrille.runtime.host.progress_reports import read_reports
from quadrille.runtime.laboratory import namespaces
from quadrille.runtime.laboratory.register import MACHINE_REGISTER
from quadrille.runtime.launching.launch_folder import SHARED_MEMORY
from tests.support.laboratories import UNAVAILABLE_REASON, environment

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(bool(UNAVAILABLE_REASON), reason=UNAVAILABLE_REASON or "laboratories can be made"),
]
HASTY = """
import sys
from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.experiments.laboratory.laboratory_ranks import launch_in_laboratory
from quadrille.runtime.laboratory import laboratory
from quadrille.runtime.launching.hang_detection import TimeLimits
name, *command = sys.argv[1:]
with laboratory.standing(parse_laboratory("star:hosts=3", "20mbit", name=name)) as entry:
    sys.exit(launch_in_laboratory(entry, 3, command, limits=TimeLimits(stopped=1.0, standstill=5.0, start=8.0)))
"""
"""`quadrille lab run star:hosts=3 --rate 20mbit --name NAME -n 3 -- COMMAND` with short limits."""
NAME = f"f{os.getpid()}"
RUN = ["run", "--matmul", "1200,1200,1200", "--grid", "z=3", "--repeats", "500"]


def take_link_down(_ranks):
    with namespaces.socket_of(f"quadrille-{NAME}-host1") as kernel:
        kernel.link("set", index=kernel.link_lookup(ifname="eth0")[0], state="down")


def stop(ranks):
    os.kill(ranks[1].pid, signal.SIGSTOP)


def kill(ranks):
    os.kill(ranks[1].pid, signal.SIGKILL)


def ranks_under_way(running, within):
    """The progress of the ranks, once all of them are in this work; none once the launcher starts, for None."""
    deadline = time.monotonic() + 60
    while True:
        assert running.poll() is None, running.communicate()[1]
        assert time.monotonic() < deadline
        folders = list(SHARED_MEMORY.glob(f"quadrille-{running.pid}-*"))
        if folders and within is None:
            return []
        found = [one for folder in folders for one in read_reports(folder)]
        if len(found) == 3 and all(within in one.words for one in found):
            return found
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (take_link_down, "no rank has come further for 5 s: eth0 of host:1 is down; rank"),
        (stop, "rank 1 has been stopped for 1 s (SIGSTOP) "),
        (kill, "rank 1 "),
    ],
)
def test_a_run_that_breaks_ends_with_one_line_and_leaves_nothing_but_earlier_records(tmp_path, breaks, said):
    record = tmp_path / "measured.json"
    record.write_text("from before")
    line = line_of_broken([*RUN, "--json", str(record)], "'gather B'", breaks)  # which takes 1.5 s
    assert line.startswith(f"quadrille: {said}") and line.endswith("; all ranks were ended")
    assert any(f"in '{op}' (" in line for op in ("gather B", "multiply C", "barrier between runs")), line
    assert record.read_text() == "from before"


def test_a_link_that_dies_while_ranks_check_their_results_ends_the_run_and_no_record_is_written(tmp_path):
    record = tmp_path / "measured.json"
    words = ["run", "--matmul", "60000,400,400", "--grid", "z=3", "--warmups", "0", "--repeats", "1", "--verify"]
    line = line_of_broken([*words, "--json", str(record)], "checking the result", take_link_down)
    assert line.startswith("quadrille: no rank has come further for 5 s: eth0 of host:1 is down; rank"), line
    assert " in comparing verdicts" in line and line.endswith("; all ranks were ended")
    assert not record.exists()


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (take_link_down, "no rank has come further for 5 s: eth0 of host:1 is down; ranks 0, 1, 2 in microbenchmarks"),
        (kill, "rank 1 "),
    ],
)
def test_a_calibration_that_breaks_ends_with_one_line_and_writes_nothing(tmp_path, breaks, said):
    line = line_of_broken(["calibrate", "--out", str(tmp_path / "lab.toml")], "microbenchmarks", breaks)
    assert line.startswith(f"quadrille: {said}") and line.endswith("; all ranks were ended")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (take_link_down, "no rank has come further for 5 s: eth0 of host:1 is down; ranks 0, 1, 2 in starting MPI"),
        (stop, "rank 1 has been stopped for 1 s (SIGSTOP) "),
    ],
)
def test_ranks_that_break_while_they_load_or_start_mpi_end_with_one_line(breaks, said):
    line = line_of_broken(RUN, "", breaks)
    assert line.startswith(f"quadrille: {said}") and line.endswith("; all ranks were ended"), line


def stop_launcher(ranks):
    """Stop mpirun, the parent of the ranks of the first host."""
    os.kill(int(process_status(ranks[0].pid)[1]), signal.SIGSTOP)


def test_a_launcher_that_is_stopped_ends_the_run_with_one_line():
    line = line_of_broken(RUN, "'gather B'", stop_launcher)
    assert line == "quadrille: the launcher has been stopped for 1 s (SIGSTOP); all ranks were ended"


def test_ranks_that_a_dead_link_keeps_from_starting_end_with_one_line():
    line = line_of_broken(RUN, None, take_link_down)
    assert " not start the ranks; " in line or " not started for 8 s; " in line, line
    assert line.endswith("; eth0 of host:1 is down; all ranks were ended"), line


def line_of_broken(command, within, breaks):
    """The last line of a laboratory whose command is broken once all ranks are in this; nothing of it is left.

    Parameters
    ----------
    within : words of the ranks' progress; None to break before any rank starts
    """
    words = [sys.executable, "-P", "-c", HASTY, NAME, *command]
    running = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        ranks = ranks_under_way(running, within)
        breaks(ranks)
        out, err = running.communicate(timeout=30)
    finally:
        running.terminate()
        running.communicate()
    assert running.returncode == 1 and (not out or within is None), (out, err)  # mpirun tells of its daemons on stdout
    assert not any(namespaces.exists(f"quadrille-{NAME}-host{number}") for number in range(3))
    assert not MACHINE_REGISTER.path_of(NAME).exists()
    assert {state(one.pid) for one in ranks} <= {"", "Z"}
    return err.splitlines()[-1]
