"""`quadrille launch`: start the ranks of a command under the right mpirun, and end them all together.

How a rank's fate is known.  Every rank runs under `mpi4py.run`, which turns an
uncaught exception or a non-zero exit into MPI_Abort, so that no other rank
waits for it in MPI_Finalize.  The launcher program (mpirun) then ends the job and
says on stderr which rank it was and by which status or signal; `chatter.py` reads
that.  A status file per rank was rejected: a killed rank cannot write one, and
after the killing every other rank has not written one either.

How nothing is left behind.  mpirun runs in a session of its own, is told to end
when this process dies, and is killed if it does not end soon after a failure.
Each rank asks the kernel to be killed when its mpirun dies.
All processes of one launch carry the name of its temporary folder in their
environment (`QUADRILLE_LAUNCH`); whatever still carries it at the end is killed.

Ranks are bound to no core.  Two ranks on two cores, eight 1200^3 float64 products
each, on a machine that others were using: bound to a core each 0.43 and 0.41 s,
unbound 0.54, 0.43, 0.41 and 0.42 s; too few runs to show a difference.  What decides
is that bound ranks with several BLAS threads, or of two jobs on one host, would
share the same cores.
"""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType

from algorithms.errors import InputError, RunError
from studies.launching.chatter import Chatter, Failure, signal_name
from studies.launching.mpirun import Mpi, allow_root, find_launcher, loaded_mpi, without_rank

MARK = "QUADRILLE_LAUNCH"
PARTIAL_FILES = "partial files"
"""In the folder of a launch: paths of the files that its ranks are writing, a NUL between two."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells give it."""
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
HOST_OPTIONS = ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f", "-w")
ALLOCATIONS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "COBALT_JOBID")
PROGRAM = ("-m", "studies.command_line")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made in it has a name of its own
LAST_SIGNAL = 64
GRACE_SECONDS = 5.0  # what mpirun gets to end by itself, after a failure and after being told to
PR_SET_PDEATHSIG = 1  # linux/prctl.h
START_OF_RANK = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); " + (
    "from mpi4py.run import main; main()"
)
MOST_RANKS_A_CORE = 64
"""Ranks a core beyond which a host is refused: each takes some 60 MB and its turn."""


def launch(
    ranks: int,
    command: Sequence[str],
    launcher_options: Sequence[str] = (),
    *,
    program: Sequence[str] = PROGRAM,
    environment: Mapping[str, str] | None = None,
    starter: Sequence[str] = (),
) -> int:
    """Exit status of `command` on `ranks` ranks: 0, 1 (it failed), 2 (an input that cannot be) or 130 (interrupted).

    Parameters
    ----------
    ranks : number of processes
    command : words given to each rank's program
    launcher_options : words given to mpirun as they are
    program : how Python is told what a rank runs
    environment : this process's environment if not given
    starter : words that start mpirun, where it does not run as this process does

    Raises
    ------
    InputError : fewer than one rank; no MPI library; no mpirun, or only one of another MPI;
        launcher options that the launcher refuses
    """
    if ranks < 1:
        raise InputError(f"-n {ranks}: the number of ranks is a whole number from 1")
    surroundings = dict(os.environ if environment is None else environment)
    _check_crowd(ranks, launcher_options, surroundings)
    launcher = find_launcher(loaded_mpi(surroundings), surroundings)
    remove_abandoned()
    prefix = f"quadrille-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=memory_folder(), ignore_cleanup_errors=True) as folder:
        variables = rank_environment(ranks, command, launcher_options, surroundings) | {MARK: folder}
        variables |= launcher_environment(launcher, ranks, launcher_options, surroundings, folder)
        words = launcher_words(launcher, ranks, launcher_options, surroundings)
        rank = [sys.executable, "-P", "-c", START_OF_RANK, *program, *command]
        status, chatter = supervise([*starter, *words, *rank], variables, folder)
        remove_partial_files(folder)
    return verdict(status, chatter, launcher, launcher_options)


def launch_all(what: str, ranks: int, command: Sequence[str], *, program: Sequence[str] = PROGRAM) -> None:
    """A launch that must not fail, for a study of which it is a part.

    Raises
    ------
    InputError, RunError : what it was, in the kind of its exit status
    KeyboardInterrupt : it was interrupted
    """
    status = launch(ranks, command, program=program)
    if status == INTERRUPTED:
        raise KeyboardInterrupt(f"{what} was interrupted")
    if status:
        kind = InputError if status == InputError.exit_status else RunError
        raise kind(f"{what} ended with status {status}; the line above says why")


