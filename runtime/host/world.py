"""The MPI world of a run: its ranks, their hosts, and the end of all ranks after a failure."""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from quadrille.algorithms.errors import InputError, QuadrilleError, shortened
from quadrille.algorithms.formats.atomic_files import is_private_folder

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
RANK_VARIABLES = ("PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
OPEN_MPI_LINKS = "OMPI_MCA_btl"
"""Environment variable of Open MPI: the kinds of connections between ranks."""
LABORATORY = "QUADRILLE_LABORATORY"
"""Environment variable: the name of the laboratory (emulated network of namespaces) in which the ranks run."""
LAUNCH = "QUADRILLE_LAUNCH"
"""Environment variable of all processes of a launch: the launch's folder on the launcher's host."""
REPORT_DELAY_SECONDS = 0.5  # how long other ranks wait for rank 0 to report a wrong input


@dataclass(frozen=True, slots=True)
class ComputeHost:
    """A host, its ranks, and the number of cores that they may use.

    Parameters
    ----------
    name : host name
    ranks : ranks on the host
    cores : number of cores that the ranks may use
    sharing : ranks on these cores, including the ranks of other emulated hosts; 0 if only the host's own ranks use them

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
        """The cores of each rank if all share evenly, at least 1."""
        return max(1, self.cores // (self.sharing or len(self.ranks)))


def world() -> "Intracomm":
    """The communicator of all ranks; the first call initialises MPI.

    In a process that no launcher started, Open MPI makes no connection: it would look for networks for a second, and
    make a file of shared memory that stays in /dev/shm if the process is killed.
    """
    launched = any(name in os.environ for name in (*SIZE_VARIABLES, *RANK_VARIABLES))
    unlaunched = not launched and OPEN_MPI_LINKS not in os.environ
    if unlaunched:
        os.environ[OPEN_MPI_LINKS] = "self"
    try:
        from mpi4py import MPI
    finally:
        if unlaunched:
            del os.environ[OPEN_MPI_LINKS]  # not for ranks that this process may start
    return MPI.COMM_WORLD


def announced_rank(environment: Mapping[str, str]) -> int | None:
    """The number of this rank, from the launcher's environment variables, before MPI starts; None without a launcher.

    >>> announced_rank({"PMIX_RANK": "2"}), announced_rank({})
    (2, None)
    """
    return next((int(environment[name]) for name in RANK_VARIABLES if environment.get(name, "").isdecimal()), None)


def announced_size(environment: Mapping[str, str]) -> int:
    """The number of ranks, at least, that the launcher announces in the environment; 1 without a launcher.

    The first variable of the list counts, because it comes from the innermost launcher. A rank number above 0 also
    announces other ranks.

    >>> announced_size({"PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "1"})
    4
    >>> announced_size({"PMIX_RANK": "2"}), announced_size({})
    (3, 1)
    """
    for name in SIZE_VARIABLES:
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    return (announced_rank(environment) or 0) + 1


def check_world(ranks: "Intracomm", environment: Mapping[str, str] | None = None) -> None:
    """Check that the world is the one that the launcher started; every rank reaches the same conclusion.

    Parameters
    ----------
    ranks : communicator of all ranks
    environment : environment variables; those of this process if not given

    Raises
    ------
    InputError : a world of one rank where the environment announces more
    """
    announced = announced_size(os.environ if environment is None else environment)
    if ranks.size == 1 and announced > 1:
        raise InputError(
            f"the launcher started {announced} or more ranks, but MPI shows each of them a world of 1: two MPIs are "
            f"mixed; mpi4py loads {loaded_library()}, so start with its own mpirun, or with: quadrille launch -n P …"
        )


def mpi_allows_threads() -> bool:
    """Whether several threads of a rank may call MPI, one at a time."""
    from mpi4py import MPI

    return bool(MPI.Query_thread() >= MPI.THREAD_SERIALIZED)


def loaded_library() -> str:
    """The vendor and version of the MPI that mpi4py loaded."""
    from mpi4py import MPI

    vendor, version = MPI.get_vendor()
    return f"{vendor} {'.'.join(map(str, version))}"


def run_rank(main: Callable[..., None]) -> None:
    """Run a rank's main function with the arguments of its command line; an error ends all ranks."""
    try:
        main(*sys.argv[1:])
    except Exception as error:  # noqa: BLE001 - the last place of a rank that can end all ranks
        fail_all(error)


def fail_all(error: BaseException, *, communicator: "Intracomm | None" = None, debug: bool = False) -> NoReturn:
    """Print one line that names the rank, and end all ranks with the error's exit status.

    Usually every rank finds a wrong input. Then rank 0 reports it, without its name, and the other ranks wait a moment
    to be ended by rank 0. If several ranks of a host fail at once under `quadrille launch`, only the first one reports.
    A world of one rank ends by SystemExit, so MPI prints no banner.

    Parameters
    ----------
    error : exception; its `exit_status` if it is a Quadrille error, else 1
    debug : whether to print the traceback too
    """
    ranks = communicator or world()
    status = error.exit_status if isinstance(error, QuadrilleError) else 1
    if ranks.rank > 0 and isinstance(error, InputError):
        time.sleep(REPORT_DELAY_SECONDS)
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
    """The line that a failing rank prints.

    >>> failure_line(ValueError("bad"), 1, 4)
    'quadrille: rank 1 of 4: ValueError: bad'
    >>> failure_line(InputError("m=0: …"), 0, 4), failure_line(QuadrilleError("no result"), 0, 1)
    ('quadrille: m=0: …', 'quadrille: no result')
    """
    text = str(error) if isinstance(error, QuadrilleError) else f"{type(error).__name__}: {error}"
    text = shortened(" ".join(text.split()))
    known_to_all = rank == 0 and isinstance(error, InputError)
    return f"quadrille: {text}" if size == 1 or known_to_all else f"quadrille: rank {rank} of {size}: {text}"


def is_first_to_report(folder: str | None) -> bool:
    """Whether this rank is the first of its launch to report a failure; always true without a launch folder here."""
    if folder is None or not is_private_folder(folder):
        return True
    try:
        Path(folder, "failed").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def in_laboratory() -> bool:
    """Whether this rank runs in an emulated network, whose hosts are all this machine."""
    return LABORATORY in os.environ


def hosts(communicator: "Intracomm") -> tuple[ComputeHost, ...]:
    """The hosts of all ranks, in the order of their first ranks; a collective call."""
    from mpi4py import MPI

    own_place = (MPI.Get_processor_name(), tuple(os.sched_getaffinity(0)))
    sharing = communicator.size if in_laboratory() else 0
    return grouped_by_host(communicator.allgather(own_place), sharing)


def host_of(rank: int, among: Iterable[ComputeHost]) -> ComputeHost:
    """The host of a rank."""
    return next(host for host in among if rank in host.ranks)


def grouped_by_host(places: list[tuple[str, tuple[int, ...]]], sharing: int = 0) -> tuple[ComputeHost, ...]:
    """The hosts, from each rank's host name and usable cores.

    >>> grouped_by_host([("a", (0,)), ("b", (0, 1)), ("a", (1,))])
    (ComputeHost(name='a', ranks=(0, 2), cores=2, sharing=0), ComputeHost(name='b', ranks=(1,), cores=2, sharing=0))
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
