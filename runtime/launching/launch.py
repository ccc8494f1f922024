"""`quadrille launch`: start the ranks of a command under the right mpirun, and end them all together.

How a rank's end is known: every rank runs under `mpi4py.run`, which turns an uncaught exception or a non-zero exit into
MPI_Abort, so no other rank waits for it in MPI_Finalize. The launcher (mpirun) then ends the job and reports on stderr
which rank failed and by which status or signal; `launcher_output.py` parses the report. Status files per rank do not
work: a killed rank cannot write one, and after a kill the other ranks have not written theirs either.

How nothing is left behind: `supervise.py` ends the launcher and every process that carries the name of the launch's
folder (`launch_folder.py`). Each rank asks the kernel to kill it when its mpirun dies.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from quadrille.algorithms.errors import InputError, RunError
from quadrille.runtime.host.console import INTERRUPTED
from quadrille.runtime.host.processes import PR_SET_PDEATHSIG
from quadrille.runtime.host.progress_reports import read_reports
from quadrille.runtime.host.world import LABORATORY, LAUNCH
from quadrille.runtime.launching.environment import (
    launcher_variables,
    launcher_words,
    rank_variables,
    several_hosts,
    shared_memory_bytes,
    usable_cores,
)
from quadrille.runtime.launching.exit_status import exit_status
from quadrille.runtime.launching.hang_detection import DEFAULT_LIMITS, HangDetector, NetworkDiagnosis, TimeLimits
from quadrille.runtime.launching.launch_folder import (
    folder_prefix,
    parent_folder,
    remove_abandoned,
    remove_partial_files,
)
from quadrille.runtime.launching.mpirun import find_launcher, loaded_mpi
from quadrille.runtime.launching.start_progress import StartProgress
from quadrille.runtime.launching.supervise import supervise

PROGRAM = ("-m", "quadrille")
END_WITH_MPIRUN = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); "
REPORT_START = END_WITH_MPIRUN + "from quadrille.runtime.host.progress_reports import report_start; report_start(); "
START_OF_RANK = REPORT_START + "from mpi4py.run import main; main()"
START_OF_PROGRAM = REPORT_START + "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
MOST_RANKS_A_CORE = 64
"""Most ranks per core; more are refused, because each takes about 60 MB and its share of the core."""


def launch(
    ranks: int,
    command: Sequence[str],
    launcher_options: Sequence[str] = (),
    *,
    program: Sequence[str] | None = PROGRAM,
    environment: Mapping[str, str] | None = None,
    starter: Sequence[str] = (),
    diagnose_network: NetworkDiagnosis = tuple,
    limits: TimeLimits = DEFAULT_LIMITS,
) -> int:
    """The exit status of `command` on `ranks` ranks: 0, 1 (it failed), 2 (wrong input) or 130 (interrupted).

    Parameters
    ----------
    ranks : number of processes
    command : words passed to each rank's program
    launcher_options : words passed to mpirun unchanged
    program : Python arguments that select what a rank runs; None if the command is a program of its own
    environment : environment variables; those of this process if not given
    starter : words that start mpirun somewhere else than in this process's namespace
    diagnose_network : returns visible network faults; called if no rank makes progress
    limits : times after which a launch without progress is ended

    Raises
    ------
    InputError : fewer than one rank; no MPI library; no mpirun, or only one of another MPI;
        launcher options that the launcher refuses; no room for the ranks' shared memory
    """
    if ranks < 1:
        raise InputError(f"-n {ranks}: the number of ranks is a whole number from 1")
    variables_here = {"HOME": home_folder()} | dict(os.environ if environment is None else environment)
    _check_rank_count(ranks, launcher_options, variables_here)
    launcher = find_launcher(loaded_mpi(variables_here), variables_here)
    remove_abandoned()
    parent = parent_folder(shared_memory_bytes(launcher, ranks, launcher_options, variables_here))
    with tempfile.TemporaryDirectory(prefix=folder_prefix(), dir=parent, ignore_cleanup_errors=True) as folder:
        own_words = command if program is not None else ()
        variables = rank_variables(ranks, own_words, launcher_options, variables_here) | {LAUNCH: folder}
        variables |= launcher_variables(launcher, ranks, launcher_options, variables_here, folder)
        words = launcher_words(launcher, ranks, launcher_options, variables_here)
        start = [START_OF_PROGRAM] if program is None else [START_OF_RANK, *program]
        rank = [sys.executable, "-P", "-c", *start, *command]
        here = _all_on_this_host(launcher_options, variables_here)
        detector = HangDetector(folder, ranks, diagnose_network, all_on_this_host=here, limits=limits)
        progress = StartProgress(folder, ranks, usable_cores(), shown=here and "--quiet" not in command)
        status, output = supervise([*starter, *words, *rank], variables, folder, detector, progress)
        reports = list(read_reports(folder))
        remove_partial_files(folder)
    return exit_status(status, output, launcher, launcher_options, reports, diagnose_network)


def home_folder() -> str:
    """The user's home folder where HOME is not set, because Open MPI does not start without HOME."""
    with suppress(RuntimeError):  # the user has no entry among the users of the host
        if (folder := Path.home()).is_dir():
            return str(folder)
    return tempfile.gettempdir()


def launch_or_raise(name: str, ranks: int, command: Sequence[str], *, program: Sequence[str] = PROGRAM) -> None:
    """Launch a command that must succeed, for a study of which it is a part.

    Raises
    ------
    InputError, RunError : the launch failed, by the kind of its exit status
    KeyboardInterrupt : the launch was interrupted
    """
    raise_for_status(name, launch(ranks, command, program=program))


def raise_for_status(name: str, status: int) -> None:
    """Raise the exception for a non-zero exit status, as `launch_or_raise` does."""
    if status == INTERRUPTED:
        raise KeyboardInterrupt(f"{name} was interrupted")
    if status:
        kind = InputError if status == InputError.exit_status else RunError
        raise kind(f"{name} ended with status {status}; the line above says why")


def _all_on_this_host(options: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this host runs all ranks; all hosts of an emulated network are this host."""
    return LABORATORY in environment or not several_hosts(options, environment)


def _check_rank_count(ranks: int, options: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse more ranks on this host than it can start."""
    most = MOST_RANKS_A_CORE * usable_cores()
    if ranks > most and _all_on_this_host(options, environment):
        remedy = "all hosts of a laboratory are this one" if LABORATORY in environment else "name more hosts"
        raise InputError(f"-n {ranks}: this host takes at most {most} ranks, {MOST_RANKS_A_CORE} a core; {remedy}")


def split_launcher_options(words: Sequence[str], commands: Sequence[str]) -> tuple[list[str], list[str]]:
    """The launcher's options and the command: all words before, and from, the first command name.

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