def _check_crowd(ranks: int, options: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse so many ranks on this one host that starting them would exhaust it."""
    most = MOST_RANKS_A_CORE * len(os.sched_getaffinity(0))
    if ranks > most and not several_hosts(options, environment):
        raise InputError(
            f"-n {ranks}: this host takes at most {most} ranks, {MOST_RANKS_A_CORE} a core; name more hosts"
        )


def split_launcher_options(words: Sequence[str], commands: Sequence[str]) -> tuple[list[str], list[str]]:
    """The launcher's options and the command: all words before and from the first name of a command.

    >>> split_launcher_options(["--map-by", "core", "run", "--seed", "1"], ["run", "calibrate"])
    (['--map-by', 'core'], ['run', '--seed', '1'])

    Raises
    ------
    InputError : no word is a command
    """
    for position, word in enumerate(words):
        if word in commands:
            return list(words[:position]), list(words[position:])
    raise InputError(f"launch: none of the words {' '.join(words)!r} is a command; it takes {', '.join(commands)}")


# What it is told


def launcher_words(launcher: Mpi, ranks: int, options: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The launcher's program and its options; Open MPI must be told what to carry to other hosts."""
    carried: list[str] = []
    if launcher.vendor == "Open MPI" and several_hosts(options, environment):
        names = [MARK, "PYTHONPATH", "QUADRILLE_DEBUG"]
        carried = [word for name in names if name in environment or name != "QUADRILLE_DEBUG" for word in ("-x", name)]
    return [str(launcher.program), "-n", str(ranks), *carried, *options]


def several_hosts(options: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the ranks may be spread over hosts: hosts are named, or a batch system gave them.

    >>> several_hosts(["--host=a:2,b:2"], {}), several_hosts(["--map-by", "core"], {})
    (True, False)
    """
    named = any(option.partition("=")[0] in HOST_OPTIONS for option in options)
    return named or any(variable in environment for variable in ALLOCATIONS)


def rank_environment(
    ranks: int, command: Sequence[str], options: Sequence[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the ranks: this project importable, and BLAS threads that share the cores.

    Over several hosts the number of threads is left to the runtime, which
    knows how many ranks share a host.
    """
    root = str(Path(__file__).resolve().parents[2])
    variables = without_rank(environment)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    threads = threads_asked(command)
    if threads is None and not several_hosts(options, environment):
        threads = str(max(1, usable_cores() // ranks))
    if threads is not None:
        variables |= dict.fromkeys(THREAD_VARIABLES, threads)
    return variables


def launcher_environment(
    launcher: Mpi, ranks: int, options: Sequence[str], environment: Mapping[str, str], folder: str
) -> dict[str, str]:
    """What Open MPI (4 and 5) reads from the environment; options on its command line go before.

    Other launchers do not look at these.  On one host, the Open MPI of this
    Python's environment is told to look at no network but TCP: looking for
    others costs a second at every start.  A site's own MPI keeps its defaults.
    """
    variables = allow_root() | {
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_prte_tmpdir_base": folder,
        "OMPI_MCA_orte_tmpdir_base": folder,
    }
    if several_hosts(options, environment):
        return variables
    if launcher.program is not None and launcher.program.parent == Path(sys.executable).parent:
        variables["OMPI_MCA_btl"] = environment.get("OMPI_MCA_btl", "self,sm,tcp")
    if memory_folder() is not None:
        variables["OMPI_MCA_btl_sm_backing_directory"] = folder
        variables["OMPI_MCA_btl_vader_backing_directory"] = folder
    if ranks > usable_cores():
        variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return variables


def memory_folder() -> str | None:
    """Where shared memory is kept as files; None (the usual place for temporary files) if there is none.

    Killed ranks leave their segments of shared memory behind, so these are
    made in the launch's own folder, which is removed with all that is in it.
    """
    return str(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK) else None


def remove_abandoned() -> None:
    """Remove the folders of launches that were killed before they could do it; nobody else would free their memory."""
    for folder in SHARED_MEMORY.glob("quadrille-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdecimal() and not Path("/proc", owner).exists() and not marked_processes(str(folder)):
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == os.geteuid():
                    remove_partial_files(str(folder))
                    shutil.rmtree(folder)


def note_partial_files(folder: str | None, paths: Sequence[Path]) -> None:
    """Have the launch whose folder this is remove these files at its end, should no rank live to do it.

    Nothing is noted outside a launch, or on another host than the launcher's.
    """
    if folder and Path(folder).is_dir():
        Path(folder, PARTIAL_FILES).write_text("\0".join(map(str, paths)))


def remove_partial_files(folder: str) -> None:
    """Remove what killed ranks left of the files they were writing; a finished file has another name."""
    with contextlib.suppress(OSError):
        for path in filter(None, Path(folder, PARTIAL_FILES).read_text().split("\0")):
            Path(path).unlink(missing_ok=True)


def threads_asked(command: Sequence[str]) -> str | None:
    """The number of threads that a command asks for, if it is one.

    >>> threads_asked(["run", "--threads", "2"]), threads_asked(["run", "--threads=3"]), threads_asked(["run"])
    ('2', '3', None)
    """
    for word, following in pairwise([*command, ""]):
        name, _, joined = word.partition("=")
        value = joined or following
        if name == "--threads" and value.isdecimal() and int(value) > 0:
            return value
    return None


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


# Running it


def supervise(words: Sequence[str], environment: Mapping[str, str], mark: str) -> tuple[int | None, Chatter]:
    """The launcher's exit status (None: interrupted) and what it said; no process of it is left."""
    chatter = Chatter()
    with ended_by_signals(), open_launcher(words, environment) as process:
        reader = threading.Thread(target=pass_on, args=(process, chatter), daemon=True)
        reader.start()
        status: int | None = None
        try:
            status = wait_for(process, chatter)
        except KeyboardInterrupt:
            pass
        finally:
            end_all(process, mark)
        reader.join(GRACE_SECONDS)
    return status, chatter


def open_launcher(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """The launcher, started in a session of its own; it is told to end if this process dies."""
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


def pass_on(process: subprocess.Popen[str], chatter: Chatter) -> None:
    """Write the ranks' own lines to stderr as they come (their stdout is this process's)."""
    assert process.stderr is not None
    for line in process.stderr:
        write_error("".join(chatter.feed(line)))
    write_error("".join(chatter.finish()))


def write_error(text: str) -> None:
    if text:
        sys.stderr.write(text)
        sys.stderr.flush()


def wait_for(process: subprocess.Popen[str], chatter: Chatter) -> int:
    """The launcher's exit status; after a failure it gets a while to end, and is then ended."""
    failed_at: float | None = None
    while True:
        try:
            return process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            if chatter.failure is None:
                continue
        failed_at = failed_at or time.monotonic()
        if time.monotonic() - failed_at > GRACE_SECONDS:
            return 1


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """TERM and HUP end a launch as Ctrl-C does."""

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
    """End the launcher, its group, and every process on this host that carries `mark`."""
    if process.poll() is None:
        signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    signal_group(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := marked_processes(mark)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    process.wait()


def signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def marked_processes(mark: str) -> list[int]:
    """Processes of this host whose environment says that they belong to the launch `mark`."""
    wanted = f"{MARK}={mark}\0".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


# What came of it


def verdict(status: int | None, chatter: Chatter, launcher: Mpi, options: Sequence[str]) -> int:
    """Our exit status; a line is written if the ranks left none that says why, unless the user interrupted them.

    Raises
    ------
    InputError : the launcher refused its options, no rank ran
    """
    if status is None:
        return INTERRUPTED
    if status == 0:
        return 0
    if status < 0:
        write_error(
            f"quadrille: {launcher} was killed by signal {-status} ({signal_name(-status)}); all ranks were ended\n"
        )
        return 1
    failure = chatter.failure or failure_of_status(status, chatter)
    if failure is None:
        raise InputError(f"{launcher} did not start the ranks{options_named(options)}: {reason_in(status, chatter)}")
    if not explained(failure, chatter):
        write_error(f"quadrille: {failure.line()}\n")
    return 2 if failure.status == 2 else 1


def failure_of_status(status: int, chatter: Chatter) -> Failure | None:
    """The failure behind an exit status that no remark explains; None if the launcher itself refused."""
    if status > 128 + LAST_SIGNAL or (chatter.remarks and not chatter.passed):
        return None
    return Failure(signal=status - 128) if status > 128 else Failure(status=status)


def explained(failure: Failure, chatter: Chatter) -> bool:
    """Whether the ranks' own lines say what happened: any for a refused input, else one that names the rank."""
    if failure.signal is not None:
        return False
    if failure.status == 2:
        return bool(chatter.passed)
    return any(f"rank {failure.rank}" in line for line in chatter.passed)


def options_named(options: Sequence[str]) -> str:
    return f" with options {' '.join(options)!r}" if options else ""


def reason_in(status: int, chatter: Chatter) -> str:
    """The launcher's remarks as one line: the first paragraph, and the option it names."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", "\n\n".join(chatter.remarks))]
    return " ".join(paragraphs[:2]) or f"it ended with exit status {status}"
