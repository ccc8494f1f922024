"""The session on a GPU, tried without one: order, limits, results and resumption, with programs instead of it."""

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import provenance
from quadrille.studies.gpu import session as gpu_session
from quadrille.studies.gpu.session import (
    SCHEMA,
    Session,
    SessionSummary,
    main,
    open_session,
    run_step,
    status_of,
    steps_named,
)
from quadrille.studies.gpu.session_parts import PARTS
from quadrille.studies.gpu.session_steps import STEPS, TESTS, SessionStep
from quadrille.topologies.machines.machine_file import load_machine
from tests.support.fake_device import AS_A_MODULE
from tests.support.quadrille import ROOT

MADE = provenance(["test"])


@dataclass(frozen=True)
class Program:
    """A step that is a few lines of Python."""

    name: str
    code: str
    limit_seconds: float = 30.0
    least_seconds: float = 1.0

    @property
    def is_test(self):
        return self.name.startswith("test_")

    def command_line(self, folder, options=()):
        return [sys.executable, "-c", self.code, folder, *options]


def session(folder, seconds=60.0, **more):
    return Session(folder, (), time.monotonic() + seconds, MADE, "a GPU", **more)


def statuses(ran):
    return {name: one.status for name, one in ran.results.items()}


def summary(folder):
    return schema_files.read(folder / "summary.json", SessionSummary, SCHEMA)


