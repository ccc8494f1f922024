"""Inputs run one after another in a forked process under limits of time and memory, and the faults in how each ended.

The parent has imported what the commands import, so a process begins within milliseconds. A process runs many inputs,
because a fork costs more than most inputs. It ends early after a fault, and where an input left threads, processes or
much memory behind, so that an input meets nothing of the inputs before it but what the program itself keeps.
"""

import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import ceil
from multiprocessing import Pipe
from pathlib import Path

ALLOWED_STATUSES = (0, 1, 2, 130)
CPU_SECONDS = {"words": 25}
"""Limit of processor time by kind, on a core that adds 20 million numbers a second in a plain loop [s]; a slower core
has more. `FILE_CPU_SECONDS` holds where the input is a small file."""
FILE_CPU_SECONDS = 5
WALL_SECONDS = 60.0
MOST_BYTES = 2 << 30
KEPT_BYTES = 512 << 20
"""Memory that the inputs of one process may need before another process goes on [B]."""
MOST_LINE = 1500
"""Longest line of an error message, which echoes at most 200 characters of its input."""
TRACEBACK = re.compile(
    r"Traceback \(most recent|--debug shows where|Warning: |Fatal Python error|malloc|Exception ignored"
)
NOT_FINITE = re.compile(r"(?<![\w.])(nan|-?inf)(?![\w.])")
TEMPORARY = "tmp"
"""Name of the temporary folder of a process, beside the folder of its inputs."""
MEMORY = "/dev/shm"


@cache
def slowness():
    """How much slower this core is than that of the limits; at least 1. Processes that are forked later know it."""

    def loop_seconds():
        begin, total = time.process_time(), 0
        for number in range(1_000_000):
            total += number
        return time.process_time() - begin

    return max(1.0, 20 * min(loop_seconds() for _ in range(3)))


def cpu_limit(kind):
    """Limit of processor time for an input of this kind on this core [s]."""
    return ceil(CPU_SECONDS.get(kind, FILE_CPU_SECONDS) * slowness())


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Parameters
    ----------
    status : exit status; negative for a signal
    seconds : processor time [s]
    resident : most resident memory beyond the process's first [B]
    left : names of files that it left
    """

    status: int
    out: str
    err: str
    seconds: float
    resident: int
    left: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """How the input of a number ended.

    Parameters
    ----------
    kind : reader, or `words`
    faults : faults in words; none as a rule
    first : number of the first input of the same process
    """

    number: int
    kind: str
    faults: tuple[str, ...]
    ending: Ending
    first: int


def run_program():
    """The exit status of the program in this process."""
    from quadrille.cli.main import program

    return program()


def answers_of(inputs, numbers, program=run_program):
    """The answer of each input, in the order of the numbers.

    Parameters
    ----------
    inputs : function that returns the input of a number
    program : function that runs the words of `sys.argv` and returns an exit status
    """
    remaining = deque(numbers)
    while remaining:
        for answer in _answers_of_process(inputs, tuple(remaining), program):
            remaining.popleft()
            yield answer


def _answers_of_process(inputs, numbers, program):
    """The answers of the inputs that one process runs: of the first at least."""
    parent = Path(tempfile.mkdtemp(prefix="fuzz-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    folder = parent / "here"
    for path in (folder, parent / TEMPORARY):
        path.mkdir()
    outputs = [os.memfd_create(name) for name in ("out", "err")]
    receiver, sender = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        _run_and_send(inputs, numbers, program, folder, outputs, sender)
    sender.close()
    seconds = 0.0
    try:
        for number in numbers:
            if not receiver.poll(WALL_SECONDS):
                os.killpg(pid, signal.SIGKILL)
            try:
                answer, goes_on, seconds = receiver.recv()
            except (EOFError, ConnectionResetError):
                yield _answer_of_killed(inputs(number), number, numbers[0], pid, folder, outputs, seconds)
                return
            yield answer
            if not goes_on:
                return
    finally:
        _end(pid)
        receiver.close()
        for descriptor in outputs:
            os.close(descriptor)
        shutil.rmtree(parent, ignore_errors=True)


def _answer_of_killed(given, number, first, pid, folder, outputs, seconds_before):
    """The answer of the input during which the process ended."""
    _, code, usage = os.wait4(pid, 0)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ending = Ending(
        os.waitstatus_to_exitcode(code),
        *map(_text, outputs),
        usage.ru_utime + usage.ru_stime - seconds_before,
        max(0, usage.ru_maxrss - own) << 10,
        _left(folder, given),
    )
    return Answer(number, given.kind, tuple(faults_of(given, ending)), ending, first)


def _end(pid):
    """End a process and the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _run_and_send(inputs, numbers, program, folder, outputs, sender):
    """Run the inputs, send their answers, and end this process."""
    with suppress(BaseException):
        os.setsid()
        sys.unraisablehook = sys.__unraisablehook__
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["TMPDIR"], tempfile.tempdir = str(folder.parent / TEMPORARY), None
        variables, resident = dict(os.environ), _most_resident()
        for number in numbers:
            given = inputs(number)
            ending = _run(given, program, folder, outputs, resident)
            faults = tuple(faults_of(given, ending))
            goes_on = not faults and ending.resident < KEPT_BYTES and not _has_threads_or_children()
            sender.send((Answer(number, given.kind, faults, ending, numbers[0]), goes_on, _cpu_seconds()))
            if not goes_on:
                break
            if dict(os.environ) != variables:
                os.environ.clear()
                os.environ.update(variables)
    os._exit(0)


