"""What a rank knows of its world: how many ranks there are, on which hosts, and how all of them end together."""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from quadrille.algorithms.errors import InputError, QuadrilleError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
RANK_VARIABLES = ("PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
LABORATORY = "QUADRILLE_LABORATORY"
"""In the environment: the name of the laboratory in which ranks run, all hosts of which are this machine."""
LAUNCH = "QUADRILLE_LAUNCH"
"""In the environment of all processes of a launch: its folder, on the host of the launcher."""
TURN_SECONDS = 0.5  # how long a rank leaves the word to rank 0


@dataclass(frozen=True, slots=True)
class ComputeHost:
    """A host, the ranks on it and the number of its cores that they may use.

    Parameters
    ----------
    sharing : ranks on these cores, those of other hosts too, where hosts share a machine; 0 for its own ranks

    >>> ComputeHost("node1", ranks=(0, 1, 2), cores=8).cores_per_rank
    2
    >>> ComputeHost("lab-host0", ranks=(0,), cores=8, sharing=4).cores_per_rank
    2
    """

    name: str
    ranks: tuple[int, ...]
    cores: int
    sharing: int = 0

    @property
    def cores_per_rank(self) -> int:
        """Cores for each rank when they share evenly, at least one."""
        return max(1, self.cores // (self.sharing or len(self.ranks)))


def world() -> "Intracomm":
    """All ranks; MPI is started by the first call."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def announced_size(environment: Mapping[str, str]) -> int:
    """Number of ranks, at least, that whoever started this process says there are; 1 if nobody says.

    The first of the launchers' variables counts, since it is of the
    innermost launcher.  A rank number above zero also tells of other ranks.

    >>> announced_size({"PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "1"})
    4
    >>> announced_size({"PMIX_RANK": "2"}), announced_size({})
    (3, 1)
    """
    for name in SIZE_VARIABLES:
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    for name in RANK_VARIABLES:
        if environment.get(name, "").isdecimal():
            return int(environment[name]) + 1
    return 1


def check_world(ranks: "Intracomm", environment: Mapping[str, str] | None = None) -> None:
    """Nothing, where the world is the one that the launcher started; every rank comes to the same conclusion.

    Parameters
    ----------
    ranks : all of them
    environment : this process's if not given

    Raises
    ------
    InputError : a world of one rank where the environment tells of more
    """
    announced = announced_size(os.environ if environment is None else environment)
    if ranks.size == 1 and announced > 1:
        raise InputError(
            f"the launcher started {announced} or more ranks, but MPI shows each of them a world of 1: two MPIs are "
            f"mixed; mpi4py loads {loaded_library()}, so start with its own mpirun, or with: quadrille launch -n P …"
        )


def mpi_allows_threads() -> bool:
    """Whether MPI may be called by several threads of a rank, in turn."""
    from mpi4py import MPI

    return bool(MPI.Query_thread() >= MPI.THREAD_SERIALIZED)


def loaded_library() -> str:
    """The MPI that mpi4py loaded, its vendor and version."""
    from mpi4py import MPI

    vendor, version = MPI.get_vendor()
    return f"{vendor} {'.'.join(map(str, version))}"


def fail_all(error: BaseException, *, communicator: "Intracomm | None" = None, debug: bool = False) -> NoReturn:
    """Print one line that names the rank, and end all ranks with the error's exit status.

    An input that cannot be is usually found by every rank: rank 0 has the first
    word then and needs no name, the others wait a moment to be ended by it.
    Of several ranks on a host that fail at once under `quadrille launch`, one speaks.
    A world of one rank ends by SystemExit, so that MPI prints no banner.

    Parameters
    ----------
    error : what went wrong; its `exit_status` if it is one of ours, else 1
    debug : also print the traceback
    """
    ranks = communicator or world()
    status = error.exit_status if isinstance(error, QuadrilleError) else 1
    if ranks.rank > 0 and isinstance(error, InputError):
        time.sleep(TURN_SECONDS)
    if is_first_to_report(os.environ.get(LAUNCH)):
        if debug:
            traceback.print_exception(error)
        print(failure_line(error, ranks.rank, ranks.size), file=sys.stderr)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    if ranks.size > 1:
        ranks.Abort(status)
    raise SystemExit(status)


def failure_line(error: BaseException, rank: int, size: int) -> str:
    """The line a failing rank prints.

    >>> failure_line(ValueError("bad"), 1, 4)
    'quadrille: rank 1 of 4: ValueError: bad'
    >>> failure_line(InputError("m=0: …"), 0, 4), failure_line(QuadrilleError("no result"), 0, 1)
    ('quadrille: m=0: …', 'quadrille: no result')
    """
    text = str(error) if isinstance(error, QuadrilleError) else f"{type(error).__name__}: {error}"
    text = " ".join(text.split())
    known_to_all = rank == 0 and isinstance(error, InputError)
    return f"quadrille: {text}" if size == 1 or known_to_all else f"quadrille: rank {rank} of {size}: {text}"


def is_first_to_report(folder: str | None) -> bool:
    """Whether this rank is the first of its launch to speak; always, where the launch has no folder here."""
    if folder is None:
        return True
    try:
        Path(folder, "failed").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def in_laboratory() -> bool:
    """Whether this rank runs in a laboratory, all hosts of which are this machine."""
    return LABORATORY in os.environ


def hosts(communicator: "Intracomm") -> tuple[ComputeHost, ...]:
    """The hosts of the ranks in the order of their first rank; all ranks call, all get the same."""
    from mpi4py import MPI

    mine = (MPI.Get_processor_name(), tuple(os.sched_getaffinity(0)))
    sharing = communicator.size if in_laboratory() else 0
    return grouped_by_host(communicator.allgather(mine), sharing)


def host_of(rank: int, among: Iterable[ComputeHost]) -> ComputeHost:
    """The host on which a rank is."""
    return next(host for host in among if rank in host.ranks)


def grouped_by_host(places: list[tuple[str, tuple[int, ...]]], sharing: int = 0) -> tuple[ComputeHost, ...]:
    """Hosts from each rank's host name and usable cores.

    >>> grouped_by_host([("a", (0,)), ("b", (0, 1)), ("a", (1,))])
    (Host(name='a', ranks=(0, 2), cores=2, sharing=0), Host(name='b', ranks=(1,), cores=2, sharing=0))
    """
    names = list(dict.fromkeys(name for name, _ in places))
    return tuple(
        ComputeHost(
            name,
            ranks=tuple(rank for rank, (where, _) in enumerate(places) if where == name),
            cores=len({core for where, cores in places if where == name for core in cores}),
            sharing=sharing,
        )
        for name in names
    )
