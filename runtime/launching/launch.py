"""`quadrille launch`: start the ranks of a command under the right mpirun, and end them all together.

How a rank's fate is known.  Every rank runs under `mpi4py.run`, which turns an
uncaught exception or a non-zero exit into MPI_Abort, so that no other rank
waits for it in MPI_Finalize.  The launcher program (mpirun) then ends the job and
says on stderr which rank it was and by which status or signal; `launcher_output.py` reads
that.  A status file per rank was rejected: a killed rank cannot write one, and
after the killing every other rank has not written one either.

How nothing is left behind.  `supervise.py` ends the launcher and all that carries
the name of the launch's folder (`launch_folder.py`).  Each rank asks the kernel to
be killed when its mpirun dies.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence

from quadrille.algorithms.errors import InputError, RunError
from quadrille.runtime.host.progress_reports import every
from quadrille.runtime.host.world import LABORATORY, LAUNCH
from quadrille.runtime.launching.environment import (
    launcher_environment,
    launcher_words,
    rank_environment,
    several_hosts,
    usable_cores,
)
from quadrille.runtime.launching.exit_status import verdict
from quadrille.runtime.launching.hang_detection import NetworkDiagnosis
from quadrille.runtime.launching.interruption import INTERRUPTED
from quadrille.runtime.launching.launch_folder import (
    folder_prefix,
    memory_folder,
    remove_abandoned,
    remove_partial_files,
)
from quadrille.runtime.launching.mpirun import find_launcher, loaded_mpi
from quadrille.runtime.launching.supervise import PR_SET_PDEATHSIG, supervise

PROGRAM = ("-m", "quadrille")
END_WITH_MPIRUN = f"import ctypes; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); "
START_OF_RANK = END_WITH_MPIRUN + "from mpi4py.run import main; main()"
START_OF_PROGRAM = END_WITH_MPIRUN + "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
MOST_RANKS_A_CORE = 64
"""Ranks a core beyond which a host is refused: each takes some 60 MB and its turn."""


def launch(
    ranks: int,
    command: Sequence[str],
    launcher_options: Sequence[str] = (),
    *,
    program: Sequence[str] | None = PROGRAM,
    environment: Mapping[str, str] | None = None,
    starter: Sequence[str] = (),
    diagnose_network: NetworkDiagnosis = tuple,
) -> int:
    """Exit status of `command` on `ranks` ranks: 0, 1 (it failed), 2 (an input that cannot be) or 130 (interrupted).

    Parameters
    ----------
    ranks : number of processes
    command : words given to each rank's program
    launcher_options : words given to mpirun as they are
    program : how Python is told what a rank runs; None where the command is a program of its own
    environment : this process's environment if not given
    starter : words that start mpirun, where it does not run as this process does
    diagnose_network : what is wrong with the network, asked for where no rank comes any further

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
    with tempfile.TemporaryDirectory(prefix=folder_prefix(), dir=memory_folder(), ignore_cleanup_errors=True) as folder:
        own_words = command if program is not None else ()
        variables = rank_environment(ranks, own_words, launcher_options, surroundings) | {LAUNCH: folder}
        variables |= launcher_environment(launcher, ranks, launcher_options, surroundings, folder)
        words = launcher_words(launcher, ranks, launcher_options, surroundings)
        start = [START_OF_PROGRAM] if program is None else [START_OF_RANK, *program]
        rank = [sys.executable, "-P", "-c", *start, *command]
        status, output = supervise([*starter, *words, *rank], variables, folder, ranks, diagnose_network)
        ranks_told = list(every(folder))
        remove_partial_files(folder)
    return verdict(status, output, launcher, launcher_options, ranks_told)


def launch_or_raise(what: str, ranks: int, command: Sequence[str], *, program: Sequence[str] = PROGRAM) -> None:
    """A launch that must not fail, for a study of which it is a part.

    Raises
    ------
    InputError, RunError : what it was, in the kind of its exit status
    KeyboardInterrupt : it was interrupted
    """
    raise_for_status(what, launch(ranks, command, program=program))


def raise_for_status(what: str, status: int) -> None:
    """Raises what an exit status other than 0 stands for, as `launch_or_raise` does."""
    if status == INTERRUPTED:
        raise KeyboardInterrupt(f"{what} was interrupted")
    if status:
        kind = InputError if status == InputError.exit_status else RunError
        raise kind(f"{what} ended with status {status}; the line above says why")


def _check_crowd(ranks: int, options: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse so many ranks on this one host, which all hosts of a laboratory are, that starting them exhausts it."""
    most = MOST_RANKS_A_CORE * usable_cores()
    in_laboratory = LABORATORY in environment
    if ranks > most and (in_laboratory or not several_hosts(options, environment)):
        remedy = "all hosts of a laboratory are this one" if in_laboratory else "name more hosts"
        raise InputError(f"-n {ranks}: this host takes at most {most} ranks, {MOST_RANKS_A_CORE} a core; {remedy}")


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
