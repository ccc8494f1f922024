"""The GPU session, `make gpu-all`: all GPU tests and GPU benchmarks of the project in one command of some minutes.

python -m quadrille.studies.gpu.session FOLDER [--minutes M] [--commit TEXT] [--only NAME,…] [--tiny]

Each step (`session_steps.py`) is a process with a time limit, so that a step that hangs or crashes does not stop the
next step.  After each step the session rewrites `summary.json`; the output of the steps goes to `log.txt`.  A killed
session therefore keeps its results.  The same command with the same folder resumes: steps that have passed are not run
again.  The folder gets at most seven files.
"""

import argparse
import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Group

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import ROOT, Provenance, provenance
from quadrille.experiments.output.tables import duration, print_tables, table
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.runtime.host.processes import end_with_parent
from quadrille.runtime.launching.supervise import signal_group, signals_as_interrupts
from quadrille.studies.gpu import calibration
from quadrille.studies.gpu.calibration import Calibration
from quadrille.studies.gpu.report import calibration_tables, executed_table, shared_table, summary_of
from quadrille.studies.gpu.session_parts import (
    CALIBRATION,
    EXECUTOR,
    GPU,
    RANKS,
    ExecutedRunsFile,
    GpuFacts,
    SharedRunsFile,
    driver_facts,
)
from quadrille.studies.gpu.session_parts import SCHEMA as PART_SCHEMA
from quadrille.studies.gpu.session_steps import STEPS, SessionStep

