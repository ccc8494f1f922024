"""`make gpu-all`: everything that a GPU is needed for, in one command of some minutes on a machine with one.

python -m quadrille.studies.gpu.all_at_once FOLDER [--minutes M] [--commit TEXT] [--only NAME,…] [--tiny]

Each step (`steps.py`) is a process of its own with a limit of its own: one that hangs or crashes takes nothing from
the next.  After each, `summary.json` is written anew, and what steps print goes to `log.txt`, so that a killed
session leaves what it had.  The same command with the same folder goes on: steps that have passed are not run again.
The folder gets seven files at most.
"""

import argparse
import contextlib
import ctypes
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Group

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import ROOT, Provenance, provenance
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.output.tables import print_tables, table
from quadrille.runtime.host.console import remark, run_as_program
from quadrille.runtime.launching.supervise import PR_SET_PDEATHSIG, signal_group, signals_as_interrupts
from quadrille.studies.gpu import calibration
from quadrille.studies.gpu.calibration import Calibration
from quadrille.studies.gpu.parts import (
    CALIBRATION,
    EXECUTOR,
    GPU,
    RANKS,
    ExecutedRuns,
    GpuFacts,
    SharedRuns,
    driver_facts,
)
from quadrille.studies.gpu.parts import SCHEMA as PART_SCHEMA
from quadrille.studies.gpu.report import brief, calibration_tables, executed_table, shared_table
from quadrille.studies.gpu.steps import STEPS, SessionStep

SCHEMA = "quadrille/gpu-summary/1"
NEEDED = "device"
"""The step without which no other is run."""
SUMMARY, LOG = "summary.json", "log.txt"
MINUTES = 8.0
GRACE_SECONDS = 6.0
"""What a step gets to end its ranks after it was told to end."""
DETAIL_LINES = 40
"""Lines of the last output of a failed step that the summary keeps."""
OUTCOME = re.compile(r"^\S+\.py::(.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)

Status = Literal["passed", "failed", "timed out", "skipped", "left out"]


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a step.

    Parameters
    ----------
    status : `skipped`: all its tests were; `left out`: no time was left
    tests : outcome of each test, by its name and parameters
    detail : why it did not pass: the end of what it printed
    """

    name: str
    status: Status
    date: str
    seconds: float
    limit_seconds: float
    tests: dict[str, str] = {}
    detail: str = ""


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A session so far."""

    device: str
    provenance: Provenance = msgspec.field(name="made")
    steps: tuple[StepResult, ...] = ()


@dataclass
class Session:
    """A session in a folder.

    Parameters
    ----------
    options : command-line options of every part
    end : end of the session on the clock `now` [s]
    """

    folder: Path
    options: tuple[str, ...]
    end: float
    provenance: Provenance
    device: str
    now: Callable[[], float] = time.monotonic
    results: dict[str, StepResult] = field(default_factory=dict)

    def left(self) -> float:
        """Seconds until the end."""
        return self.end - self.now()

    def run(self, steps: Sequence[SessionStep]) -> None:
        """Run the steps that have not passed, and write the summary after each."""
        for step in steps:
            before = self.results.get(step.name)
            if before is None or before.status not in ("passed", "skipped"):
                self.results[step.name] = self.result(step)
                self.save()
            print(line_of(self.results[step.name], again=before is self.results[step.name]), flush=True)
            if step.name == NEEDED and self.results[step.name].status != "passed":
                return

    def result(self, step: SessionStep) -> StepResult:
        """The result of running a step now."""
        limit = min(step.limit_seconds, self.left())
        date, start, told = datetime.now(UTC).isoformat(timespec="seconds"), self.now(), ""
        status: Status = "left out"
        if limit >= min(step.least_seconds, step.limit_seconds):
            ended, told = run_step(step.words(str(self.folder), self.options), limit, self.folder / LOG)
            status = status_of(ended, told if step.is_test else "")
        return StepResult(
            name=step.name,
            status=status,
            date=date,
            seconds=round(self.now() - start, 2),
            limit_seconds=limit,
            tests=dict(OUTCOME.findall(told)) if step.is_test else {},
            detail="" if status == "passed" else "\n".join(told.splitlines()[-DETAIL_LINES:]),
        )

    def save(self) -> None:
        """Write the summary of the steps so far."""
        summary = SessionSummary(device=self.device, provenance=self.provenance, steps=tuple(self.results.values()))
        schema_files.write_json(self.folder / SUMMARY, summary, SCHEMA)


def status_of(ended: int | None, told: str) -> Status:
    """The status of a step by how its process ended (None: it was killed), and by its tests.

    >>> status_of(0, ""), status_of(1, ""), status_of(None, "")
    ('passed', 'failed', 'timed out')
    >>> status_of(0, "tests/test_gpu.py::test_of_nccl SKIPPED (no NCCL)")
    'skipped'
    """
    if ended is None:
        return "timed out"
    outcomes = {outcome for _, outcome in OUTCOME.findall(told)}
    return "failed" if ended else "skipped" if outcomes == {"SKIPPED"} else "passed"


def run_step(words: Sequence[str], limit_seconds: float, log: Path) -> tuple[int | None, str]:
    """Exit status of a process, None if it had to be killed, and what it printed, which goes to the log too."""
    libc = ctypes.CDLL(None)
    with log.open("ab") as written:
        written.write(f"\n$ {' '.join(words)}\n".encode())
        written.flush()
        start = written.tell()
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509 - no thread of ours runs
        )
        try:
            status = _awaited(process, limit_seconds)
        finally:
            _ended(process)
    return status, log.read_bytes()[start:].decode(errors="replace")


