"""Supervision of the launcher: pass on its stdout and stderr, wait for its end, and end all its processes.

mpirun runs in its own session. The kernel tells it to end when this process dies. It is killed if it does not end soon
after a failure. At the end, every process that still carries the mark of the launch (`launch_folder.py`) is killed.
"""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import FrameType

from quadrille.algorithms.errors import RunError
from quadrille.runtime.host.processes import end_with_parent
from quadrille.runtime.launching.hang_detection import HangDetector
from quadrille.runtime.launching.launch_folder import processes_of_launch
from quadrille.runtime.launching.launcher_output import LauncherOutput
from quadrille.runtime.launching.start_progress import StartProgress

LOOK_SECONDS = 0.25
BLOCK_BYTES = 1 << 16
STDOUT = 1
"""The file descriptor of stdout."""
GRACE_SECONDS = 5.0
"""The time for mpirun to end by itself after a failure, or after SIGTERM [s]."""


def supervise(
    words: Sequence[str],
    environment: Mapping[str, str],
    mark: str,
    detector: HangDetector,
    progress: StartProgress,
) -> tuple[int | None, LauncherOutput]:
    """The launcher's exit status (None if interrupted) and its output. No process of the launch is left.

    Parameters
    ----------
    mark : folder of the launch, whose name all its processes carry
    detector : detector of ranks that hang; it is closed at the end
    progress : progress line, until a rank works or prints

    Raises
    ------
    BrokenPipeError : the reader of stdout has gone
    RunError : the ranks ended well, but stdout could not be written, as on a full disk
    """
    output = LauncherOutput()
    with signals_as_interrupts(), open_launcher(words, environment) as process:
        readers = [
            threading.Thread(target=relay, args=(process, output, progress), daemon=True)
            for relay in (pass_on, pass_stdout)
        ]
        for reader in readers:
            reader.start()
        status: int | None = None
        try:
            status = wait_for(process, output, detector, progress)
        except KeyboardInterrupt:
            pass
        finally:
            progress.end()
            end_all(process, mark)
        for reader in readers:
            reader.join(GRACE_SECONDS)
    output.gone = detector.gone
    detector.close()
    if isinstance(output.stdout_error, BrokenPipeError):
        raise output.stdout_error
    if status == 0 and output.stdout_error is not None:
        raise RunError(f"stdout cannot be written: {output.stdout_error.strerror}")
    return status, output


def open_launcher(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """The launcher, started in its own session; the kernel ends it if this process dies."""
    sys.stdout.flush()
    return subprocess.Popen(
        list(words),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - no thread of ours runs yet
    )


def pass_on(process: subprocess.Popen[str], output: LauncherOutput, progress: StartProgress) -> None:
    """Write the ranks' own lines to stderr as they arrive."""
    assert process.stderr is not None
    for line in process.stderr:
        if lines := output.feed(line):
            progress.end()
            write_error("".join(lines))
    write_error("".join(output.finish()))


def pass_stdout(process: subprocess.Popen[str], output: LauncherOutput, progress: StartProgress) -> None:
    """Write the ranks' stdout as it arrives; after the first error the rest is read and dropped, so no rank waits.

    A remark of the launcher that comes before anything else is kept with those on its stderr.
    """
    assert process.stdout is not None
    is_first = True
    while block := os.read(process.stdout.fileno(), BLOCK_BYTES):
        if is_first and output.keep_remark(block.decode(errors="replace")):
            continue
        is_first = False
        progress.end()
        try:
            if output.stdout_error is None:
                write_whole(block)
        except OSError as error:
            output.stdout_error = error


def write_whole(block: bytes) -> None:
    """Write a block to the process's stdout.

    Raises
    ------
    OSError : stdout is closed, its disk is full or its reader has gone
    """
    if sys.__stdout__ is None:  # file descriptor 1 may belong to another file
        raise OSError(errno.EBADF, "it is closed")
    while block:
        block = block[os.write(STDOUT, block) :]


def write_error(text: str) -> None:
    if text:
        sys.stderr.write(text)
        sys.stderr.flush()


def wait_for(
    process: subprocess.Popen[str], output: LauncherOutput, detector: HangDetector, progress: StartProgress
) -> int:
    """The launcher's exit status. After a failure or a hang, it gets some time to end and is then ended."""
    failed_at: float | None = None
    while True:
        progress.look()
        detector.rest(LOOK_SECONDS, process)
        if (status := process.poll()) is not None:
            detector.rest(0.0, process)  # ranks that ended since
            return status
        if isinstance(output.stdout_error, BrokenPipeError):
            return 1
        if output.failure is None:
            output.hang = detector.seen()
            if output.hang:
                return 1
            continue
        failed_at = failed_at or time.monotonic()
        if time.monotonic() - failed_at > GRACE_SECONDS:
            return 1


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """A context in which TERM and HUP end a launch as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_all(process: subprocess.Popen[str], mark: str) -> None:
    """End the launcher, its process group, and every process on this host that carries `mark`."""
    if process.poll() is None:
        signal_group(process.pid, signal.SIGTERM)
        signal_group(process.pid, signal.SIGCONT)  # a stopped launcher would not notice
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    signal_group(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := processes_of_launch(mark)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    process.wait()


def signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
