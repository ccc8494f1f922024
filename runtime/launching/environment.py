"""The launcher's command line, and the environment variables of the launcher and its ranks.

Ranks are not bound to cores, because bound ranks with several BLAS threads, or bound ranks of two jobs on one host,
would share the same cores. A speed difference was not found: two ranks on two cores of a shared machine, with eight
1200^3 float64 products each, take 0.43 and 0.41 s bound, and 0.54, 0.43, 0.41 and 0.42 s unbound.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import quadrille
from quadrille.runtime.host.world import LAUNCH, OPEN_MPI_LINKS
from quadrille.runtime.launching.mpirun import Mpi, allow_root, without_rank

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
HOST_OPTIONS = ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f", "-w")
ALLOCATIONS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "COBALT_JOBID")

SEGMENT_SIZE = "OMPI_MCA_btl_sm_segment_size"
SEGMENT_BYTES = 16 << 20
"""Size of a rank's segment of shared memory in Open MPI 4 and 5, unless `SEGMENT_SIZE` sets another [B]."""
LAUNCH_BYTES, REPORT_BYTES = 1 << 20, 1 << 16
"""Room for the launcher's files, and for those of each rank [B]."""


def launcher_words(launcher: Mpi, ranks: int, options: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The launcher's program and options; Open MPI also gets the names of the variables that it must forward."""
    forwarded: list[str] = []
    if launcher.vendor == "Open MPI" and several_hosts(options, environment):
        names = [LAUNCH, "PYTHONPATH", "QUADRILLE_DEBUG"]
        forwarded = [
            word for name in names if name in environment or name != "QUADRILLE_DEBUG" for word in ("-x", name)
        ]
    return [str(launcher.program), "-n", str(ranks), *forwarded, *options]


def several_hosts(options: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the ranks may be on several hosts: hosts are named, or a batch system allocated them.

    >>> several_hosts(["--host=a:2,b:2"], {}), several_hosts(["--map-by", "core"], {})
    (True, False)
    """
    named = any(option.partition("=")[0] in HOST_OPTIONS for option in options)
    return named or any(variable in environment for variable in ALLOCATIONS)


def rank_variables(
    ranks: int, command: Sequence[str], options: Sequence[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the ranks: `quadrille` importable, and BLAS threads that share the cores evenly.

    Over several hosts the runtime sets the number of threads, because only it knows how many ranks share a host.

    Parameters
    ----------
    ranks : number of ranks
    command : words of a Quadrille command, which may set --threads; empty if the ranks run another program
    options : options of the launcher
    environment : environment of this process
    """
    root = str(import_folder())
    variables = without_rank(environment)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    threads = threads_asked(command)
    if threads is None and not several_hosts(options, environment):
        threads = str(max(1, usable_cores() // ranks))
    if threads is not None:
        variables |= dict.fromkeys(THREAD_VARIABLES, threads)
    return variables


def launcher_variables(
    launcher: Mpi, ranks: int, options: Sequence[str], environment: Mapping[str, str], folder: str
) -> dict[str, str]:
    """The variables that Open MPI (4 and 5) reads; options on its command line override them.

    Other launchers ignore them. On one host, the Open MPI of this Python's environment is told to use no network but
    TCP: its search for other networks takes a second at every start. A site's own MPI keeps its defaults.
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
        variables[OPEN_MPI_LINKS] = environment.get(OPEN_MPI_LINKS, "self,sm,tcp")
    variables["OMPI_MCA_btl_sm_backing_directory"] = folder
    variables["OMPI_MCA_btl_vader_backing_directory"] = folder
    if ranks > usable_cores():
        variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
        variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return variables


def shared_memory_bytes(launcher: Mpi, ranks: int, options: Sequence[str], environment: Mapping[str, str]) -> int:
    """The most bytes that the files of a launch need on this host.

    Each rank has some progress reports and files of the launcher. If all ranks are here, each rank of Open MPI also has
    a segment of shared memory, which fills while messages wait in it.

    >>> shared_memory_bytes(Mpi("Open MPI", "5.0.11"), 4, [], {}) >> 20
    65
    >>> shared_memory_bytes(Mpi("Open MPI", "5.0.11"), 4, [], {"OMPI_MCA_btl": "self,tcp"}) >> 20
    1
    """
    own = LAUNCH_BYTES + ranks * REPORT_BYTES
    links = environment.get(OPEN_MPI_LINKS, "sm")
    is_named = bool({"sm", "vader"} & set(links.removeprefix("^").split(",")))
    if launcher.vendor != "Open MPI" or several_hosts(options, environment) or is_named == links.startswith("^"):
        return own
    size = environment.get(SEGMENT_SIZE, "")
    return own + ranks * (int(size) if size.isdecimal() else SEGMENT_BYTES)


def import_folder() -> Path:
    """The folder from which `quadrille` is imported: the clone (through its symbolic links) or site-packages."""
    return Path(quadrille.__file__).parent.resolve().parent


def threads_asked(command: Sequence[str]) -> str | None:
    """The value of --threads in a command; None without the flag.

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
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