def test_every_gpu_test_and_every_part_is_a_step_and_nothing_else_is():
    tree = ast.parse((ROOT / TESTS).read_text())
    functions = [one.name for one in tree.body if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")]
    assert sorted(step.name for step in STEPS) == sorted([*functions, *PARTS])
    marked = {path.name for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu\n" in path.read_text()}
    assert marked == {Path(TESTS).name}


def test_the_device_comes_first_and_a_part_after_those_whose_results_it_reads():
    names = [step.name for step in STEPS]
    assert names[0] == "device" and names.index("ranks") > max(map(names.index, ("streams", "products", "staged")))


def test_every_step_has_a_limit_and_no_step_can_take_the_whole_session():
    assert all(0 < step.least_seconds <= step.limit_seconds <= 100 for step in STEPS)
    assert sum(step.least_seconds for step in STEPS) < 60 * gpu_session.MINUTES


def test_steps_are_run_by_this_python_and_name_one_test_function_each():
    words = SessionStep("test_of_something", 10).command_line("somewhere")
    assert words[0] == sys.executable and words[-1] == f"{TESTS}::test_of_something"
    assert "filterwarnings=default" in words, "warnings of another machine's libraries fail no test"


def test_a_hanging_step_is_killed_with_its_children_and_what_it_said_is_kept(tmp_path):
    child = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    code = child + "; import time; time.sleep(600)"
    status, told = run_step([sys.executable, "-c", code], 2.0, tmp_path / "log.txt")
    assert status is None
    deadline = time.monotonic() + 5
    while Path(f"/proc/{int(told)}").exists() and not _is_zombie(int(told)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{int(told)}").exists() or _is_zombie(int(told))
    assert told in (tmp_path / "log.txt").read_text()


def _is_zombie(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_a_step_that_will_not_end_when_it_is_told_to_is_killed(tmp_path):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    assert run_step([sys.executable, "-c", deaf], 1.0, tmp_path / "log.txt", grace_seconds=0.5) == (None, "")


def test_after_a_hang_a_crash_and_a_failure_the_next_step_is_run(tmp_path):
    ran = session(tmp_path)
    ran.run(
        [
            Program("hangs", "import time; time.sleep(600)", limit_seconds=1.0),
            Program("crashes", "import os; os.abort()"),
            Program("fails", "import sys; print('the reason'); sys.exit(1)"),
            Program("works", "print('well')"),
        ]
    )
    assert statuses(ran) == {"hangs": "timed out", "crashes": "failed", "fails": "failed", "works": "passed"}
    assert ran.results["fails"].detail == "the reason" and ran.results["works"].detail == ""
    assert summary(tmp_path).steps == tuple(ran.results.values())


def test_without_the_device_no_other_step_is_run(tmp_path, capsys):
    ran = session(tmp_path)
    ran.run([Program("device", "import sys; sys.exit('no CUDA device')"), Program("streams", "")])
    assert statuses(ran) == {"device": "failed"} and "no CUDA device" in capsys.readouterr().out


def test_outcomes_of_tests_are_read_as_they_come_so_that_those_before_a_hang_are_known(tmp_path):
    lines = "tests/a.py::test_b[1-x] PASSED [ 50%]\ntests/a.py::test_b[of two words] FAILED [100%]\n"
    code = f"import time; print({lines!r}, flush=True); time.sleep(600)"
    ran = session(tmp_path)
    ran.run([Program("test_b", code, limit_seconds=2.0)])
    assert ran.results["test_b"].status == "timed out"
    assert ran.results["test_b"].tests == {"test_b[1-x]": "PASSED", "test_b[of two words]": "FAILED"}
    assert status_of(0, lines.replace("FAILED", "SKIPPED")) == "passed"


def test_a_step_gets_no_more_than_is_left_and_is_left_out_where_that_is_too_little(tmp_path):
    clock = iter([0.0, 0.0, 25.0, 25.0, 25.0, 25.0, 25.0])
    ran = session(tmp_path, now=lambda: next(clock))
    ran.end = 30.0
    ran.run([Program("first", "", limit_seconds=90.0), Program("late", "", least_seconds=10.0)])
    assert statuses(ran) == {"first": "passed", "late": "left out"}
    assert ran.results["first"].limit_seconds == 30.0 and ran.results["first"].seconds == 25.0


def test_a_second_session_runs_only_what_has_not_passed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_session, "driver_facts", lambda: {"name": "a GPU"})
    steps = [
        Program(name, f"import sys; open(sys.argv[1] + '/{name}', 'a').write('x'); sys.exit({status})")
        for name, status in (("a", 0), ("b", 1))
    ]
    for _ in range(2):
        open_session(tmp_path, MADE, (), 1.0).run(steps)
    assert (tmp_path / "a").read_text() == "x" and (tmp_path / "b").read_text() == "xx"
    assert "(earlier)" in capsys.readouterr().out


def test_results_of_another_gpu_are_not_added_to(tmp_path, monkeypatch):
    session(tmp_path).save()
    monkeypatch.setattr(gpu_session, "driver_facts", lambda: {"name": "another"})
    with pytest.raises(InputError, match="holds results of 'a GPU', and this is 'another'"):
        open_session(tmp_path, MADE, (), 1.0)


KILLED = """
import sys, time
from pathlib import Path
from tests.studies.gpu.test_session import Program, session
ran = session(Path(sys.argv[1]))
slow = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
ran.run([Program("quick", "print('done')"), Program("slow", slow)])
"""


def test_a_killed_session_leaves_the_results_it_had_and_no_process(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, env=environment)
    log = tmp_path / "log.txt"
    deadline = time.monotonic() + 60
    while (
        not (log.exists() and log.read_text().rstrip().rpartition("\n")[2].isdecimal()) and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    slow = int(log.read_text().rstrip().rpartition("\n")[2])
    process.kill()
    process.wait()
    assert [(one.name, one.status) for one in summary(tmp_path).steps] == [("quick", "passed")]
    while Path(f"/proc/{slow}").exists() and not _is_zombie(slow) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{slow}").exists() or _is_zombie(slow)


def test_a_session_that_is_told_to_end_ends_its_step_and_shows_what_it_has(tmp_path, monkeypatch, capsys):
    steps = [
        Program("quick", ""),
        Program("told", f"import os, time; os.kill({os.getpid()}, {int(signal.SIGTERM)}); time.sleep(600)"),
    ]
    monkeypatch.setattr(gpu_session, "STEPS", steps)
    monkeypatch.setattr(gpu_session, "steps_named", lambda names: steps)
    assert main([str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "quick" in shown.out and "1 of 2 steps passed; 1 not reached" in shown.err


def test_names_of_steps_are_checked():
    assert [step.name for step in steps_named("")] == [step.name for step in STEPS]
    with pytest.raises(InputError, match="no step is called nothing"):
        steps_named("nothing,device")


@pytest.fixture
def fake_cupy(tmp_path, monkeypatch):
    """Processes that are started find the fake under CuPy's name."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "cupy.py").write_text(AS_A_MODULE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))


@pytest.mark.mpi
def test_parts_and_tests_of_a_session_run_on_a_fake_gpu_and_leave_dated_files(fake_cupy, tmp_path, capsys, monkeypatch):
    patient = [replace(step, limit_seconds=600.0) for step in STEPS]  # this machine may be at other work
    monkeypatch.setattr(gpu_session, "steps_named", lambda names: steps_named(names, patient))
    folder, test = tmp_path / "results", "test_windows_sums_copies_and_zeros_are_right"
    names = ["device", test, "executor", "streams", "products", "ranks"]
    status = main([str(folder), "--tiny", "--minutes", "30", "--commit", "abc123", "--only", ",".join(names)])
    shown = capsys.readouterr()
    assert status == 0, shown.out + (folder / "log.txt").read_text()
    assert [(one.name, one.status) for one in summary(folder).steps] == [(name, "passed") for name in names]
    assert len(summary(folder).steps[1].tests) == 4
    assert "Fake GPU" in shown.out and "16,16,16 on ranks that share the GPU" in shown.out
    found = {path.name: path for path in folder.iterdir()}
    assert set(found) == {
        "calibration.json", "executor.json", "gpu.json", "log.txt", "machine.toml", "ranks.json", "summary.json",
    }  # fmt: skip
    for name in ("calibration.json", "executor.json", "gpu.json", "ranks.json", "summary.json"):
        made = json.loads(found[name].read_text())["made"]
        assert made["date"] and made["versions"]["commit"] == "abc123", name
    assert load_machine(str(found["machine.toml"])).provenance.versions["commit"] == "abc123"
    assert [run["verified"] for run in json.loads(found["ranks.json"].read_text())["runs"]] == [True] * 6


def test_where_there_is_no_gpu_the_session_says_so_and_ends_at_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "cupy.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert main([str(tmp_path / "results")]) == 1
    shown = capsys.readouterr()
    assert "CuPy cannot be imported" in shown.out and f"0 of {len(STEPS)} steps passed; failed: device" in shown.err