SCHEMA = "quadrille/gpu-summary/1"
DEVICE_STEP = "device"
"""The step without which no other is run."""
SUMMARY, LOG = "summary.json", "log.txt"
MINUTES = 8.0
GRACE_SECONDS = 6.0
"""Time between SIGTERM and SIGKILL to a step, in which it ends its ranks [s]."""
DETAIL_LINES = 40
"""Number of last output lines of a failed step that the summary keeps."""
OUTCOME = re.compile(r"^\S+\.py::(.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)
"""One test's line in the output of `pytest -v`."""

Status = Literal["passed", "failed", "timed out", "skipped", "left out"]


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step.

    Parameters
    ----------
    name : name of the step
    status : `skipped` if pytest skipped all tests of the step; `left out` if too little session time was left
    date : start of the step (ISO 8601, UTC)
    seconds : duration [s]
    limit_seconds : time limit that applied [s]
    tests : outcome of each test by its name and parameters; empty for a benchmark
    detail : last output lines of a step that did not pass
    """

    name: str
    status: Status
    date: str
    seconds: float
    limit_seconds: float
    tests: dict[str, str] = {}
    detail: str = ""


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a session, as `summary.json` has them.

    Parameters
    ----------
    device : name of the GPU
    provenance : command, date and versions of the session
    steps : results of the steps that have run
    """

    device: str
    provenance: Provenance = msgspec.field(name="made")
    steps: tuple[StepResult, ...] = ()


@dataclass
class Session:
    """A running session, and the results of its steps.

    Parameters
    ----------
    folder : folder of the results
    options : command-line options of every benchmark
    end : end of the session on the clock `now` [s]
    provenance : command, date and versions of the session
    device : name of the GPU
    now : clock [s]
    results : result of each step by its name
    """

    folder: Path
    options: tuple[str, ...]
    end: float
    provenance: Provenance
    device: str
    now: Callable[[], float] = time.monotonic
    results: dict[str, StepResult] = field(default_factory=dict)

    def seconds_left(self) -> float:
        """Seconds until the session ends."""
        return self.end - self.now()

    def run(self, steps: Sequence[SessionStep]) -> None:
        """Run the steps that have not passed, and write the summary after each step.

        The session stops after step `device` if `device` does not pass.
        """
        for step in steps:
            before = self.results.get(step.name)
            if before is None or before.status not in ("passed", "skipped"):
                self.results[step.name] = self.result(step)
                self.save()
            print(status_line(self.results[step.name], again=before is self.results[step.name]), flush=True)
            if step.name == DEVICE_STEP and self.results[step.name].status != "passed":
                return

    def result(self, step: SessionStep) -> StepResult:
        """Run one step now and return its result; a step for which too little time is left is left out."""
        limit = min(step.limit_seconds, self.seconds_left())
        date, start, output = datetime.now(UTC).isoformat(timespec="seconds"), self.now(), ""
        status: Status = "left out"
        if limit >= min(step.least_seconds, step.limit_seconds):
            exit_status, output = run_step(step.command_line(str(self.folder), self.options), limit, self.folder / LOG)
            status = status_of(exit_status, output if step.is_test else "")
        return StepResult(
            name=step.name,
            status=status,
            date=date,
            seconds=round(self.now() - start, 2),
            limit_seconds=limit,
            tests=dict(OUTCOME.findall(output)) if step.is_test else {},
            detail="" if status == "passed" else "\n".join(output.splitlines()[-DETAIL_LINES:]),
        )

    def save(self) -> None:
        """Write the summary of the steps so far."""
        summary = SessionSummary(device=self.device, provenance=self.provenance, steps=tuple(self.results.values()))
        schema_files.write_json(self.folder / SUMMARY, summary, SCHEMA)


def status_of(exit_status: int | None, output: str) -> Status:
    """The status of a step, from the exit status of its process and the outcomes of its tests.

    Parameters
    ----------
    exit_status : exit status of the process; None if it exceeded its time limit and was killed
    output : output of `pytest -v`; empty for a benchmark

    >>> status_of(0, ""), status_of(1, ""), status_of(None, "")
    ('passed', 'failed', 'timed out')
    >>> status_of(0, "tests/test_gpu.py::test_of_nccl SKIPPED (no NCCL)")
    'skipped'
    """
    if exit_status is None:
        return "timed out"
    outcomes = {outcome for _, outcome in OUTCOME.findall(output)}
    return "failed" if exit_status else "skipped" if outcomes == {"SKIPPED"} else "passed"


def run_step(
    command_line: Sequence[str], limit_seconds: float, log: Path, grace_seconds: float = GRACE_SECONDS
) -> tuple[int | None, str]:
    """Run a process to its end or to its time limit, and append its output to a log.

    The process gets a process group of its own, and SIGTERM when this program dies.

    Parameters
    ----------
    command_line : program and arguments
    limit_seconds : time limit [s]
    log : log file; it is created if it does not exist
    grace_seconds : time from SIGTERM to SIGKILL for a process that is past its limit

    Returns
    -------
    The exit status, or None if the process was killed at its limit; and its output.
    """
    with log.open("ab") as log_file:
        log_file.write(f"\n$ {' '.join(command_line)}\n".encode())
        log_file.flush()
        start = log_file.tell()
        process = subprocess.Popen(
            command_line,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - no thread of ours runs
        )
        try:
            status = _wait(process, limit_seconds)
        finally:
            _end_group(process, grace_seconds)
    return status, log.read_bytes()[start:].decode(errors="replace")


def _wait(process: subprocess.Popen[bytes], limit_seconds: float) -> int | None:
    """The exit status of the process, or None after `limit_seconds`."""
    try:
        return process.wait(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        return None


def _end_group(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """End a process and its group, ranks included: SIGTERM, and SIGKILL after `grace_seconds`."""
    if process.poll() is None:
        signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_seconds)
    signal_group(process.pid, signal.SIGKILL)
    process.wait()


def status_line(result: StepResult, *, again: bool = False) -> str:
    """The console line of a step's result; `again` marks the result of an earlier session."""
    reason = failure_reason(result.detail) if result.status in ("failed", "timed out") else ""
    cells = [f"{result.status:10}", f"{result.seconds:6.1f} s", result.name, *([f"({reason})"] if reason else [])]
    return "  ".join([*cells, "(earlier)"] if again else cells)


def failure_reason(detail: str) -> str:
    r"""The line of a step's output that tells why it failed: pytest's line of the first failed test, or the last line.

    >>> failure_reason("E  assert 1 == 2\nFAILED a.py::test_b - assert 1 == 2\n=== 1 failed ===")
    'FAILED a.py::test_b - assert 1 == 2'
    """
    lines = [line for line in detail.splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return [*failed, *lines[-1:], ""][0]


def open_session(folder: Path, provenance: Provenance, options: Sequence[str], minutes: float) -> Session:
    """The session in a folder, with the results of an earlier session on the same GPU.

    Parameters
    ----------
    folder : folder of the results; it is created if it does not exist
    provenance : command, date and versions of the session
    options : command-line options of every benchmark
    minutes : time limit of the session [min]

    Raises
    ------
    InputError : a folder that holds results of another GPU, or that cannot be created
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from None
    device = driver_facts().get("name", "")
    session = Session(folder.resolve(), tuple(options), time.monotonic() + 60 * minutes, provenance, device)
    if (folder / SUMMARY).exists():
        earlier = schema_files.read(folder / SUMMARY, SessionSummary, SCHEMA)
        if earlier.device != device:
            raise InputError(f"{folder} holds results of {earlier.device!r}, and this is {device!r}: name another")
        session.results = {result.name: result for result in earlier.steps}
    return session


def show(session: Session) -> None:
    """Print the tables of the benchmarks and the table of the steps."""
    print_tables(*result_tables(session.folder), steps_table(list(session.results.values())))


def result_tables(folder: Path) -> Iterator[Group]:
    """The short tables of the benchmarks that have results in the folder; `log.txt` has all rows."""
    if (path := folder / GPU).exists():
        facts = schema_files.read(path, GpuFacts, PART_SCHEMA)
        facts_of_run = {**facts.driver, **facts.versions, **facts.provenance.versions}
        yield table(facts.device, ["what", "it is"], [(name, str(value)) for name, value in facts_of_run.items()])
    if (path := folder / CALIBRATION).exists():
        yield from calibration_tables(summary_of(schema_files.read(path, Calibration, calibration.SCHEMA)))
    if (path := folder / EXECUTOR).exists():
        yield executed_table(schema_files.read(path, ExecutedRunsFile, PART_SCHEMA).runs)
    if (path := folder / RANKS).exists():
        yield shared_table(schema_files.read(path, SharedRunsFile, PART_SCHEMA).runs)


def steps_table(results: Sequence[StepResult]) -> Group:
    """The table of the steps, with the number of tests by outcome."""
    rows = [(result.name, result.status, _counts(result.tests), duration(result.seconds)) for result in results]
    return table("Steps", ["step", "status", "tests", "time"], rows, names=3)


def _counts(tests: dict[str, str]) -> str:
    """The number of tests by outcome as text: `3 passed, 1 skipped`."""
    outcomes = list(tests.values())
    return ", ".join(f"{outcomes.count(outcome)} {outcome.lower()}" for outcome in dict.fromkeys(outcomes))


def steps_named(names: str, steps: Sequence[SessionStep] = STEPS) -> list[SessionStep]:
    """The steps with these names, in the order of the session.

    Parameters
    ----------
    names : names with commas between them; all steps if empty
    steps : all steps of the session

    >>> [step.name for step in steps_named("streams,device")]
    ['device', 'streams']

    Raises
    ------
    InputError : a name that no step has
    """
    wanted_names = names.split(",") if names else [step.name for step in steps]
    if unknown := set(wanted_names) - {step.name for step in steps}:
        raise InputError(f"--only {names}: no step is called {', '.join(sorted(unknown))}")
    return [step for step in steps if step.name in wanted_names]


def main(command_line: Sequence[str], all_steps: Sequence[SessionStep] = STEPS) -> int:
    """Run the session and return its exit status: 0 if every step passed, otherwise 1.

    Parameters
    ----------
    command_line : words of the command, such as `FOLDER --only device,streams`
    all_steps : all steps of the session, in order
    """
    parser = argparse.ArgumentParser(prog="gpu-all", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--commit", default="", help="commit of this tree, where git cannot tell")
    parser.add_argument("--only", default="", help="names of the steps to run, with commas between them")
    parser.add_argument("--tiny", action="store_true", help="sizes for trying the session without a GPU")
    arguments = parser.parse_args(command_line)
    steps = steps_named(arguments.only, all_steps)
    commit = {"commit": arguments.commit} if arguments.commit else {}
    options = [*(["--commit", arguments.commit] if arguments.commit else []), *(["--tiny"] if arguments.tiny else [])]
    origin = provenance(["python", "-m", "quadrille.studies.gpu.session", *command_line], **commit)
    session = open_session(arguments.folder, origin, options, arguments.minutes)
    with signals_as_interrupts(), contextlib.suppress(KeyboardInterrupt):
        session.run(steps)
    show(session)
    remark(summary_line([session.results.get(step.name) for step in steps], session.folder / LOG))
    return 0 if all(did_not_fail(session.results.get(step.name)) for step in steps) else 1


def did_not_fail(result: StepResult | None) -> bool:
    """Whether a step passed, was skipped by pytest, or was left out because too little time was left."""
    return result is not None and result.status in ("passed", "skipped", "left out")


def summary_line(results: Sequence[StepResult | None], log: Path) -> str:
    """The last line of the session: the number of steps that passed, and the name of every other step.

    Parameters
    ----------
    results : result of each step; None for a step that the session did not reach
    log : log file that the line names
    """
    reached = [result for result in results if result is not None]
    passed = sum(result.status == "passed" for result in reached)
    clauses = [f"{passed} of {len(results)} steps passed"]
    clauses += [f"{result.status}: {result.name}" for result in reached if result.status != "passed"]
    if missing := len(results) - len(reached):
        clauses.append(f"{missing} not reached")
    return f"{'; '.join(clauses)}; {log} has all"


if __name__ == "__main__":
    run_as_program(lambda: sys.exit(main(sys.argv[1:])))