def _awaited(process: subprocess.Popen[bytes], limit_seconds: float) -> int | None:
    try:
        return process.wait(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        return None


def _ended(process: subprocess.Popen[bytes]) -> None:
    """The process and its group are told to end, with which its ranks end, and are killed if they do not."""
    if process.poll() is None:
        signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    signal_group(process.pid, signal.SIGKILL)
    process.wait()


def line_of(result: StepResult, *, again: bool = False) -> str:
    """One line about a step as it ends."""
    reason = reason_of(result.detail) if result.status in ("failed", "timed out") else ""
    words = [f"{result.status:10}", f"{result.seconds:6.1f} s", result.name, *([f"({reason})"] if reason else [])]
    return "  ".join([*words, "(earlier)"] if again else words)


def reason_of(detail: str) -> str:
    r"""The line that says most of what a step printed: that of the first test that failed, or the last one.

    >>> reason_of("E  assert 1 == 2\nFAILED a.py::test_b - assert 1 == 2\n=== 1 failed ===")
    'FAILED a.py::test_b - assert 1 == 2'
    """
    lines = [line for line in detail.splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return [*failed, *lines[-1:], ""][0]


def opened(folder: Path, provenance: Provenance, options: Sequence[str], minutes: float) -> Session:
    """The session of a folder, with the results of an earlier one on the same GPU.

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
    """Prints what parts have found and what became of every step."""
    print_tables(*found_tables(session.folder), steps_table(list(session.results.values())))


def found_tables(folder: Path) -> Iterator[Group]:
    """Tables of the parts that have results; `log.txt` has all rows."""
    if (path := folder / GPU).exists():
        facts = schema_files.read(path, GpuFacts, PART_SCHEMA)
        facts_of_run = {**facts.driver, **facts.versions, **facts.provenance.versions}
        yield table(facts.device, ["what", "it is"], [(name, str(value)) for name, value in facts_of_run.items()])
    if (path := folder / CALIBRATION).exists():
        yield from calibration_tables(brief(schema_files.read(path, Calibration, calibration.SCHEMA)))
    if (path := folder / EXECUTOR).exists():
        yield executed_table(schema_files.read(path, ExecutedRuns, PART_SCHEMA).runs)
    if (path := folder / RANKS).exists():
        yield shared_table(schema_files.read(path, SharedRuns, PART_SCHEMA).runs)


def steps_table(results: Sequence[StepResult]) -> Group:
    """A table of the steps, and for each test function the number of tests by outcome."""
    rows = [(result.name, result.status, _counts(result.tests), format_seconds(result.seconds)) for result in results]
    return table("Steps", ["step", "status", "tests", "time"], rows, names=3)


def _counts(tests: dict[str, str]) -> str:
    outcomes = list(tests.values())
    return ", ".join(f"{outcomes.count(word)} {word.lower()}" for word in dict.fromkeys(outcomes))


def chosen(names: str, steps: Sequence[SessionStep] = STEPS) -> list[SessionStep]:
    """The steps of these names, in the session's order; all where no name is given.

    >>> [step.name for step in chosen("streams,device")]
    ['device', 'streams']

    Raises
    ------
    InputError : a name that no step has
    """
    asked = names.split(",") if names else [step.name for step in steps]
    if unknown := set(asked) - {step.name for step in steps}:
        raise InputError(f"--only {names}: no step is called {', '.join(sorted(unknown))}")
    return [step for step in steps if step.name in asked]


def main(words: Sequence[str]) -> int:
    """Run the session and return its exit status: 0 if every step passed, otherwise 1."""
    parser = argparse.ArgumentParser(prog="gpu-all", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--commit", default="", help="of this tree, where git cannot tell")
    parser.add_argument("--only", default="", help="names of steps, with commas between them")
    parser.add_argument("--tiny", action="store_true", help="sizes for trying the session without a GPU")
    arguments = parser.parse_args(words)
    steps = chosen(arguments.only)
    more = {"commit": arguments.commit} if arguments.commit else {}
    options = [*(["--commit", arguments.commit] if arguments.commit else []), *(["--tiny"] if arguments.tiny else [])]
    origin = provenance(["python", "-m", "quadrille.studies.gpu.all_at_once", *words], **more)
    session = opened(arguments.folder, origin, options, arguments.minutes)
    with signals_as_interrupts(), contextlib.suppress(KeyboardInterrupt):
        session.run(steps)
    show(session)
    remark(verdict([session.results.get(step.name) for step in steps], session.folder / LOG))
    return 0 if all(is_well(session.results.get(step.name)) for step in steps) else 1


def is_well(result: StepResult | None) -> bool:
    """Whether a step ran and passed, or was left out for want of time."""
    return result is not None and result.status in ("passed", "skipped", "left out")


def verdict(results: Sequence[StepResult | None], log: Path) -> str:
    """One line that sums up the session.

    Parameters
    ----------
    results : result of each step; None for a step that the session did not reach
    """
    came = [result for result in results if result is not None]
    passed = sum(result.status == "passed" for result in came)
    words = [f"{passed} of {len(results)} steps passed"]
    words += [f"{result.status}: {result.name}" for result in came if result.status != "passed"]
    if missing := len(results) - len(came):
        words.append(f"{missing} not reached")
    return f"{'; '.join(words)}; {log} has all"


if __name__ == "__main__":
    run_as_program(lambda: sys.exit(main(sys.argv[1:])))
