"""One input run in a forked child under limits of time and memory, and the faults in how it ended.

The parent has imported what the commands import, so a child begins within milliseconds.
"""

import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ALLOWED_STATUSES = (0, 1, 2, 130)
CPU_SECONDS = {"words": 25}
"""Limit of processor time by kind; 5 s where the input is a small file."""
WALL_SECONDS = 60.0
MOST_BYTES = 2 << 30
MOST_LINE = 1500
"""Longest line of an error message, which echoes at most 200 characters of its input."""
TRACEBACK = re.compile(
    r"Traceback \(most recent|--debug shows where|Warning: |Fatal Python error|malloc|Exception ignored"
)
NOT_FINITE = re.compile(r"(?<![\w.])(nan|-?inf)(?![\w.])")


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Parameters
    ----------
    status : exit status; negative for a signal
    seconds : processor time [s]
    resident : most resident memory beyond the parent's [B]
    left : names of files that it left
    """

    status: int
    out: str
    err: str
    seconds: float
    resident: int
    left: tuple[str, ...]


def run_input(given):
    """The ending of a command in an empty folder with its files."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for name, content in given.files.items():
            (folder / name).write_bytes(content)
        outputs = Path(tempfile.mkdtemp(prefix="fuzz-out-"))
        limit = CPU_SECONDS.get(given.kind, 5)
        status, seconds, resident = run_words(given.words, folder, outputs, limit)
        left = tuple(sorted({path.name for path in folder.iterdir()} - set(given.files)))
        out, err = ((outputs / name).read_text(errors="replace") for name in ("out", "err"))
        return Ending(status, out, err, seconds, resident, left)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(UnboundLocalError):
            shutil.rmtree(outputs, ignore_errors=True)


def run_words(words, folder, outputs, cpu_seconds):
    """Exit status, processor seconds and added resident bytes of `quadrille` with these words in a folder."""
    pid = os.fork()
    if pid == 0:
        _child(words, folder, outputs, cpu_seconds)
    deadline = time.monotonic() + WALL_SECONDS
    while True:
        ended, code, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.002)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return os.waitstatus_to_exitcode(code), usage.ru_utime + usage.ru_stime, max(0, usage.ru_maxrss - own) << 10


def _child(words, folder, outputs, cpu_seconds):
    """Run the command and end this process."""
    os.setsid()
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(outputs / name, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w")
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w")
    sys.argv = ["quadrille", *words]
    from quadrille.cli.main import program

    status = 1
    try:
        status = program() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)


def faults_of(given, ending):
    """The faults of an ending, in words; none as a rule."""
    faults = []
    limit = CPU_SECONDS.get(given.kind, 5)
    if ending.seconds >= limit or ending.status in (-signal.SIGXCPU, -signal.SIGKILL):
        faults.append(f"takes {ending.seconds:.0f} s of processor time (limit {limit})")
    elif ending.status not in ALLOWED_STATUSES:
        faults.append(f"exit status {ending.status}")
    if TRACEBACK.search(ending.err):
        faults.append("raw exception or warning")
    if ending.resident > MOST_BYTES:
        faults.append(f"takes {ending.resident >> 20} MiB")
    if any(name.endswith((".partial", ".tmp")) or ending.status != 0 for name in ending.left):
        faults.append(f"leaves {', '.join(ending.left)}")
    ignored = given.kind in ("record", "timeline", "topology")  # these readers ignore some values
    if given.tainted and ending.status == 0 and (not ignored or NOT_FINITE.search(ending.out)):
        faults.append("accepts a NaN or an infinity")
    if ending.status == 2 and len(ending.err.strip().splitlines()) != 1:
        faults.append("refusal is not one line")
    if any(len(line) > MOST_LINE for line in ending.err.splitlines()):
        faults.append("line of an error is too long")
    return faults
