"""Supervision of the launcher: pass on its stderr, wait for its end, and end all its processes.

mpirun runs in its own session. The kernel tells it to end when this process dies. It is killed if it does not end soon
after a failure. At the end, every process that still carries the mark of the launch (`launch_folder.py`) is killed.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

from quadrille.runtime.launching.hang_detection import HangDetector
from quadrille.runtime.launching.launch_folder import processes_of_launch
from quadrille.runtime.launching.launcher_output import LauncherOutput

LOOK_SECONDS = 0.25
GRACE_SECONDS = 5.0
"""The time for mpirun to end by itself after a failure, or after SIGTERM [s]."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def supervise(
    words: Sequence[str],
    environment: Mapping[str, str],
    mark: str,
    detector: HangDetector,
) -> tuple[int | None, LauncherOutput]:
    """The launcher's exit status (None if interrupted) and its output. No process of the launch is left.

    Parameters
    ----------
    mark : folder of the launch, whose name all its processes carry
    detector : detector of ranks that hang; it is closed at the end
    """
    output = LauncherOutput()
    with signals_as_interrupts(), open_launcher(words, environment) as process:
        reader = threading.Thread(target=pass_on, args=(process, output), daemon=True)
        reader.start()
        status: int | None = None
        try:
            status = wait_for(process, output, detector)
        except KeyboardInterrupt:
            pass
        finally:
            end_all(process, mark)
        reader.join(GRACE_SECONDS)
    output.gone = detector.gone
    detector.close()
    return status, output


def open_launcher(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """The launcher, started in its own session; the kernel ends it if this process dies."""
    libc = ctypes.CDLL(None, use_errno=True)

    def end_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    sys.stdout.flush()
    return subprocess.Popen(
        list(words),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - no thread of ours runs yet
    )


def pass_on(process: subprocess.Popen[str], output: LauncherOutput) -> None:
    """Write the ranks' own lines to stderr as they arrive; their stdout is this process's."""
    assert process.stderr is not None
    for line in process.stderr:
        write_error("".join(output.feed(line)))
    write_error("".join(output.finish()))


def write_error(text: str) -> None:
    if text:
        sys.stderr.write(text)
        sys.stderr.flush()


def wait_for(process: subprocess.Popen[str], output: LauncherOutput, detector: HangDetector) -> int:
    """The launcher's exit status. After a failure or a hang, it gets some time to end and is then ended."""
    failed_at: float | None = None
    while True:
        detector.rest(LOOK_SECONDS, process)
        if (status := process.poll()) is not None:
            detector.rest(0.0, process)  # ranks that ended since
            return status
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