def _run(given, program, folder, outputs, resident):
    """The ending of a command in this process, in a folder with the files of its input only."""
    for name, content in given.files.items():
        (folder / name).write_bytes(content)
    os.chdir(folder)
    begin = _cpu_seconds()
    limit = cpu_limit(given.kind)
    resource.setrlimit(resource.RLIMIT_CPU, (int(begin) + limit + 1, resource.RLIM_INFINITY))
    for number, descriptor in enumerate(outputs, start=1):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.dup2(descriptor, number)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", closefd=False)
    sys.argv = ["quadrille", *given.words]
    status = _status(program)
    out, err = map(_text, outputs)
    left = _left(folder, given)
    for path in (*folder.iterdir(), *_beside(folder)):
        path.unlink() if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)
    return Ending(status, out, err, _cpu_seconds() - begin, max(0, _most_resident() - resident), left)


def _status(program):
    """The exit status of the program, whose streams are written out; what it raises is printed as Python prints it."""
    status = 1
    try:
        status = program() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    return status


def _text(descriptor):
    return os.pread(descriptor, 1 << 24, 0).decode(errors="replace")


def _left(folder, given):
    """The names of files that an input left in its folder, and beside it if its words named such a place."""
    beside = (f"../{path.name}" for path in _beside(folder))
    return (*sorted({path.name for path in folder.iterdir()} - set(given.files)), *sorted(beside))


def _beside(folder):
    return [path for path in folder.parent.iterdir() if path.name not in (folder.name, TEMPORARY)]


def _cpu_seconds():
    """The processor time of this process and of the processes that it waited for [s]."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _most_resident():
    """The most resident memory of this process up to now [B]."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _has_threads_or_children():
    """Whether an input left a thread of Python or a process."""
    with suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        return True
    return threading.active_count() > 1


def faults_of(given, ending):
    """The faults of an ending, in words; none as a rule."""
    faults = []
    limit = cpu_limit(given.kind)
    if ending.seconds >= limit or ending.status == -signal.SIGXCPU:
        faults.append(f"takes {ending.seconds:.0f} s of processor time (limit {limit})")
    elif ending.status == -signal.SIGKILL:
        faults.append(f"killed, as is done after {WALL_SECONDS:.0f} s")
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
